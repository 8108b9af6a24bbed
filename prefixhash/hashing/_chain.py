"""Selects the chain kernel; does only that."""

from __future__ import annotations

from prefixhash._compiled import KERNEL

if KERNEL == "native":
    from prefixhash.hashing._chain_native import HashChain
else:
    from prefixhash.hashing._chain_py import HashChain  # type: ignore[assignment]

__all__ = ["KERNEL", "HashChain"]
