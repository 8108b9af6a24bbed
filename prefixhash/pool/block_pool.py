"""The pool: who holds which block, which block is reused next, which block carries which hash.

Blocks are integers, 0 .. num_blocks - 1. Block 0 is the null block: it fills the places of a block
table that need no memory, is never handed out, counted or freed, and serves inside as both ends of
the circular free list. All state lies in flat lists that are indexed by block id, so the pool of a
million blocks is a few lists and no object per block; methods are batched and loop inside, with
plain integers only, so the same source can be compiled as it stands.

Order of reuse, from first to last: freed blocks without a hash (the last call's first), blocks
never used, then blocks with a hash in the order in which they were freed. Free the blocks of one
request tail first, and the head of a chain, which more requests can share, goes last. A free block
whose hash is dropped by `evict` keeps its place. Ties are those of vLLM's pool.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import length_hint

from prefixhash._arguments import flag, integer
from prefixhash.errors import OutOfBlocksError
from prefixhash.events.records import Event, StoredTokens
from prefixhash.pool.index import BeyondDigests
from prefixhash.pool.pool_state import MAX_HOLDS, PoolState
from prefixhash.pool.refusals import (
    as_ids,
    check_about,
    check_hashes,
    check_lengths,
    check_sequence,
    refuse,
    refuse_overflow,
)


class BlockPool(PoolState):
    """`num_blocks` blocks with reference counts, an order of reuse and an index by hash.

    Every call is all or nothing: one that raises has changed nothing, not even the order of reuse.
    A hash is any hashable value but None; the same hash in two groups is two keys. With
    `enable_caching=False` nothing is ever findable: `cache` does nothing, lookups miss.
    Costs are per block of a call and do not depend on the size of the pool. A pool is not safe to
    share between threads: it belongs to one scheduler.

    Args:
        num_blocks: number of blocks, the null block included; at least 1.
        enable_caching: keep an index of hashes.
        events: record `BlockStored`, `BlockRemoved`, `AllBlocksCleared` for `take_events`.
        medium: written into the events.
        residency: samples how long cached blocks live, see `ResidencySampler`.

    Raises:
        InvalidArgumentError: `num_blocks` is not a positive integer.
    """

    __slots__ = ()

    def allocate(self, n: int) -> list[int]:
        """Take the `n` blocks that come first in the order of reuse, each held once.

        Cached ones among them lose their hashes.

        Raises:
            InvalidArgumentError: `n` is not an integer of at least 0.
            OutOfBlocksError: fewer than `n` blocks are free.
        """
        if type(n) is not int or n < 0:
            n = integer("n", n)
        if n > self._num_free:
            raise OutOfBlocksError(n, self._num_free)
        following = self._next
        refs = self._refs
        carried = self._index.carried
        taken = [0] * n
        cached = 0
        block = following[0]
        for position in range(n):
            refs[block] = 1
            taken[position] = block
            if carried[block]:
                cached += 1
            block = following[block]
        following[0] = block
        self._prev[block] = 0
        self._num_free -= n
        self._num_holds += n
        if cached:
            self._num_evictions += cached
            self._forget(taken)
        if self._residency is not None:
            self._residency.allocated(taken)
        return taken

    def touch(self, block_ids: Iterable[int]) -> None:
        """Hold the blocks once more; a free one that carries a hash leaves the order of reuse.

        Raises:
            InvalidBlockError: an id is foreign, the null block, a free block without a hash (its
                content belongs to nobody), or held 2**31 - 1 times.
        """
        ids = as_ids(block_ids)
        if self._num_holds + len(ids) > MAX_HOLDS:
            refuse_overflow(ids, self._refs, MAX_HOLDS)
        refs = self._refs
        carried = self._index.carried
        revived: list[int] = []
        good = False
        rest = iter(ids)
        try:
            for item in rest:
                block = item
                count = refs[block]
                if block <= 1 and (block <= 0 or item is True):
                    break
                if count == 0:
                    if not carried[block]:
                        break
                    revived.append(item)
                refs[block] = count + 1
            else:
                good = True
        except (IndexError, TypeError, OverflowError):
            pass  # a foreign id: refused below, as the other bad ones are
        if not good:
            position = len(ids) - 1 - length_hint(rest)
            for block in ids[:position]:
                refs[block] -= 1
            refuse(ids, position, "touch", self.num_blocks)
        self._num_holds += len(ids)
        if revived:
            self._unlink(revived)
        if self._residency is not None:
            self._residency.touched(ids)

    def _unlink(self, blocks: list[int]) -> None:
        """Take free blocks out of the order of reuse.

        The blocks of a chain lie there side by side, last block first, as they were freed: a whole
        run of neighbours is taken out at its two ends.
        """
        following = self._next
        before = self._prev
        first = last = blocks[0]
        for block in blocks:
            if before[last] != block and block != first:
                left = before[last]
                right = following[first]
                following[left] = right
                before[right] = left
                first = block
            last = block
        left = before[last]
        right = following[first]
        following[left] = right
        before[right] = left
        self._num_free -= len(blocks)

    def free(self, block_ids: Iterable[int]) -> None:
        """Give up one hold on each block; those that nobody holds now can be reused.

        Give the blocks of a request tail first. Those with a hash go to the end of the order of
        reuse, in the given order; those without go to its front, the first given first.

        Raises:
            InvalidBlockError: an id is foreign, the null block, or more often in the list than the
                block is held (double free).
        """
        ids = as_ids(block_ids)
        refs = self._refs
        carried = self._index.carried
        following = self._next
        before = self._prev
        # The chains hang on the two dummies until all ids have proved good; links of blocks in
        # use may be overwritten, so a refused call has only counts to undo.
        front = self.num_blocks
        back = front + 1
        kept = 0
        good = False
        rest = iter(ids)
        try:
            for item in rest:
                block = item
                count = refs[block]
                if block <= 1 and (block <= 0 or item is True):
                    break
                if count == 1:
                    refs[block] = 0
                    if carried[block]:
                        following[back] = block
                        before[block] = back
                        back = block
                    else:
                        following[front] = block
                        before[block] = front
                        front = block
                elif count > 1:
                    refs[block] = count - 1
                    kept += 1
                else:
                    break
            else:
                good = True
        except (IndexError, TypeError, OverflowError):
            pass  # a foreign id: refused below, as the other bad ones are
        if not good:
            position = len(ids) - 1 - length_hint(rest)
            for block in ids[:position]:
                refs[block] += 1
            refuse(ids, position, "free", self.num_blocks)
        self._num_free += len(ids) - kept
        self._num_holds -= len(ids)
        self._splice(front, back)

    def _splice(self, front: int, back: int) -> None:
        """Put the chain that ends in `front` before, that in `back` behind the free list."""
        following = self._next
        before = self._prev
        dummy = self.num_blocks
        if front != dummy:
            head, first = following[0], following[dummy]
            following[0], before[first] = first, 0
            following[front], before[head] = head, front
        if back != dummy + 1:
            tail, first = before[0], following[dummy + 1]
            following[tail], before[first] = first, tail
            following[back], before[0] = 0, back

    def cache(
        self,
        block_ids: Iterable[int],
        block_hashes: Sequence[Hashable],
        group: int = 0,
        about: StoredTokens | None = None,
    ) -> None:
        """Make blocks in use findable: block i carries `block_hashes[i]` in that group.

        A block that carries the hash already stays as it is; one that carries another hash carries
        both (a partial prefix and the full block); several blocks may carry one hash.

        Args:
            block_ids, block_hashes: of equal length, consecutive blocks of one chain.
            group: which index, 0 or more.
            about: tokens and parent, for the events; not looked at when events are off.

        Raises:
            InvalidBlockError: an id is foreign, the null block or free.
            InvalidArgumentError: lengths differ, a hash is None or unhashable, or `about` is not
                about these blocks.
        """
        ids = as_ids(block_ids)
        check_lengths(ids, block_hashes)
        if type(group) is not int or group < 0:
            group = integer("group", group)
        refs = self._refs
        good = False
        rest = iter(ids)
        try:
            for item in rest:
                block = item
                if refs[block] == 0 or block < 0 or item is True:
                    break
            else:
                good = True
        except (IndexError, TypeError, OverflowError):
            pass  # a foreign id: refused below, as the other bad ones are
        if not good:
            refuse(ids, len(ids) - 1 - length_hint(rest), "cache", self.num_blocks)
        if not self._index.all_digests(block_hashes):
            check_hashes(block_hashes)
        if self._log is not None and about is not None:
            check_about(about, len(ids))
        if self.enable_caching:
            self._store(ids, block_hashes, group, about)

    def _store(
        self,
        ids: Sequence[int],
        block_hashes: Sequence[Hashable],
        group: int,
        about: StoredTokens | None,
    ) -> None:
        fresh: list[int] | None = None if self._log is None else []
        try:
            self._index.add(ids, block_hashes, group, fresh)
        except BeyondDigests:
            self._change_over()
            self._index.add(ids, block_hashes, group, fresh)
        if self._log is not None and fresh:
            self._log.stored(block_hashes, fresh, group, about)

    def evict(self, block_ids: Iterable[int]) -> None:
        """Drop every hash of the blocks; holds and order of reuse stay. Uncached ones are skipped.

        Raises:
            InvalidBlockError: an id is foreign.
        """
        carried = self._index.carried
        ids = dict.fromkeys(map(self._known, as_ids(block_ids)))
        cached = [block for block in ids if carried[block]]
        if cached:
            self._forget(cached)

    def _forget(self, blocks: list[int]) -> None:
        """Drop the hashes of those that carry any, and tell who wants to know."""
        gone: list[tuple[int, Hashable]] | None = None if self._log is None else []
        evicted: list[int] = []
        if self._residency is not None:
            evicted = [block for block in blocks if self._index.carried[block]]
        self._index.drop(blocks, gone)
        if self._log is not None and gone:
            self._log.removed(gone)
        if self._residency is not None:
            self._residency.evicted(evicted)

    def reset(self, *, force: bool = False) -> bool:
        """Drop every hash; False, and nothing done, while blocks are held.

        `force` drops them all the same, of held blocks too: for changed weights. Holds and the
        order of reuse stay. O(number of blocks).
        """
        if not flag("force", force) and self._num_free != self.num_blocks - 1:
            return False
        self._index.clear()
        if self._log is not None:
            self._log.cleared()
        if self._residency is not None:
            self._residency.cleared()
        return True

    def take_events(self) -> list[Event]:
        """The events since the last call, oldest first; always empty without `events=True`."""
        return [] if self._log is None else self._log.take()

    def report_reuse(
        self, block_hashes: Sequence[Hashable], group: int, about: StoredTokens
    ) -> None:
        """Queue a `BlockStored` for blocks that are stored already; nothing without events."""
        group = integer("group", group)
        check_sequence(block_hashes)
        if self._log is not None and block_hashes:
            check_about(about, len(block_hashes))
            check_hashes(block_hashes)
            self._log.reused(block_hashes, group, about)
