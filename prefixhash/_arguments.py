"""What an integer, a number, a flag, a text, a choice is: the one place that decides.

Each function takes the name of an argument and what was given for it, and returns the value as the
plain Python type or raises an error that names both. Integers are Python's and numpy's (whatever
`operator.index` takes): a bool is none, and neither is a float or a string, even where it equals
one, since it is never meant as a count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral
from operator import index
from typing import Any

from prefixhash.errors import InvalidArgumentError

_FLAGS = ("bool", "bool_")  # by name, since numpy may be absent; its bool is no subclass of ours


def is_flag(value: Any) -> bool:
    """Whether it is True or False, of Python or of numpy."""
    if type(value) is bool:
        return True
    return type(value).__name__ in _FLAGS and not hasattr(value, "__len__")


def is_integer(value: Any) -> bool:
    """Whether it is one of Python's or numpy's integers; no bool, no float, no array of several."""
    if type(value) is int:
        return True
    if is_integer_type(type(value)):
        return True
    if _holds_flags(value):
        return False
    try:
        index(value)
    except Exception:  # whatever a foreign type raises: TypeError, RuntimeError of a tensor, ...
        return False
    return True


def is_integer_type(kind: type) -> bool:
    """Whether all values of a type are such integers; one of a tensor's type may be."""
    return kind is not bool and issubclass(kind, Integral)


def _holds_flags(value: Any) -> bool:
    """Whether it is numpy's bool, or an array or tensor of bools."""
    return is_flag(value) or "bool" in str(getattr(value, "dtype", ""))


def integer(
    name: str,
    value: Any,
    least: int | None = 0,
    most: int | None = None,
    *,
    meaning: str = "",
    error: type[InvalidArgumentError] = InvalidArgumentError,
) -> int:
    """`value` as an `int` of at least `least` and at most `most`; None for no bound.

    `meaning` goes on with the sentence "must be an integer of at least 1"; `error` is what is
    raised.
    """
    if type(value) is not int:
        if not is_integer(value):
            raise error(name, value, _wanted(least, most, meaning))
        value = index(value)
    if (least is not None and value < least) or (most is not None and value > most):
        raise error(name, value, _wanted(least, most, meaning))
    return int(value)


def optional_integer(
    name: str,
    value: Any,
    least: int | None = 0,
    most: int | None = None,
    *,
    error: type[InvalidArgumentError] = InvalidArgumentError,
) -> int | None:
    """As `integer`, or None for None."""
    if value is None:
        return None
    return integer(name, value, least, most, meaning=", or None", error=error)


def _wanted(least: int | None, most: int | None, meaning: str) -> str:
    if least is not None and most is not None:
        bounds = f" from {least} to {most}"
    elif least is not None:
        bounds = f" of at least {least}"
    else:
        bounds = "" if most is None else f" of at most {most}"
    return f"must be an integer{bounds}{meaning}"


def number(
    name: str,
    value: Any,
    least: float = 0.0,
    below: float = math.inf,
    *,
    error: type[InvalidArgumentError] = InvalidArgumentError,
) -> float:
    """`value` as a `float` in [`least`, `below`): an integer or a float of Python or numpy."""
    if is_integer(value) or isinstance(value, float) or _is_scalar(value):
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if least <= found < below:
            return found
    top = "a number" if math.isinf(below) else f"below {below:g}"
    bottom = "" if math.isinf(least) else f" of at least {least:g}"
    problem = f"must be {top}{bottom}" if math.isinf(below) else f"must be a number{bottom}, {top}"
    raise error(name, value, problem)


def _is_scalar(value: Any) -> bool:
    """Whether it is a floating-point scalar of numpy other than its double, which is a `float`."""
    return "float" in str(getattr(value, "dtype", "")) and getattr(value, "shape", None) == ()


def flag(
    name: str, value: Any, *, error: type[InvalidArgumentError] = InvalidArgumentError
) -> bool:
    """`value` as a `bool`: True or False only, for "false" and 0 are mistakes."""
    if not is_flag(value):
        raise error(name, value, "must be True or False")
    return bool(value)


def text(
    name: str,
    value: Any,
    *,
    empty: bool = True,
    meaning: str = "",
    error: type[InvalidArgumentError] = InvalidArgumentError,
) -> str:
    """`value`, a string that UTF-8 can encode; with `empty=False` one of at least one character."""
    if not isinstance(value, str) or not (value or empty):
        what = "a string" if empty else "a non-empty string"
        raise error(name, value, f"must be {what}{meaning}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            problem = "holds a lone surrogate, which UTF-8 cannot encode"
            raise error(name, value, problem) from None
    return value if type(value) is str else str.__str__(value)


def sequence(
    name: str,
    value: Any,
    what: str,
    *,
    error: type[InvalidArgumentError] = InvalidArgumentError,
) -> tuple[Any, ...]:
    """`value` as a tuple: any iterable but text, bytes and mappings, whose parts nobody means.

    `what` goes on with the sentence "must be".
    """
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping)):
        try:
            return tuple(value)
        except (MemoryError, OverflowError, TypeError):
            pass  # endless, or an array of no dimension, which is iterable by its type alone
    raise error(name, value, f"must be {what}")


def choice(
    name: str,
    value: Any,
    known: Iterable[str],
    *,
    error: type[InvalidArgumentError] = InvalidArgumentError,
) -> str:
    """`value`, which is one of the `known` names; else an error that lists them and the nearest."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        near = nearest(value, names)
        raise error(name, value, f"{near}must be one of {', '.join(names)}")
    return value


def nearest(value: Any, known: Sequence[str]) -> str:
    """`did you mean 'cache_salt'? `, or nothing where no known name is near."""
    if not isinstance(value, str):
        return ""
    found = get_close_matches(value, known, 1)
    return f"did you mean {found[0]!r}? " if found else ""
