"""The pool of KV blocks that hashes address."""

from __future__ import annotations

from prefixhash._compiled import prefer_twins

prefer_twins(__path__, "pool")

from prefixhash.pool.block_pool import BlockPool
from prefixhash.pool.residency import Residency, ResidencySampler

__all__ = ["BlockPool", "Residency", "ResidencySampler"]
