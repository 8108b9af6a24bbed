"""Checked access to the fields of a decoded record, shared by all trace formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from prefixhash import _arguments
from prefixhash._source import BadRecordError
from prefixhash.errors import shorten
from prefixhash.trace.records import BlockId

Record = dict[str, Any]
# How alike two keys are when one is the other misspelt (`chat_id` is not `hash_ids`).
_CLOSE = 0.85


def count_field(record: Record, key: str, default: int | None = None) -> int:
    """The non-negative integer under `key`."""
    value = record.get(key, default)
    if value is None:
        raise BadRecordError(f"{key} is missing")
    return _arguments.integer(key, value)


def optional_count_field(record: Record, key: str) -> int | None:
    """The non-negative integer under `key`, or None where it is absent."""
    return _arguments.optional_integer(key, record.get(key))


def time_field(record: Record, key: str, scale: float = 1.0) -> float | None:
    """The finite number under `key` times `scale` (to seconds), or None where it is absent."""
    value = record.get(key)
    if value is None:
        return None
    seconds = _arguments.number(key, value, -math.inf) * scale
    if not math.isfinite(seconds):
        raise BadRecordError(f"{key}={shorten(value)} is not a finite number")
    return seconds


def duration_field(record: Record, key: str) -> float | None:
    """The non-negative number of seconds under `key`, or None where it is absent."""
    seconds = time_field(record, key)
    if seconds is not None and seconds < 0:
        raise BadRecordError(f"{key}={shorten(record[key])} is negative")
    return seconds


def label_field(record: Record, key: str) -> str | None:
    """The string or integer under `key` as a printable string, or None where it is absent."""
    value = record.get(key)
    if value is None:
        return None
    if _arguments.is_integer(value):
        return str(value)
    if not isinstance(value, str):
        raise BadRecordError(f"{key}={shorten(value)} is neither a string nor an integer")
    # A lone surrogate decodes from JSON but cannot be printed.
    return value.encode("utf-8", "replace").decode("utf-8")


def list_field(record: Record, key: str) -> list[Any]:
    """The list under `key`."""
    value = record.get(key)
    if value is None:
        raise BadRecordError(f"{key} is missing")
    if type(value) is not list:
        raise BadRecordError(f"{key}={shorten(value)} is not a list")
    return value


def meant(key: str, known: Sequence[str]) -> str | None:
    """The known key that `key` is so like that it must be one misspelt; else None."""
    found = get_close_matches(key, known, 1, _CLOSE)
    return found[0] if found and key not in known else None


def lacking(record: Record, sign: str, contents: Sequence[str]) -> str:
    """Why a record with the key `sign` but none of `contents` cannot be used."""
    hints = [(key, meant(key, contents)) for key in record]
    hint = next((f" (key {shorten(k)}: did you mean {name!r}?)" for k, name in hints if name), "")
    return (
        f"has {sign} but no {' or '.join(contents)}{hint}: "
        "block ids or tokens are needed to find shared prefixes"
    )


class IdChecker:
    """Checks that all ids of a trace are of one kind: integers, or strings.

    `1` and `"1"` in one file would silently be two blocks.
    """

    def __init__(self) -> None:
        self._kind: type | None = None

    def ids(self, record: Record, key: str) -> list[BlockId]:
        """The list of block ids under `key`."""
        ids = list_field(record, key)
        kinds = set(map(type, ids))
        if not kinds:
            return ids
        odd = [kind for kind in kinds if kind not in (int, str)]
        if odd:
            wrong = next(value for value in ids if type(value) in odd)
            raise BadRecordError(f"{key} holds {shorten(wrong)}: ids are integers or strings")
        kind = self._kind or (str if type(ids[0]) is str else int)
        if kinds != {kind}:
            wrong = next(value for value in ids if type(value) is not kind)
            raise BadRecordError(
                f"{key} mixes types: {shorten(wrong)} among ids that are {_PLURAL[kind]}"
            )
        self._kind = kind
        return ids


_PLURAL = {int: "integers", str: "strings"}


def check_length(num_ids: int, num_tokens: int, block_size: int, key: str) -> None:
    """Raises unless `num_ids` blocks fit a prompt, with or without its partial last block."""
    floor = num_tokens // block_size
    ceil = -(-num_tokens // block_size)
    if num_ids in (floor, ceil):
        return
    need = f"{floor}" if floor == ceil else f"{floor} or {ceil}"
    raise BadRecordError(
        f"{num_ids} {key} for {num_tokens} tokens, but blocks of {block_size} tokens make {need}"
        f"{_suggestion(num_ids, num_tokens)}"
    )


def _suggestion(num_ids: int, num_tokens: int) -> str:
    """The usual block size that fits, in the words of a hint; empty where none does."""
    fitting = fitting_block_sizes(num_ids, num_tokens)
    if not fitting:
        return ""
    return f"; block size {fitting[0]} would fit (--trace-block-size {fitting[0]})"


def fitting_block_sizes(num_ids: int, num_tokens: int) -> Sequence[int]:
    """The powers of two up to 65,536 at which `num_ids` blocks cover `num_tokens` tokens."""
    sizes = [1 << shift for shift in range(17)]
    exact = [size for size in sizes if -(-num_tokens // size) == num_ids]
    return exact or [size for size in sizes if num_tokens // size == num_ids]
