"""`replay`: runs a trace against caches of several sizes, in one pass over the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.caches import SMALLEST_POOL, Cache, PolicyCache, PoolCache
from prefixhash.trace.capacity import Capacity, parse_capacity
from prefixhash.trace.curve import check_warmup
from prefixhash.trace.definitions import HEADLINE, Definition, find_definition
from prefixhash.trace.engine import EngineCache, HashedTrace, RequestHasher
from prefixhash.trace.holding import Concurrent, Holding, OneAtATime, Timed
from prefixhash.trace.interning import Interner
from prefixhash.trace.lanes import Lane, LaneGroup, Unbounded
from prefixhash.trace.metering import Meter, TurnCounter
from prefixhash.trace.policies import ORDERS, Future, make_policy
from prefixhash.trace.records import TraceRequest, ids_block_size
from prefixhash.trace.results import (
    CACHE,
    ENGINE,
    POOL,
    Losses,
    ReplayOptions,
    ReplayReport,
    ReplayResult,
)
from prefixhash.trace.survey import Prefixes, Survey, survey_trace


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
                durations, at `speed` where the trace has none; a prompt can be hit once its prefill
                is done.
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
        if options.timed and survey.num_requests > 1 and not survey.has_times:
            raise InvalidArgumentError("timed", True, "needs timestamps, which this trace lacks")
        self._level = _level(options, trace_block_size)
        self._block_size = options.block_size or trace_block_size
        self._warmup = _warmup(options.warmup, survey.num_requests)
        check_warmup(self._warmup, survey.num_requests)
        self._capacities = [parse_capacity(value) for value in options.capacities]

    def report(self) -> ReplayReport:
        groups = [self._group(find_definition(count)) for count in self._options.counts]
        losses = Losses()
        prefixes = Prefixes(self._trace_block_size)
        turns = TurnCounter()
        for index, source in enumerate(self._trace):
            shared = prefixes.shared_tokens(source)
            if source.prompt is None:
                losses.grain = self._trace_block_size
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

    def _group(self, definition: Definition) -> LaneGroup:
        group = LaneGroup(definition, self._trace_block_size)
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
        group: LaneGroup,
        definition: Definition,
        policy: str,
        capacity: Capacity,
        future: Future | None,
    ) -> Lane:
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
        return Lane(cache, self._holding(level), result)

    def _cache(
        self, group: LaneGroup, policy: str, blocks: float, future: Future | None
    ) -> tuple[Cache, str]:
        options = self._options
        if policy == "lru" and math.isinf(blocks) and self._level == ENGINE:
            unbounded = Unbounded(self._block_size)
            group.unbounded.append(unbounded)
            return unbounded, CACHE
        if policy != "lru" or math.isinf(blocks):
            return PolicyCache(make_policy(policy, blocks, options.order, future)), CACHE
        # No more than could ever be taken, so that a pool that evicts nothing costs no memory.
        num_blocks = min(int(blocks), self._survey.most_blocks(self._block_size))
        if group.hasher is not None:
            return EngineCache(
                num_blocks,
                self._block_size,
                group.hasher,
                commit_output=options.commit_output,
                oversize=options.oversize,
            ), ENGINE
        return PoolCache(
            num_blocks,
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
