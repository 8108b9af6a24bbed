"""Layers of models that are built of attention alone, from their config's fields.

Heads that fewer than all ranks can hold are replicated; latent rows and indexer keys are the same
on every rank. Sources: the `transformers` config classes for which layers slide, vLLM's models for
what each layer stores.
"""

from __future__ import annotations

from collections.abc import Callable

from prefixhash.layout.layer_spec import AttentionSpec, LayerSpec
from prefixhash.layout.models.fields import ConfigFields
from prefixhash.layout.models.rank import ModelLayer, Rank
from prefixhash.layout.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

# From the fields and the number of layers to one of the kinds below per layer.
Pattern = Callable[[ConfigFields, int], list[str]]
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_KINDS = {"attention": FULL, **{kind: kind for kind in (FULL, SLIDING, CHUNKED)}}
# Rows of the FlashMLA kernels come 64 tokens at a time.
LATENT_BLOCK = 64
# Elements of an indexer key that share one float32 scale.
_INDEXER_SCALE_GROUP = 128
_MOST_LAYERS = 10_000
# Spellings of the number of query heads.
QUERY_HEADS = ("num_attention_heads", "n_head", "num_heads")


def all_full(fields: ConfigFields, count: int) -> list[str]:
    """Every layer keeps every token."""
    return [FULL] * count


def window_everywhere(fields: ConfigFields, count: int) -> list[str]:
    """A window, if the config sets one, holds for all layers."""
    return [SLIDING if fields.optional_integer("sliding_window") else FULL] * count


def window_unless_unused(fields: ConfigFields, count: int) -> list[str]:
    """As above, unless `use_sliding_window` is there and false: what vLLM does with any model that
    has no rule of its own.
    """
    unused = fields.get("use_sliding_window") is False
    return [FULL] * count if unused else window_everywhere(fields, count)


def window_if_used(fields: ConfigFields, count: int) -> list[str]:
    """A window holds for all layers if `use_sliding_window` says so, which is off by default."""
    return window_everywhere(fields, count) if fields.get("use_sliding_window") else [FULL] * count


def window_from_layer(fields: ConfigFields, count: int) -> list[str]:
    """Layers from `max_window_layers` on slide, if `use_sliding_window` says so."""
    kinds = window_if_used(fields, count)
    first = min(fields.optional_integer("max_window_layers") or 0, count)
    return [FULL] * first + kinds[first:]


def full_every(period: int) -> Pattern:
    """Each `period`-th layer is full (`sliding_window_pattern` replaces it), the others slide."""

    def pattern(fields: ConfigFields, count: int) -> list[str]:
        every = fields.optional_integer("sliding_window_pattern") or period
        return [SLIDING if (index + 1) % every else FULL for index in range(count)]

    return pattern


def full_every_and_last(period: int) -> Pattern:
    """As `full_every`, and the last layer is full."""

    def pattern(fields: ConfigFields, count: int) -> list[str]:
        return [*full_every(period)(fields, count)[:-1], FULL]

    return pattern


def chunked_with_rope(fields: ConfigFields, count: int) -> list[str]:
    """Layers with rotary positions attend within chunks; those without see everything."""
    listed = fields.items("no_rope_layers", int)
    rotary = fields.items("no_rope_layers", int, count) if listed else None
    rotary = rotary or [
        (index + 1) % (fields.optional_integer("no_rope_layer_interval") or 4)
        for index in range(count)
    ]
    local = CHUNKED if fields.optional_integer("attention_chunk_size") else FULL
    return [local if has_rope else FULL for has_rope in rotary]


def layer_kinds(fields: ConfigFields, count: int, pattern: Pattern) -> list[str]:
    """Kind of each layer: `layer_types` where the config has it, else the architecture's rule."""
    named = fields.items("layer_types", str, count)
    if named is None:
        return pattern(fields, count)
    unknown = sorted(set(named) - _KINDS.keys())
    if unknown:
        problem = f"layer_types holds unknown kinds: {', '.join(unknown)}"
        raise fields.error(problem, ("layer_types",))
    return [_KINDS[kind] for kind in named]


def attention_spec(fields: ConfigFields, rank: Rank, kind: str = FULL) -> AttentionSpec:
    """Spec of one attention layer of a kind."""
    return _spec(fields, rank, kind, kv_heads(fields), head_size(fields))


def kv_heads(fields: ConfigFields) -> int:
    """KV heads of the whole model; as many as query heads where the config names none."""
    heads = fields.optional_integer(
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"
    )
    return heads or fields.integer(*QUERY_HEADS)


def head_size(fields: ConfigFields) -> int:
    """Width of one head: `head_dim`, or the hidden width over the query heads."""
    given = fields.optional_integer("head_dim", "hidden_size_per_head", "kv_channels")
    if given:
        return given
    heads = fields.integer(*QUERY_HEADS)
    hidden = fields.integer("hidden_size", "n_embd", "d_model")
    if hidden % heads:
        problem = f"hidden_size={hidden} is no multiple of {heads} heads: add head_dim"
        raise fields.error(problem, ("head_dim",))
    return hidden // heads


def num_layers(fields: ConfigFields) -> int:
    """Decoder layers of the model."""
    return plausible(fields, fields.integer("num_hidden_layers", "n_layer", "num_layers"))


def plausible(fields: ConfigFields, count: int) -> int:
    """The number of layers, refused where a mistyped one would only exhaust memory."""
    if count > _MOST_LAYERS:
        raise fields.error(
            f"{count} layers are not plausible: check num_hidden_layers", ("num_hidden_layers",)
        )
    return count


