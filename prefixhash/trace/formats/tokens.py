"""The package's own request lines: prompts with their tokens and all else that their KV depends on.

What a line can hold is said, and checked, by `prefixhash.request.lines`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefixhash.request.lines import (
    KEYS,
    RequestLine,
    read_request_line,
    write_request_line,
)
from prefixhash.trace.fields import Record
from prefixhash.trace.formats.base import TraceFormat
from prefixhash.trace.records import TokenPrompt, TraceRequest

_TOKEN_KEYS = next(key.names for key in KEYS if key.field == "token_ids")


class Tokens(TraceFormat):
    """Request lines with token ids; times are in seconds."""

    name = "tokens"
    summary = "token_ids; lora, cache_salt, mm_features, timestamp (s), output_length, session_id"
    default_block_size = 16
    recognised_by = _TOKEN_KEYS
    signs = ("input_length", "output_length", "cache_salt", "lora", "mm_features")
    contents = _TOKEN_KEYS[:1]
    records_tokens = True

    @classmethod
    def recognises(cls, record: Record) -> bool:
        return any(record.get(key) is not None for key in cls.recognised_by)

    def requests(self, record: Record) -> Iterable[TraceRequest]:
        line = read_request_line(record)
        prompt = TokenPrompt(
            line.token_ids, line.lora_request, line.cache_salt or None, line.mm_features
        )
        yield TraceRequest(
            (),
            len(line.token_ids),
            line.output_tokens,
            line.timestamp,
            session=line.session,
            turn=line.turn,
            kind=line.kind,
            prompt=prompt,
        )

    @staticmethod
    def written(request: TraceRequest, prompt: TokenPrompt) -> dict[str, Any]:
        """A request with tokens as a request line, ready for `json.dumps`."""
        return write_request_line(
            RequestLine(
                prompt.token_ids,
                prompt.lora,
                prompt.media,
                prompt.cache_salt,
                timestamp=0.0 if request.timestamp is None else request.timestamp,
                output_tokens=request.output_tokens,
                session=request.session,
                kind=request.kind,
            )
        )
