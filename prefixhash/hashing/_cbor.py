"""Canonical CBOR (RFC 8949, section 4.2.1) of the few types that stand in a block key.

Own code because it is the key: every byte written here is part of what engines agree on. The tests
hold it against cbor2, in both directions.
"""

from __future__ import annotations

from typing import Any

UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY = range(5)
NULL = b"\xf6"
_SIMPLE = {False: b"\xf4", True: b"\xf5"}


def head(major: int, argument: int) -> bytes:
    """The initial bytes of an item: major type and argument (0 <= argument < 2**64), shortest."""
    first = major << 5
    if argument < 24:
        return bytes((first | argument,))
    if argument < 0x100:
        return bytes((first | 24, argument))
    if argument < 0x10000:
        return (first | 25).to_bytes(1, "big") + argument.to_bytes(2, "big")
    if argument < 0x100000000:
        return (first | 26).to_bytes(1, "big") + argument.to_bytes(4, "big")
    return (first | 27).to_bytes(1, "big") + argument.to_bytes(8, "big")


def encode(value: Any) -> bytes:
    """Encodes None, bool, int, bytes, str, tuple or list, nested; equal values give equal bytes."""
    kind = type(value)
    if kind is tuple or kind is list:
        return head(ARRAY, len(value)) + b"".join(map(encode, value))
    if kind is str:
        data: bytes = value.encode()
        return head(TEXT, len(data)) + data
    if kind is int:
        return head(UNSIGNED, value) if value >= 0 else head(NEGATIVE, -1 - value)
    if kind is bytes:
        return head(BYTES, len(value)) + bytes(value)
    if value is None:
        return NULL
    if kind is bool:
        return _SIMPLE[value]
    raise TypeError(f"a block key cannot hold a {type(value).__name__}")


class Encoder:
    """Encodes many values that share strings: each distinct one is encoded once."""

    def __init__(self) -> None:
        self._texts: dict[str, bytes] = {}

    def encode(self, value: Any) -> bytes:
        """The same bytes as `encode(value)`."""
        kind = type(value)
        if kind is tuple:
            return head(ARRAY, len(value)) + b"".join(map(self.encode, value))
        if kind is str:
            data = self._texts.get(value)
            if data is None:
                data = self._texts[value] = encode(value)
            return data
        return encode(value)
