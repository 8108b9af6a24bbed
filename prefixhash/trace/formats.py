"""The trace formats: how each is recognised, and how one of its records becomes requests.

=========  =====  ==================================================================================
name       block  record
=========  =====  ==================================================================================
mooncake   512    timestamp (ms), input_length, output_length, hash_ids; session_id where present
bailian    16     timestamp (s), input_length, output_length, hash_ids, chat_id, parent_chat_id,
                  type, turn (the Qwen traces)
weka       file   one conversation of a coding agent: id, block_size, hash_id_scope, requests
lmcache    256    timestamp (s), seq_len, chunk_hashes (lookup events)
tokens     any    token_ids; lora, cache_salt, mm_features, timestamp (s), output_length
=========  =====  ==================================================================================

A partial last block may be recorded (`len(ids) == ceil(tokens / block)`) or not (`floor`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prefixhash.errors import InvalidArgumentError, shorten
from prefixhash.trace.fields import (
    BadRecordError,
    IdChecker,
    Record,
    check_length,
    count_field,
    duration_field,
    label_field,
    list_field,
    time_field,
)
from prefixhash.trace.records import MediaSpan, TokenPrompt, TraceRequest

FORMATS = ("mooncake", "bailian", "weka", "lmcache", "tokens")
_DEFAULT_BLOCK_SIZE = {"mooncake": 512, "bailian": 16, "weka": 64, "lmcache": 256, "tokens": 16}
_TOKEN_END = 1 << 63
# The keys that tell the formats apart, most telling first: a bailian record is a mooncake record
# with more fields.
_RECOGNISED_BY = (
    ("weka", ("requests", "block_size")),
    ("lmcache", ("chunk_hashes",)),
    ("tokens", ("token_ids",)),
    ("bailian", ("hash_ids", "chat_id")),
    ("mooncake", ("hash_ids",)),
)


def recognise(record: object) -> str:
    """The name of the format that `record` is written in.

    Raises `BadRecordError` for a record of no known format.
    """
    if isinstance(record, dict):
        for name, keys in _RECOGNISED_BY:
            if all(key in record for key in keys):
                return name
    if _looks_like_event(record):
        raise BadRecordError(
            "this is a recording of KV events, not a trace: use `prefixhash check-events`"
        )
    seen = (
        f"an object with {', '.join(list(record)[:8])}"
        if isinstance(record, dict)
        else f"{shorten(record)[:40]} is no object (a trace has one JSON object a line)"
    )
    raise BadRecordError(f"no known trace format: {seen[:160]}; formats are {', '.join(FORMATS)}")


def _looks_like_event(record: object) -> bool:
    if isinstance(record, dict):
        return "events" in record or record.get("type") in ("BlockStored", "BlockRemoved")
    return isinstance(record, list) and len(record) >= 2 and isinstance(record[1], list)


class Parser:
    """Turns the records of one trace into requests; holds what must agree between records."""

    def __init__(self, name: str, block_size: int | None = None) -> None:
        if name not in FORMATS:
            raise InvalidArgumentError("format", name, f"is not one of auto, {', '.join(FORMATS)}")
        if block_size is not None and block_size < 1:
            raise InvalidArgumentError("block_size", block_size, "must be at least 1")
        self.name = name
        self.block_size = block_size or _DEFAULT_BLOCK_SIZE[name]
        self._fixed = block_size is not None
        self._checker = IdChecker()
        self._conversations = 0
        self._parse: Callable[[Record], Iterable[TraceRequest]] = {
            "mooncake": self._mooncake,
            "bailian": self._bailian,
            "weka": self._weka,
            "lmcache": self._lmcache,
            "tokens": self._tokens,
        }[name]

    def parse(self, record: object) -> Iterable[TraceRequest]:
        """The requests of one decoded record; raises `BadRecordError`."""
        if not isinstance(record, dict):
            raise BadRecordError(f"{shorten(record)} is not an object")
        return self._parse(record)

    def _mooncake(self, record: Record) -> Iterable[TraceRequest]:
        ids = self._checker.ids(record, "hash_ids")
        num_tokens = count_field(record, "input_length")
        check_length(len(ids), num_tokens, self.block_size, "hash_ids")
        yield TraceRequest(
            ids,
            num_tokens,
            count_field(record, "output_length", 0),
            time_field(record, "timestamp", 1e-3),
            session=label_field(record, "session_id"),
            kind=label_field(record, "type"),
        )

    def _bailian(self, record: Record) -> Iterable[TraceRequest]:
        ids = self._checker.ids(record, "hash_ids")
        num_tokens = count_field(record, "input_length")
        check_length(len(ids), num_tokens, self.block_size, "hash_ids")
        turn = count_field(record, "turn") if record.get("turn") is not None else None
        yield TraceRequest(
            ids,
            num_tokens,
            count_field(record, "output_length", 0),
            time_field(record, "timestamp"),
            session=label_field(record, "chat_id"),
            turn=turn,
            kind=label_field(record, "type"),
        )

    def _lmcache(self, record: Record) -> Iterable[TraceRequest]:
        ids = self._checker.ids(record, "chunk_hashes")
        num_tokens = count_field(record, "seq_len")
        check_length(len(ids), num_tokens, self.block_size, "chunk_hashes")
        yield TraceRequest(ids, num_tokens, timestamp=time_field(record, "timestamp"))

    def _tokens(self, record: Record) -> Iterable[TraceRequest]:
        tokens = list_field(record, "token_ids")
        _check_tokens(tokens)
        prompt = TokenPrompt(
            tokens,
            label_field(record, "lora"),
            label_field(record, "cache_salt"),
            tuple(_media_spans(record, len(tokens))),
        )
        yield TraceRequest(
            (),
            len(tokens),
            count_field(record, "output_length", 0),
            time_field(record, "timestamp"),
            session=label_field(record, "session_id"),
            kind=label_field(record, "type"),
            prompt=prompt,
        )

    def _weka(self, record: Record) -> Iterable[TraceRequest]:
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
        number = self._conversations
        self._conversations += 1
        session = label_field(record, "id") or str(number)
        # Ids of a local scope mean nothing in another conversation.
        scope = None if record.get("hash_id_scope") == "global" else number
        flat = list(_flatten(list_field(record, "requests"), "main", None))
        flat.sort(key=lambda item: item[0])
        for turn, (when, kind, entry) in enumerate(flat, 1):
            yield self._weka_request(entry, when, kind, session, turn, scope)

    def _weka_request(
        self, entry: Record, when: float, kind: str, session: str, turn: int, scope: int | None
    ) -> TraceRequest:
        ids = self._checker.ids(entry, "hash_ids")
        num_tokens = count_field(entry, "in")
        check_length(len(ids), num_tokens, self.block_size, "hash_ids")
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


def _flatten(
    entries: list[object], kind: str, marker: float | None
) -> Iterable[tuple[float, str, Record]]:
    """The requests of a conversation with those of its sub-agents: (time, kind, request).

    Two conventions are in use for the times inside a sub-agent: relative to its own start (raw
    recordings) and absolute (published sets). A request cannot be older than the sub-agent that
    sends it, which tells the two apart.
    """
    times = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise BadRecordError(f"requests holds {shorten(entry)}, which is not an object")
        times.append((time_field(entry, "t") or 0.0, entry))
    relative = marker is not None and any(when < marker for when, _ in times)
    offset = marker if relative and marker is not None else 0.0
    for when, entry in times:
        if entry.get("type") == "subagent":
            yield from _flatten(list_field(entry, "requests"), "subagent", when + offset)
        else:
            yield when + offset, kind, entry


def _check_tokens(tokens: list[object]) -> None:
    if not tokens:
        return
    # Whole-list calls: a loop over the tokens would cost more than decoding them did.
    if set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < _TOKEN_END:  # type: ignore[type-var, operator]
        return
    wrong = next(t for t in tokens if type(t) is not int or not 0 <= t < _TOKEN_END)
    raise BadRecordError(f"token_ids holds {shorten(wrong)}: tokens are integers in [0, 2^63)")


def _media_spans(record: Record, num_tokens: int) -> Iterable[MediaSpan]:
    features = record.get("mm_features")
    if features is None:
        return
    for feature in list_field(record, "mm_features"):
        if not isinstance(feature, dict):
            raise BadRecordError(f"mm_features holds {shorten(feature)}, which is not an object")
        identifier = label_field(feature, "identifier")
        if identifier is None:
            raise BadRecordError("mm_features: identifier is missing")
        span = feature.get("mm_position", feature)
        if not isinstance(span, dict):
            raise BadRecordError(f"mm_position={shorten(span)} is not an object")
        offset, length = count_field(span, "offset"), count_field(span, "length")
        if offset + length > num_tokens:
            raise BadRecordError(
                f"mm_features: {length} tokens from {offset} pass the end of {num_tokens} tokens"
            )
        yield MediaSpan(identifier, offset, length, label_field(feature, "modality") or "image")
