"""Arguments of this room that are more than one plain value: lists, capacities, shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError

T = TypeVar("T")


def instance_of(name: str, value: Any, kind: type[T]) -> T:
    """`value`, which is a `kind`; raises `InvalidArgumentError`."""
    if not isinstance(value, kind):
        raise InvalidArgumentError(name, value, f"must be a {kind.__name__}")
    return value


def items_of(name: str, values: Any, of: str) -> Iterator[Any]:
    """An iterator over `values`, no text and no mapping; the error says "must be a list of ..."."""
    if not isinstance(values, (str, bytes, dict)):
        try:
            return iter(values)
        except TypeError:
            pass
    raise InvalidArgumentError(name, values, f"must be a list of {of}")


def names_of(name: str, values: Any) -> tuple[str, ...]:
    """`values`, a list of at least one string, as a tuple."""
    found = tuple(_arguments.text(name, value) for value in items_of(name, values, "names"))
    if not found:
        raise InvalidArgumentError(name, values, "must name at least one")
    return found


def block_numbers(name: str, ids: Any) -> Sequence[int]:
    """`ids`, a list of integers. O(len(ids)), fast for `int`s."""
    if type(ids) in (list, tuple) and set(map(type, ids)) <= {int}:
        checked: Sequence[int] = ids
        return checked
    found = items_of(name, ids, "integers")
    return [_arguments.integer(f"{name}[{i}]", block, None) for i, block in enumerate(found)]


def blocks_or_inf(name: str, value: Any, least: int = 0) -> float:
    """`value`, a whole number of blocks of at least `least`, or `math.inf`."""
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return _arguments.integer(name, value, least, meaning=", or math.inf")


def part_of_one(name: str, value: Any) -> float:
    """`value`, a number above 0 and at most 1."""
    found = _arguments.number(name, value)
    if not 0 < found <= 1:
        raise InvalidArgumentError(name, value, "must lie in (0, 1]")
    return found
