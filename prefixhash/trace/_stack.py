"""Inner loops of the one-pass LRU curve: stack distances along prefixes.

Plain typed code over lists, without imports of this package, so that it can be compiled as it
stands.

**Stack distance** (Mattson et al., "Evaluation techniques for storage hierarchies", 1970): LRU
caches include one another, so a block hits in every cache that is at least as large as the block's
position in the stack of all blocks by last use. A *prefix* hit of block i needs the largest
position of blocks 0..i.

**Runs.** Where ids are prefix hashes, an id always has the same predecessor. A request then leaves
its blocks in the stack as one run, and whatever is used later takes away a leading part of that
run: what remains is contiguous. So a request's hits are a few segments, each a whole stretch of one
earlier run, and one query of a Fenwick tree over runs places a segment: O(log requests) for a
segment instead of O(log blocks) for each block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Timeline:
    """Counts per slot of time, oldest first, with prefix sums in O(log n) (a Fenwick tree).

    Memory follows the slots that hold anything: `make_room` squeezes out the empty ones.
    """

    __slots__ = ("born", "counts", "size", "total", "tree", "used")

    def __init__(self) -> None:
        self.size: int = 1024
        self.used: int = 0
        self.total: int = 0
        self.counts: list[int] = [0] * self.size
        self.tree: list[int] = [0] * (self.size + 1)
        # When each slot was opened, in the caller's clock; increasing.
        self.born: list[int] = []

    def append(self, count: int, now: int) -> int:
        """Opens the newest slot with `count`; returns its number. There must be room."""
        slot = self.used
        self.used = slot + 1
        self.born.append(now)
        self.add(slot, count)
        return slot

    def add(self, slot: int, count: int) -> None:
        tree = self.tree
        size = self.size
        self.counts[slot] += count
        self.total += count
        k = slot + 1
        while k <= size:
            tree[k] += count
            k += k & -k

    def older(self, slot: int) -> int:
        """The sum of all slots before `slot`."""
        tree = self.tree
        total = 0
        k = slot
        while k:
            total += tree[k]
            k &= k - 1
        return total

    def since(self, moment: int) -> int:
        """The sum of all slots that were opened at `moment` or later."""
        return self.total - self.older(bisect_left(self.born, moment))

    def make_room(self) -> list[int] | None:
        """Makes room for a slot; where slots were renumbered returns new numbers by old, else None.

        Amortised O(1) for each slot appended since the last time.
        """
        if self.used < self.size:
            return None
        counts = self.counts
        live = [slot for slot in range(self.used) if counts[slot]]
        renumbered: list[int] | None = None
        if 2 * len(live) > self.size:
            self.size *= 2
        else:
            renumbered = [-1] * self.used
            for new, old in enumerate(live):
                renumbered[old] = new
            self.born = [self.born[slot] for slot in live]
            counts = [counts[slot] for slot in live]
            self.used = len(live)
        self.counts = counts + [0] * (self.size - len(counts))
        self._rebuild()
        return renumbered

    def _rebuild(self) -> None:
        tree = [0, *self.counts]
        size = self.size
        for k in range(1, size + 1):
            parent = k + (k & -k)
            if parent <= size:
                tree[parent] += tree[k]
        self.tree = tree


class Gains:
    """What each capacity adds to the hits, as differences: a range of capacities costs O(1)."""

    __slots__ = ("differences",)

    def __init__(self) -> None:
        self.differences: list[float] = [0, 0, 0, 0]

    def cover(self, capacity: int) -> None:
        """Makes room for capacities up to `capacity`."""
        missing = capacity + 3 - len(self.differences)
        if missing > 0:
            self.differences.extend([0] * (missing + capacity // 2))


class RunStack:
    """The LRU stack of blocks whose ids are prefix hashes, kept as runs.

    `head_first`: a request's blocks are refreshed from the first to the last, so the last one is
    the most recent; otherwise the first one is.
    """

    __slots__ = ("gains", "head_first", "last", "timeline")

    def __init__(self, head_first: bool) -> None:
        self.head_first = head_first
        self.gains = Gains()
        self.timeline = Timeline()
        # The run in which a block was used last; -1: never.
        self.last: list[int] = []

    def access(
        self, ids: Sequence[int], num_blocks: int, limit: int, each: float, final: float, now: int
    ) -> int:
        """Counts the hits of a request at every capacity, then refreshes its blocks.

        `ids` are dense numbers below `num_blocks`. Each of the first `limit` blocks counts `each`
        where it hits; the last block counts `final` where it lies past the limit. Returns the
        leading blocks that were used before.
        """
        last = self.last
        timeline = self.timeline
        if len(last) < num_blocks:
            last.extend([-1] * (num_blocks - len(last)))
        # No block lies deeper than all of them.
        self.gains.cover(timeline.total + 1)
        n = len(ids)
        start = 0
        while start < n:
            run = last[ids[start]]
            if run < 0:
                break
            end = n if last[ids[n - 1]] == run else self._segment_end(ids, start, run)
            length = end - start
            # Blocks of this request that were taken out above still lie above this segment.
            above = timeline.total - timeline.older(run + 1) + start
            self._record(above, run, start, end, n, limit, each, final)
            timeline.add(run, -length)
            start = end
        self._refresh(ids, now)
        return start

    def _segment_end(self, ids: Sequence[int], start: int, run: int) -> int:
        """The end of the blocks from `start` on that were used last in `run`; not the last block.

        The blocks are sorted by their runs, newest first.
        """
        last = self.last
        low = start
        high = len(ids) - 1
        while high - low > 1:
            middle = (low + high) >> 1
            if last[ids[middle]] == run:
                low = middle
            else:
                high = middle
        return high

    def _record(
        self,
        above: int,
        run: int,
        start: int,
        end: int,
        n: int,
        limit: int,
        each: float,
        final: float,
    ) -> None:
        counted = (end if end < limit else limit) - start
        left = self.timeline.counts[run]
        differences = self.gains.differences
        if self.head_first:
            # The segment's first block lies deepest, under all that is left of the run.
            gain = (counted * each if counted > 0 else 0) + (final if end == n > limit else 0)
            differences[above + left] += gain
            differences[above + left + 1] -= gain
            return
        if counted > 0:
            differences[above + 1] += each
            differences[above + counted + 1] -= each
        if final and end == n > limit:
            differences[above + end - start] += final
            differences[above + end - start + 1] -= final

    def _refresh(self, ids: Sequence[int], now: int) -> None:
        if not ids:
            return
        renumbered = self.timeline.make_room()
        if renumbered is not None:
            last = self.last
            for block, run in enumerate(last):
                if run >= 0:
                    last[block] = renumbered[run]
        run = self.timeline.append(len(ids), now)
        last = self.last
        for block in ids:
            last[block] = run


class BlockStack:
    """The LRU stack of any blocks: one slot for each block. O(log blocks) for each block used."""

    __slots__ = ("gains", "head_first", "last", "timeline")

    def __init__(self, head_first: bool) -> None:
        self.head_first = head_first
        self.gains = Gains()
        self.timeline = Timeline()
        # The slot of a block; -1: never used.
        self.last: list[int] = []

    @classmethod
    def from_runs(cls, runs: RunStack, depths: Sequence[int]) -> BlockStack:
        """The same stack and counts; `depths` gives each block's place in its prefix."""
        stack = cls(runs.head_first)
        stack.gains = runs.gains
        stack.last = [-1] * len(runs.last)
        sign = 1 if runs.head_first else -1
        used = [block for block, run in enumerate(runs.last) if run >= 0]
        used.sort(key=lambda block: (runs.last[block], sign * depths[block]))
        for block in used:
            stack._push(block, runs.timeline.born[runs.last[block]])
        return stack

    def access(
        self, ids: Sequence[int], num_blocks: int, limit: int, each: float, final: float, now: int
    ) -> int:
        """As `RunStack.access`, for ids of any structure."""
        n = len(ids)
        weights = [each] * n if n <= limit else [each] * limit + [0] * (n - limit)
        if n > limit:
            weights[n - 1] = final
        return self.access_each(ids, num_blocks, weights, now)

    def access_each(
        self, ids: Sequence[int], num_blocks: int, weights: Sequence[float], now: int
    ) -> int:
        """As `access`, with a weight for each block."""
        self._reserve(num_blocks)
        last = self.last
        timeline = self.timeline
        differences = self.gains.differences
        need = 0
        hits = 0
        for block in ids:
            slot = last[block]
            if slot < 0:
                break
            depth = timeline.total - timeline.older(slot)
            if depth > need:
                need = depth
            differences[need] += weights[hits]
            differences[need + 1] -= weights[hits]
            hits += 1
        for block in ids if self.head_first else reversed(ids):
            if last[block] >= 0:
                timeline.add(last[block], -1)
            self._push(block, now)
        return hits

    def _reserve(self, num_blocks: int) -> None:
        missing = num_blocks - len(self.last)
        if missing > 0:
            self.last.extend([-1] * missing)
        self.gains.cover(self.timeline.total + 1)

    def _push(self, block: int, now: int) -> None:
        last = self.last
        renumbered = self.timeline.make_room()
        if renumbered is not None:
            for other, slot in enumerate(last):
                if slot >= 0:
                    last[other] = renumbered[slot]
        last[block] = self.timeline.append(1, now)
