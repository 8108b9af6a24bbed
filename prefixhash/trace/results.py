"""What a replay is asked for and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.caches import check_oversize
from prefixhash.trace.definitions import HEADLINE, find_definition
from prefixhash.trace.holding import Speed
from prefixhash.trace.metering import Meter
from prefixhash.trace.policies import ORDERS, POLICIES
from prefixhash.trace.survey import Survey

DEFAULT_CAPACITIES = ("1%", "5%", "10%", "25%", "50%", "inf")
ENGINE, POOL, CACHE = "engine", "pool", "cache"


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay; see `replay` for the meaning of each."""

    capacities: tuple[str | float, ...] = DEFAULT_CAPACITIES
    policies: tuple[str, ...] = ("lru",)
    counts: tuple[str, ...] = (HEADLINE,)
    order: str = "tail-first"
    by_ids: bool = False
    block_size: int | None = None
    concurrency: int = 1
    timed: bool = False
    speed: Speed = field(default_factory=Speed)
    warmup: str | int = 0
    commit_output: bool = False
    oversize: str = "clip"
    bytes_per_block: int | None = None

    def __post_init__(self) -> None:
        for name in ("capacities", "policies", "counts"):
            if not getattr(self, name):
                raise InvalidArgumentError(name, getattr(self, name), "must name at least one")
        for name, values, known in (
            ("policy", self.policies, POLICIES),
            ("order", (self.order,), ORDERS),
        ):
            for value in values:
                if value not in known:
                    raise InvalidArgumentError(name, value, f"is not one of {', '.join(known)}")
        for count in self.counts:
            find_definition(count)
        check_oversize(self.oversize)
        if self.block_size is not None and self.block_size < 1:
            raise InvalidArgumentError("block_size", self.block_size, "must be at least 1")
        if self.concurrency < 1:
            raise InvalidArgumentError("concurrency", self.concurrency, "must be at least 1")
        holds = self.timed or self.concurrency > 1 or self.commit_output
        others = [name for name in self.policies if name != "lru"]
        if holds and others:
            raise InvalidArgumentError(
                "policy", others[0], "holds no blocks: concurrency, timed and output need lru"
            )


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
