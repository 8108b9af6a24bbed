"""Recordings of KV events: messages of an engine's event stream in a file.

One message a line as JSON, or MessagePack messages one after the other as they came over the wire;
plain or gzip. A message is `[time, events, rank]`, the same as a map, or a single event. Hashes
are integers, or bytes (in JSON: as hexadecimal strings).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prefixhash._source import Source, without_bom
from prefixhash.errors import InvalidArgumentError, PrefixHashError, TraceFormatError
from prefixhash.events.records import AllBlocksCleared, BlockStored, Event

# The sizes of what follows a MessagePack header byte: (bytes of length, fixed bytes behind it).
_SIZED = {
    0xC4: 1, 0xC5: 2, 0xC6: 4,  # bin
    0xD9: 1, 0xDA: 2, 0xDB: 4,  # str
}  # fmt: skip
_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


class Message(NamedTuple):
    """One message: the line (or number) where it stands, its time, its events, its sequence."""

    place: int
    ts: float | None
    events: list[Event]
    sequence: int | None


def read_messages(path: str | Path) -> Iterator[Message]:
    """The messages of a recording; raises `TraceFormatError` with file and line. Needs msgspec.

    Memory: a line of JSON; the whole file where it is MessagePack.
    """
    try:
        import prefixhash.events.codec  # noqa: F401 - says what to install
    except ImportError as error:
        raise PrefixHashError(str(error)) from error
    source = Source(path)
    try:
        yield from _json_messages(source) if _is_json(source) else _packed_messages(source)
    finally:
        source.close()


def _is_json(source: Source) -> bool:
    first = next(iter(source.lines()), None)
    if first is None:
        raise TraceFormatError(source.name, None, "is empty")
    return without_bom(first[1])[:1] in (b"{", b"[")


def _json_messages(source: Source) -> Iterator[Message]:
    for line, text in source.lines():
        yield _json_message(source.name, line, text)


def _json_message(name: str, line: int, text: bytes) -> Message:
    try:
        return _message(line, json.loads(text.decode("utf-8-sig").strip()))
    except (ValueError, OverflowError, RecursionError) as error:
        raise TraceFormatError(name, line, _reason(error)) from error


def _packed_messages(source: Source) -> Iterator[Message]:
    import msgspec

    data = source.whole()
    start = number = 0
    while start < len(data):
        number += 1
        try:
            end = message_end(data, start)
            yield _message(number, msgspec.msgpack.decode(data[start:end]))
        except (ValueError, OverflowError, IndexError, RecursionError) as error:
            reason = f"message {number}: {_reason(error)}"
            raise TraceFormatError(source.name, None, reason) from error
        start = end


def _reason(error: Exception) -> str:
    if isinstance(error, InvalidArgumentError):
        return f"{error.problem} (found {str(error.value)[:120]})"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} (column {error.colno})"
    if isinstance(error, IndexError):
        return "ends inside a message"
    return str(error)


def _message(place: int, record: object) -> Message:
    import msgspec

    from prefixhash.events.codec import decode_events

    ts, events, rank, sequence = _parts(record)
    if not isinstance(events, list):
        raise InvalidArgumentError("events", events, "is no list of events")
    wire = [ts or 0.0, [_with_byte_hashes(event) for event in events], rank]
    batch = decode_events(msgspec.msgpack.encode(wire))
    for event in batch.events:
        _check_types(event)
    return Message(place, ts, batch.events, sequence)


def _check_types(event: Event) -> None:
    """Refuses fields that no engine writes: the wire format is decoded without a schema."""
    if isinstance(event, AllBlocksCleared):
        return
    optional: list[tuple[str, type]] = [("group_idx", int), ("medium", str)]
    if isinstance(event, BlockStored):
        optional += [("lora_id", int), ("lora_name", str), ("extra_keys", tuple)]
        if set(map(type, event.token_ids)) - {int}:
            raise InvalidArgumentError("token_ids", event.token_ids, "are not all integers")
        if type(event.block_size) is not int or event.block_size < 0:
            raise InvalidArgumentError("block_size", event.block_size, "is no number of tokens")
        if not event.block_hashes:
            raise InvalidArgumentError("block_hashes", (), "BlockStored without a block")
    for name, kind in optional:
        value = getattr(event, name)
        if value is not None and type(value) is not kind:
            raise InvalidArgumentError(name, value, f"is not of type {kind.__name__}")


def _parts(record: object) -> tuple[float | None, object, object, int | None]:
    """(time, events, rank, sequence) of a message in any of its forms."""
    if isinstance(record, dict) and "events" in record:
        ts, sequence = record.get("ts", record.get("timestamp")), record.get("seq")
        rank = record.get("data_parallel_rank")
        return _time(ts), record["events"], rank, sequence if type(sequence) is int else None
    if isinstance(record, list) and len(record) > 1 and not isinstance(record[0], str):
        return _time(record[0]), record[1], record[2] if len(record) > 2 else None, None
    if isinstance(record, (dict, list)) and record:
        return None, [record], None, None
    raise InvalidArgumentError("message", record, "is no message and no event")


def _time(value: object) -> float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise InvalidArgumentError("ts", value, "is no time")


def _with_byte_hashes(event: Any) -> Any:
    """`event` with hexadecimal hashes, which JSON needs, as bytes."""
    if isinstance(event, dict):
        return {
            key: _as_bytes(value) if key in ("block_hashes", "parent_block_hash") else value
            for key, value in event.items()
        }
    if isinstance(event, list) and event and event[0] in ("BlockStored", "BlockRemoved"):
        hashes = 3 if event[0] == "BlockStored" else 2
        return [event[0], *map(_as_bytes, event[1:hashes]), *event[hashes:]]
    return event


def _as_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_bytes(item) for item in value]
    if isinstance(value, str):
        try:
            return bytes.fromhex(value.removeprefix("0x"))
        except ValueError:
            raise InvalidArgumentError("block_hash", value, "is not hexadecimal") from None
    return value


def message_end(data: bytes, start: int) -> int:
    """Where the MessagePack object at `start` ends; raises `IndexError` where the data is cut."""
    position = start
    pending = 1
    while pending:
        header = data[position]
        position += 1
        pending -= 1
        extra, children = _extent(data, header, position)
        position += extra
        pending += children
        if position > len(data):
            raise IndexError(position)
    return position


def _extent(data: bytes, header: int, position: int) -> tuple[int, int]:
    """(bytes that belong to the object behind its header byte, objects that follow inside it)."""
    if header <= 0x7F or header >= 0xE0:
        return 0, 0
    if header <= 0x8F:
        return 0, 2 * (header & 0x0F)
    if header <= 0x9F:
        return 0, header & 0x0F
    if header <= 0xBF:
        return header & 0x1F, 0
    if header in _FIXED:
        return _FIXED[header], 0
    for sizes, per_item in ((_SIZED, 0), (_EXTENSIONS, 0), (_ARRAYS, 1), (_MAPS, 2)):
        if header in sizes:
            width = sizes[header]
            number = int.from_bytes(_exactly(data, position, width), "big")
            if per_item:
                return width, per_item * number
            return width + number + (sizes is _EXTENSIONS), 0
    raise InvalidArgumentError("message", hex(header), "is no MessagePack")


def _exactly(data: bytes, position: int, width: int) -> Iterable[int]:
    piece = data[position : position + width]
    if len(piece) < width:
        raise IndexError(position)
    return piece
