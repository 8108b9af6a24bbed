"""Fuzz target: the compiled kernel and the Python reference agree, on values and on refusals.

python fuzz/fuzz_kernel.py fuzz/corpus/kernel    # with atheris installed

Does nothing where the compiled kernel is absent.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Any

from prefixhash import InvalidRequestError
from prefixhash._compiled import NATIVE
from prefixhash.hashing import _chain_py
from prefixhash.hashing.algorithms import ALGORITHMS
from prefixhash.request.tokens import reference_token_array, with_kernel

if NATIVE is not None:
    from prefixhash.hashing import _chain_native

_WIDTHS = (23, 24, 255, 256, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1)
_ODD: tuple[Any, ...] = (-1, 2**63, 2**64, True, 1.0, None, "1", -(2**70))


class _Source:
    """Small decisions read off the input; zeros when it is used up."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def below(self, n: int) -> int:
        return self.number(2) % n

    def number(self, size: int) -> int:
        taken, self._data = self._data[:size], self._data[size:]
        return int.from_bytes(taken, "little")

    def token_id(self, odd: bool) -> Any:
        kind = self.below(24 if odd else 20)
        if kind >= 20:
            return _ODD[self.below(len(_ODD))]
        if kind >= 12:
            return self.number(1 + kind % 3)
        return _WIDTHS[kind]

    def text(self) -> str:
        size = self.below(6) if self.below(8) else 250 + self.below(20)
        return "".join(chr(self.number(1) + 0x20 * self.below(20)) for _ in range(size))

    def extra(self, depth: int, earlier: list[Any]) -> Any:
        kind = self.below(12)
        value: Any
        if kind == 0:
            value = None
        elif kind < 3:
            value = (self.number(8) >> self.below(64)) * (-1) ** kind
        elif kind == 3 and earlier:
            value = earlier[self.below(len(earlier))]  # the very object: a back reference in pickle
        elif kind < 6:
            value = self.text().encode()
        elif kind == 6 and self.below(8) == 0:
            value = (True, 2**70, 1.5, "\ud800", b"x" * 70_000, ["list"])[self.below(6)]
        elif kind < 9 or depth > 4:
            value = self.text()
        else:
            value = tuple(self.extra(depth + 1, earlier) for _ in range(self.below(6)))
        earlier.append(value)
        return value


def TestOneInput(data: bytes) -> None:
    if NATIVE is None:
        return
    source = _Source(data)
    algorithm = tuple(ALGORITHMS.values())[source.below(4)]
    reference, native = _chain_py.HashChain(algorithm), _chain_native.HashChain(algorithm)
    size = 1 + source.below(20)
    parent = bytes(source.number(1) for _ in range((0, 1, 16, 32, 32, 300)[source.below(6)]))
    extras = [_extras(source, [parent]) for _ in range(source.below(5))]
    odd = source.below(4) == 0
    ids = [source.token_id(odd) for _ in range(source.below(70))]
    held = _form(ids, source)
    _same(
        lambda: reference.hash_tokens(parent, held, size),
        lambda: native.hash_tokens(parent, held, size),
    )
    read = with_kernel(NATIVE.token_array)
    _same(lambda: reference_token_array(held, "ids"), lambda: read(held, "ids"))
    try:
        good = reference_token_array(ids, "ids")
    except InvalidRequestError:
        return
    start = source.below(len(good) + 1)
    stop = len(good) - (len(good) - start) % size
    # Blocks share tuples, and neighbours the same one, as those of one adapter do.
    repeats = 1 + source.below(3)
    given_extras = extras and [
        extras[block // repeats % len(extras)] for block in range((stop - start) // size)
    ]
    given = (parent, good, size, given_extras or None, start, stop)
    _same(lambda: reference(*given), lambda: native(*given))


def _extras(source: _Source, earlier: list[Any]) -> tuple[Any, ...] | None:
    if source.below(3) == 0:
        return None
    return tuple(source.extra(0, earlier) for _ in range(source.below(5)))


def _form(ids: list[Any], source: _Source) -> Any:
    """The ids as one of the things that hold ids; as a list if they do not fit."""
    code = "bBhHiIlLqQ"[source.below(10)]
    kind = source.below(6)
    if kind < 2:
        return tuple(ids) if kind else ids
    try:
        values = array(code, ids)
    except (OverflowError, TypeError):
        return ids
    if kind == 2:
        return values
    if kind == 3:
        return memoryview(values)[:: -1 - source.below(3)]
    step = 1 + source.below(3)
    return memoryview(values)[source.below(len(ids) + 1) :: step]


def _same(reference: Callable[[], Any], native: Callable[[], Any]) -> None:
    expected, got = _outcome(reference), _outcome(native)
    if expected != got:
        raise AssertionError(f"the reference gives {expected!r}, the kernel {got!r}")


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        value = call()
    except (InvalidRequestError, TypeError, OverflowError, UnicodeEncodeError) as error:
        return type(error), str(error)
    return value


if __name__ == "__main__":
    import atheris

    atheris.Setup(sys.argv, TestOneInput)
    atheris.Fuzz()
