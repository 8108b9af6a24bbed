"""`hit_rate_curve`: the LRU hit rate of a trace at every capacity, in one pass."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prefixhash.errors import InvalidArgumentError
from prefixhash.trace._stack import BlockStack, RunStack
from prefixhash.trace.definitions import HEADLINE, Definition, Weights, find_definition
from prefixhash.trace.engine import HashedTrace
from prefixhash.trace.interning import Interner
from prefixhash.trace.metering import Meter, TurnCounter
from prefixhash.trace.policies import ORDERS
from prefixhash.trace.records import TraceRequest, ids_block_size
from prefixhash.trace.series import WorkingSet, WorkingSetSamples

if TYPE_CHECKING:
    from prefixhash.trace.sampling import SampledCurveBuilder

# Engines keep one block of a pool as the null block, and a request that runs needs one for the
# tail that is not yet a full block: a pool of N blocks caches like an LRU of N - 2.
POOL_OVERHEAD_BLOCKS = 2


@dataclass(frozen=True)
class HitRateCurve:
    """The hit rate of an LRU cache at every capacity.

    `total` is the denominator by the definition `count`, in its unit. `hits[c]` is the numerator
    with room for c blocks; the last entry holds for all larger caches. `standard_error` is None
    for an exact curve, otherwise one standard error of the *rate* at each capacity. `unbounded`
    counts a cache that never evicts: over time, by type, by turn (nothing where sampled).
    """

    count: str
    order: str
    block_size: int
    total: float
    hits: list[float]
    num_requests: int
    num_references: int
    num_unique: int
    chained: bool
    unbounded: Meter
    working_set: WorkingSetSamples
    standard_error: list[float] | None = None
    scale: float = 1.0
    sampled_blocks: int | None = None

    def rate_at(self, capacity: float) -> float:
        """The hit rate with room for `capacity` blocks. O(1)."""
        if not self.total:
            return 0.0
        return self.hits[self._index(capacity)] / self.total

    def error_at(self, capacity: float) -> float | None:
        """One standard error of `rate_at(capacity)`; None where the curve is exact."""
        if self.standard_error is None:
            return None
        return self.standard_error[self._index(capacity)]

    @property
    def ceiling(self) -> float:
        """The hit rate of a cache that never evicts."""
        return self.hits[-1] / self.total if self.total else 0.0

    @property
    def max_capacity(self) -> int:
        """The smallest capacity, in blocks, from which on nothing is gained."""
        return self._capacity(len(self.hits) - 1)

    def capacity_for(self, share: float) -> int:
        """The smallest capacity that reaches `share` of the ceiling's hits. O(log blocks)."""
        if not 0 < share <= 1:
            raise InvalidArgumentError("share", share, "must lie in (0, 1]")
        goal = self.hits[-1] * share
        # Sums of per-request rates carry rounding in the last digit.
        return self._capacity(bisect_left(self.hits, goal - 1e-9 * abs(goal)))

    def reuse_distances(self) -> list[tuple[int, int, float]]:
        """Hits by the capacity they need, in powers of two: (from, to, hits in the unit)."""
        bins = []
        low = 1
        while low <= max(self.max_capacity, 1):
            high = 2 * low - 1
            gained = self.hits[self._index(high)] - self.hits[self._index(low - 1)]
            bins.append((low, high, gained))
            low *= 2
        return bins

    def points(self, most: int = 200) -> list[tuple[int, float]]:
        """At most `most` (capacity, rate) pairs, spaced by ratio, that draw the curve."""
        last = max(self.max_capacity, 1)
        capacities = {round(last ** (step / (most - 1))) for step in range(most)}
        return [(capacity, self.rate_at(capacity)) for capacity in sorted(capacities)]

    def _index(self, capacity: float) -> int:
        return int(min(max(capacity, 0) / self.scale, len(self.hits) - 1))

    def _capacity(self, index: int) -> int:
        return round(index * self.scale)


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
    order: str = "tail-first",
    warmup: int = 0,
    sample: float = 1.0,
) -> HitRateCurve:
    """The LRU hit rate at every capacity, exactly and in one pass (`sample=1`).

    `block_size`: tokens of one block id (default: what the trace says); `count`: the name of the
    definition; `order`: how a finished request's blocks are refreshed; `warmup`: leave the first
    requests out of the count; `sample`: follow this share of the blocks only, for traces whose
    blocks do not fit in memory.

    Prompts with tokens are hashed on the way. An engine's pool of N blocks gives the rate at N - 2.
    Raises `InvalidArgumentError` and whatever iterating `trace` raises. Memory: the distinct blocks
    (times `sample`).
    """
    definition = find_definition(count)
    _check(order, warmup, sample)
    size = ids_block_size(trace, block_size)
    head_first = order == "head-first"
    builder: CurveBuilder | SampledCurveBuilder
    if sample < 1:
        # Imported here, since it returns what this module defines.
        from prefixhash.trace.sampling import SampledCurveBuilder

        builder = SampledCurveBuilder(definition, size, sample, head_first, warmup)
    else:
        builder = CurveBuilder(definition, size, head_first, warmup)
    for request in HashedTrace(trace, size):
        builder.add(request)
    curve = builder.finish()
    check_warmup(warmup, curve.num_requests)
    return curve


def check_warmup(warmup: int, num_requests: int) -> None:
    """Raises `InvalidArgumentError` where nothing is left to count."""
    if 0 < num_requests <= warmup:
        raise InvalidArgumentError("warmup", warmup, f"leaves out all {num_requests} requests")


def _check(order: str, warmup: int, sample: float) -> None:
    if order not in ORDERS:
        raise InvalidArgumentError("order", order, f"is not one of {', '.join(ORDERS)}")
    if warmup < 0:
        raise InvalidArgumentError("warmup", warmup, "must not be negative")
    if not 0 < sample <= 1:
        raise InvalidArgumentError("sample", sample, "must lie in (0, 1]")


def _without_flat_end(hits: list[float]) -> list[float]:
    """`hits` up to the capacity from which on nothing is gained."""
    final = hits[-1]
    # Differences of fractions cancel up to rounding.
    return hits[: bisect_left(hits, final - 1e-9 * abs(final)) + 1]
