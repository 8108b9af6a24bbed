"""Prefix-cache block hashing for LLM serving: hash chains, block pool, KV planning, replay."""

from __future__ import annotations

from prefixhash.errors import (
    InvalidArgumentError,
    InvalidBlockError,
    InvalidProfileError,
    InvalidRequestError,
    InvariantError,
    OutOfBlocksError,
    PrefixHashError,
    StaleHitError,
    TraceFormatError,
)
from prefixhash.hashing import (
    BlockHasher,
    CoarseBlockHashes,
    CollisionRiskWarning,
    HashProfile,
    media_identifier,
)
from prefixhash.pool import BlockPool
from prefixhash.request import LoRARequest, MultiModalFeature, PlaceholderRange, Request

__version__ = "0.1.0"

__all__ = [
    "BlockHasher",
    "BlockPool",
    "CoarseBlockHashes",
    "CollisionRiskWarning",
    "HashProfile",
    "InvalidArgumentError",
    "InvalidBlockError",
    "InvalidProfileError",
    "InvalidRequestError",
    "InvariantError",
    "LoRARequest",
    "MultiModalFeature",
    "OutOfBlocksError",
    "PlaceholderRange",
    "PrefixHashError",
    "Request",
    "StaleHitError",
    "TraceFormatError",
    "__version__",
    "media_identifier",
]
