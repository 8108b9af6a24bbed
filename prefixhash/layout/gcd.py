"""The approximate greatest common divisor: the one that pads several counts least.

It is how many layer tuples a group gets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.layout.checks import integers


def approximate_gcd(values: Sequence[int], lower_bound: int | None = None) -> int:
    """The d >= `lower_bound` that pads `values` least when each is rounded up to a multiple of d.

    Among equals the largest; without a bound that is the greatest common divisor; a bound above
    the largest value is returned as it is. Raises `InvalidArgumentError` for no values, and for
    values that are not integers of 1 or more.

    Padding grows with d while all quotients ceil(x / d) stay the same, so that only the smallest d
    of each such range can win. These are found from the quotients of the smallest value, of which
    there are about 2 * sqrt(min); the others are looked at only where the values before them pad no
    more than the best so far. Microseconds for counts of layers; half a second for 60 values of
    10 ** 12 and a small bound, up to a minute if the bound is near their square root, where every d
    has quotients of its own.
    """
    counts, low = _checked(values, lower_bound)
    high = max(counts)
    if low > high:
        return low
    exact = math.gcd(*counts)
    if exact >= low:
        return exact
    return _Search(counts, low, high).run()


def _checked(values: Sequence[int], lower_bound: int | None) -> tuple[Counter[int], int]:
    """How often each value occurs, and the bound as a number of 1 or more."""
    counts = Counter(integers("values", values, 1, "a sequence of integers"))
    if not counts:
        raise InvalidArgumentError("values", values, "at least one value is needed")
    return counts, max(1, _arguments.optional_integer("lower_bound", lower_bound, None) or 1)


class _Search:
    """Tries divisors from `low` to `high`, larger ones later, so that the last of equals wins.

    The smallest value comes first: it has the fewest quotients.
    """

    def __init__(self, counts: Counter[int], low: int, high: int) -> None:
        self._values = sorted(counts.items())
        self._best, self._high = low, high
        self._padding = sum(-value % low * count for value, count in self._values)

    def run(self) -> int:
        value, count = self._values[0]
        first = self._best + 1
        root = max(self._best, math.isqrt(value))
        # Up to the root nearly every divisor has a quotient of its own.
        limit = self._padding // count
        for d in range(first, root + 1):
            if -value % d <= limit:
                self._try(d)
                limit = self._padding // count
        self._split(0, root + 1, self._high, 0, 0)
        return self._best

    def _split(self, index: int, start: int, end: int, quotients: int, total: int) -> None:
        """Divisors start ... end, over which the first `index` values' quotients are constant:
        their sum is `quotients`, that of the values `total`, so that they pad d by
        d * quotients - total.
        """
        value, count = self._values[index]
        most, fewest = -(-value // start), -(-value // end)
        if most - fewest >= end - start:
            # No fewer quotients than divisors.
            for d in range(start, end + 1):
                self._try(d)
            return
        last = index + 1 == len(self._values)
        limit = self._padding
        for quotient in range(most, fewest - 1, -1):
            here = max(start, -(-value // quotient))
            factor, given = quotients + count * quotient, total + count * value
            if here * factor - given > limit:
                continue
            if last:
                limit = here * factor - given
                self._best, self._padding = here, limit
                continue
            # Up to the next drop of the quotient, and no further than these values alone allow.
            there = end if quotient == 1 else min(end, -(-value // (quotient - 1)) - 1)
            there = min(there, (given + limit) // factor)
            if here < there:
                self._split(index + 1, here, there, factor, given)
            else:
                self._try(here)
            limit = self._padding

    def _try(self, d: int) -> None:
        padding = 0
        for value, count in self._values:
            padding += -value % d * count
            if padding > self._padding:
                return
        self._best, self._padding = d, padding
