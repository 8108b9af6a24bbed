"""Layers of models with recurrent states (Mamba, gated delta nets), alone or beside attention.

A state layer keeps a convolution's last inputs, (kernel - 1, channels), and a recurrent state.
Shapes are those of vLLM's state calculators, for one tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prefixhash.layout.layer_spec import LayerSpec
from prefixhash.layout.models.attention import attention_spec, latent_spec, num_layers
from prefixhash.layout.models.fields import ConfigFields
from prefixhash.layout.models.rank import ModelLayer, Rank, is_auto
from prefixhash.layout.specs import MambaSpec

ATTENTION, STATE, BOTH, NOTHING = "attention", "state", "both", "nothing"
# What configs call a layer that keeps ... (also letters of hybrid_override_pattern).
_KINDS = {
    **dict.fromkeys(("attention", "full_attention", "*"), ATTENTION),
    **dict.fromkeys(("mamba", "mamba2", "linear_attention", "M"), STATE),
    "hybrid": BOTH,
    **dict.fromkeys(("mlp", "moe", "-", "E"), NOTHING),
}
# Replaced by the aligned size, or by the longest request, once the whole model is known.
UNALIGNED_BLOCK = 1


class Mamba2Names(NamedTuple):
    """Field names of the shape of a Mamba-2 layer, which every architecture spells its own way."""

    heads: str
    head: str
    groups: str
    state: str
    kernel: str
    inner: str | None = None


_NEMOTRON = Mamba2Names(
    "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"
)
_BAMBA = Mamba2Names(
    "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"
)
_MAMBA2 = Mamba2Names("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
_FALCON_H1 = _BAMBA._replace(inner="mamba_d_ssm")


def mamba_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Mamba and Falcon-Mamba: states only."""
    state, kernel = fields.integers("state_size", "conv_kernel")
    inner = fields.optional_integer("intermediate_size")
    if inner is None:
        expand, hidden = fields.integers("expand", "hidden_size")
        inner = expand * hidden
    spec = _mamba1(rank, inner, state, kernel)
    return _states_of(range(num_layers(fields)), spec)


def mamba2_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Mamba-2: states only."""
    return _states_of(range(num_layers(fields)), _mamba2(fields, rank, _MAMBA2))


def jamba_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """One attention layer in each `attn_layer_period`, Mamba states in the others."""
    state, kernel, expand, hidden = fields.integers(
        "mamba_d_state", "mamba_d_conv", "mamba_expand", "hidden_size"
    )
    spec = _mamba1(rank, expand * hidden, state, kernel)
    period = fields.integer("attn_layer_period")
    offset = fields.optional_integer("attn_layer_offset") or 0
    count = num_layers(fields)
    kinds = _named_kinds(fields, count) or [
        ATTENTION if index % period == offset else STATE for index in range(count)
    ]
    return _hybrid(kinds, attention_spec(fields, rank), spec)


def nemotron_h_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Layers by `hybrid_override_pattern` (M state, * attention, - and E nothing).

    The recurrent state is float32 unless the config's `mamba_ssm_cache_dtype` says otherwise.
    """
    pattern = fields.get("hybrid_override_pattern")
    if pattern is None:
        kinds = _named_kinds(fields, None)
    elif isinstance(pattern, str):
        kinds = _kinds_of(fields, "hybrid_override_pattern", pattern)
    else:
        raise fields.error("hybrid_override_pattern must be text", ("hybrid_override_pattern",))
    if kinds is None:
        names = ("hybrid_override_pattern", "layers_block_type")
        raise fields.error(f"lacks {' or '.join(names)}: add one", names)
    state_dtype = fields.get("mamba_ssm_cache_dtype")
    spec = _mamba2(fields, rank, _NEMOTRON, str(state_dtype or "auto"))
    return _hybrid(kinds, attention_spec(fields, rank), spec)


def bamba_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Bamba and Granite-4: Mamba-2 states, and attention where `attn_layer_indices` or
    `layer_types` says.
    """
    count = num_layers(fields)
    indices = fields.items("attn_layer_indices", int)
    kinds = _named_kinds(fields, count)
    if kinds is None and indices is not None:
        kinds = [ATTENTION if index in indices else STATE for index in range(count)]
    if kinds is None:
        names = ("layer_types", "attn_layer_indices")
        raise fields.error(f"lacks {' or '.join(names)}: add one", names)
    return _hybrid(kinds, attention_spec(fields, rank), _mamba2(fields, rank, _BAMBA))


def falcon_h1_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Every layer has attention and Mamba-2 states side by side."""
    spec = _mamba2(fields, rank, _FALCON_H1)
    return _hybrid([BOTH] * num_layers(fields), attention_spec(fields, rank), spec)


