"""The state of a pool and everything that only reads it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from operator import index as to_index

from prefixhash._arguments import flag, integer, is_integer, text
from prefixhash._compiled import flat_type, flat_zeros
from prefixhash.errors import InvalidArgumentError, InvariantError
from prefixhash.events.log import EventLog
from prefixhash.events.records import MEDIUM_GPU
from prefixhash.pool.index import BeyondDigests, HashIndex
from prefixhash.pool.refusals import (
    as_ids,
    check_lengths,
    check_sequence,
    refuse_foreign,
    refuse_unhashable,
)
from prefixhash.pool.residency import ResidencySampler

_flat = flat_type(__file__, "i")
_zeros = flat_zeros(__file__, "i")
# Ids fit into the 32-bit block tables of engines; so do those of the list heads, and the counts.
MAX_BLOCKS = 2**31 - 2
MAX_HOLDS = 2**31 - 1
_DUMMIES = 2  # list heads behind the last block: chains are built without a test for empty


class PoolState:
    """The read side of `BlockPool`."""

    null_block_id = 0

    __slots__ = (
        "_index",
        "_log",
        "_next",
        "_num_evictions",
        "_num_free",
        "_num_holds",
        "_prev",
        "_refs",
        "_residency",
        "enable_caching",
        "num_blocks",
    )

    def __init__(
        self,
        num_blocks: int,
        *,
        enable_caching: bool = True,
        events: bool = False,
        medium: str | None = MEDIUM_GPU,
        residency: ResidencySampler | None = None,
    ) -> None:
        num_blocks = integer(
            "num_blocks", num_blocks, 1, MAX_BLOCKS, meaning=" (the null block counts)"
        )
        self.num_blocks = num_blocks
        self.enable_caching = flag("enable_caching", enable_caching)
        self._refs = _zeros(num_blocks)
        # Circular list through the null block; links of a block that is in use are meaningless.
        self._next = _flat([*range(1, num_blocks), 0, *[0] * _DUMMIES])
        self._prev = _flat([num_blocks - 1, *range(num_blocks - 1), *[0] * _DUMMIES])
        self._num_free = num_blocks - 1
        self._num_holds = 0  # on all blocks together: no block can be held more often
        self._num_evictions = 0
        self._index = HashIndex(num_blocks)
        self._log = EventLog(medium) if flag("events", events) else None
        if medium is not None:
            text("medium", medium)
        if residency is not None and not isinstance(residency, ResidencySampler):
            raise InvalidArgumentError("residency", residency, "must be a ResidencySampler or None")
        self._residency = residency

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `allocate` can hand out, cached ones included."""
        return self._num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that carry a hash, in use or not."""
        return self._index.num_cached

    @property
    def num_cached_hashes(self) -> int:
        """Different (group, hash) keys that a lookup finds; copies count once."""
        return self._index.num_keys()

    @property
    def num_evictions(self) -> int:
        """Cached blocks that `allocate` has reused since the pool was built."""
        return self._num_evictions

    @property
    def usage(self) -> float:
        """Share of the blocks in use, from 0.0 to 1.0; the null block does not count."""
        usable = self.num_blocks - 1
        return (usable - self._num_free) / usable if usable else 0.0

    @property
    def events_enabled(self) -> bool:
        """Whether `cache` should be told about tokens, for the events."""
        return self._log is not None

    def ref_count(self, block_id: int) -> int:
        """How often the block is held; 0 for a free block and for the null block."""
        return self._refs[self._known(block_id)]

    def block_hash(self, block_id: int) -> Hashable | None:
        """The first hash of the block, or None."""
        return self._index.first_hash(self._known(block_id))

    def block_hashes(self, block_id: int) -> list[tuple[int, Hashable]]:
        """Every (group, hash) that the block carries, oldest first."""
        return self._index.hashes(self._known(block_id))

    def free_block_ids(self) -> list[int]:
        """The free blocks in the order in which `allocate` would reuse them. O(free blocks)."""
        return self._walk(self._next)

    def cached_hashes(self) -> set[tuple[int, Hashable]]:
        """Every (group, hash) that a lookup finds. O(cached blocks)."""
        return self._index.keys()

    def lookup(self, block_hash: Hashable, group: int = 0) -> int | None:
        """The block that carries the hash, None without one; of several, the first cached. O(1)."""
        if type(group) is not int or group < 0:
            group = integer("group", group)
        try:
            served = self._index.served.get(group)
            # Without a dictionary the group is unknown, or the index keeps none.
            return self._find(block_hash, group) if served is None else served.get(block_hash)
        except TypeError as error:
            refuse_unhashable(block_hash, error)

    def _find(self, block_hash: Hashable, group: int) -> int | None:
        try:
            return self._index.find(block_hash, group)
        except BeyondDigests:
            self._change_over()
            return self._index.find(block_hash, group)

    def _change_over(self) -> None:
        """Go on with the index that takes every hashable value. O(number of blocks), once."""
        self._index = self._index.generic()

    def longest_prefix(
        self, block_hashes: Iterable[Hashable], group: int = 0, limit: int | None = None
    ) -> list[int]:
        """The blocks of the hashes up to the first one that no block carries. O(result).

        Args:
            block_hashes: a list or tuple, or any iterable, of which no more is taken than needed.
            group: in which index.
            limit: at most so many hashes are looked at; None for all.

        Raises:
            InvalidArgumentError: no such hashes, group or limit.
        """
        if type(group) is not int or group < 0:
            group = integer("group", group)
        if limit is not None and (type(limit) is not int or limit < 0):
            limit = integer("limit", limit, meaning=", or None")
        if type(block_hashes) is not list and (
            not isinstance(block_hashes, Iterable) or isinstance(block_hashes, (str, bytes))
        ):
            check_sequence(block_hashes)  # refuses it
        try:
            return self._find_run(block_hashes, group, limit)
        except TypeError as error:
            refuse_unhashable(block_hashes, error)

    def _find_run(
        self, block_hashes: Iterable[Hashable], group: int, limit: int | None
    ) -> list[int]:
        try:
            found = self._index.find_run(block_hashes, group, limit)
        except BeyondDigests:
            self._change_over()
            found = self._index.find_run(block_hashes, group, limit)
        if found is not None:
            return found
        found = []
        for block_hash in islice(block_hashes, limit):
            block = self._find(block_hash, group)
            if block is None:
                break
            found.append(block)
        return found

    def carries(
        self, block_ids: Sequence[int], block_hashes: Sequence[Hashable], group: int = 0
    ) -> bool:
        """Whether each block carries, still, the hash beside it in that group.

        Raises:
            InvalidBlockError: an id is foreign.
        """
        group = integer("group", group)
        block_ids = as_ids(block_ids)
        check_lengths(block_ids, block_hashes)
        try:
            if self._index.first_hashes_are(block_ids, block_hashes, group):
                return True
        except (IndexError, TypeError):
            pass  # a foreign id: named below
        try:
            return self._all_carry(block_ids, block_hashes, group)
        except BeyondDigests:
            self._change_over()
            return self._all_carry(block_ids, block_hashes, group)

    def _all_carry(
        self, block_ids: Sequence[int], block_hashes: Sequence[Hashable], group: int
    ) -> bool:
        index = self._index
        pairs = zip(map(self._known, block_ids), block_hashes, strict=True)
        return all(index.carries(block, block_hash, group) for block, block_hash in pairs)

    def count_free(self, block_ids: Iterable[int]) -> int:
        """How many of the blocks nobody holds. O(blocks).

        Raises:
            InvalidBlockError: an id is foreign.
        """
        ids = as_ids(block_ids)
        refs = self._refs
        free = 0
        try:
            for block in ids:
                if refs[block] == 0:
                    free += 1
        except (IndexError, TypeError, OverflowError):
            return [self.ref_count(item) for item in ids].count(0)
        return free

    def check(self) -> None:
        """Walk every invariant. O(number of blocks), for tests and debugging.

        Raises:
            InvariantError: the state contradicts itself.
        """
        order = self._walk(self._next)
        backwards = self._walk(self._prev)
        if order != backwards[::-1] or len(order) != self._num_free:
            raise InvariantError(
                f"free list {order}, backwards {backwards}, count {self._num_free}"
            )
        for block, count in enumerate(self._refs):
            if count < 0:
                raise InvariantError(f"block {block} is held {count} times")
        if sum(self._refs) != self._num_holds:
            raise InvariantError(f"{sum(self._refs)} holds, {self._num_holds} were counted")
        free = {block for block in range(1, self.num_blocks) if self._refs[block] == 0}
        if free != set(order) or len(order) != len(free) or self._refs[0] != 0:
            raise InvariantError(f"blocks not held {sorted(free)} differ from free list {order}")
        if self._index.carried[0]:
            raise InvariantError("the null block carries a hash")
        self._index.check()
        if self._log is not None and self._log.reported != self._index.keys():
            raise InvariantError("replaying the events does not give the index")

    def _walk(self, links: Sequence[int]) -> list[int]:
        """The blocks of the free list along one of its two directions, cut where it never ends."""
        blocks: list[int] = []
        block = links[0]
        while block and len(blocks) < self.num_blocks:
            blocks.append(block)
            block = links[block]
        return blocks

    def _known(self, block_id: int) -> int:
        if type(block_id) is not int and is_integer(block_id):
            block_id = to_index(block_id)
        if type(block_id) is not int or not 0 <= block_id < self.num_blocks:
            refuse_foreign(block_id, self.num_blocks)
        return block_id
