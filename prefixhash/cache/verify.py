"""Tokens behind the hashes, for algorithms in which two different prefixes may share one.

Each published hash of the hash block size leads to a record of its block's tokens and extra keys
and to the record of the block before. A hit counts only as far as the whole chain of records says
what the request says, so that not even a deliberate collision, in this block or in an earlier one
that the group does not hold any more, serves foreign KV.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from prefixhash.cache.interface import CachedRequest, CacheHit
from prefixhash.cache.managers import AttentionManager
from prefixhash.errors import StaleHitError


class BlockRecord:
    """Tokens and extra keys of one block, and the record of the block before (None at the start).

    Compared by identity; equal content is decided by `agrees`.
    """

    __slots__ = ("extra_keys", "parent", "token_ids")

    def __init__(
        self,
        token_ids: array[int],
        extra_keys: tuple[Any, ...] | None,
        parent: BlockRecord | None,
    ) -> None:
        self.token_ids = token_ids
        self.extra_keys = extra_keys
        self.parent = parent


class TokenVerifier:
    """Records of the blocks that are findable. Memory: 8 bytes a token of every cached block."""

    def __init__(self, block_hasher: Any, hash_block_size: int) -> None:
        self._hasher = block_hasher
        self._size = hash_block_size
        # (block of the pool, group) to the record of its last hash block.
        self._behind: dict[tuple[int, int], BlockRecord] = {}

    def record(self, request: CachedRequest, records: list[BlockRecord], count: int) -> None:
        """Extend the records of a request to `count` hash blocks. O(new blocks)."""
        for index in range(len(records), count):
            parent = records[-1] if records else None
            records.append(BlockRecord(*self._content(request, index), parent))

    def _content(
        self, request: CachedRequest, index: int
    ) -> tuple[array[int], tuple[Any, ...] | None]:
        tokens = request.all_token_ids[index * self._size : (index + 1) * self._size]
        return array("q", tokens), self._hasher.extra_keys(request, index)

    def published(self, block: int, group: int, record: BlockRecord) -> None:
        """The block now carries the hash that the record stands for."""
        self._behind[block, group] = record

    def records_of(
        self, request: CachedRequest, hit: CacheHit, managers: Sequence[AttentionManager]
    ) -> list[BlockRecord]:
        """The records of a hit, which the request goes on with: one copy of a shared prefix.

        Raises:
            StaleHitError: a block stands for another prefix than the request's, by now.
        """
        if self.first_foreign(request, hit, managers) is not None:
            raise StaleHitError(
                f"a block of the hit of {hit.num_tokens} tokens of request "
                f"{request.request_id!r} holds other tokens by now: look it up again"
            )
        ends = ((ids[-1], group) for group, ids in enumerate(hit.block_ids) if any(ids[-1:]))
        record = self._behind.get(next(ends, (0, 0)))
        records: list[BlockRecord] = []
        while record is not None:
            records.append(record)
            record = record.parent
        return records[::-1]

    def clear(self) -> None:
        """Forget all blocks."""
        self._behind.clear()

    def first_foreign(
        self, request: CachedRequest, hit: CacheHit, managers: Sequence[AttentionManager]
    ) -> int | None:
        """Where the first block of a hit begins that stands for another prefix; None for none.

        O(tokens of the hit).
        """
        bounds = []
        for manager in managers:
            ids = hit.block_ids[manager.group]
            place = self._foreign_place(request, ids, manager)
            if place is not None:
                bounds.append(place * manager.block_size)
        return min(bounds, default=None)

    def _foreign_place(
        self, request: CachedRequest, ids: Sequence[int], manager: AttentionManager
    ) -> int | None:
        proved: set[tuple[int, int]] = set()
        for place, block in enumerate(ids):
            if not block:
                continue  # not needed by the group
            record = self._behind.get((block, manager.group))
            last = (place + 1) * manager.block_size // self._size - 1
            if record is None or not self._agrees(request, record, last, proved):
                return place
        return None

    def _agrees(
        self,
        request: CachedRequest,
        record: BlockRecord | None,
        index: int,
        proved: set[tuple[int, int]],
    ) -> bool:
        walked = []
        while record is not None and (id(record), index) not in proved:
            tokens, extra_keys = self._content(request, index)
            if record.token_ids != tokens or record.extra_keys != extra_keys:
                return False
            walked.append((id(record), index))
            record = record.parent
            index -= 1
        if record is None and index != -1:
            return False
        proved.update(walked)
        return True
