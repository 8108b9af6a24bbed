"""Known architectures: one row for each, model type to builder and defaults.

A new architecture is a row of `ARCHITECTURES`, and a builder where none of the present ones fits.
`defaults` are what the `transformers` config class fills in for fields that published configs leave
out. The number of layers and the widths have none: a config without them is incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prefixhash.errors import UnknownArchitectureError
from prefixhash.layout.models import attention, states
from prefixhash.layout.models.compressed import compressed_layers
from prefixhash.layout.models.fields import Config, ConfigFields
from prefixhash.layout.models.rank import ModelLayer, Rank


@dataclass(frozen=True)
class Architecture:
    """How the layers of a family of models follow from a config.

    `kv_dtype`: what `auto` means where it is not the model's own type. `scales_length`: scaled
    rotary positions lengthen the config's longest request, which does not count them yet.
    `generic`: not known by name, read by fields that mean the same everywhere.
    """

    build: Callable[[ConfigFields, Rank], list[ModelLayer]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    kv_dtype: str = "auto"
    scales_length: bool = True
    generic: bool = False


def _attention(
    pattern: attention.Pattern = attention.window_unless_unused, **defaults: Any
) -> Architecture:
    return Architecture(attention.attention_layers(pattern), defaults)


_GEMMA3 = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
_LATENT = Architecture(attention.latent_layers, {"kv_lora_rank": 512, "qk_rope_head_dim": 64})
_SPARSE_LATENT = Architecture(
    attention.latent_layers, {**_LATENT.defaults, "index_head_dim": 128, "index_topk": 2048}
)
_QWEN2 = _attention(attention.window_from_layer, max_window_layers=28, sliding_window=4096)
_QWEN3 = _attention(
    attention.window_from_layer, max_window_layers=28, sliding_window=4096, head_dim=128
)
_GEMMA4 = Architecture(
    attention.two_head_sizes, {**_GEMMA3, "sliding_window": 512, "global_head_dim": 512}
)
_DELTA_NET = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "head_dim": 256,
}
_MAMBA = Architecture(states.mamba_layers, {"state_size": 16, "conv_kernel": 4, "expand": 2})
_BAMBA = {
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_FULL_ATTENTION = (
    "apertus",
    "arcee",
    "bloom",
    "cohere",
    "gemma",
    "glm4_moe",
    "gpt2",
    "gpt_neox",
    "gptj",
    "granite",
    "granitemoe",
    "hunyuan_v1_dense",
    "internlm2",
    "llama",
    "minimax_m2",
    "nemotron",
    "olmo",
    "olmo2",
    "olmoe",
    "opt",
    "phi",
    "stablelm",
)


def _one_kind_of_attention() -> dict[str, Architecture]:
    sliding = attention.window_everywhere
    return {
        **dict.fromkeys(_FULL_ATTENTION, _attention()),
        "gemma": _attention(head_dim=256),
        **dict.fromkeys(("glm4", "seed_oss", "ernie4_5", "internlm3"), _attention(head_dim=128)),
        "mistral": _attention(sliding, sliding_window=4096, num_key_value_heads=8),
        "ministral": _attention(sliding, sliding_window=4096, num_key_value_heads=8),
        "mixtral": _attention(sliding, num_key_value_heads=8),
        **dict.fromkeys(("phi3", "phi3_v", "phi4mm", "phimoe", "starcoder2"), _attention(sliding)),
        **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text"), _QWEN2),
        **dict.fromkeys(("qwen2_5_vl_text", "smollm3"), _QWEN2),
        "qwen3": _QWEN3,
        **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _attention(attention.window_if_used)),
        **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text"), _attention(head_dim=128)),
        "whisper": Architecture(
            attention.whisper_layers, {"max_target_positions": 448, "max_source_positions": 1500}
        ),
    }


def _mixed_attention() -> dict[str, Architecture]:
    return {
        "gemma2": Architecture(
            attention.attention_layers(attention.full_every(2)),
            {**_GEMMA3, "sliding_window": 4096, "max_position_embeddings": 8192},
        ),
        "gemma3_text": Architecture(
            attention.attention_layers(attention.full_every(6)),
            {**_GEMMA3, "sliding_window": 4096, "max_position_embeddings": 131072},
            scales_length=False,
        ),
        "gemma3n_text": Architecture(
            attention.attention_layers(attention.full_every(5)),
            {**_GEMMA3, "num_key_value_heads": 2, "sliding_window": 512}
            | {"num_kv_shared_layers": 15, "max_position_embeddings": 32768},
            scales_length=False,
        ),
        **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA4),
        "gpt_oss": _attention(
            attention.full_every(2),
            sliding_window=128,
            head_dim=64,
            num_key_value_heads=8,
            max_position_embeddings=131072,
        ),
        **dict.fromkeys(
            ("cohere2", "exaone4", "olmo3"),
            _attention(attention.full_every(4), sliding_window=4096),
        ),
        "llama4_text": _attention(
            attention.chunked_with_rope,
            attention_chunk_size=8192,
            num_key_value_heads=8,
            head_dim=128,
        ),
    }


def _latent() -> dict[str, Architecture]:
    return {
        **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), _LATENT),
        **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _SPARSE_LATENT),
        "deepseek_v4": Architecture(
            compressed_layers,
            {"head_dim": 512, "index_head_dim": 128, "sliding_window": 128},
            kv_dtype="fp8_ds_mla",
        ),
    }


def _with_states() -> dict[str, Architecture]:
    return {
        **dict.fromkeys(("mamba", "falcon_mamba"), _MAMBA),
        "mamba2": Architecture(
            states.mamba2_layers,
            {"num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128, "conv_kernel": 4},
        ),
        "jamba": Architecture(
            states.jamba_layers,
            {"attn_layer_period": 8, "attn_layer_offset": 4, "num_key_value_heads": 8}
            | {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2},
        ),
        "nemotron_h": Architecture(
            states.nemotron_h_layers,
            {"mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128}
            | {"conv_kernel": 4, "num_key_value_heads": 8, "head_dim": 128}
            | {"mamba_ssm_cache_dtype": "float32"},
        ),
        **dict.fromkeys(("bamba", "granitemoehybrid"), Architecture(states.bamba_layers, _BAMBA)),
        "falcon_h1": Architecture(states.falcon_h1_layers, _BAMBA),
        **dict.fromkeys(
            ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
            Architecture(states.delta_net_layers, _DELTA_NET),
        ),
        "kimi_linear": Architecture(states.kimi_linear_layers, _LATENT.defaults),
    }


# Every architecture that is known by the name of its decoder's model type.
ARCHITECTURES: dict[str, Architecture] = {
    **_one_kind_of_attention(),
    **_mixed_attention(),
    **_latent(),
    **_with_states(),
}


def known_model_types() -> tuple[str, ...]:
    """The decoder's model types that are known by name, sorted."""
    return tuple(sorted(ARCHITECTURES))


