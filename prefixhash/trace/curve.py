"""`hit_rate_curve`: the LRU hit rate of a trace at every capacity, in one pass."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from prefixhash.errors import InvalidArgumentError
from prefixhash.trace._stack import BlockStack, RunStack
from prefixhash.trace.checks import part_of_one
from prefixhash.trace.definitions import HEADLINE, Definition, Weights, find_definition
from prefixhash.trace.engine import HashedTrace
from prefixhash.trace.hit_curve import HitRateCurve
from prefixhash.trace.incoming import check_repeatable
from prefixhash.trace.interning import Interner
from prefixhash.trace.metering import Meter, TurnCounter
from prefixhash.trace.policies import ORDERS, TAIL_FIRST, is_head_first
from prefixhash.trace.records import TraceRequest, ids_block_size
from prefixhash.trace.sampling import SampledCurveBuilder
from prefixhash.trace.series import WorkingSet, WorkingSetSamples
from prefixhash.trace.warmup import Warmup, parse_warmup

# Of fewer blocks than one in 10^12 no trace gives a sample.
_SMALLEST_SAMPLE = 1e-12


@dataclass
class CurveBuilder:
    """Takes requests one by one; `finish` gives the curve. Memory: the distinct blocks."""

    definition: Definition
    block_size: int
    head_first: bool = False
    warmup: int = 0
    interner: Interner = field(default_factory=Interner)
    meter: Meter = field(default_factory=Meter)
    turns: TurnCounter = field(default_factory=TurnCounter)
    working_set: WorkingSetSamples = field(default_factory=WorkingSetSamples)
    num_requests: int = 0
    num_references: int = 0
    total: float = 0

    def __post_init__(self) -> None:
        self.meter.warmup = self.warmup
        self._stack: RunStack | BlockStack = RunStack(self.head_first)

    def add(self, request: TraceRequest) -> None:
        """Counts one request. O(runs log requests) for prefix hashes, else O(blocks log blocks)."""
        weights = self.definition.weigh(request.num_tokens, len(request.ids), self.block_size)
        ids = self.interner.intern(request.ids)
        del ids[weights.cached :]
        if not self.interner.chained and isinstance(self._stack, RunStack):
            self._stack = BlockStack.from_runs(self._stack, self.interner.depths())
        now = self.num_requests
        if now < self.warmup:
            weights = Weights(weights.cached, weights.limit, 0, 0, 0)
        hits = self._stack.access(
            ids, len(self.interner), weights.limit, weights.each, weights.last, now
        )
        self.num_requests += 1
        self.num_references += len(request.ids)
        self.total += weights.total
        value = weights.value(hits)
        self.meter.add(now, request, self.turns.turn(request), value, weights.total)
        if self.working_set.wants(now):
            self._sample_working_set(now, request.timestamp)

    def finish(self) -> HitRateCurve:
        gains = itertools.accumulate(self._stack.gains.differences)
        hits = _without_flat_end(list(itertools.accumulate(gains)))
        return HitRateCurve(
            self.definition.name,
            ORDERS[self.head_first],
            self.block_size,
            self.total,
            hits,
            self.num_requests,
            self.num_references,
            len(self.interner),
            self.interner.chained,
            self.meter,
            self.working_set,
        )

    def _sample_working_set(self, now: int, timestamp: float | None) -> None:
        timeline = self._stack.timeline
        recent = tuple(timeline.since(now + 1 - window) for window in self.working_set.windows)
        self.working_set.add(WorkingSet(now, timestamp, recent, timeline.total))


def hit_rate_curve(
    trace: Iterable[TraceRequest],
    *,
    block_size: int | None = None,
    count: str = HEADLINE,
    order: str = TAIL_FIRST,
    warmup: int | str = 0,
    sample: float = 1.0,
) -> HitRateCurve:
    """The LRU hit rate at every capacity, exactly and in one pass (`sample=1`).

    `block_size`: tokens of one block id (default: what the trace says); `count`: the name of the
    definition; `order`: how a finished request's blocks are refreshed; `warmup`: requests to leave
    out of the count, a number, or a share of them (`10%`, which takes a pass more, to count them);
    `sample`: follow this share of the blocks only, for traces whose blocks do not fit in memory.

    Prompts with tokens are hashed on the way. An engine's pool of N blocks gives the rate at N - 2.
    Raises `InvalidArgumentError` and whatever iterating `trace` raises. Memory: the distinct blocks
    (times `sample`).
    """
    definition = find_definition(count)
    head_first = is_head_first(order)
    leave_out = parse_warmup(warmup)
    share = part_of_one("sample", sample)
    if share < _SMALLEST_SAMPLE:
        raise InvalidArgumentError("sample", sample, f"must be at least {_SMALLEST_SAMPLE:g}")
    size = ids_block_size(trace, block_size)
    hashed = HashedTrace(trace, size)
    first = _first_counted(trace, leave_out)
    builder: CurveBuilder | SampledCurveBuilder
    if share < 1:
        builder = SampledCurveBuilder(definition, size, share, head_first, first)
    else:
        builder = CurveBuilder(definition, size, head_first, first)
    for request in hashed:
        builder.add(request)
    curve = builder.finish()
    leave_out.requests(curve.num_requests)
    return curve


def _first_counted(trace: Iterable[TraceRequest], warmup: Warmup) -> int:
    """The index of the first request that counts."""
    if warmup.share is None:
        return warmup.number
    check_repeatable(trace, "a warm-up that is a share of the requests")
    return warmup.requests(sum(1 for _ in trace))


def _without_flat_end(hits: list[float]) -> list[float]:
    """`hits` up to the capacity from which on nothing is gained."""
    final = hits[-1]
    # Differences of fractions cancel up to rounding.
    return hits[: bisect_left(hits, final - 1e-9 * abs(final)) + 1]