def _spec(fields: ConfigFields, rank: Rank, kind: str, heads: int, size: int) -> AttentionSpec:
    dtype, row = rank.attention_storage()
    block, heads = rank.block(), rank.kv_heads(heads)
    if kind == SLIDING:
        window = fields.integer("sliding_window")
        return SlidingWindowSpec(
            block_size=block,
            num_kv_heads=heads,
            head_size=size,
            dtype=dtype,
            row=row,
            window=window,
        )
    if kind == CHUNKED:
        chunk = fields.integer("attention_chunk_size")
        return ChunkedLocalAttentionSpec(
            block_size=block, num_kv_heads=heads, head_size=size, dtype=dtype, row=row, chunk=chunk
        )
    return FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=size, dtype=dtype, row=row
    )


def attention_layers(pattern: Pattern) -> Callable[[ConfigFields, Rank], list[ModelLayer]]:
    """Models whose layers differ in their kind only.

    Layers that read the keys and values of an earlier one (`num_kv_shared_layers`, the last ones)
    keep nothing.
    """

    def build(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
        count = num_layers(fields)
        kinds = layer_kinds(fields, count, pattern)
        specs = {kind: attention_spec(fields, rank, kind) for kind in dict.fromkeys(kinds)}
        own = count - (fields.optional_integer("num_kv_shared_layers") or 0)
        return [
            ModelLayer(index, f"layers.{index}.attn", specs[kind])
            for index, kind in enumerate(kinds[: max(own, 0)])
        ]

    return build


def two_head_sizes(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Gemma-4: full layers have `global_head_dim`, and `num_global_key_value_heads` where keys and
    values are one tensor (`attention_k_eq_v`); it is stored twice all the same.
    """
    layers = attention_layers(full_every_and_last(6))(fields, rank)
    heads = kv_heads(fields)
    if fields.get("attention_k_eq_v"):
        heads = fields.optional_integer("num_global_key_value_heads") or heads
    wide = fields.optional_integer("global_head_dim") or head_size(fields)
    full = _spec(fields, rank, FULL, heads, wide)
    return [
        layer._replace(spec=full) if isinstance(layer.spec, FullAttentionSpec) else layer
        for layer in layers
    ]


def latent_spec(fields: ConfigFields, rank: Rank, *, sparse: bool = False) -> MLAAttentionSpec:
    """Spec of a latent layer: one row of `kv_lora_rank` + `qk_rope_head_dim` per token."""
    latent, rotary = fields.integers("kv_lora_rank", "qk_rope_head_dim")
    dtype, row = rank.latent_storage(sparse=sparse)
    return MLAAttentionSpec(
        block_size=rank.block(LATENT_BLOCK), head_size=latent + rotary, dtype=dtype, row=row
    )


def latent_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """DeepSeek-V2 and V3; with `index_topk` (V3.2) sparse, with an indexer's keys beside."""
    if fields.get("qk_rope_head_dim") == fields.get("qk_nope_head_dim") == 0:
        return attention_layers(all_full)(fields, rank)
    sparse = bool(fields.get("index_topk"))
    latent = latent_spec(fields, rank, sparse=sparse)
    layers = []
    for index in range(num_layers(fields)):
        layers.append(ModelLayer(index, f"layers.{index}.attn", latent))
        if sparse and _has_indexer(fields, index):
            spec = indexer_spec(fields, latent.block_size)
            layers.append(ModelLayer(index, f"layers.{index}.indexer", spec))
    return layers


def indexer_width(fields: ConfigFields) -> int:
    """Bytes of one indexer key: 8-bit elements and a float32 scale for each 128 of them."""
    width = fields.integer("index_head_dim")
    return width + width // _INDEXER_SCALE_GROUP * 4


def indexer_spec(fields: ConfigFields, block_size: int) -> MLAAttentionSpec:
    """Spec of an indexer's keys, whatever the KV dtype."""
    return MLAAttentionSpec(block_size=block_size, head_size=indexer_width(fields), dtype="uint8")


def _has_indexer(fields: ConfigFields, index: int) -> bool:
    """Layers that reuse another layer's choice have none (`index_topk_freq`, `..._pattern`)."""
    pattern = fields.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, (str, list)):
            raise fields.error("index_topk_pattern must be text or a list", ("index_topk_pattern",))
        return index >= len(pattern) or pattern[index] != "S"
    offset = fields.optional_integer("index_skip_topk_offset")
    first = 2 if offset is None else offset
    every = fields.optional_integer("index_topk_freq") or 1
    return max(index - first + 1, 0) % every == 0


def whisper_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Every decoder layer keeps its own keys and values and those of the encoder's output."""
    count, heads, width = fields.integers("decoder_layers", "decoder_attention_heads", "d_model")
    plausible(fields, count)
    if width % heads:
        problem = f"d_model={width} is no multiple of {heads} decoder_attention_heads"
        raise fields.error(problem, ("d_model", "decoder_attention_heads"))
    own = _spec(fields, rank, FULL, heads, width // heads)
    cross = CrossAttentionSpec(
        block_size=own.block_size,
        num_kv_heads=own.num_kv_heads,
        head_size=own.head_size,
        dtype=own.dtype,
        row=own.row,
    )
    pairs: list[tuple[str, LayerSpec]] = [("self", own), ("cross", cross)]
    return [
        ModelLayer(index, f"layers.{index}.{name}", spec)
        for index in range(count)
        for name, spec in pairs
    ]
