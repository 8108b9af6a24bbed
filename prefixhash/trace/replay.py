"""`replay`: runs a trace against caches of several sizes, in one pass over the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.caches import (
    SMALLEST_POOL,
    Admission,
    Cache,
    PolicyCache,
    PoolCache,
    Prepared,
    check_oversize,
)
from prefixhash.trace.capacity import Capacity, parse_capacity
from prefixhash.trace.definitions import HEADLINE, Definition, find_definition
from prefixhash.trace.engine import EngineCache, HashedTrace, RequestHasher
from prefixhash.trace.holding import Concurrent, Holding, OneAtATime, Speed, Timed
from prefixhash.trace.interning import Interner
from prefixhash.trace.metering import Meter, TurnCounter
from prefixhash.trace.policies import ORDERS, POLICIES, Future, make_policy
from prefixhash.trace.records import TraceRequest, ids_block_size
from prefixhash.trace.survey import Prefixes, Survey, survey_trace

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
    full block. The rest of `prompt` was never seen before.
    """

    prompt: int = 0
    shared: int = 0
    rounding: int = 0


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


class _Lane:
    """One cache with its counts and the requests that run in it."""

    def __init__(self, cache: Cache, holding: Holding[Any], result: ReplayResult) -> None:
        self._cache = cache
        self._holding = holding
        self.result = result

    def serve(self, prepared: Prepared, turn: int | None) -> None:
        source = prepared.source
        end = self._cache.end
        self._holding.before(source, end)
        admission = self._admit(prepared)
        if admission.handle is not None:
            self._holding.started(admission.handle, source, end)
        self.result.oversize += admission.oversize
        self.result.meter.add(prepared.index, source, turn, admission.value, prepared.weights.total)

    def _admit(self, prepared: Prepared) -> Admission:
        while True:
            admission = self._cache.start(prepared)
            if admission is not None:
                return admission
            if not self._holding.make_room(self._cache.end):
                # Nothing runs and it does not fit: it never will.
                return Admission(0.0, None, True)

    def close(self) -> ReplayResult:
        result = self.result
        result.evictions = self._cache.evictions
        result.seconds = self._cache.seconds
        result.waits = self._holding.waits
        result.most_running = self._holding.most
        return result


