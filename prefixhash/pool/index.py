"""Which hash is carried by which block: one dictionary per group, copies and second hashes apart.

The common case, one block per hash and one hash per block, touches two flat lists (hash and group
of a block) and one dictionary (hash to block). Further copies of a hash and further hashes of a
block live in dictionaries that stay empty in most pools, so a lookup never tests for them.

This index takes every hashable value and is the reference. Compiled, a pool starts with its
subclass in `digest_index.pyx`, which keeps digests in flat memory, and changes over to this one
when it is given anything else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

from prefixhash._compiled import flat_zeros
from prefixhash.errors import InvariantError

_flags = flat_zeros(__file__, "B")


class BeyondDigests(Exception):
    """An index of digests was given what only the reference can hold or compare."""


class HashIndex:
    """The two-way map between hashes and blocks. Arguments are trusted: the pool checks them."""

    __slots__ = ("carried", "copies", "group_of", "hash_of", "more", "num_cached", "served")

    def __init__(self, num_blocks: int) -> None:
        # Not zero for a block that carries a hash: what the loops of the pool ask.
        self.carried = _flags(num_blocks)
        # First hash of each block and that hash's group; group_of is meaningless without a hash.
        self.hash_of: list[Hashable | None] = [None] * num_blocks
        self.group_of: list[int] = [0] * num_blocks
        # Second and later hashes of a block, in order of insertion.
        self.more: dict[int, list[tuple[int, Hashable]]] = {}
        # Per group: the block that a lookup is given, and the copies that wait behind it, oldest
        # first (a dictionary serves as an ordered set with removal in O(1)).
        self.served: dict[int, dict[Hashable, int]] = {}
        self.copies: dict[int, dict[Hashable, dict[int, None]]] = {}
        self.num_cached = 0

    def of_group(self, group: int) -> dict[Hashable, int]:
        """The dictionary of one group, made on first use."""
        served = self.served.get(group)
        if served is None:
            served = self.served[group] = {}
            self.copies[group] = {}
        return served

    def generic(self) -> HashIndex:
        """An index with the same content that takes every hashable value: this one."""
        return self

    def all_digests(self, hashes: Sequence[Hashable]) -> bool:
        """Whether all are digests that need no check; here none is known to be one."""
        return False

    def find(self, block_hash: Hashable, group: int) -> int | None:
        """The block that a lookup is given, or None. O(1)."""
        served = self.served.get(group)
        return None if served is None else served.get(block_hash)

    def find_run(
        self, hashes: Iterable[Hashable], group: int, limit: int | None
    ) -> list[int] | None:
        """The blocks of the first `limit` hashes, up to the first that none carries. O(result).

        None, and nothing taken from `hashes`, where each must be asked for by itself.
        """
        found: list[int] = []
        served = self.served.get(group)
        if served is None:
            return found
        for block_hash in hashes if limit is None else islice(hashes, limit):
            block = served.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def carries(self, block: int, block_hash: Hashable, group: int) -> bool:
        """Whether this very block carries the hash in that group."""
        own = self.hash_of[block]
        if own == block_hash and self.group_of[block] == group and own is not None:
            return True
        return (group, block_hash) in self.more.get(block, ())

    def first_hashes_are(
        self, blocks: Sequence[int], hashes: Sequence[Hashable], group: int
    ) -> bool:
        """Whether each block's first hash is the one beside it: the usual case of `carries`.

        Raises:
            IndexError, TypeError: an id is none of this index.
        """
        hash_of = self.hash_of
        group_of = self.group_of
        return (
            [hash_of[block] for block in blocks] == list(hashes)
            and [group_of[block] for block in blocks].count(group) == len(blocks)
            and min(blocks, default=1) > 0
        )

    def first_hash(self, block: int) -> Hashable | None:
        """The first hash of a block, or None."""
        return self.hash_of[block]

    def hashes(self, block: int) -> list[tuple[int, Hashable]]:
        """Every (group, hash) of a block, oldest first."""
        own = self.hash_of[block]
        if own is None:
            return []
        return [(self.group_of[block], own), *self.more.get(block, ())]

    def add(
        self,
        blocks: Sequence[int],
        hashes: Sequence[Hashable],
        group: int,
        fresh: list[int] | None,
    ) -> None:
        """Let `blocks[i]` carry `hashes[i]`. O(1) per block.

        A block that carries the hash already is left alone; one that carries another gets a
        second one. `fresh` is given the positions whose hash was in no block before.
        """
        served = self.of_group(group)
        hash_of = self.hash_of
        group_of = self.group_of
        carried = self.carried
        added = 0
        position = -1
        for block in blocks:
            position += 1
            block_hash = hashes[position]
            if hash_of[block] is None:
                hash_of[block] = block_hash
                group_of[block] = group
                carried[block] = 1
                added += 1
            elif self.carries(block, block_hash, group):
                continue
            else:
                self.more.setdefault(block, []).append((group, block_hash))
            if served.setdefault(block_hash, block) != block:
                self.copies[group].setdefault(block_hash, {})[block] = None
            elif fresh is not None:
                fresh.append(position)
        self.num_cached += added

    def drop(self, blocks: Sequence[int], gone: list[tuple[int, Hashable]] | None) -> None:
        """Take every hash off the blocks; those without one are skipped. O(1) per hash.

        `gone` is given the (group, hash) keys that no block carries any more.
        """
        hash_of = self.hash_of
        group_of = self.group_of
        carried = self.carried
        group = -1
        dropped = 0
        for block in blocks:
            block_hash = hash_of[block]
            if block_hash is None:
                continue
            if group_of[block] != group:
                group = group_of[block]
                served = self.served[group]
                copies = self.copies[group]
            hash_of[block] = None
            carried[block] = 0
            dropped += 1
            if copies and block_hash in copies:
                self._drop_copy(block, block_hash, group)
                continue
            del served[block_hash]
            if gone is not None:
                gone.append((group, block_hash))
        if self.more:
            self._drop_more(blocks, gone)
        self.num_cached -= dropped

    def _drop_copy(self, block: int, block_hash: Hashable, group: int) -> None:
        """Forget one of several blocks with this hash; the oldest of the others is served next."""
        copies = self.copies[group]
        waiting = copies[block_hash]
        if self.served[group][block_hash] == block:
            heir = next(iter(waiting))
            self.served[group][block_hash] = heir
            del waiting[heir]
        else:
            del waiting[block]
        if not waiting:
            del copies[block_hash]

    def _drop_more(self, blocks: Sequence[int], gone: list[tuple[int, Hashable]] | None) -> None:
        for block in blocks:
            for group, block_hash in self.more.pop(block, ()):
                if block_hash in self.copies[group]:
                    self._drop_copy(block, block_hash, group)
                else:
                    del self.served[group][block_hash]
                    if gone is not None:
                        gone.append((group, block_hash))

    def clear(self) -> None:
        """Forget everything. O(number of blocks)."""
        num_blocks = len(self.hash_of)
        self.carried = _flags(num_blocks)
        self.hash_of = [None] * num_blocks
        self.more.clear()
        self.served.clear()
        self.copies.clear()
        self.num_cached = 0

    def keys(self) -> set[tuple[int, Hashable]]:
        """Every (group, hash) that a lookup finds."""
        return {(group, key) for group, served in self.served.items() for key in served}

    def num_keys(self) -> int:
        """How many (group, hash) a lookup finds. O(groups)."""
        return sum(map(len, self.served.values()))

    def check(self) -> None:
        """Compare both directions of the map.

        Raises:
            InvariantError: they disagree.
        """
        forward: dict[tuple[int, Hashable], set[int]] = {}
        for block in range(len(self.hash_of)):
            for key in self.hashes(block):
                forward.setdefault(key, set()).add(block)
        backward = {
            (group, key): {block, *self.copies[group].get(key, ())}
            for group, served in self.served.items()
            for key, block in served.items()
        }
        if forward != backward:
            raise InvariantError(f"hashes of the blocks {forward} differ from the index {backward}")
        cached = sum(own is not None for own in self.hash_of)
        if cached != self.num_cached or not set(self.more) <= set(range(len(self.hash_of))):
            raise InvariantError(f"{cached} blocks carry a hash, {self.num_cached} were counted")
        if [own is not None for own in self.hash_of] != [flag != 0 for flag in self.carried]:
            raise InvariantError("the flags of the blocks differ from their hashes")
