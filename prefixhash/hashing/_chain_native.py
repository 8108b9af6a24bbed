"""The chain kernel in C: the same class with the same results as `_chain_py`.

Lists, tuples, arrays, memoryviews, numpy arrays and CPU tensors of integers are read where they
lie, without a copy of a buffer. The GIL is released over long prompts, so that threads hash
different requests in parallel. Whatever the kernel does not know is left to the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixhash._compiled import NATIVE
from prefixhash.hashing import _chain_py
from prefixhash.hashing.algorithms import Algorithm

if NATIVE is None:
    raise ImportError("the compiled kernels are not there")
_hash_blocks = NATIVE.hash_blocks


class HashChain(_chain_py.HashChain):
    """Hashes runs of blocks with one algorithm. Safe to share between threads."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__(algorithm)
        self._code = algorithm.digest_size + (algorithm.serialisation == "pickle")
        self._digest = algorithm.digest

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
        digests: list[bytes] | None = _hash_blocks(
            self._code, self._digest, parent, token_ids, block_size, extras, start, stop
        )
        if digests is None:
            return super().__call__(parent, token_ids, block_size, extras, start, stop)
        return digests

    def hash_tokens(self, parent: bytes, token_ids: Any, block_size: int) -> list[bytes]:
        """Digests of the full blocks of ids that nobody has looked at yet; O(tokens)."""
        digests: list[bytes] | None = _hash_blocks(
            self._code, self._digest, parent, token_ids, block_size, None, 0, None
        )
        if digests is not None:
            return digests
        view = _tensor_view(token_ids)
        if view is not None:
            return self.hash_tokens(parent, view, block_size)
        return super().hash_tokens(parent, token_ids, block_size)


def _tensor_view(value: Any) -> Any:
    """A numpy array over the memory of a CPU tensor; None if `value` is no such tensor."""
    if not type(value).__module__.startswith("torch"):
        return None
    try:
        view = value.numpy()
    except (AttributeError, RuntimeError, TypeError):
        return None  # on a device, or torch was built without numpy
    return view if type(view).__module__ == "numpy" else None
