"""Selects the chain kernel; does only that."""

from __future__ import annotations

from prefixhash.hashing._chain_py import HashChain

KERNEL = "python"

__all__ = ["KERNEL", "HashChain"]
