"""Where an answer differs from the reference's, value by value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .golden_ops import AnyOf


@dataclass(frozen=True)
class Difference:
    """One value that differs; `rule` is None if nothing explains it."""

    rule: int | None
    path: str
    ours: Any
    theirs: Any


def matches(theirs: Any, ours: Any) -> bool:
    """Whether our answer has everything that the reference's has, with equal values."""
    return next(walk(theirs, ours), None) is None


def walk(theirs: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, their value, our value) of every difference; what only we report is none."""
    if isinstance(theirs, AnyOf):
        if not any(matches(choice, ours) for choice in theirs.choices):
            yield path, theirs, ours
    elif isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            yield from walk(value, ours.get(key, "(nothing)"), f"{path}.{key}".strip("."))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from walk(*pair, f"{path}.{index}".strip("."))
    elif theirs != ours:
        yield path, theirs, ours
