"""Mooncake's traces: one request a line, its blocks named by numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefixhash.trace.fields import Record, count_field, label_field, time_field
from prefixhash.trace.formats.base import TraceFormat
from prefixhash.trace.records import TraceRequest


class Mooncake(TraceFormat):
    """Requests with `hash_ids`; times are in milliseconds."""

    name = "mooncake"
    summary = "timestamp (ms), input_length, output_length, hash_ids; session_id, type"
    default_block_size = 512
    seconds = 1e-3
    recognised_by = ("hash_ids",)
    keys = ("timestamp", "input_length", "output_length", "hash_ids", "session_id", "type")
    signs = ("input_length", "output_length")
    contents = ("hash_ids",)

    def requests(self, record: Record) -> Iterable[TraceRequest]:
        ids, num_tokens = self.blocks(record, "hash_ids", "input_length")
        yield TraceRequest(
            ids,
            num_tokens,
            count_field(record, "output_length", 0),
            time_field(record, "timestamp", self.seconds),
            session=label_field(record, "session_id"),
            kind=label_field(record, "type"),
        )

    @staticmethod
    def written(request: TraceRequest) -> dict[str, Any]:
        """A request with named blocks as a record, ready for `json.dumps`."""
        return {
            "timestamp": round(1000 * (request.timestamp or 0.0)),
            "input_length": request.num_tokens,
            "output_length": request.output_tokens,
            "session_id": request.session,
            "type": request.kind,
            "hash_ids": list(request.ids),
        }
