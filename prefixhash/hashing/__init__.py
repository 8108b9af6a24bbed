"""Chained block hashes: algorithms, profiles, extra keys, `BlockHasher`."""

from __future__ import annotations

from prefixhash.hashing._chain import KERNEL
from prefixhash.hashing.algorithms import ALGORITHMS
from prefixhash.hashing.coarse import CoarseBlockHashes
from prefixhash.hashing.hasher import BlockHasher
from prefixhash.hashing.media import media_identifier
from prefixhash.hashing.profile import CollisionRiskWarning, HashProfile, known_profiles

__all__ = [
    "ALGORITHMS",
    "KERNEL",
    "BlockHasher",
    "CoarseBlockHashes",
    "CollisionRiskWarning",
    "HashProfile",
    "known_profiles",
    "media_identifier",
]
