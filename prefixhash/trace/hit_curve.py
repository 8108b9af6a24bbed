"""What a curve is: the hit rate of an LRU cache at every capacity, however it was found."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.checks import instance_of, part_of_one
from prefixhash.trace.definitions import DEFINITIONS
from prefixhash.trace.metering import Meter
from prefixhash.trace.policies import is_head_first
from prefixhash.trace.series import WorkingSetSamples

_LONGEST = 1 << 62


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

    def __post_init__(self) -> None:
        _arguments.choice("count", self.count, DEFINITIONS)
        is_head_first(self.order)
        for name in ("block_size", "num_requests", "num_references", "num_unique"):
            value = _arguments.integer(name, getattr(self, name), int(name == "block_size"))
            object.__setattr__(self, name, value)
        _arguments.number("total", self.total)
        _arguments.flag("chained", self.chained)
        instance_of("unbounded", self.unbounded, Meter)
        instance_of("working_set", self.working_set, WorkingSetSamples)
        _arguments.optional_integer("sampled_blocks", self.sampled_blocks)
        _check_numbers("hits", self.hits)
        if _arguments.number("scale", self.scale, below=_LONGEST) == 0:
            raise InvalidArgumentError("scale", self.scale, "must be above 0")
        if self.standard_error is not None:
            _check_numbers("standard_error", self.standard_error)
            if len(self.standard_error) != len(self.hits):
                raise InvalidArgumentError(
                    "standard_error", self.standard_error, "must have one number for each of hits"
                )

    def rate_at(self, capacity: float) -> float:
        """The hit rate with room for `capacity` blocks, from 0 to `math.inf`. O(1)."""
        index = self._index(_room(capacity))
        return self.hits[index] / self.total if self.total else 0.0

    def error_at(self, capacity: float) -> float | None:
        """One standard error of `rate_at(capacity)`; None where the curve is exact."""
        index = self._index(_room(capacity))
        return None if self.standard_error is None else self.standard_error[index]

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
        goal = self.hits[-1] * part_of_one("share", share)
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
        """At most `most` (capacity, rate) pairs, spaced by ratio, that draw the curve.

        A single one is where the curve ends. Raises `InvalidArgumentError` for fewer.
        """
        steps = _arguments.integer("most", most, 1) - 1
        last = max(self.max_capacity, 1)
        if not steps:
            capacities = {last}
        elif steps > last * math.log(last):
            # The steps are so small that no capacity lies between two of them.
            capacities = set(range(1, last + 1))
        else:
            capacities = {round(last ** (step / steps)) for step in range(steps + 1)}
        return [(capacity, self.rate_at(capacity)) for capacity in sorted(capacities)]

    def _index(self, capacity: float) -> int:
        return int(min(capacity / self.scale, len(self.hits) - 1))

    def _capacity(self, index: int) -> int:
        return round(index * self.scale)


def _room(capacity: float) -> float:
    """A capacity that a rate is asked for: any number of blocks, since a sample knows no others."""
    if _arguments.is_integer(capacity):
        # No curve is longer, and a float holds no more.
        return min(_arguments.integer("capacity", capacity), _LONGEST)
    if isinstance(capacity, float) and capacity == math.inf:
        return _LONGEST
    return _arguments.number("capacity", capacity)


def _check_numbers(name: str, values: list[float]) -> None:
    """A list of at least one `int` or `float`: by types as a whole, for curves are long."""
    if not isinstance(values, list) or not values or not set(map(type, values)) <= {int, float}:
        raise InvalidArgumentError(name, values, "must be a list of one number or more")
