"""vLLM's wire format of KV events, the one place that knows it. Needs the extra `events` (msgspec).

Written is what vLLM 0.33.0 writes: a MessagePack array `[time, events, data_parallel_rank]`, each
event a map with "type" first and defaulted fields left out. Read is what vLLM has written since
0.9.2 and what SGLang writes: events as maps or as arrays with the type first, hashes as unsigned or
signed 64-bit integers or as bytes, fields that are missing or not known here.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from operator import index
from typing import Any, NamedTuple

from prefixhash._arguments import flag, is_integer, number, optional_integer
from prefixhash.errors import InvalidArgumentError
from prefixhash.events.records import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    checked_events,
)

try:
    import msgspec
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(
        "the codec of KV events needs msgspec: pip install 'prefixhash[events]'"
    ) from error

_MASK = (1 << 64) - 1
# Order of the fields of an event that is written as an array, over all releases; "lora_name" and
# later ones were appended one by one, so an old array is a prefix of this.
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")


class _Wire(msgspec.Struct, omit_defaults=True, tag=True, gc=False):
    pass


class _BlockStored(_Wire, tag="BlockStored"):
    block_hashes: list[Any]
    parent_block_hash: Any
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Any = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: Any = None


class _BlockRemoved(_Wire, tag="BlockRemoved"):
    block_hashes: list[Any]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class _AllBlocksCleared(_Wire, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class EventBatch(NamedTuple):
    """One message: its time (seconds since the epoch), its events, the rank that sent it."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


def wire_hash(block_hash: Hashable, *, as_bytes: bool = False) -> int | bytes:
    """A hash as it travels: the last 8 bytes as an unsigned integer, or all bytes.

    vLLM does the first unless its VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES is 0. Integers pass as their
    unsigned 64-bit value.
    """
    as_bytes = flag("as_bytes", as_bytes)
    if isinstance(block_hash, bytes):
        return block_hash if as_bytes else int.from_bytes(block_hash[-8:], "big")
    if is_integer(block_hash) and -(1 << 63) <= index(block_hash) <= _MASK:  # type: ignore[arg-type]
        return index(block_hash) & _MASK  # type: ignore[arg-type]
    raise InvalidArgumentError("block_hash", block_hash, "only bytes and 64-bit integers travel")


def encode_events(
    events: Iterable[Event],
    ts: float,
    data_parallel_rank: int | None = None,
    *,
    hashes_as_bytes: bool = False,
) -> bytes:
    """One message with these events. Extra keys are written as they stand in the records.

    Raises:
        InvalidArgumentError: a hash is neither bytes nor a 64-bit integer, or an extra key is of a
            type that MessagePack lacks.
    """
    hashes_as_bytes = flag("hashes_as_bytes", hashes_as_bytes)
    ts = number("ts", ts, -math.inf)
    rank = optional_integer("data_parallel_rank", data_parallel_rank)
    wire = [_to_wire(event, hashes_as_bytes) for event in checked_events(events)]
    try:
        return msgspec.msgpack.encode(_Batch(ts, wire, rank))
    except (TypeError, OverflowError) as error:
        raise InvalidArgumentError("events", wire, f"cannot be encoded: {error}") from None


def _to_wire(event: Event, as_bytes: bool) -> _Wire:
    if isinstance(event, AllBlocksCleared):
        return _AllBlocksCleared()
    hashes = [wire_hash(key, as_bytes=as_bytes) for key in event.block_hashes]
    if isinstance(event, BlockRemoved):
        return _BlockRemoved(hashes, *event[1:])
    parent = event.parent_block_hash
    return _BlockStored(
        hashes,
        None if parent is None else wire_hash(parent, as_bytes=as_bytes),
        list(event.token_ids),
        *event[3:],
    )


def decode_events(payload: bytes) -> EventBatch:
    """The events of one message, of this package, vLLM (0.9.2 and newer) or SGLang.

    Raises:
        InvalidArgumentError: the payload is no such message, or has an event of another type,
            which might change what is resident.
    """
    try:
        message = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError, TypeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError("payload", payload, f"is no MessagePack: {error}") from None
    if not isinstance(message, list) or len(message) < 2 or not isinstance(message[1], list):
        raise InvalidArgumentError("payload", message, "is no [time, events, rank]")
    rank = message[2] if len(message) > 2 else None
    return EventBatch(message[0], [_from_wire(event) for event in message[1]], rank)


def _from_wire(event: Any) -> Event:
    fields = _fields(event)
    kind = fields.get("type")
    if kind == "AllBlocksCleared":
        return AllBlocksCleared()
    if kind not in ("BlockStored", "BlockRemoved"):
        raise InvalidArgumentError("payload", event, "is an event of a type that is not known here")
    fields["block_hashes"] = tuple(map(_hash, _list(fields, "block_hashes")))
    fields.setdefault("medium", None)
    record: type[BlockRemoved | BlockStored] = BlockRemoved
    if kind == "BlockStored":
        record = BlockStored
        parent = fields.get("parent_block_hash")
        fields["parent_block_hash"] = None if parent is None else _hash(parent)
        fields["token_ids"] = tuple(_list(fields, "token_ids"))
        for name in ("extra_keys", "lookahead_token_ids"):
            fields[name] = _tuples(fields.get(name))
    return record(**{name: fields[name] for name in record._fields if name in fields})


def _fields(event: Any) -> dict[str, Any]:
    if isinstance(event, dict):
        return dict(event)
    if isinstance(event, list) and event:
        names = _STORED_FIELDS if event[0] == "BlockStored" else _REMOVED_FIELDS
        # SGLang appends a map of further fields to an array.
        values = [value for value in event[1:] if not isinstance(value, dict)]
        return {"type": event[0], **dict(zip(names, values, strict=False))}
    raise InvalidArgumentError("payload", event, "is no event: a map or an array is expected")


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise InvalidArgumentError("payload", value, f"an event needs a list of {name}")
    return value


def _hash(value: Any) -> int | bytes:
    return wire_hash(value, as_bytes=True)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
