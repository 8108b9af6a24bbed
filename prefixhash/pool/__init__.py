"""The pool of KV blocks that hashes address."""

from __future__ import annotations

from prefixhash._compiled import prefer_twins

prefer_twins(__path__, "pool")

from prefixhash.pool.block_pool import BlockPool
from prefixhash.pool.event_index import EventIndex
from prefixhash.pool.events import (
    MEDIUM_CPU,
    MEDIUM_GPU,
    MEDIUM_STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    StoredTokens,
)
from prefixhash.pool.residency import Residency, ResidencySampler

__all__ = [
    "MEDIUM_CPU",
    "MEDIUM_GPU",
    "MEDIUM_STORAGE",
    "AllBlocksCleared",
    "BlockPool",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "EventIndex",
    "Residency",
    "ResidencySampler",
    "StoredTokens",
]
