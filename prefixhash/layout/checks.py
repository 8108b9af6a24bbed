"""What this room takes beside numbers and texts: sequences, mappings, values of its own kinds.

Numbers, texts, flags and choices are decided by `prefixhash._arguments`. Every function raises
`InvalidArgumentError` with the argument's name. Also the setting of a frozen value's own fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from prefixhash import _arguments
from prefixhash._arguments import sequence
from prefixhash.errors import InvalidArgumentError

T = TypeVar("T")


def instance(name: str, value: Any, kind: type[T], what: str) -> T:
    """`value`, which is of a kind; `what` goes on with "must be"."""
    if not isinstance(value, kind):
        raise InvalidArgumentError(name, value, f"must be {what}")
    return value


def instances(name: str, value: Any, kind: type[T], what: str) -> tuple[T, ...]:
    """`value` as a tuple of one kind; `what` goes on with "must be a sequence of"."""
    members = sequence(name, value, f"a sequence of {what}")
    if not _all_are(kind, members):
        raise InvalidArgumentError(name, value, f"must be a sequence of {what}")
    return members


def integers(name: str, value: Any, least: int, what: str) -> tuple[int, ...]:
    """`value` as a tuple of integers of at least `least`; `what` goes on with "must be"."""
    return tuple(_arguments.integer(name, member, least) for member in sequence(name, value, what))


def mapping_of(name: str, value: Any, kind: type[T], what: str) -> Mapping[Any, T]:
    """`value`, a mapping to values of one kind; `what` goes on with "must be"."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(name, value, f"must be a mapping to {what}")
    if not _all_are(kind, value.values()):
        key, bad = next((k, found) for k, found in value.items() if not isinstance(found, kind))
        raise InvalidArgumentError(f"{name}[{key!r}]", bad, f"must be {what}")
    return value


def _all_are(kind: type, values: Iterable[object]) -> bool:
    """Asked once per type, since layers are many."""
    return all(issubclass(found, kind) for found in set(map(type, values)))


def layer_names(name: str, value: Any) -> tuple[str, ...]:
    """Layer names as a tuple."""
    return instances(name, value, str, "layer names")


def keep(owner: object, field: str, value: object) -> None:
    """Sets a field of a frozen value that is in the making."""
    object.__setattr__(owner, field, value)


def keep_integers(owner: object, least: int | None, *fields: str, optional: bool = False) -> None:
    """Checks integer fields of a frozen value in the making, and keeps them as plain `int`s."""
    for field in fields:
        value = getattr(owner, field)
        if value is None and optional:
            continue
        meaning = ", or None" if optional else ""
        keep(owner, field, _arguments.integer(field, value, least, meaning=meaning))


def keep_flags(owner: object, *fields: str) -> None:
    """Checks fields of a frozen value in the making that are True or False."""
    for field in fields:
        keep(owner, field, _arguments.flag(field, getattr(owner, field)))
