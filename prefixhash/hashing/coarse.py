"""Block hashes seen at a larger block size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from prefixhash._arguments import integer
from prefixhash.errors import InvalidArgumentError


class CoarseBlockHashes(Sequence[bytes]):
    """View of `block_hashes` in which each block is `factor` of theirs, for groups with larger
    blocks.

    Hashes are chained, so the hash of a coarse block is that of the last fine block in it; fine
    blocks of an incomplete coarse block are not seen. The view follows its list as that grows. A
    slice is a list. Every access costs O(1).
    """

    __slots__ = ("_factor", "_hashes")

    def __init__(self, block_hashes: Sequence[bytes], factor: int) -> None:
        if not isinstance(block_hashes, Sequence) or isinstance(block_hashes, (str, bytes)):
            raise InvalidArgumentError("block_hashes", block_hashes, "must be a list of hashes")
        self._factor = integer("factor", factor, 1, meaning=", fine blocks per block")
        self._hashes = block_hashes

    def __len__(self) -> int:
        return len(self._hashes) // self._factor

    @overload
    def __getitem__(self, key: int) -> bytes: ...
    @overload
    def __getitem__(self, key: slice) -> list[bytes]: ...
    def __getitem__(self, key: int | slice) -> bytes | list[bytes]:
        numbers = range(len(self))[key]
        if isinstance(numbers, int):
            return self._hashes[(numbers + 1) * self._factor - 1]
        return [self._hashes[(number + 1) * self._factor - 1] for number in numbers]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (list, tuple, CoarseBlockHashes)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # the hashes behind the view grow

    def __repr__(self) -> str:
        return f"<CoarseBlockHashes of {len(self)} blocks, {self._factor} fine blocks each>"
