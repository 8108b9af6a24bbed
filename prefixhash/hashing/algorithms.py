"""The four algorithms: a serialisation (pickle or canonical CBOR) and a digest.

The names and the bytes are vLLM's. Serialising is by value: `pickle.dumps` writes a back reference
where one object occurs twice, so whoever builds a key must see to it that only equal keys share
objects (`extra_keys.own`).
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import xxhash

from prefixhash.errors import InvalidProfileError
from prefixhash.hashing import _cbor

PICKLE_PROTOCOL = 5


@dataclass(frozen=True)
class Algorithm:
    """How a key becomes a digest: `digest(serialise(key))`, `digest_size` bytes."""

    name: str
    serialisation: str
    digest_size: int
    collision_resistant: bool

    @property
    def digest(self) -> Callable[[bytes], bytes]:
        """SHA-256, or XXH3-128 with seed 0 in its canonical (big-endian) form."""
        return sha256 if self.collision_resistant else xxhash.xxh3_128_digest

    @property
    def serialise(self) -> Callable[[Any], bytes]:
        """The bytes of a key."""
        return _cbor.encode if self.serialisation == "cbor" else to_pickle

    def hash(self, key: Any) -> bytes:
        """Digest of any key made of None, ints, strings, bytes and tuples."""
        return self.digest(self.serialise(key))


def sha256(data: bytes) -> bytes:
    """The SHA-256 digest of `data`, 32 bytes."""
    return hashlib.sha256(data).digest()


def to_pickle(key: Any) -> bytes:
    """Pickle protocol 5, whose bytes are the same in CPython 3.8 to 3.13."""
    return pickle.dumps(key, PICKLE_PROTOCOL)


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        algorithm.name: algorithm
        for algorithm in (
            Algorithm("sha256_cbor", "cbor", 32, collision_resistant=True),
            Algorithm("sha256", "pickle", 32, collision_resistant=True),
            Algorithm("xxhash_cbor", "cbor", 16, collision_resistant=False),
            Algorithm("xxhash", "pickle", 16, collision_resistant=False),
        )
    }
)


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of that name; `InvalidProfileError` lists the names there are."""
    try:
        return ALGORITHMS[name]
    except (KeyError, TypeError):
        raise InvalidProfileError("algorithm", name, f"known: {', '.join(ALGORITHMS)}") from None
