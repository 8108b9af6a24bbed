"""KV-cache planning: layer specs, grouping, packing, memory need and tensors.

From what every layer keeps per block and the bytes of each worker to a `KVCachePlan`: groups that
share one block table, block count, buffers, and the bytes and blocks that a request needs.
"""

from __future__ import annotations

from prefixhash.layout.options import BlockNeed, PlanOptions
from prefixhash.layout.rows import (
    FP4_BLOCK_SCALED,
    INT4_PER_TOKEN_HEAD,
    LATENT_584,
    LATENT_656,
    PER_TOKEN_HEAD,
    PLAIN,
    RowFormat,
    slot_packed,
    storage_of,
)
from prefixhash.layout.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

__all__ = [
    "FP4_BLOCK_SCALED",
    "INT4_PER_TOKEN_HEAD",
    "LATENT_584",
    "LATENT_656",
    "PER_TOKEN_HEAD",
    "PLAIN",
    "AttentionSpec",
    "BlockNeed",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "HiddenStateSpec",
    "LayerSpec",
    "MLAAttentionSpec",
    "MambaSpec",
    "PlanOptions",
    "RowFormat",
    "SlidingWindowMLASpec",
    "SlidingWindowSpec",
    "slot_packed",
    "storage_of",
]
