"""Sizes of a cache as people write them: `5000`, `25%`, `2Mtok`, `40GiB`, `inf`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from prefixhash.errors import InvalidArgumentError

_UNITS = {
    "": ("blocks", 1.0),
    "%": ("percent", 1.0),
    "tok": ("tokens", 1.0),
    "ktok": ("tokens", 1e3),
    "mtok": ("tokens", 1e6),
    "gtok": ("tokens", 1e9),
    "mib": ("bytes", float(1 << 20)),
    "gib": ("bytes", float(1 << 30)),
    "tib": ("bytes", float(1 << 40)),
}
_PATTERN = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z%]*)")
_FORMS = "write blocks (5000), percent of the unique blocks (25%), tokens (2Mtok), GiB, or inf"


@dataclass(frozen=True)
class Capacity:
    """A size before it is known what it comes to in blocks. `unit` is blocks, percent, ..."""

    text: str
    unit: str
    value: float

    def blocks(self, *, block_size: int, unique_blocks: int, bytes_per_block: int | None) -> float:
        """The size in whole blocks, rounded down (`math.inf`: unbounded).

        Raises `InvalidArgumentError` where it comes to less than one block, or where it is in bytes
        and `bytes_per_block` is unknown.
        """
        if math.isinf(self.value):
            return math.inf
        if self.unit == "bytes":
            if bytes_per_block is None:
                raise InvalidArgumentError(
                    "capacity", self.text, "needs a model: --model config.json"
                )
            blocks = int(self.value // bytes_per_block)
        elif self.unit == "percent":
            # Of a short trace 1 % is less than a block; that must not stop a ladder of sizes.
            blocks = max(int(self.value * unique_blocks / 100), 1 if self.value else 0)
        elif self.unit == "tokens":
            blocks = int(self.value // block_size)
        else:
            blocks = int(self.value)
        if blocks < 1:
            raise InvalidArgumentError("capacity", self.text, f"is {blocks} blocks: give more")
        return blocks


def parse_capacity(value: str | float) -> Capacity:
    """Reads a size; raises `InvalidArgumentError` that shows the forms."""
    text = str(value).strip()
    lowered = text.lower()
    if lowered in ("inf", "infinite", "unlimited"):
        return Capacity("inf", "blocks", math.inf)
    match = _PATTERN.fullmatch(lowered)
    if match is None or match[2] not in _UNITS:
        raise InvalidArgumentError("capacity", value, _FORMS)
    unit, factor = _UNITS[match[2]]
    number = float(match[1].replace("_", "")) * factor
    if unit == "blocks" and number != int(number):
        raise InvalidArgumentError("capacity", value, "is not a whole number of blocks")
    return Capacity(text, unit, number)