def delta_net_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Qwen3-Next and Qwen3.5: gated delta nets, full attention in each
    `full_attention_interval`-th layer.
    """
    key_heads, value_heads, key_size, value_size, kernel = fields.integers(
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    channels = 2 * key_heads * key_size + value_heads * value_size
    shapes = (
        (kernel - 1 + rank.speculative_tokens, rank.share(channels, "convolution channels")),
        (rank.share(value_heads, "value heads"), value_size, key_size),
    )
    state_dtype = str(fields.get("mamba_ssm_dtype") or "auto")
    count = num_layers(fields)
    every = fields.optional_integer("full_attention_interval") or 4
    kinds = _named_kinds(fields, count) or [
        STATE if (index + 1) % every else ATTENTION for index in range(count)
    ]
    return _hybrid(kinds, attention_spec(fields, rank), _state_spec(rank, shapes, state_dtype))


def kimi_linear_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """Kimi-Linear: delta attention with float32 states, latent attention in between.

    `linear_attn_config` counts layers from 1.
    """
    linear = fields.mapping("linear_attn_config")
    heads, size, kernel = linear.integers("num_heads", "head_dim", "short_conv_kernel_size")
    shapes = (
        (kernel - 1, rank.share(3 * heads * size, "convolution channels")),
        (rank.share(heads, "linear-attention heads"), size, size),
    )
    with_states = linear.items("kda_layers", int)
    if with_states is None:
        name = "linear_attn_config.kda_layers"
        raise fields.error(f"lacks {name}: add it", (name,))
    kinds = [
        STATE if index + 1 in with_states else ATTENTION for index in range(num_layers(fields))
    ]
    return _hybrid(kinds, latent_spec(fields, rank), _state_spec(rank, shapes, "float32"))


def _named_kinds(fields: ConfigFields, count: int | None) -> list[str] | None:
    for name in ("layers_block_type", "layer_types"):
        named = fields.items(name, str, count)
        if named is not None:
            return _kinds_of(fields, name, named)
    return None


def _kinds_of(fields: ConfigFields, name: str, named: Iterable[str]) -> list[str]:
    named = list(named)
    unknown = sorted(set(named) - _KINDS.keys())
    if unknown:
        raise fields.error(f"{name} holds unknown kinds: {', '.join(unknown)}", (name,))
    return [_KINDS[kind] for kind in named]


def _hybrid(kinds: list[str], attention: LayerSpec, state: LayerSpec) -> list[ModelLayer]:
    keeps: dict[str, list[tuple[str, LayerSpec]]] = {
        ATTENTION: [("attn", attention)],
        STATE: [("state", state)],
        BOTH: [("attn", attention), ("state", state)],
        NOTHING: [],
    }
    return [
        ModelLayer(index, f"layers.{index}.{name}", spec)
        for index, kind in enumerate(kinds)
        for name, spec in keeps[kind]
    ]


def _states_of(indices: Iterable[int], spec: LayerSpec) -> list[ModelLayer]:
    return [ModelLayer(index, f"layers.{index}.state", spec) for index in indices]


def _mamba1(rank: Rank, inner: int, state: int, kernel: int) -> MambaSpec:
    channels = rank.share(inner, "state channels")
    return _state_spec(rank, ((kernel - 1, channels), (channels, state)))


def _mamba2(
    fields: ConfigFields, rank: Rank, names: Mamba2Names, state_dtype: str = "auto"
) -> MambaSpec:
    heads, head, groups, state, kernel = (
        fields.integer(names.heads),
        _head(fields, names),
        *fields.integers(names.groups, names.state, names.kernel),
    )
    ranks = rank.tensor_parallel
    if groups % ranks:
        # A rank needs the whole group of each of its heads, so that groups are replicated.
        groups = ranks
    inner = (fields.optional_integer(names.inner) if names.inner else None) or heads * head
    shapes = (
        (
            kernel - 1 + rank.speculative_tokens,
            rank.share(inner + 2 * groups * state, "convolution channels"),
        ),
        (rank.share(heads, "state heads"), head, state),
    )
    return _state_spec(rank, shapes, state_dtype)


def _head(fields: ConfigFields, names: Mamba2Names) -> int:
    if fields.get(names.head) != "auto":
        return fields.integer(names.head)
    expand, hidden, heads = fields.integers("mamba_expand", "hidden_size", names.heads)
    return expand * hidden // heads


def _state_spec(
    rank: Rank, shapes: tuple[tuple[int, ...], ...], state_dtype: str = "auto"
) -> MambaSpec:
    """`state_dtype` is the architecture's own choice; the caller's goes before it."""
    chosen = state_dtype if is_auto(rank.state_dtype) else rank.state_dtype
    recurrent = rank.model_dtype if chosen == "auto" else chosen
    return MambaSpec(
        block_size=UNALIGNED_BLOCK,
        state_shapes=shapes,
        state_dtypes=(rank.model_dtype, recurrent),
        speculative_blocks=rank.speculative_tokens,
    )
