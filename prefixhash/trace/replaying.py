"""Running a trace against caches of several sizes, in one pass over the file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.caches import Cache, PolicyCache, PoolCache
from prefixhash.trace.capacity import Capacity, parse_capacity
from prefixhash.trace.checks import instance_of
from prefixhash.trace.definitions import Definition, find_definition
from prefixhash.trace.engine import EngineCache, HashedTrace, RequestHasher
from prefixhash.trace.future import Future
from prefixhash.trace.holding import Concurrent, Holding, OneAtATime, Timed
from prefixhash.trace.incoming import check_repeatable
from prefixhash.trace.interning import Interner
from prefixhash.trace.lanes import Lane, LaneGroup, Unbounded
from prefixhash.trace.levels import CACHE, ENGINE, POOL, Level
from prefixhash.trace.metering import Meter, TurnCounter
from prefixhash.trace.policies import TAIL_FIRST, Policy, find_policy, is_head_first, make_policy
from prefixhash.trace.records import TraceRequest, ids_block_size
from prefixhash.trace.results import Losses, ReplayOptions, ReplayReport, ReplayResult
from prefixhash.trace.survey import Prefixes, Survey, survey_trace
from prefixhash.trace.warmup import parse_warmup


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
        trace: requests; iterated once for the survey (unless given), once for each definition where
            a policy needs the future (optimal), and once for the replay itself.
        trace_block_size: tokens of one block id of the trace (default: what the trace says).
        survey: of this trace, if there is one already.
        options, settings: the options, or each by its name:
            capacities: sizes in blocks, or as text (`5%` of the unique blocks, `2Mtok`; `40GiB` or
                `80GB` with `bytes_per_block`; `inf`). For lru it is the size of a pool, which holds
                two blocks fewer; for the other policies it is what the cache holds.
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
    given = ReplayOptions() if options is None else instance_of("options", options, ReplayOptions)
    options = replace(given, **settings)
    given_size = _arguments.optional_integer("trace_block_size", trace_block_size, 1)
    size = ids_block_size(trace, given_size)
    if survey is None:
        check_repeatable(trace, "its survey")
    else:
        instance_of("survey", survey, Survey)
    if any(find_policy(name).needs_future for name in options.policies):
        check_repeatable(trace, "a policy that needs the future")
    hashed = HashedTrace(trace, size)
    return _Run(hashed, size, options, survey or survey_trace(hashed, size)).report()


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
        self._warmup = parse_warmup(options.warmup).requests(survey.num_requests)
        self._policies = [find_policy(name) for name in options.policies]
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
            self._level.name,
            self._warmup,
            losses,
            results,
            sum(hasher.seconds for hasher in hashers),
            sum(hasher.num_blocks for hasher in hashers),
        )

    def _group(self, definition: Definition) -> LaneGroup:
        group = LaneGroup(definition, self._trace_block_size)
        if self._level is ENGINE:
            group.hasher = RequestHasher(self._block_size, self._trace_block_size)
        needed = any(policy.needs_future for policy in self._policies)
        future = self._future(definition) if needed else None
        for policy in self._policies:
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
        policy: type[Policy],
        capacity: Capacity,
        future: Future | None,
    ) -> Lane:
        blocks = capacity.blocks(
            block_size=self._block_size,
            unique_blocks=self._survey.unique_blocks_of(self._block_size, self._trace_block_size),
            bytes_per_block=self._options.bytes_per_block,
            least=policy.overhead + 1,
        )
        cache, level = self._cache(group, policy, blocks, future)
        result = ReplayResult(
            blocks,
            capacity.text,
            policy.name,
            definition.name,
            definition.unit,
            level.name,
            self._block_size,
            Meter(self._warmup),
        )
        return Lane(cache, self._holding(level), result)

    def _cache(
        self, group: LaneGroup, policy: type[Policy], blocks: float, future: Future | None
    ) -> tuple[Cache, Level]:
        options = self._options
        if policy.in_pool and math.isinf(blocks) and self._level is ENGINE:
            unbounded = Unbounded(self._block_size)
            group.unbounded.append(unbounded)
            return unbounded, CACHE
        if not policy.in_pool or math.isinf(blocks):
            return PolicyCache(make_policy(policy.name, blocks, options.order, future)), CACHE
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
            head_first=is_head_first(options.order),
            commit_output=options.commit_output,
            oversize=options.oversize,
        ), POOL

    def _holding(self, level: Level) -> Holding[Any]:
        if not level.holds_blocks:
            return OneAtATime()
        if self._options.timed:
            return Timed(self._options.speed)
        if self._options.concurrency > 1:
            return Concurrent(self._options.concurrency)
        return OneAtATime()


def _level(options: ReplayOptions, trace_block_size: int) -> Level:
    """The engine where it can do what is asked, else the ids."""
    in_engine = (
        all(find_policy(name).in_pool for name in options.policies)
        and all(find_definition(name).in_engine for name in options.counts)
        and options.order == TAIL_FIRST
    )
    if in_engine and not options.by_ids:
        return ENGINE
    if options.block_size not in (None, trace_block_size):
        raise InvalidArgumentError(
            "block_size",
            options.block_size,
            f"must be the trace's {trace_block_size} where its ids are the hashes",
        )
    return POOL
