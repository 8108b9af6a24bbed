"""Sizes and shares as people write them, `60GiB` and `10%`: the one place that reads them.

Values are exact, since a size that a float rounds is another number of blocks.
"""

from __future__ import annotations

import re
from fractions import Fraction

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError

_NUMBER = r"([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"  # bounded: int() refuses 4,301 digits
_BYTES = re.compile(_NUMBER + r"\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_SHARE = re.compile(_NUMBER + r"\s*%", re.ASCII)
_PREFIXES = ("k", "m", "g", "t")
_FACTORS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(_PREFIXES, 1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, 1)},
}


def parse_bytes(name: str, text: str) -> int:
    """Bytes of `60GiB`, `1.5 TB` or `1073741824`; KiB to TiB count in 1024s, kB to TB in 1000s.

    A part of a byte is cut off. Raises `InvalidArgumentError`, which names the argument `name`, for
    other text and for sizes below one byte.
    """
    match = _BYTES.fullmatch(_arguments.text(name, text).strip())
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidArgumentError(name, text, "write 60GiB, 512MiB, 80GB or a number of bytes")
    size = int(Fraction(match[1]) * factor)
    if size < 1:
        raise InvalidArgumentError(name, text, "must be at least one byte")
    return size


def parse_share(name: str, text: str, *, most: int | None = 1) -> Fraction:
    """The share that `10%` is, 1/10, from 0 to `most` inclusive (None: of any size).

    Raises `InvalidArgumentError`, which names the argument `name`, for other text (a sign, `nan`, a
    number without `%`) and for shares above `most`.
    """
    match = _SHARE.fullmatch(_arguments.text(name, text).strip())
    if match is None:
        raise InvalidArgumentError(name, text, "write a share as 10% or 2.5%")
    share = Fraction(match[1]) / 100
    if most is not None and share > most:
        raise InvalidArgumentError(name, text, f"must be at most {most:.0%}")
    return share
