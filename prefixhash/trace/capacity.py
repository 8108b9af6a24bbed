"""Sizes of a cache as people write them: `5000`, `25%`, `2Mtok`, `40GiB`, `80GB`, `inf`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from prefixhash import _arguments
from prefixhash._units import parse_bytes, parse_share
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.checks import blocks_or_inf

# Engines keep one block of a pool as the null block, and a request that runs needs one for the
# tail that is not yet a full block: a pool of N blocks caches like an LRU of N - 2.
POOL_OVERHEAD_BLOCKS = 2
SMALLEST_POOL = POOL_OVERHEAD_BLOCKS + 1

_UNITS = BLOCKS, SHARE, TOKENS, BYTES = ("blocks", "share", "tokens", "bytes")
_UNBOUNDED = ("inf", "infinite", "unlimited")
_NUMBER = re.compile(r"[0-9]{1,40}(?:\.[0-9]{1,40})?", re.ASCII)
_DIGIT_GAP = re.compile(r"(?<=[0-9])_(?=[0-9])", re.ASCII)
_TOKEN_UNITS = {"tok": 1, "ktok": 10**3, "mtok": 10**6, "gtok": 10**9}
_FORMS = (
    "write blocks (5000), percent of the unique blocks (25%), tokens (2Mtok), bytes (40GiB, 80GB), "
    "or inf"
)


@dataclass(frozen=True)
class Capacity:
    """A size before it is known what it comes to in blocks: `value` of `unit`, exactly.

    `unit`: blocks, share (of the unique blocks), tokens or bytes. `value`: `math.inf` for no bound.
    """

    text: str
    unit: str
    value: int | Fraction | float

    def __post_init__(self) -> None:
        _arguments.text("text", self.text)
        _arguments.choice("unit", self.unit, _UNITS)
        if not isinstance(self.value, Fraction):
            object.__setattr__(self, "value", blocks_or_inf("value", self.value))
        elif self.value < 0:
            raise InvalidArgumentError("value", self.value, "must not be negative")

    def blocks(
        self, *, block_size: int, unique_blocks: int, bytes_per_block: int | None, least: int = 1
    ) -> float:
        """The size in whole blocks, rounded down (`math.inf`: unbounded).

        A share of a short trace that comes to fewer blocks than `least` is `least`: that must not
        stop a ladder of sizes. Raises `InvalidArgumentError` where it comes to no block, or where
        it is in bytes and `bytes_per_block` is unknown.
        """
        block_size = _arguments.integer("block_size", block_size, 1)
        unique_blocks = _arguments.integer("unique_blocks", unique_blocks)
        bytes_per_block = _arguments.optional_integer("bytes_per_block", bytes_per_block, 1)
        least = _arguments.integer("least", least, 1)
        if self.value == math.inf:
            return math.inf
        if self.unit == BYTES:
            if bytes_per_block is None:
                problem = "needs a model: --model config.json"
                raise InvalidArgumentError("capacity", self.text, problem)
            blocks = int(self.value // bytes_per_block)
        elif self.unit == SHARE:
            blocks = max(int(self.value * unique_blocks), least if self.value else 0)
        elif self.unit == TOKENS:
            blocks = int(self.value // block_size)
        else:
            blocks = int(self.value)
        if blocks < 1:
            raise InvalidArgumentError("capacity", self.text, f"is {blocks} blocks: give more")
        return blocks


def parse_capacity(value: str | float) -> Capacity:
    """Reads a size: text, a whole number of blocks, or `math.inf`.

    Raises `InvalidArgumentError` that shows the forms.
    """
    if _arguments.is_integer(value):
        blocks = _arguments.integer("capacity", value)
        return Capacity(str(blocks), BLOCKS, blocks)
    if isinstance(value, float) and value == math.inf:
        return Capacity("inf", BLOCKS, math.inf)
    return _parse_text(_arguments.text("capacity", value, meaning=f": {_FORMS}"))


def _parse_text(given: str) -> Capacity:
    text = given.strip()
    plain = _DIGIT_GAP.sub("", text.lower())
    if plain in _UNBOUNDED:
        return Capacity("inf", BLOCKS, math.inf)
    unit = plain.lstrip("0123456789. ")
    if unit == "%":
        return Capacity(text, SHARE, parse_share("capacity", plain, most=None))
    if unit.endswith("b"):
        return Capacity(text, BYTES, parse_bytes("capacity", plain))
    match = _NUMBER.fullmatch(plain.removesuffix(unit).rstrip())
    if match is None or unit not in ("", *_TOKEN_UNITS):
        raise InvalidArgumentError("capacity", given, _FORMS)
    number = Fraction(match[0])
    if unit:
        return Capacity(text, TOKENS, number * _TOKEN_UNITS[unit])
    if number.denominator != 1:
        raise InvalidArgumentError("capacity", given, "is not a whole number of blocks")
    return Capacity(text, BLOCKS, int(number))
