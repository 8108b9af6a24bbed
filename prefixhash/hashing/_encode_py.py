"""The CBOR bytes of the token ids of a run of blocks, for the Python kernel.

Long runs are encoded by numpy, where it is installed; short ones, and all without numpy, from a
memo of the ids met so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from prefixhash.hashing import _cbor

# 2**18 distinct ids cover nearly every vocabulary in use; about 30 MB if all of them turn up.
MEMO_LIMIT = 1 << 18
# From here on numpy is the faster way, its import aside.
VECTORISE_FROM = 512


class IdEncoder:
    """Encodes ids in [0, 2**63). Safe to share between threads."""

    def __init__(self) -> None:
        self._encoded: dict[int, bytes] = {}

    def blocks(self, token_ids: Sequence[int], block_size: int) -> Iterable[bytes]:
        """The bytes of each block's ids, one after the other, without the head of an array."""
        if len(token_ids) >= VECTORISE_FROM:
            blocks = _vectorised(token_ids, block_size)
            if blocks is not None:
                return blocks
        ids = iter(self._encode(token_ids))
        return map(b"".join, zip(*[ids] * block_size, strict=True))

    def _encode(self, token_ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id, from a memo that whole calls fill and replace."""
        encoded = self._encoded
        try:
            return list(map(encoded.__getitem__, token_ids))
        except KeyError:
            new = set(token_ids).difference(encoded)
        if len(encoded) + len(new) > MEMO_LIMIT:
            # A new memo, since other threads may be reading the old one.
            encoded = self._encoded = {}
            new = set(token_ids)
        encoded.update((i, _cbor.head(_cbor.UNSIGNED, i)) for i in new)
        return list(map(encoded.__getitem__, token_ids))


def _vectorised(token_ids: Sequence[int], block_size: int) -> list[bytes] | None:
    """The same by numpy; None without it, or for ids of more than 32 bits."""
    try:
        import numpy
    except ImportError:
        return None
    np: Any = numpy
    ids = np.asarray(token_ids, np.int64)
    if ids.max() > 0xFFFFFFFF:
        return None
    wide, two, one = ids > 0xFFFF, ids > 0xFF, ids > 23
    # A cell of five bytes for each id: the initial byte of the longest form that is needed, and the
    # id in big-endian; then the bytes that the id's own form has are kept.
    cells = np.empty((len(ids), 5), np.uint8)
    cells[:, 0] = 0x18 + two.view(np.uint8) + wide.view(np.uint8)
    cells[:, 1:] = ids.astype(">u4").view(np.uint8).reshape(-1, 4)
    kept = np.empty(cells.shape, np.bool_)
    for column, keep in enumerate((one, wide, wide, two, True)):
        kept[:, column] = keep
    data: bytes = cells[kept].tobytes()
    sizes = np.count_nonzero(kept.reshape(-1, 5 * block_size), axis=1)
    return [data[start:end] for start, end in pairwise([0, *np.cumsum(sizes).tolist()])]
