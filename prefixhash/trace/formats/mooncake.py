"""Mooncake's traces: one request a line, its blocks named by numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
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
        time = 0.0 if request.timestamp is None else request.timestamp
        return {
            "timestamp": round(1000 * _arguments.number("timestamp", time)),
            "input_length": _arguments.integer("num_tokens", request.num_tokens),
            "output_length": _arguments.integer("output_tokens", request.output_tokens),
            "session_id": _label("session", request.session),
            "type": _label("kind", request.kind),
            "hash_ids": _ids(request.ids),
        }


def _label(name: str, value: str | None) -> str | None:
    return None if value is None else _arguments.text(name, value)


def _ids(ids: Sequence[Any]) -> list[int | str]:
    """Ids that JSON can tell apart: of a conversation's own, or hashes, it cannot."""
    plain = isinstance(ids, (list, tuple, array))
    if not plain or any(not isinstance(i, str) and not _arguments.is_integer(i) for i in ids):
        raise InvalidArgumentError("ids", ids, "must be a list of integers or strings")
    return list(ids)
