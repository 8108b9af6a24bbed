"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

from prefixhash.errors import InvalidArgumentError

_PATTERN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.IGNORECASE)
_PREFIXES = ("k", "m", "g", "t")
_UNITS: dict[str, int] = {"": 1, "b": 1}
_UNITS.update({f"{prefix}ib": 1 << 10 * power for power, prefix in enumerate(_PREFIXES, 1)})
_UNITS.update({f"{prefix}b": int(1e3) ** power for power, prefix in enumerate(_PREFIXES, 1)})


def parse_size(text: str, argument: str) -> int:
    """Bytes of `60GiB`, `1.5 TB` or `1073741824`; KiB to TiB count in 1024s, kB to TB in 1000s.

    Raises `InvalidArgumentError` for other text and for sizes that come to no whole byte or none.
    """
    match = _PATTERN.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidArgumentError(argument, text, "write 60GiB, 512MiB, 80GB or a number of bytes")
    size = Fraction(match[1]) * factor
    if size < 1:
        raise InvalidArgumentError(argument, text, "must be at least one byte")
    return int(size)
