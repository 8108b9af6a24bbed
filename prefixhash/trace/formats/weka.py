"""WEKA's recordings of coding agents: one conversation a file or a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prefixhash._source import BadRecordError
from prefixhash.errors import shorten
from prefixhash.trace.fields import (
    Record,
    count_field,
    duration_field,
    label_field,
    list_field,
    time_field,
)
from prefixhash.trace.formats.base import TraceFormat
from prefixhash.trace.records import BlockId, TraceRequest

_REQUEST_KEYS = ("t", "type", "in", "out", "hash_ids", "api_time", "requests")


class Weka(TraceFormat):
    """Conversations with `requests`, those of sub-agents nested; times are in seconds."""

    name = "weka"
    summary = "a conversation: id, block_size, hash_id_scope, requests with t, in, out, hash_ids"
    default_block_size = 64
    recognised_by = ("requests", "block_size")
    keys = ("id", "block_size", "hash_id_scope", "requests")
    # Of a request that stands alone, outside its conversation.
    signs = ("in", "out")
    contents = ("hash_ids",)
    whole_files = True
    states_block_size = True

    def __init__(self, block_size: int | None = None) -> None:
        super().__init__(block_size)
        self._fixed = block_size is not None
        self._conversations = 0

    def requests(self, record: Record) -> Iterable[TraceRequest]:
        self._agree_on_block_size(record)
        number = self._conversations
        self._conversations += 1
        session = label_field(record, "id") or str(number)
        # Ids of a local scope mean nothing in another conversation.
        scope = None if record.get("hash_id_scope") == "global" else number
        flat = list(self._flat(list_field(record, "requests"), "main", None))
        flat.sort(key=lambda item: item[0])
        for turn, (when, kind, entry) in enumerate(flat, 1):
            yield self._request(entry, when, kind, session, turn, scope)

    def _agree_on_block_size(self, record: Record) -> None:
        block_size = count_field(record, "block_size")
        if block_size < 1:
            raise BadRecordError("block_size=0: a block has at least one token")
        if not self._fixed:
            self.block_size, self._fixed = block_size, True
        if block_size != self.block_size:
            raise BadRecordError(
                f"block_size={block_size} after {self.block_size}: "
                "conversations with other blocks are another trace"
            )

    def _request(
        self, entry: Record, when: float, kind: str, session: str, turn: int, scope: int | None
    ) -> TraceRequest:
        ids: list[BlockId]
        ids, num_tokens = self.blocks(entry, "hash_ids", "in")
        if scope is not None:
            ids = [(scope, block) for block in ids]  # type: ignore[misc]
        return TraceRequest(
            ids,
            num_tokens,
            count_field(entry, "out", 0),
            when,
            duration_field(entry, "api_time"),
            session,
            turn,
            kind,
        )

    def _flat(
        self, entries: list[object], kind: str, marker: float | None
    ) -> Iterator[tuple[float, str, Record]]:
        """The requests of a conversation with those of its sub-agents: (time, kind, request).

        Two conventions are in use for the times inside a sub-agent: relative to its own start (raw
        recordings) and absolute (published sets). A request cannot be older than the sub-agent that
        sends it, which tells the two apart.
        """
        times = []
        for entry in entries:
            if not isinstance(entry, dict):
                raise BadRecordError(f"requests holds {shorten(entry)}, which is not an object")
            self.check_spelling(entry, _REQUEST_KEYS)
            times.append((time_field(entry, "t", self.seconds) or 0.0, entry))
        relative = marker is not None and any(when < marker for when, _ in times)
        offset = marker if relative and marker is not None else 0.0
        for when, entry in times:
            if entry.get("type") == "subagent":
                yield from self._flat(list_field(entry, "requests"), "subagent", when + offset)
            else:
                yield when + offset, kind, entry
