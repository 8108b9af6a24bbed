"""The kinds of KV groups: one row each, and nothing outside compares with a kind's name.

What a kind does, whether others can reuse its blocks, whether it recycles them or keeps states, is
said by its manager. Kinds that differ only in what a block holds share one.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefixhash._arguments import nearest
from prefixhash.cache.managers import AttentionManager, ChunkedLocalManager, SlidingWindowManager
from prefixhash.cache.state_managers import (
    CrossAttentionManager,
    EncoderOnlyManager,
    MambaManager,
)
from prefixhash.errors import InvalidArgumentError


@dataclass(frozen=True)
class KVKind:
    """One kind of KV group.

    `names`: its own first, then those of engines. `wire_name`: what events say, as vLLM 0.33's
    `KVCacheSpecKind`. `reach`: the attributes that hold how far a token attends, the `CacheGroup`'s
    own first, then those of layer specs; empty where all earlier tokens are needed.
    """

    names: tuple[str, ...]
    wire_name: str
    manager: type[AttentionManager]
    reach: tuple[str, ...] = ()


_WINDOW = ("window", "sliding_window")
_CHUNK = ("chunk", "attention_chunk_size")

FULL_ATTENTION = KVKind(("full_attention",), "full_attention", AttentionManager)
KINDS: tuple[KVKind, ...] = (
    FULL_ATTENTION,
    KVKind(("sink_full_attention",), "sink_full_attention", AttentionManager),
    KVKind(("mla", "mla_attention"), "mla_attention", AttentionManager),
    KVKind(("hidden_state",), "mla_attention", AttentionManager),
    KVKind(("sliding_window",), "sliding_window", SlidingWindowManager, _WINDOW),
    KVKind(("sliding_window_mla",), "sliding_window_mla", SlidingWindowManager, _WINDOW),
    KVKind(
        ("chunked_local", "chunked_local_attention"),
        "chunked_local_attention",
        ChunkedLocalManager,
        _CHUNK,
    ),
    KVKind(("mamba",), "mamba", MambaManager),
    KVKind(("cross_attention",), "cross_attention", CrossAttentionManager),
    KVKind(
        ("encoder_only", "encoder_only_attention"), "encoder_only_attention", EncoderOnlyManager
    ),
)


def find_kind(name: object) -> KVKind:
    """The row with this name; raises `InvalidArgumentError` that lists them all."""
    if isinstance(name, str):
        for kind in KINDS:
            if name in kind.names:
                return kind
    known = [name for kind in KINDS for name in kind.names]
    raise InvalidArgumentError(
        "kind", name, f"{nearest(name, known)}must be one of {', '.join(known)}"
    )
