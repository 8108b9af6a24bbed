"""The consumer's side of the events: which prefixes a pool holds, told from its events alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from prefixhash._arguments import integer
from prefixhash.errors import InvalidArgumentError
from prefixhash.events.records import AllBlocksCleared, BlockStored, Event, checked_events


class EventIndex:
    """The keys of a pool's index, kept up to date by its events.

    A block whose parent is not known (the consumer started late, or the parent was evicted first)
    is kept as an orphan, with its descendants, and is linked as soon as the parent arrives. Groups
    are apart: blocks of a group that keeps windows or states add nothing to the prefix of another.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._parents: dict[int, dict[Hashable, Hashable | None]] = {}
        self.apply(events)

    def apply(self, events: Iterable[Event]) -> None:
        """Take events in the order in which they were emitted. O(blocks of the events).

        Storing again what is stored, and removing what is unknown, change nothing, but that a
        block which was first reported without its parent is linked once an event names it.

        Raises:
            InvalidArgumentError: a value is no event; nothing was applied.
        """
        for event in checked_events(events):
            if isinstance(event, AllBlocksCleared):
                self._parents.clear()
                continue
            known = self._parents.setdefault(event.group_idx or 0, {})
            if isinstance(event, BlockStored):
                _link(known, event)
            else:
                for block_hash in event.block_hashes:
                    known.pop(block_hash, None)

    def keys(self) -> set[tuple[int, Hashable]]:
        """Every (group, hash) that is resident; equals `BlockPool.cached_hashes()`."""
        return {(group, key) for group, known in self._parents.items() for key in known}

    def __contains__(self, block_hash: Hashable) -> bool:
        return any(block_hash in known for known in self._parents.values())

    def parent(self, block_hash: Hashable, group: int = 0) -> Hashable | None:
        """The hash before this one, None at the start of a chain or for an unknown hash."""
        try:
            return self._group(group).get(block_hash)
        except TypeError as error:
            raise InvalidArgumentError("block_hash", block_hash, str(error)) from None

    def orphans(self, group: int = 0) -> set[Hashable]:
        """Resident hashes whose parent is not resident. O(resident blocks)."""
        known = self._group(group)
        return {key for key, parent in known.items() if parent is not None and parent not in known}

    def resident_prefix(self, block_hashes: Sequence[Hashable], group: int = 0) -> int:
        """How many of the hashes, from the start of a request, the group holds without a gap.

        Counts hashes that are chained to the one before only, so that the lone windows of a
        sliding-window group are no prefix. O(result).
        """
        known = self._group(group)
        if not isinstance(block_hashes, Sequence) or isinstance(block_hashes, (str, bytes)):
            raise InvalidArgumentError("block_hashes", block_hashes, "must be a list of hashes")
        before: Hashable | None = None
        try:
            for count, block_hash in enumerate(block_hashes):
                if block_hash not in known or known[block_hash] != before:
                    return count
                before = block_hash
        except TypeError as error:
            raise InvalidArgumentError("block_hashes", block_hashes, str(error)) from None
        return len(block_hashes)

    def _group(self, group: int) -> dict[Hashable, Hashable | None]:
        return self._parents.get(integer("group", group), {})


def _link(known: dict[Hashable, Hashable | None], event: BlockStored) -> None:
    """A hash has one parent: the first that is told. None says that nobody knew one yet."""
    parent = event.parent_block_hash
    for block_hash in event.block_hashes:
        if known.get(block_hash) is None:
            known[block_hash] = parent
        parent = block_hash
