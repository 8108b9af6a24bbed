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
)

__version__ = "0.1.0"

__all__ = [
    "InvalidArgumentError",
    "InvalidBlockError",
    "InvalidProfileError",
    "InvalidRequestError",
    "InvariantError",
    "OutOfBlocksError",
    "PrefixHashError",
    "StaleHitError",
    "__version__",
]