def architecture_of(decoder: Config, model_type: str) -> Architecture:
    """The architecture of a decoder, or the generic one where its fields leave no doubt.

    Raises `UnknownArchitectureError` with the fields that are lacking or not understood.
    """
    known = ARCHITECTURES.get(model_type)
    if known is not None:
        return known
    _check_generic(ConfigFields(decoder, model_type))
    return Architecture(attention.attention_layers(attention.all_full), generic=True)


# What a config must say, for attention that stores all keys and values, spelt one of these ways.
_NEEDED = (
    ("num_hidden_layers", "n_layer", "num_layers"),
    ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
)
_HEAD = ("head_dim", "hidden_size_per_head", "kv_channels")
# Fields that mean something else is stored, or that the rule depends on the architecture.
_DOUBTFUL = re.compile(
    r"(?<!q_)lora_rank$|qk_(nope|rope)_head_dim|v_head_dim|global_head_dim|^index_|^compress_ra|"
    r"mamba|ssm|^state_size|conv_kernel|^linear_|layers_block_type|block_configs|hybrid|recurrent|"
    r"rwkv|cross_attention|is_encoder_decoder|attention_chunk_size|attn_type_list|attn_layer|"
    r"kv_shared|no_rope|^kv_heads_per_layer|^(encoder|decoder)_layers$|^multi_query$"
)


def _check_generic(fields: ConfigFields) -> None:
    doubtful = [
        name
        for name in fields.names()
        if _DOUBTFUL.search(name) and fields.get(name) not in (False, 0, [], {})
    ]
    if fields.get("use_sliding_window") is not False and "layer_types" not in fields:
        doubtful += [name for name in ("sliding_window",) if fields.optional_integer(name)]
    missing = [names[0] for names in _NEEDED if fields.get(*names) is None]
    if fields.get(*_HEAD) is None and None in (
        fields.get(*attention.QUERY_HEADS),
        fields.get("hidden_size"),
    ):
        missing.append("head_dim")
    if not doubtful and not missing:
        return
    parts = []
    if missing:
        parts.append(f"it lacks {', '.join(missing)}")
    if doubtful:
        parts.append(f"what {', '.join(doubtful)} mean here depends on the architecture")
    name = repr(fields.model_type) if fields.model_type else "not given"
    problem = (
        f"unknown architecture (model_type {name}), and {'; '.join(parts)}. Set model_type to a "
        "known one with the same layers (`prefixhash plan --list` prints them), add or remove the "
        "fields, or build the layer specs yourself"
    )
    raise UnknownArchitectureError(fields.model_type, problem, (*missing, *doubtful))
