"""The queue of events of a pool, and the keys that a consumer of them holds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from prefixhash.events.records import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    StoredTokens,
)


class EventLog:
    """Builds events from what the index says has changed."""

    __slots__ = ("_queue", "medium", "reported")

    def __init__(self, medium: str | None = MEDIUM_GPU) -> None:
        self.medium = medium
        self._queue: list[Event] = []
        # What a consumer of all events so far holds: lets `check()` compare events and index.
        self.reported: set[tuple[int, Hashable]] = set()

    def take(self) -> list[Event]:
        """All events since the last call, oldest first."""
        queue = self._queue
        self._queue = []
        return queue

    def stored(
        self,
        hashes: Sequence[Hashable],
        fresh: Sequence[int],
        group: int,
        about: StoredTokens | None,
    ) -> None:
        """Report the fresh positions of a call, one event for each run without a gap."""
        start = 0
        for i in range(1, len(fresh) + 1):
            if i == len(fresh) or fresh[i] != fresh[i - 1] + 1:
                event = self._run(hashes, fresh[start], fresh[i - 1] + 1, group, about)
                self._queue.append(event)
                self.reported.update((group, key) for key in event.block_hashes)
                start = i

    def removed(self, gone: Sequence[tuple[int, Hashable]]) -> None:
        """Report hashes that no block carries any more, one event for each run of one group."""
        start = 0
        for i in range(1, len(gone) + 1):
            if i == len(gone) or gone[i][0] != gone[start][0]:
                keys = tuple(key for _, key in gone[start:i])
                self._queue.append(BlockRemoved(keys, self.medium, gone[start][0]))
                start = i
        self.reported.difference_update(gone)

    def cleared(self) -> None:
        """Report that the index is empty."""
        self._queue.append(AllBlocksCleared())
        self.reported.clear()

    def reused(self, hashes: Sequence[Hashable], group: int, about: StoredTokens) -> None:
        """Report again blocks that are stored already and were reused; the keys do not change."""
        self._queue.append(self._run(hashes, 0, len(hashes), group, about))

    def _run(
        self,
        hashes: Sequence[Hashable],
        start: int,
        end: int,
        group: int,
        about: StoredTokens | None,
    ) -> BlockStored:
        run = tuple(hashes[start:end])
        if about is None:
            parent = hashes[start - 1] if start else None
            return BlockStored(run, parent, medium=self.medium, group_idx=group)
        size = about.block_size
        extra_keys = tuple(about.extra_keys[start:end])
        return BlockStored(
            block_hashes=run,
            parent_block_hash=hashes[start - 1] if start else about.parent_block_hash,
            token_ids=tuple(about.token_ids[start * size : end * size]),
            block_size=size,
            medium=self.medium,
            lora_name=about.lora_name,
            extra_keys=extra_keys if any(extra_keys) else None,
            group_idx=group,
            kv_cache_spec_kind=about.spec_kind,
            kv_cache_spec_sliding_window=about.sliding_window,
        )
