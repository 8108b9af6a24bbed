"""What a replay is asked for and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.caches import OVERSIZE
from prefixhash.trace.capacity import parse_capacity
from prefixhash.trace.checks import blocks_or_inf, instance_of, items_of, names_of
from prefixhash.trace.definitions import DEFINITIONS, HEADLINE, find_definition
from prefixhash.trace.holding import Speed
from prefixhash.trace.levels import LEVELS
from prefixhash.trace.metering import Meter
from prefixhash.trace.policies import (
    DEFAULT_POLICY,
    POLICIES,
    TAIL_FIRST,
    find_policy,
    is_head_first,
)
from prefixhash.trace.survey import Survey
from prefixhash.trace.warmup import parse_warmup

DEFAULT_CAPACITIES = ("1%", "5%", "10%", "25%", "50%", "inf")


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay; see `replay` for the meaning of each. Raises `InvalidArgumentError`."""

    capacities: tuple[str | float, ...] = DEFAULT_CAPACITIES
    policies: tuple[str, ...] = (DEFAULT_POLICY,)
    counts: tuple[str, ...] = (HEADLINE,)
    order: str = TAIL_FIRST
    by_ids: bool = False
    block_size: int | None = None
    concurrency: int = 1
    timed: bool = False
    speed: Speed = field(default_factory=Speed)
    warmup: str | int = 0
    commit_output: bool = False
    oversize: str = OVERSIZE[0]
    bytes_per_block: int | None = None

    def __post_init__(self) -> None:
        capacities = _arguments.sequence("capacities", self.capacities, "a list of sizes")
        if not capacities:
            raise InvalidArgumentError("capacities", capacities, "must name at least one")
        for value in capacities:
            parse_capacity(value)
        self._set("capacities", capacities)
        self._set("policies", names_of("policies", self.policies))
        self._set("counts", names_of("counts", self.counts))
        for count in self.counts:
            find_definition(count)
        is_head_first(self.order)
        for name in ("by_ids", "timed", "commit_output"):
            self._set(name, _arguments.flag(name, getattr(self, name)))
        for name in ("block_size", "bytes_per_block"):
            self._set(name, _arguments.optional_integer(name, getattr(self, name), 1))
        self._set("concurrency", _arguments.integer("concurrency", self.concurrency, 1))
        instance_of("speed", self.speed, Speed)
        parse_warmup(self.warmup)
        _arguments.choice("oversize", self.oversize, OVERSIZE)
        self._check_policies()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_policies(self) -> None:
        others = [name for name in self.policies if not find_policy(name).in_pool]
        if others and (self.timed or self.concurrency > 1 or self.commit_output):
            held = " or ".join(policy.name for policy in POLICIES.values() if policy.in_pool)
            problem = f"holds no blocks: concurrency, timed and output need {held}"
            raise InvalidArgumentError("policy", others[0], problem)


@dataclass
class ReplayResult:
    """One policy at one capacity, counted by one definition.

    `capacity` is in blocks of `block_size` tokens (`math.inf`: unbounded); `level` tells what ran:
    `engine` (tokens hashed, looked up, allocated, committed, freed), `pool` (the engine's pool with
    the trace's ids as hashes) or `cache` (a plain cache of ids). `seconds` were spent in it.
    """

    capacity: float
    label: str
    policy: str
    count: str
    unit: str
    level: str
    block_size: int
    meter: Meter
    evictions: int = 0
    oversize: int = 0
    waits: int = 0
    most_running: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.capacity = blocks_or_inf("capacity", self.capacity, 1)
        _arguments.choice("policy", self.policy, POLICIES)
        _arguments.choice("count", self.count, DEFINITIONS)
        _arguments.choice("level", self.level, LEVELS)
        _arguments.integer("block_size", self.block_size, 1)
        instance_of("meter", self.meter, Meter)

    @property
    def rate(self) -> float:
        return self.meter.overall.rate


@dataclass
class Losses:
    """Where the prompt tokens of an unbounded cache go; the warm-up is left out.

    `shared`: tokens that an earlier prompt began with. `rounding`: those of them that lie in no
    full block. The rest of `prompt` was never seen before. `grain`: the tokens to which this is
    known: 1 where the trace has tokens, else a block of its ids (what two prompts share beyond
    their common blocks counts as never seen, except for equal recorded tails).
    """

    prompt: int = 0
    shared: int = 0
    rounding: int = 0
    grain: int = 1


@dataclass
class ReplayReport:
    """What `replay` found. `hashing_seconds` were spent in hashing, once for all capacities."""

    survey: Survey
    options: ReplayOptions
    trace_block_size: int
    block_size: int
    level: str
    warmup: int
    losses: Losses
    results: list[ReplayResult]
    hashing_seconds: float = 0.0
    hashed_blocks: int = 0

    def __post_init__(self) -> None:
        instance_of("survey", self.survey, Survey)
        instance_of("options", self.options, ReplayOptions)
        instance_of("losses", self.losses, Losses)
        for place, result in enumerate(items_of("results", self.results, "results")):
            instance_of(f"results[{place}]", result, ReplayResult)
