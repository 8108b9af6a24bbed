"""Prefix-cache block hashing for LLM serving: hash chains, block pool, KV planning, replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixhash.cache import CacheGroup, CacheHit, CacheOptions, CacheStats, PrefixCache
from prefixhash.errors import (
    IncompatibleLayersError,
    IncompatiblePageSizesError,
    InconsistentWorkersError,
    InvalidArgumentError,
    InvalidBlockError,
    InvalidProfileError,
    InvalidRequestError,
    InvariantError,
    ModelConfigError,
    NoCommonBlockSizeError,
    NotEnoughMemoryError,
    OutOfBlocksError,
    PlanningError,
    PrefixHashError,
    StaleHitError,
    TraceFormatError,
    UnknownArchitectureError,
    UnsupportedCombinationError,
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

if TYPE_CHECKING:
    from prefixhash.layout import (
        ChunkedLocalAttentionSpec,
        CrossAttentionSpec,
        EncoderOnlyAttentionSpec,
        FullAttentionSpec,
        HiddenStateSpec,
        KVCacheGroup,
        KVCachePlan,
        KVCacheTensor,
        MambaSpec,
        MLAAttentionSpec,
        PlanOptions,
        SlidingWindowMLASpec,
        SlidingWindowSpec,
        approximate_gcd,
        auto_fit_max_model_len,
        bucket_layers_by_page_size,
        estimate_max_model_len,
        group_layer_tuples,
        group_layers,
        pack_kv_cache,
        plan_kv_cache,
        plan_workers,
    )

__version__ = "0.1.0"

__all__ = [
    "BlockHasher",
    "BlockPool",
    "CacheGroup",
    "CacheHit",
    "CacheOptions",
    "CacheStats",
    "ChunkedLocalAttentionSpec",
    "CoarseBlockHashes",
    "CollisionRiskWarning",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "HashProfile",
    "HiddenStateSpec",
    "IncompatibleLayersError",
    "IncompatiblePageSizesError",
    "InconsistentWorkersError",
    "InvalidArgumentError",
    "InvalidBlockError",
    "InvalidProfileError",
    "InvalidRequestError",
    "InvariantError",
    "KVCacheGroup",
    "KVCachePlan",
    "KVCacheTensor",
    "LoRARequest",
    "MLAAttentionSpec",
    "MambaSpec",
    "ModelConfigError",
    "MultiModalFeature",
    "NoCommonBlockSizeError",
    "NotEnoughMemoryError",
    "OutOfBlocksError",
    "PlaceholderRange",
    "PlanOptions",
    "PlanningError",
    "PrefixCache",
    "PrefixHashError",
    "Request",
    "SlidingWindowMLASpec",
    "SlidingWindowSpec",
    "StaleHitError",
    "TraceFormatError",
    "UnknownArchitectureError",
    "UnsupportedCombinationError",
    "__version__",
    "approximate_gcd",
    "auto_fit_max_model_len",
    "bucket_layers_by_page_size",
    "estimate_max_model_len",
    "group_layer_tuples",
    "group_layers",
    "media_identifier",
    "pack_kv_cache",
    "plan_kv_cache",
    "plan_workers",
]

# Planning is imported when one of its names is first used: a router that only hashes skips it.
_LAYOUT = frozenset(__all__).difference(globals())


def __getattr__(name: str) -> object:
    if name in _LAYOUT:
        from prefixhash import layout

        return getattr(layout, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
