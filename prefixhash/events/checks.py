"""Does a stream of KV events make sense? What a router that believes it would end up with.

Checked, for each group apart: a block has as many tokens as its size; a parent was reported before;
what is removed was stored; one hash always stands for the same content, and one content for the
same hash (otherwise nothing is ever reused); sequence numbers have no gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from prefixhash._arguments import sequence
from prefixhash.errors import InvalidArgumentError
from prefixhash.events.index import EventIndex
from prefixhash.events.recordings import Message
from prefixhash.events.records import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    checked_events,
)

_KEPT_EXAMPLES = 5

FINDINGS = {
    "length": "blocks whose tokens are not as many as block size x blocks",
    "extra-keys": "events whose extra keys are not one for each block",
    "parent": "blocks whose parent was not known when they were stored",
    "removed": "removals of blocks that were not known",
    "content": "hashes that were stored for two contents",
    "hash": "contents that were stored under two hashes: they are never reused",
    "sequence": "gaps in the sequence of messages",
}


@dataclass
class Finding:
    """One kind of contradiction: how often, and the first places."""

    kind: str
    count: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def meaning(self) -> str:
        return FINDINGS[self.kind]


@dataclass
class EventReport:
    """What a recording holds. `resident`: blocks of each group at the end; `orphans` of them have
    no resident parent, and no prefix of theirs can be hit."""

    messages: int = 0
    events: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    removed: int = 0
    repeated: int = 0
    most_resident: int = 0
    resident: dict[int, int] = field(default_factory=dict)
    orphans: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


class EventChecker:
    """Takes messages in order; `report` tells what was found. Memory: the distinct blocks."""

    def __init__(self) -> None:
        self._index = EventIndex()
        self._resident: dict[int, set[Hashable]] = {}
        self._contents: dict[tuple[int, Hashable], Hashable] = {}
        self._hashes: dict[tuple[int, Hashable], Hashable] = {}
        self._findings = {kind: Finding(kind) for kind in FINDINGS}
        self._report = EventReport()
        self._sequence: int | None = None

    def take(self, message: Message) -> None:
        """Checks and applies the events of one message."""
        self._report.messages += 1
        self._check_sequence(message)
        for event in message.events:
            self._report.events[type(event).__name__] += 1
            self._check(event, message.place)
            self._index.apply([event])
        resident = sum(map(len, self._resident.values()))
        self._report.most_resident = max(self._report.most_resident, resident)

    def report(self) -> EventReport:
        groups = sorted(self._resident)
        self._report.resident = {group: len(self._resident[group]) for group in groups}
        self._report.orphans = {group: len(self._index.orphans(group)) for group in groups}
        self._report.findings = [f for f in self._findings.values() if f.count]
        return self._report

    def _check_sequence(self, message: Message) -> None:
        if message.sequence is None:
            return
        if self._sequence is not None and message.sequence != self._sequence + 1:
            self._found("sequence", message.place, f"{message.sequence} after {self._sequence}")
        self._sequence = message.sequence

    def _check(self, event: Event, place: int) -> None:
        if isinstance(event, AllBlocksCleared):
            self._resident.clear()
        elif isinstance(event, BlockRemoved):
            self._check_removed(event, place)
        else:
            self._check_stored(event, place)

    def _check_removed(self, event: BlockRemoved, place: int) -> None:
        resident = self._resident.setdefault(event.group_idx or 0, set())
        for block in event.block_hashes:
            if block in resident:
                resident.discard(block)
                self._report.removed += 1
            else:
                self._found("removed", place, _name(block))

    def _check_stored(self, event: BlockStored, place: int) -> None:
        group = event.group_idx or 0
        resident = self._resident.setdefault(group, set())
        parent = event.parent_block_hash
        if parent is not None and parent not in resident:
            self._found("parent", place, f"{_name(event.block_hashes[0])} after {_name(parent)}")
        size, blocks = event.block_size, len(event.block_hashes)
        whole = not event.token_ids or len(event.token_ids) == size * blocks
        if not whole:
            self._found("length", place, f"{len(event.token_ids)} tokens for {blocks} x {size}")
        if event.extra_keys is not None and len(event.extra_keys) not in (0, blocks):
            self._found("extra-keys", place, f"{len(event.extra_keys)} for {blocks} blocks")
            whole = False
        before = event.parents()
        for position, block in enumerate(event.block_hashes):
            if whole and event.token_ids:
                self._check_content(event, position, before[position], place)
            self._report.repeated += block in resident
            self._report.stored += block not in resident
            resident.add(block)

    def _check_content(
        self, event: BlockStored, position: int, parent: Hashable | None, place: int
    ) -> None:
        group = event.group_idx or 0
        block = event.block_hashes[position]
        content = (
            parent,
            event.token_ids[position * event.block_size : (position + 1) * event.block_size],
            repr(event.extra_keys[position]) if event.extra_keys else None,
            event.lora_name,
            event.lora_id,
        )
        # Numbers instead of the tokens themselves: memory for each block, not for its tokens.
        mark = hash(content)
        known = self._contents.setdefault((group, block), mark)
        if known != mark:
            self._found("content", place, _name(block))
        other = self._hashes.setdefault((group, mark), block)
        if other != block:
            self._found("hash", place, f"{_name(block)} and {_name(other)}")

    def _found(self, kind: str, place: int, example: str) -> None:
        finding = self._findings[kind]
        finding.count += 1
        if len(finding.examples) < _KEPT_EXAMPLES:
            finding.examples.append(f"{place}: {example}")


def check_events(messages: Iterable[Message]) -> EventReport:
    """Checks a whole recording.

    Raises:
        InvalidArgumentError: what is given are no messages, or they hold what is no event.
    """
    if not isinstance(messages, Iterator):  # which read_messages gives, too large for a list
        messages = sequence("messages", messages, "Messages")
    checker = EventChecker()
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidArgumentError("messages", message, "must be Messages")
        checked_events(message.events)
        checker.take(message)
    return checker.report()


def _name(block: Hashable) -> str:
    return block.hex() if isinstance(block, bytes) else str(block)
