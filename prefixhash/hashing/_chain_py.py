"""The chain kernel in Python: parent digest, tokens, extras per block -> digests.

This is the reference: a compiled kernel has the same class with the same results.

    digest[i] = H(S((digest[i-1], tokens of block i, extras of block i)))
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from prefixhash.hashing import _cbor
from prefixhash.hashing.algorithms import PICKLE_PROTOCOL, Algorithm

# 2**18 distinct ids cover every vocabulary in use; about 30 MB if all of them turn up.
_MEMO_LIMIT = 1 << 18


class HashChain:
    """Hashes runs of blocks with one algorithm. Safe to share between threads.

    A call takes the ids of whole blocks (`len(token_ids)` is a multiple of `block_size`, values in
    [0, 2**63)) and the extras of each block (a tuple or None), or None where no block has any.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._encoded = _EncodedIds()

    def __call__(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        block_size: int,
        extras: Sequence[tuple[Any, ...] | None] | None = None,
    ) -> list[bytes]:
        """Digests of the blocks in order; O(tokens)."""
        if self._algorithm.serialisation == "cbor":
            return self._chain_cbor(parent, token_ids, block_size, extras)
        return self._chain_pickle(parent, token_ids, block_size, extras)

    def _chain_cbor(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        block_size: int,
        extras: Sequence[tuple[Any, ...] | None] | None,
    ) -> list[bytes]:
        # Encoding the tokens of all blocks in one sweep of C-level iterators leaves a loop that
        # only hashes. The key is an array of three; its first item is a byte string.
        encoded = map(self._encoded.__getitem__, token_ids)
        bodies = map(b"".join, zip(*[encoded] * block_size, strict=True))
        tails = repeat(_cbor.NULL) if extras is None else map(_cbor.encode, extras)
        middle = _cbor.head(_cbor.ARRAY, block_size)
        start = _cbor.head(_cbor.ARRAY, 3) + _cbor.head(_cbor.BYTES, len(parent))
        first = start + parent
        start = start if len(parent) == self._algorithm.digest_size else self._start()
        digests: list[bytes] = []
        append = digests.append
        if not self._algorithm.collision_resistant:
            xxh3 = self._algorithm.digest
            for body, tail in zip(bodies, tails):  # noqa: B905  # tails may be endless
                digest = xxh3(first + middle + body + tail)
                append(digest)
                first = start + digest
            return digests
        sha256 = hashlib.sha256
        for body, tail in zip(bodies, tails):  # noqa: B905
            digest = sha256(first + middle + body + tail).digest()
            append(digest)
            first = start + digest
        return digests

    def _start(self) -> bytes:
        size = self._algorithm.digest_size
        return _cbor.head(_cbor.ARRAY, 3) + _cbor.head(_cbor.BYTES, size)

    def _chain_pickle(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        block_size: int,
        extras: Sequence[tuple[Any, ...] | None] | None,
    ) -> list[bytes]:
        dumps = pickle.dumps
        digest = self._algorithm.digest
        digests: list[bytes] = []
        append = digests.append
        blocks = zip(*[iter(token_ids)] * block_size, strict=True)
        for block, extra in zip(blocks, repeat(None) if extras is None else extras):  # noqa: B905
            parent = digest(dumps((parent, block, extra), PICKLE_PROTOCOL))
            append(parent)
        return digests


class _EncodedIds(dict[int, bytes]):
    """Token id -> its CBOR bytes, filled on demand up to a limit."""

    def __missing__(self, token_id: int) -> bytes:
        encoded = _cbor.head(_cbor.UNSIGNED, token_id)
        if len(self) < _MEMO_LIMIT:
            self[token_id] = encoded
        return encoded