class _Unbounded:
    """What a cache that never evicts gives at any block size, from the prefixes seen so far."""

    def __init__(self, block_size: int) -> None:
        self.evictions = 0
        self.seconds = 0.0
        self._block_size = block_size
        self._shared: dict[int, int] = {}

    def set_shared(self, index: int, tokens: int) -> None:
        self._shared = {index: tokens}

    def start(self, prepared: Prepared) -> Admission:
        shared = self._shared[prepared.index]
        return Admission(shared // self._block_size * self._block_size)

    def end(self, handle: Any) -> None:
        pass


def replay(
    trace: Iterable[TraceRequest],
    *,
    trace_block_size: int | None = None,
    options: ReplayOptions | None = None,
    survey: Survey | None = None,
    **settings: Any,
) -> ReplayReport:
    """Replays `trace` at every capacity, by every policy and definition of `options`.

    Args:
        trace: requests; iterated once for the survey (unless given), once for the optimal policy,
            and once for the replay itself.
        trace_block_size: tokens of one block id of the trace (default: what the trace says).
        survey: of this trace, if there is one already.
        options, settings: the options, or each by its name:
            capacities: sizes in blocks, or as text (`5%` of the unique blocks, `2Mtok`, `40GiB`
                with `bytes_per_block`, `inf`). For lru it is the size of a pool, which holds two
                blocks fewer; for the other policies it is what the cache holds.
            policies: `lru` is the engine's own; the others run on the ids.
            counts: definitions of the hit rate; the engine counts `tokens`, others run on the ids.
            order: how a finished request's blocks are refreshed (`head-first` runs on the ids).
            by_ids: take the trace's ids for hashes, instead of making and hashing tokens.
            block_size: of the pool; by default the trace's.
            concurrency: requests that hold their blocks at a time; `timed`: by their timestamps and
                durations, at `speed` where the trace has none.
            warmup: requests to leave out of the counts: a number, or `10%`.
            commit_output: output tokens take blocks and can be found.
            oversize: a prompt larger than the pool keeps what fits (`clip`) or is refused.

    Raises `InvalidArgumentError`, and whatever iterating `trace` raises.
    """
    options = replace(options or ReplayOptions(), **settings)
    size = ids_block_size(trace, trace_block_size)
    hashed = HashedTrace(trace, size)
    survey = survey or survey_trace(hashed, size)
    return _Run(hashed, size, options, survey).report()


class _Run:
    """One call of `replay`."""

    def __init__(
        self,
        trace: HashedTrace,
        trace_block_size: int,
        options: ReplayOptions,
        survey: Survey,
    ) -> None:
        self._trace = trace
        self._trace_block_size = trace_block_size
        self._options = options
        self._survey = survey
        self._level = _level(options, trace_block_size)
        self._block_size = options.block_size or trace_block_size
        self._warmup = _warmup(options.warmup, survey.num_requests)
        self._capacities = [parse_capacity(value) for value in options.capacities]

    def report(self) -> ReplayReport:
        groups = [self._group(find_definition(count)) for count in self._options.counts]
        losses = Losses()
        prefixes = Prefixes(self._trace_block_size)
        turns = TurnCounter()
        for index, source in enumerate(self._trace):
            shared = prefixes.shared_tokens(source)
            if index >= self._warmup:
                losses.prompt += source.num_tokens
                losses.shared += shared
                losses.rounding += shared % self._block_size
            turn = turns.turn(source)
            for group in groups:
                group.serve(index, source, turn, shared)
        hashers = [self._trace.hasher, *(group.hasher for group in groups if group.hasher)]
        results = [lane.close() for group in groups for lane in group.lanes]
        return ReplayReport(
            self._survey,
            self._options,
            self._trace_block_size,
            self._block_size,
            self._level,
            self._warmup,
            losses,
            results,
            sum(hasher.seconds for hasher in hashers),
            sum(hasher.num_blocks for hasher in hashers),
        )

    def _group(self, definition: Definition) -> _Group:
        group = _Group(definition, self._trace_block_size)
        if self._level == ENGINE:
            group.hasher = RequestHasher(self._block_size, self._trace_block_size)
        future = self._future(definition) if "optimal" in self._options.policies else None
        for policy in self._options.policies:
            for capacity in self._capacities:
                group.lanes.append(self._lane(group, definition, policy, capacity, future))
        return group

    def _future(self, definition: Definition) -> Future:
        interner = Interner()
        size = self._trace_block_size

        def uses() -> Iterator[tuple[Sequence[int], int]]:
            for source in self._trace:
                weights = definition.weigh(source.num_tokens, len(source.ids), size)
                ids = interner.intern(source.ids[: weights.cached])
                yield ids, weights.cached if weights.last else weights.limit

        return Future(uses())

    def _lane(
        self,
        group: _Group,
        definition: Definition,
        policy: str,
        capacity: Capacity,
        future: Future | None,
    ) -> _Lane:
        blocks = capacity.blocks(
            block_size=self._block_size,
            unique_blocks=self._survey.unique_blocks_of(self._block_size, self._trace_block_size),
            bytes_per_block=self._options.bytes_per_block,
        )
        if policy == "lru" and capacity.unit == "percent":
            blocks = max(blocks, SMALLEST_POOL)
        cache, level = self._cache(group, policy, blocks, future)
        result = ReplayResult(
            blocks,
            capacity.text,
            policy,
            definition.name,
            definition.unit,
            level,
            self._block_size,
            Meter(self._warmup),
        )
        return _Lane(cache, self._holding(level), result)

    def _cache(
        self, group: _Group, policy: str, blocks: float, future: Future | None
    ) -> tuple[Cache, str]:
        options = self._options
        if policy == "lru" and math.isinf(blocks) and self._level == ENGINE:
            unbounded = _Unbounded(self._block_size)
            group.unbounded.append(unbounded)
            return unbounded, CACHE
        if policy != "lru" or math.isinf(blocks):
            return PolicyCache(make_policy(policy, blocks, options.order, future)), CACHE
        if group.hasher is not None:
            return EngineCache(
                int(blocks),
                self._block_size,
                group.hasher,
                commit_output=options.commit_output,
                oversize=options.oversize,
            ), ENGINE
        return PoolCache(
            int(blocks),
            self._block_size,
            head_first=options.order == "head-first",
            commit_output=options.commit_output,
            oversize=options.oversize,
        ), POOL

    def _holding(self, level: str) -> Holding[Any]:
        if level == CACHE:
            return OneAtATime()
        if self._options.timed:
            return Timed(self._options.speed)
        if self._options.concurrency > 1:
            return Concurrent(self._options.concurrency)
        return OneAtATime()


class _Group:
    """The caches that count by one definition: a request is prepared once for all of them."""

    def __init__(self, definition: Definition, trace_block_size: int) -> None:
        self.lanes: list[_Lane] = []
        self.unbounded: list[_Unbounded] = []
        self.hasher: RequestHasher | None = None
        self._definition = definition
        self._size = trace_block_size
        self._interner = Interner()

    def serve(self, index: int, source: TraceRequest, turn: int | None, shared: int) -> None:
        weights = self._definition.weigh(source.num_tokens, len(source.ids), self._size)
        prepared = Prepared(index, source, self._interner.intern(source.ids), weights)
        if self.hasher is not None:
            prepared.request = self.hasher.request(prepared)
        for cache in self.unbounded:
            cache.set_shared(index, shared)
        for lane in self.lanes:
            lane.serve(prepared, turn)


def _level(options: ReplayOptions, trace_block_size: int) -> str:
    """The engine where it can do what is asked, else the ids."""
    needs_ids = (
        options.by_ids
        or options.counts != (HEADLINE,)
        or options.order != ORDERS[0]
        or options.policies != ("lru",)
    )
    if not needs_ids:
        return ENGINE
    if options.block_size not in (None, trace_block_size):
        raise InvalidArgumentError(
            "block_size",
            options.block_size,
            f"must be the trace's {trace_block_size} where its ids are the hashes",
        )
    return POOL


def _warmup(value: str | int, num_requests: int) -> int:
    """Requests to leave out: a number, or a share of all (`10%`)."""
    text = str(value).strip()
    try:
        if text.endswith("%"):
            share = float(text[:-1])
            if 0 <= share < 100:
                return int(num_requests * share / 100)
        elif int(text) >= 0:
            return int(text)
    except ValueError:
        pass
    raise InvalidArgumentError("warmup", value, "is neither a number of requests nor 0% to 99%")
