"""The chain kernel in Python: parent digest, tokens, extras per block -> digests.

This is the reference: a compiled kernel has the same class with the same results.

    digest[i] = H(S((digest[i-1], tokens of block i, extras of block i)))
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from prefixhash.hashing import _cbor
from prefixhash.hashing._encode_py import IdEncoder
from prefixhash.hashing.algorithms import PICKLE_PROTOCOL, Algorithm
from prefixhash.request.tokens import token_array

_KEY_START = _cbor.head(_cbor.ARRAY, 3)


class HashChain:
    """Hashes runs of blocks with one algorithm. Safe to share between threads.

    A call takes ids that have been looked at (values in [0, 2**63)), of which the slice
    [`start`, `stop`) is whole blocks, and the extras of each block (a tuple or None), or None where
    no block has any.
    `hash_tokens` takes anything that holds token ids and refuses what does not.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._ids = IdEncoder()

    def __call__(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        block_size: int,
        extras: Sequence[tuple[Any, ...] | None] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> list[bytes]:
        """Digests of the blocks in order; O(tokens)."""
        token_ids = token_ids[start:stop]
        if not len(token_ids):
            return []
        if self._algorithm.serialisation == "cbor":
            return self._chain_cbor(parent, token_ids, block_size, extras)
        return self._chain_pickle(parent, token_ids, block_size, extras)

    def hash_tokens(self, parent: bytes, token_ids: Any, block_size: int) -> list[bytes]:
        """Digests of the full blocks of ids that nobody has looked at yet; O(tokens)."""
        ids = token_array(token_ids, "token_ids")
        return self(parent, ids, block_size, stop=len(ids) // block_size * block_size)

    def _chain_cbor(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        block_size: int,
        extras: Sequence[tuple[Any, ...] | None] | None,
    ) -> list[bytes]:
        # The key is an array of three, of which only the parent is unknown before its turn. The
        # rest of every key is joined by C-level iterators, which leaves a loop that only hashes.
        blocks = self._ids.blocks(token_ids, block_size)
        head = repeat(_cbor.head(_cbor.ARRAY, block_size))
        tails = repeat(_cbor.NULL) if extras is None else _encoded(extras)
        rests = map(b"".join, zip(head, blocks, tails))  # noqa: B905  # head is endless
        key = _KEY_START + _cbor.encode(parent)
        start = _KEY_START + _cbor.head(_cbor.BYTES, self._algorithm.digest_size)
        digests: list[bytes] = []
        append = digests.append
        if self._algorithm.collision_resistant:
            sha256 = hashlib.sha256
            for rest in rests:
                digest = sha256(key + rest).digest()
                append(digest)
                key = start + digest
        else:
            xxh3 = self._algorithm.digest
            for rest in rests:
                digest = xxh3(key + rest)
                append(digest)
                key = start + digest
        return digests

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


def _encoded(extras: Iterable[tuple[Any, ...] | None]) -> Iterator[bytes]:
    """The CBOR of each block's extras; runs of one tuple, and each string, are encoded once."""
    last, data = None, _cbor.NULL
    encode = _cbor.Encoder().encode
    for extra in extras:
        if extra is not last:
            last, data = extra, encode(extra)
        yield data
