"""Replacement policies over block ids: what a cache of so many blocks keeps.

Every policy is looked up for a whole request first (its leading hits), then takes in the request's
blocks one by one, `tail-first` as engines free them or `head-first` as some simulators do.
All operations are O(1) for each block, the optimal policy's O(log blocks).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from prefixhash.errors import InvalidArgumentError

ORDERS = ("tail-first", "head-first")
POLICIES = ("lru", "fifo", "lfu", "s3fifo", "optimal")


class Policy(Protocol):
    """A cache of blocks."""

    evictions: int

    def access(self, ids: Sequence[int]) -> int:
        """The leading blocks of `ids` that are cached; then takes in all of them."""
        ...

    def __len__(self) -> int: ...


def leading_hits(cached: object, ids: Iterable[int]) -> int:
    """How many of the first `ids` are all in `cached`."""
    hits = 0
    for block in ids:
        if block not in cached:  # type: ignore[operator]
            break
        hits += 1
    return hits


class _Ordered:
    """What the policies with one queue share."""

    def __init__(self, capacity: float, head_first: bool) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._head_first = head_first
        self._queue: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def _in_order(self, ids: Sequence[int]) -> Iterable[int]:
        return ids if self._head_first else reversed(ids)


class LRU(_Ordered):
    """Evicts the block that was used longest ago."""

    def access(self, ids: Sequence[int]) -> int:
        queue = self._queue
        hits = leading_hits(queue, ids)
        for block in self._in_order(ids):
            if block in queue:
                queue.move_to_end(block)
                continue
            queue[block] = None
            if len(queue) > self.capacity:
                queue.popitem(last=False)
                self.evictions += 1
        return hits


class FIFO(_Ordered):
    """Evicts the block that was inserted longest ago."""

    def access(self, ids: Sequence[int]) -> int:
        queue = self._queue
        hits = leading_hits(queue, ids)
        for block in self._in_order(ids):
            if block not in queue:
                queue[block] = None
                if len(queue) > self.capacity:
                    queue.popitem(last=False)
                    self.evictions += 1
        return hits


class LFU:
    """Evicts the block with the fewest uses since it was inserted; of equals the oldest."""

    def __init__(self, capacity: float, head_first: bool) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._head_first = head_first
        self._uses: dict[int, int] = {}
        # Blocks by number of uses, each group in order of reaching that number.
        self._groups: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._fewest = 1

    def __len__(self) -> int:
        return len(self._uses)

    def access(self, ids: Sequence[int]) -> int:
        hits = leading_hits(self._uses, ids)
        for block in ids if self._head_first else reversed(ids):
            uses = self._uses.get(block, 0)
            if uses:
                self._leave(block, uses)
            elif len(self._uses) >= self.capacity:
                self._evict()
            self._uses[block] = uses + 1
            self._groups[uses + 1][block] = None
            if not uses:
                self._fewest = 1
        return hits

    def _leave(self, block: int, uses: int) -> None:
        group = self._groups[uses]
        del group[block]
        if not group:
            del self._groups[uses]
            if self._fewest == uses:
                # The block goes to uses + 1 at once, so that group is not empty.
                self._fewest = uses + 1

    def _evict(self) -> None:
        group = self._groups[self._fewest]
        victim, _ = group.popitem(last=False)
        if not group:
            del self._groups[self._fewest]
        del self._uses[victim]
        self.evictions += 1


class S3FIFO:
    """Three queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).

    A tenth of the capacity takes new blocks; those used again move to the main queue, the others
    leave a ghost (their id), which lets them straight into the main queue next time. The main
    queue reinserts blocks that were used, up to three times.
    """

    def __init__(self, capacity: float, head_first: bool) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._head_first = head_first
        self._small_capacity = capacity if math.isinf(capacity) else max(1, capacity // 10)
        self._uses: dict[int, int] = {}
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._uses)

    def access(self, ids: Sequence[int]) -> int:
        uses = self._uses
        hits = leading_hits(uses, ids)
        for block in ids if self._head_first else reversed(ids):
            if block in uses:
                uses[block] = min(uses[block] + 1, 3)
                continue
            while len(uses) >= self.capacity:
                self._evict()
            uses[block] = 0
            if block in self._ghosts:
                del self._ghosts[block]
                self._main.append(block)
            else:
                self._small.append(block)
        return hits

    def _evict(self) -> None:
        """Makes one step: evicts a block, or moves one and is called again."""
        if self._small and (len(self._small) >= self._small_capacity or not self._main):
            self._evict_small()
        else:
            self._evict_main()

    def _evict_small(self) -> None:
        block = self._small.popleft()
        if self._uses[block]:
            self._uses[block] = 0
            self._main.append(block)
            return
        del self._uses[block]
        self.evictions += 1
        self._ghosts[block] = None
        if len(self._ghosts) > self.capacity - self._small_capacity:
            self._ghosts.popitem(last=False)

    def _evict_main(self) -> None:
        block = self._main.popleft()
        if self._uses[block]:
            self._uses[block] -= 1
            self._main.append(block)
            return
        del self._uses[block]
        self.evictions += 1


NEVER = 1 << 62


class Future:
    """When each use of a block is followed by the next one that can count as a hit.

    Memory: one number for each use in the trace; knowing the future has no smaller price.
    """

    def __init__(self, requests: Iterable[tuple[Sequence[int], int]]) -> None:
        """`requests`: the blocks of each request, and how many of the first can count as hits."""
        kept = list(requests)
        self.next_uses: list[list[int]] = [[]] * len(kept)
        following: dict[int, int] = {}
        for index in range(len(kept) - 1, -1, -1):
            ids, limit = kept[index]
            self.next_uses[index] = [following.get(block, NEVER) for block in ids]
            following.update(dict.fromkeys(ids[:limit], index))


class Optimal:
    """Keeps the blocks whose next use comes soonest and takes in none that are never used again.

    Belady's rule with bypass: the most hit blocks that any policy could reach where ids are prefix
    hashes. (Otherwise it is the most single hits; prefix hits could be more.)
    """

    def __init__(self, capacity: float, head_first: bool, future: Future) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._future = future
        self._now = 0
        self._next: dict[int, tuple[int, int]] = {}
        self._latest: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._next)

    def access(self, ids: Sequence[int]) -> int:
        hits = leading_hits(self._next, ids)
        uses = self._future.next_uses[self._now]
        self._now += 1
        for place, (block, following) in enumerate(zip(ids, uses, strict=True)):
            if following == NEVER:
                # Never used again: not taken in, and no reason to stay.
                self._next.pop(block, None)
                continue
            # Of blocks with one next use the deepest goes first: without its prefix it is no hit.
            self._next[block] = (following, place)
            heapq.heappush(self._latest, (-following, -place, block))
        while len(self._next) > self.capacity:
            following, place, block = heapq.heappop(self._latest)
            if self._next.get(block) == (-following, -place):
                del self._next[block]
                self.evictions += 1
        return hits


def make_policy(
    name: str, capacity: float, order: str = "tail-first", future: Future | None = None
) -> Policy:
    """The policy `name` with room for `capacity` blocks (`math.inf`: everything)."""
    if name not in POLICIES:
        raise InvalidArgumentError("policy", name, f"is not one of {', '.join(POLICIES)}")
    if order not in ORDERS:
        raise InvalidArgumentError("order", order, f"is not one of {', '.join(ORDERS)}")
    if not capacity >= 1:
        raise InvalidArgumentError("capacity", capacity, "must be at least 1 block")
    head_first = order == "head-first"
    if name == "optimal":
        if future is None:
            raise InvalidArgumentError("future", None, "the optimal policy needs the whole trace")
        return Optimal(capacity, head_first, future)
    simple: dict[str, Callable[[float, bool], Policy]] = {
        "lru": LRU,
        "fifo": FIFO,
        "lfu": LFU,
        "s3fifo": S3FIFO,
    }
    return simple[name](capacity, head_first)
