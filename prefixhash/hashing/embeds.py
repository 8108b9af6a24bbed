"""Digests of prompt embeddings: the raw bytes of a block's rows, once per block.

Works on torch tensors (any dtype, device, layout) and numpy arrays without importing either.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from prefixhash.errors import InvalidRequestError
from prefixhash.hashing import parts
from prefixhash.request.fields import check_values

_NO_ROWS = hashlib.sha256().digest()


def rows_digest(request: Any, start: int, end: int) -> bytes:
    """SHA-256 of the bytes of rows [start, end) of `request.prompt_embeds`, clipped to its rows.

    Kept on the request, so each block's rows are read once.
    """
    if start >= request.prompt_embeds.shape[0]:
        return _NO_ROWS
    return _kept_digest(request, (start, end), slice(start, end))


def embeds_key(request: Any, start: int, end: int) -> tuple[Any, ...] | None:
    """The strict key of a block's embeddings, or None where no position uses one.

    ("embeds", dtype, shape of the rows used, their digest, positions used or None for all of them).
    """
    embeds = getattr(request, "prompt_embeds", None)
    if embeds is None or start >= embeds.shape[0]:
        return None
    used = range(start, min(end, embeds.shape[0]))
    mask = parts.token_mask(request, start, used.stop)
    if mask is not None and len(mask) < len(used):
        problem = f"ends within the {embeds.shape[0]} rows of prompt_embeds"
        raise InvalidRequestError("prompt_is_token_ids", f"{start + len(mask)} entries", problem)
    if mask is None or not any(mask):
        digest, count = rows_digest(request, start, end), len(used)
    else:
        rows = [i for i, is_token in enumerate(mask, start) if not is_token]
        if not rows:
            return None
        # A key of its own: vLLM's digest under (start, end) covers the unused rows as well.
        digest, count = _kept_digest(request, (start, end, "used rows"), rows), len(rows)
        used = rows  # type: ignore[assignment]
    positions = None if count == end - start else _bitmap(used, start, end)
    return ("embeds", dtype_name(embeds), (count, *map(int, embeds.shape[1:])), digest, positions)


def raw_bytes(values: Any) -> bytes:
    """The values of a tensor or an array (see `check_values`) in row-major order, little-endian."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        flat = values.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
        data: bytes = flat.view(torch.uint8).numpy().tobytes()
        return data
    if values.dtype.byteorder == ">" or (sys.byteorder == "big" and values.dtype.byteorder == "="):
        values = values.astype(values.dtype.newbyteorder("<"))
    array_data: bytes = values.tobytes()
    return array_data


def dtype_name(values: Any) -> str:
    """`bfloat16`, `float32`, ...: the same for torch and numpy."""
    return str(getattr(values.dtype, "name", values.dtype)).removeprefix("torch.")


def _kept_digest(request: Any, key: tuple[Any, ...], rows: slice | list[int]) -> bytes:
    digests = getattr(request, "_prompt_embeds_per_block_hashes", None)
    if not isinstance(digests, dict):
        digests = None
    digest: bytes | None = None if digests is None else digests.get(key)
    if digest is None:
        check_values(request.prompt_embeds, "prompt_embeds")
        digest = hashlib.sha256(raw_bytes(request.prompt_embeds[rows])).digest()
        if digests is not None:
            digests[key] = digest
    return digest


def _bitmap(positions: Any, start: int, end: int) -> bytes:
    """Bit i (least significant first) of the result is set if position start + i is used."""
    bits = 0
    for position in positions:
        bits |= 1 << (position - start)
    return bits.to_bytes((end - start + 7) // 8, "little")
