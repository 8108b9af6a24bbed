"""Token ids from whatever holds them, as an `array('q')`.

The compiled kernel reads lists, tuples and buffers and leaves everything odd to this reference,
which words the errors.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from prefixhash._arguments import is_integer, is_integer_type
from prefixhash._compiled import NATIVE
from prefixhash.errors import InvalidRequestError

MAX_TOKEN_ID = 2**63 - 1
_TOKEN_RANGE = "a token id is an integer in [0, 2**63)"
_TOKENS = "must be a sequence or buffer of token ids"
_FORMATS = frozenset("bBhHiIlLqQ")
_WIDE_FORMATS = frozenset("lq")
_BUFFERS = {("array", "array"), ("builtins", "memoryview"), ("numpy", "ndarray")}
_TOP_BYTE = 7 if sys.byteorder == "little" else 0


def reference_token_array(value: Any, argument: str) -> array[int]:
    """The token ids in `value` as an `array('q')`; `value` itself if it is a valid one already.

    Takes any sequence or buffer of integers, and whatever has a `tolist()` (numpy, torch). Raises
    `InvalidRequestError` with the position of the first item that is no token id. O(n).
    """
    ids = value if isinstance(value, array) and value.typecode == "q" else _from_buffer(value)
    if ids is None:
        items = _items(value, argument)
        kinds = set(map(type, items)) - {int}
        if kinds and all(map(is_integer_type, kinds)):
            items = list(map(index, items))
        elif kinds:
            items = [_token_id(item, f"{argument}[{i}]") for i, item in enumerate(items)]
        try:
            ids = array("q", items)
        except OverflowError:
            raise _out_of_range(items, argument) from None
    # The most significant bytes of all ids are ASCII exactly if no id is negative.
    if not ids.tobytes()[_TOP_BYTE::8].isascii():
        raise _out_of_range(ids, argument)
    return ids


def with_kernel(
    read: Callable[[Any], array[int] | None],
) -> Callable[[Any, str], array[int]]:
    """The same function; the reference only sees what the kernel leaves to it."""

    def token_array(value: Any, argument: str) -> array[int]:
        ids = read(value)
        return reference_token_array(value, argument) if ids is None else ids

    return token_array


token_array = reference_token_array if NATIVE is None else with_kernel(NATIVE.token_array)


def _out_of_range(items: Sequence[int], argument: str) -> InvalidRequestError:
    position = next(i for i, item in enumerate(items) if not 0 <= item <= MAX_TOKEN_ID)
    return InvalidRequestError(f"{argument}[{position}]", items[position], _TOKEN_RANGE)


def _from_buffer(value: Any) -> array[int] | None:
    """The ids of a plain integer buffer, moved without making an object of each; else None."""
    # By name, since numpy may be absent; a subclass (a masked array) is more than its buffer.
    kind = (type(value).__module__, type(value).__name__)
    if kind not in _BUFFERS:
        return None
    try:
        view = memoryview(value)
    except (ValueError, BufferError):  # numpy types that have no buffer format
        return None
    if view.ndim != 1 or not view.c_contiguous or view.format not in _FORMATS:
        return None
    if view.format in _WIDE_FORMATS and view.itemsize == 8:
        ids = array("q")
        ids.frombytes(view.cast("B"))
        return ids
    return array("q", view.tolist()) if view.itemsize < 8 else None


def _items(value: Any, argument: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes, bytearray)):
        raise InvalidRequestError(
            argument, value, "must be token ids; give packed ids as memoryview(data).cast('i')"
        )
    if getattr(value, "ndim", 1) != 1:
        raise InvalidRequestError(argument, value, "must be one-dimensional")
    if not (isinstance(value, Sequence) or hasattr(value, "tolist")):
        raise InvalidRequestError(argument, value, _TOKENS)
    return listed(value, argument, _TOKENS)


def listed(value: Any, argument: str, problem: str) -> Sequence[Any]:
    """The items of a list or a tuple itself, of an array, a tensor or another iterable as a list.

    `problem` is what is wrong with a value that has none, or more than a list can hold.
    """
    if isinstance(value, (list, tuple)):
        return value
    try:
        items = value.tolist() if hasattr(value, "tolist") else value
        return items if isinstance(items, list) else list(items)
    except (OverflowError, RuntimeError, TypeError) as error:  # also of a tensor without data
        raise InvalidRequestError(argument, value, problem) from error


def _token_id(item: Any, argument: str) -> int:
    # Floats and bools are refused even where they equal an integer: they are never meant as ids.
    if not is_integer(item):
        raise InvalidRequestError(argument, item, _TOKEN_RANGE)
    return index(item)
