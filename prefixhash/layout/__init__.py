"""KV-cache planning: layer specs, grouping, packing, memory need and tensors.

From what every layer keeps per block and the bytes of each worker to a `KVCachePlan`: groups that
share one block table, block count, buffers, and the bytes and blocks that a request needs.
"""

from __future__ import annotations

from prefixhash.layout.block_sizes import (
    AlignedBlocks,
    BlockSizes,
    MultipleOf,
    align_attention_with_states,
    grow_quantised_blocks,
    resolve_block_sizes,
    select_kernel_block_size,
)
from prefixhash.layout.gcd import approximate_gcd
from prefixhash.layout.grouping import equal_group_size, group_layers, unify_page_sizes
from prefixhash.layout.groups import KVCacheGroup
from prefixhash.layout.kernel_layouts import (
    FUSED_ROWS,
    HEAD_MAJOR,
    KV_OUTERMOST,
    LATENT,
    TOKEN_MAJOR,
    KernelLayout,
    select_common_layout,
)
from prefixhash.layout.latent_tuples import group_layer_tuples
from prefixhash.layout.layer_spec import AttentionSpec, LayerSpec
from prefixhash.layout.merge import merge_specs, same_type
from prefixhash.layout.models.architectures import known_model_types
from prefixhash.layout.models.config import (
    ModelLayers,
    bytes_per_block,
    read_model_config,
    specs_from_model_config,
    split_layers,
)
from prefixhash.layout.models.rank import ModelLayer
from prefixhash.layout.need import (
    NeedCurve,
    auto_fit_max_model_len,
    blocks_needed,
    bytes_needed,
    check_enough_memory,
    estimate_max_model_len,
)
from prefixhash.layout.options import BlockNeed, PlanOptions
from prefixhash.layout.packing import (
    BlockLayout,
    KVCacheBuffers,
    KVCacheTensor,
    Slot,
    bucket_layers_by_page_size,
    lay_out_block,
    lay_out_kv_cache,
    pack_kv_cache,
)
from prefixhash.layout.plan import KVCachePlan, plan_kv_cache, plan_workers, project_groups
from prefixhash.layout.row_formats import (
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
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from prefixhash.layout.views import TensorView, tensor_views

__all__ = [
    "FP4_BLOCK_SCALED",
    "FUSED_ROWS",
    "HEAD_MAJOR",
    "INT4_PER_TOKEN_HEAD",
    "KV_OUTERMOST",
    "LATENT",
    "LATENT_584",
    "LATENT_656",
    "PER_TOKEN_HEAD",
    "PLAIN",
    "TOKEN_MAJOR",
    "AlignedBlocks",
    "AttentionSpec",
    "BlockLayout",
    "BlockNeed",
    "BlockSizes",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "HiddenStateSpec",
    "KVCacheBuffers",
    "KVCacheGroup",
    "KVCachePlan",
    "KVCacheTensor",
    "KernelLayout",
    "LayerSpec",
    "MLAAttentionSpec",
    "MambaSpec",
    "ModelLayer",
    "ModelLayers",
    "MultipleOf",
    "NeedCurve",
    "PlanOptions",
    "RowFormat",
    "SlidingWindowMLASpec",
    "SlidingWindowSpec",
    "Slot",
    "TensorView",
    "align_attention_with_states",
    "approximate_gcd",
    "auto_fit_max_model_len",
    "blocks_needed",
    "bucket_layers_by_page_size",
    "bytes_needed",
    "bytes_per_block",
    "check_enough_memory",
    "equal_group_size",
    "estimate_max_model_len",
    "group_layer_tuples",
    "group_layers",
    "grow_quantised_blocks",
    "known_model_types",
    "lay_out_block",
    "lay_out_kv_cache",
    "merge_specs",
    "pack_kv_cache",
    "plan_kv_cache",
    "plan_workers",
    "project_groups",
    "read_model_config",
    "resolve_block_sizes",
    "same_type",
    "select_common_layout",
    "select_kernel_block_size",
    "slot_packed",
    "specs_from_model_config",
    "split_layers",
    "storage_of",
    "tensor_views",
    "unify_page_sizes",
]
