"""The Qwen traces of Alibaba's Bailian: one request of a chat a line."""

from __future__ import annotations

from collections.abc import Iterable

from prefixhash.trace.fields import (
    Record,
    count_field,
    label_field,
    optional_count_field,
    time_field,
)
from prefixhash.trace.formats.base import TraceFormat
from prefixhash.trace.records import TraceRequest


class Bailian(TraceFormat):
    """Requests with `hash_ids` and `chat_id`; times are in seconds."""

    name = "bailian"
    summary = "timestamp (s), input_length, output_length, hash_ids, chat_id, type, turn"
    default_block_size = 16
    recognised_by = ("hash_ids", "chat_id")
    keys = ("timestamp", "input_length", "output_length", "hash_ids", "chat_id", "type", "turn")
    signs = ("input_length", "output_length")
    contents = ("hash_ids",)

    def requests(self, record: Record) -> Iterable[TraceRequest]:
        ids, num_tokens = self.blocks(record, "hash_ids", "input_length")
        yield TraceRequest(
            ids,
            num_tokens,
            count_field(record, "output_length", 0),
            time_field(record, "timestamp", self.seconds),
            session=label_field(record, "chat_id"),
            turn=optional_count_field(record, "turn"),
            kind=label_field(record, "type"),
        )
