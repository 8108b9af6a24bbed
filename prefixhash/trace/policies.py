"""Replacement policies over block ids: what a cache of so many blocks keeps.

Every policy is looked up for a whole request first (its leading hits), then takes in the request's
blocks one by one, `tail-first` as engines free them or `head-first` as some simulators do.
All operations are O(1) for each block, the optimal policy's O(log blocks).

A policy is one class, which says all that a replay has to know of it, and one entry of `POLICIES`.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import ClassVar

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.capacity import POOL_OVERHEAD_BLOCKS
from prefixhash.trace.checks import block_numbers, blocks_or_inf, instance_of
from prefixhash.trace.future import NEVER, Future

ORDERS = TAIL_FIRST, HEAD_FIRST = ("tail-first", "head-first")


class Policy(ABC):
    """A cache of blocks.

    Of its class a replay wants to know: `name`; `needs_future`, whether it is made with the whole
    trace; `in_pool`, whether the engine's pool evicts by it, so that it is replayed there, by
    requests that hold their blocks; `overhead`, how many blocks of a capacity cache nothing.
    """

    name: ClassVar[str]
    needs_future: ClassVar[bool] = False
    in_pool: ClassVar[bool] = False
    overhead: ClassVar[int] = 0

    def __init__(self, capacity: float, head_first: bool, future: Future | None = None) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._head_first = head_first

    def access(self, ids: Sequence[int]) -> int:
        """The leading blocks of `ids` that are cached; then takes in all of them.

        Raises `InvalidArgumentError` for anything but integers, before it changes anything.
        """
        return self.take(block_numbers("ids", ids))

    @abstractmethod
    def take(self, ids: Sequence[int]) -> int:
        """As `access`, for numbers that were checked already."""

    @abstractmethod
    def __len__(self) -> int: ...

    def _in_order(self, ids: Sequence[int]) -> Iterable[int]:
        return ids if self._head_first else reversed(ids)


def leading_hits(cached: object, ids: Iterable[int]) -> int:
    """How many of the first `ids` are all in `cached`."""
    hits = 0
    for block in ids:
        if block not in cached:  # type: ignore[operator]
            break
        hits += 1
    return hits


class _OneQueue(Policy):
    """What the policies with one queue share."""

    def __init__(self, capacity: float, head_first: bool, future: Future | None = None) -> None:
        super().__init__(capacity, head_first)
        self._queue: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)


class LRU(_OneQueue):
    """Evicts the block that was used longest ago, as the engine's pool does."""

    name = "lru"
    in_pool = True
    overhead = POOL_OVERHEAD_BLOCKS

    def take(self, ids: Sequence[int]) -> int:
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


class FIFO(_OneQueue):
    """Evicts the block that was inserted longest ago."""

    name = "fifo"

    def take(self, ids: Sequence[int]) -> int:
        queue = self._queue
        hits = leading_hits(queue, ids)
        for block in self._in_order(ids):
            if block not in queue:
                queue[block] = None
                if len(queue) > self.capacity:
                    queue.popitem(last=False)
                    self.evictions += 1
        return hits


class LFU(Policy):
    """Evicts the block with the fewest uses since it was inserted; of equals the oldest."""

    name = "lfu"

    def __init__(self, capacity: float, head_first: bool, future: Future | None = None) -> None:
        super().__init__(capacity, head_first)
        self._uses: dict[int, int] = {}
        # Blocks by number of uses, each group in order of reaching that number.
        self._groups: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._fewest = 1

    def __len__(self) -> int:
        return len(self._uses)

    def take(self, ids: Sequence[int]) -> int:
        hits = leading_hits(self._uses, ids)
        for block in self._in_order(ids):
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


class S3FIFO(Policy):
    """Three queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).

    A tenth of the capacity takes new blocks; those used again move to the main queue, the others
    leave a ghost (their id), which lets them straight into the main queue next time. The main
    queue reinserts blocks that were used, up to three times.
    """

    name = "s3fifo"

    def __init__(self, capacity: float, head_first: bool, future: Future | None = None) -> None:
        super().__init__(capacity, head_first)
        self._small_capacity = capacity if capacity == math.inf else max(1, capacity // 10)
        self._uses: dict[int, int] = {}
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._uses)

    def take(self, ids: Sequence[int]) -> int:
        uses = self._uses
        hits = leading_hits(uses, ids)
        for block in self._in_order(ids):
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


class Optimal(Policy):
    """Keeps the blocks whose next use comes soonest and takes in none that are never used again.

    Belady's rule with bypass: the most hit blocks that any policy could reach where ids are prefix
    hashes. (Otherwise it is the most single hits; prefix hits could be more.)
    """

    name = "optimal"
    needs_future = True

    def __init__(self, capacity: float, head_first: bool, future: Future | None = None) -> None:
        super().__init__(capacity, head_first)
        if not isinstance(future, Future):
            raise InvalidArgumentError("future", future, f"{self.name} needs the whole trace")
        self._future = future
        self._now = 0
        self._next: dict[int, tuple[int, int]] = {}
        self._latest: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._next)

    def take(self, ids: Sequence[int]) -> int:
        uses = self._future.uses(self._now, len(ids))
        hits = leading_hits(self._next, ids)
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


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (LRU, FIFO, LFU, S3FIFO, Optimal)
}
DEFAULT_POLICY = LRU.name


def find_policy(name: str) -> type[Policy]:
    """The policy called `name`; raises `InvalidArgumentError` that lists them all."""
    return POLICIES[_arguments.choice("policy", name, POLICIES)]


def is_head_first(order: str) -> bool:
    """Whether blocks are taken in from the first on; raises `InvalidArgumentError`."""
    return _arguments.choice("order", order, ORDERS) == HEAD_FIRST


def make_policy(
    name: str, capacity: float, order: str = TAIL_FIRST, future: Future | None = None
) -> Policy:
    """The policy `name` with room for `capacity` blocks (`math.inf`: everything).

    `future`: of the requests that it will be given, where the policy needs it. Raises
    `InvalidArgumentError`.
    """
    policy = find_policy(name)
    head_first = is_head_first(order)
    if future is not None:
        instance_of("future", future, Future)
    return policy(blocks_or_inf("capacity", capacity, 1), head_first, future)
