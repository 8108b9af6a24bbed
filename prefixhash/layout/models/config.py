"""From a Hugging Face `config.json` to the cached layers of a model, on the ranks that serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError, UnsupportedCombinationError
from prefixhash.layout.block_sizes import MultipleOf, align_attention_with_states
from prefixhash.layout.checks import instances, integers, keep, keep_flags, keep_integers
from prefixhash.layout.grouping import group_layers
from prefixhash.layout.groups import KVCacheGroup
from prefixhash.layout.layer_spec import AttentionSpec, LayerSpec
from prefixhash.layout.models.architectures import architecture_of
from prefixhash.layout.models.attention import LATENT_BLOCK, QUERY_HEADS, plausible
from prefixhash.layout.models.fields import (
    ConfigFields,
    declared_kv_dtype,
    decoder_part,
    load_config,
    model_dtype_of,
)
from prefixhash.layout.models.rank import ModelLayer, Rank, is_auto
from prefixhash.layout.options import STATE_CACHE_MODES, PlanOptions
from prefixhash.layout.packing import lay_out_block
from prefixhash.layout.row_formats import dtype_name
from prefixhash.layout.specs import CrossAttentionSpec, MambaSpec, MLAAttentionSpec

# Tokens that vLLM assumes for models that name no longest length.
_UNSAID_LENGTH = 2048
# Factors beyond this, NaN and those below 1 are no scaling of positions.
_MOST_SCALING = 1e6
_LENGTH_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)


@dataclass(frozen=True)
class ModelLayers:
    """The cached layers of a model, as every tensor-parallel rank holds them.

    layers: in the model's order, with the index of their decoder layer.
    num_hidden_layers: decoder layers, those that cache nothing included.
    max_model_len: longest request in tokens by the config, None if it names none.
    max_encoder_tokens: encoder tokens that cross-attention keeps; None without such layers.
    kv_dtype: what keys and values are stored as, `auto` resolved.
    generic: the architecture was not known by name.
    """

    model_type: str
    layers: tuple[ModelLayer, ...]
    num_hidden_layers: int
    max_model_len: int | None
    max_encoder_tokens: int | None
    kv_dtype: str
    tensor_parallel: int
    state_cache_mode: str = "none"
    generic: bool = False

    def __post_init__(self) -> None:
        keep(self, "layers", instances("layers", self.layers, ModelLayer, "ModelLayer values"))
        keep_integers(self, 1, "num_hidden_layers", "tensor_parallel")
        keep_integers(self, 1, "max_model_len", optional=True)
        keep_integers(self, 0, "max_encoder_tokens", optional=True)
        for name in ("model_type", "kv_dtype"):
            _arguments.text(name, getattr(self, name))
        _arguments.choice("state_cache_mode", self.state_cache_mode, STATE_CACHE_MODES)
        keep_flags(self, "generic")

    @property
    def specs(self) -> dict[str, LayerSpec]:
        """Layer name to spec, in the model's order."""
        return {layer.name: layer.spec for layer in self.layers}

    def stages(
        self, count: int, partition: Sequence[int] | None = None
    ) -> list[dict[str, LayerSpec]]:
        """The specs of each pipeline stage; a stage may have no cached layer.

        `partition`: decoder layers per stage; default `split_layers`.
        """
        count = _arguments.integer("count", count, 1)
        sizes = (
            split_layers(self.num_hidden_layers, count)
            if partition is None
            else integers("partition", partition, 0, "a sequence of the layers per stage")
        )
        if len(sizes) != count or sum(sizes) != self.num_hidden_layers:
            problem = f"must be {count} numbers that add up to {self.num_hidden_layers} layers"
            raise InvalidArgumentError("partition", list(sizes), problem)
        stage_of = [stage for stage, size in enumerate(sizes) for _ in range(size)]
        stages: list[dict[str, LayerSpec]] = [{} for _ in range(count)]
        for layer in self.layers:
            stages[stage_of[layer.decoder_layer]][layer.name] = layer.spec
        return stages

    def workers(self, pipeline_parallel: int = 1) -> list[dict[str, LayerSpec]]:
        """The specs of all workers, for `plan_workers`: stage by stage, each stage's ranks."""
        stages = self.stages(_arguments.integer("pipeline_parallel", pipeline_parallel, 1))
        return [stage for stage in stages for _ in range(self.tensor_parallel)]

    def options(self, **changes: Any) -> PlanOptions:
        """Options for a plan of this model; `changes` replace fields of `PlanOptions`.

        `auto_fit` is on unless `max_model_len` is given.
        """
        given: dict[str, Any] = {
            "max_model_len": self.max_model_len,
            "auto_fit": "max_model_len" not in changes,
            "max_encoder_tokens": self.max_encoder_tokens,
            "state_cache_mode": self.state_cache_mode,
            **changes,
        }
        if given["max_model_len"] is None:
            problem = f"config of model_type={self.model_type!r} names no longest length: give one"
            raise InvalidArgumentError("max_model_len", None, problem)
        return PlanOptions(**given)


def read_model_config(
    config: object,
    *,
    block_size: int | None = None,
    tensor_parallel: int = 1,
    kv_dtype: str = "auto",
    model_dtype: str = "auto",
    state_dtype: str = "auto",
    state_cache_mode: str = "none",
    max_model_len: int | None = None,
    speculative_tokens: int = 0,
) -> ModelLayers:
    """The cached layers of the model that a Hugging Face config describes.

    `config`: mapping, path of a `config.json` or its folder, or `transformers` config.
    `block_size`: tokens per attention block; None is the engine's choice: 16, 64 for latent
    attention, 256 for DeepSeek-V4. Models with recurrent states get larger blocks, so that one
    attention page holds one state. `kv_dtype`: `auto` (the checkpoint's, else the model's type), a
    float type, `fp8`, `nvfp4`, `int8_per_token_head` ...; with sparse latent attention `fp8` means
    656-byte rows. `state_dtype`: of recurrent states; `auto` is the architecture's.
    `max_model_len`: replaces the config's length. Draft (MTP) layers are not included.

    Raises `ModelConfigError` for fields that are missing or wrong, `UnknownArchitectureError` for
    an architecture that is not known and whose fields leave doubt, and
    `UnsupportedCombinationError` for a rank count or KV type that the model does not allow.
    """
    loaded = load_config(config)
    decoder, model_type = decoder_part(loaded)
    architecture = architecture_of(decoder, model_type)
    fields = ConfigFields(decoder, model_type, architecture.defaults)
    if is_auto(model_dtype):
        model_dtype = model_dtype_of(loaded, decoder)
    model_dtype = dtype_name(model_dtype, "model_dtype")
    resolved = _arguments.text("kv_dtype", kv_dtype)
    if kv_dtype == "auto":
        resolved = declared_kv_dtype(loaded, decoder) or architecture.kv_dtype
    rank = Rank(block_size, tensor_parallel, resolved, model_dtype, state_dtype, speculative_tokens)
    max_model_len = _arguments.optional_integer("max_model_len", max_model_len, 1)
    _arguments.choice("state_cache_mode", state_cache_mode, STATE_CACHE_MODES)
    longest = max_model_len or longest_length(fields, scaled=architecture.scales_length)
    layers = _check_layers(fields, architecture.build(fields, rank))
    query_heads = fields.optional_integer(*QUERY_HEADS, "decoder_attention_heads")
    if query_heads and any(isinstance(layer.spec, AttentionSpec) for layer in layers):
        rank.share(query_heads, "attention heads")
    return ModelLayers(
        model_type=model_type,
        layers=_align(layers, rank, state_cache_mode, longest or _UNSAID_LENGTH),
        num_hidden_layers=_decoder_layers(fields, layers),
        max_model_len=longest,
        max_encoder_tokens=fields.optional_integer("max_source_positions"),
        kv_dtype=model_dtype if resolved == "auto" else resolved,
        tensor_parallel=tensor_parallel,
        state_cache_mode=state_cache_mode,
        generic=architecture.generic,
    )


def specs_from_model_config(config: object, **serving: Any) -> dict[str, LayerSpec]:
    """Layer name to spec, for `plan_kv_cache`; arguments as of `read_model_config`."""
    return read_model_config(config, **serving).specs


def bytes_per_block(
    config: object,
    block_size: int | None = None,
    *,
    tensor_parallel: int = 1,
    kv_dtype: str = "auto",
    **serving: Any,
) -> int:
    """Bytes that the KV of one block of tokens takes over all layers of one tensor-parallel rank.

    What turns memory into blocks where a request has one chain of them: one block id in every group
    of layers (`KVCachePlan.bytes_per_block` times the groups), padding included. The same as the
    plan's where there is one group; the most that it can be where windowed layers drop what lies
    outside their window. Arguments as of `read_model_config`.

    Raises `UnsupportedCombinationError` if the model's blocks have another size than `block_size`
    (recurrent states make them larger), or different sizes in different groups.
    """
    model = read_model_config(
        config,
        block_size=block_size,
        tensor_parallel=tensor_parallel,
        kv_dtype=kv_dtype,
        **serving,
    )
    options = model.options(max_model_len=model.max_model_len or _UNSAID_LENGTH)
    groups = group_layers(model.specs, options)
    caching = [group for group in groups if not isinstance(group.spec, CrossAttentionSpec)]
    _check_block_size(caching, block_size)
    return lay_out_block(groups).bytes_per_block * len(caching)


def _check_block_size(groups: Sequence[KVCacheGroup], block_size: int | None) -> None:
    sizes = sorted({g.block_size for g in groups if not isinstance(g.spec, MambaSpec)})
    if len(sizes) > 1:
        problem = f"the groups' blocks hold {sizes} tokens, so that one block has no size"
        raise UnsupportedCombinationError("config", problem)
    if block_size is not None and sizes and sizes[0] != block_size:
        problem = f"this model's blocks hold {sizes[0]} tokens: use block_size={sizes[0]}"
        raise UnsupportedCombinationError(f"block_size={block_size}", problem)


def split_layers(num_layers: int, stages: int) -> list[int]:
    """Decoder layers of each pipeline stage, as vLLM deals them.

    Equal shares; what remains goes one each to the stages before the last one, since the last (and
    with few remaining layers the first) holds the embeddings.
    """
    num_layers = _arguments.integer("num_layers", num_layers, 1)
    stages = _arguments.integer("stages", stages, 1)
    if stages > num_layers:
        problem = f"more stages than the model's {num_layers} layers"
        raise InvalidArgumentError("stages", stages, problem)
    share, remaining = divmod(num_layers, stages)
    extra = range(stages - 1 - remaining, stages - 1)
    return [share + (stage in extra) for stage in range(stages)]


def longest_length(fields: ConfigFields, *, scaled: bool) -> int | None:
    """Longest request in tokens by the config: `model_max_length`, or else its smallest length
    field; where `scaled`, as its rotary positions say (linear, dynamic: times the factor; yarn:
    original length times the factor). Positions per kind of layer are taken to scale alike, as
    vLLM does.
    """
    # Cohere's models: its own word for it, beside positions that only the weights' cache has.
    names = ("model_max_length",) if fields.get("model_max_length") else _LENGTH_FIELDS
    found = [fields.optional_integer(name) for name in names]
    lengths = [length for length in found if length]
    if not lengths:
        return None
    scaling = fields.get("rope_scaling") or fields.get("rope_parameters")
    if not scaled or not isinstance(scaling, Mapping):
        return min(lengths)
    nested = [value for value in scaling.values() if isinstance(value, Mapping)]
    if nested and "rope_type" not in scaling:
        return max(_scaled(min(lengths), inner) for inner in nested)
    return _scaled(min(lengths), scaling)


def _scaled(length: int, scaling: Mapping[str, Any]) -> int:
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    if kind not in ("linear", "dynamic", "yarn") or not isinstance(factor, (int, float)):
        return length
    if not 1 <= factor <= _MOST_SCALING:
        return length
    original = scaling.get("original_max_position_embeddings")
    base: int = length
    if kind == "yarn" and isinstance(original, int) and original > 0:
        base = original
    try:
        return int(base * factor)
    except OverflowError:  # beyond what a float holds
        return int(base * Fraction(factor))


def _check_layers(fields: ConfigFields, layers: list[ModelLayer]) -> list[ModelLayer]:
    if not layers:
        raise fields.error(
            "describes no layer that keeps anything: check num_hidden_layers",
            ("num_hidden_layers",),
        )
    return layers


def _decoder_layers(fields: ConfigFields, layers: list[ModelLayer]) -> int:
    """Patterns may be longer than the config's count, and encoder-decoder models count apart."""
    named = fields.optional_integer("decoder_layers", "num_hidden_layers", "n_layer", "num_layers")
    pattern = fields.get("hybrid_override_pattern")
    spelt = len(pattern) if isinstance(pattern, str) else 0
    return plausible(fields, max(named or 0, spelt, layers[-1].decoder_layer + 1))


def _align(
    layers: list[ModelLayer], rank: Rank, state_cache_mode: str, longest: int
) -> tuple[ModelLayer, ...]:
    """State layers get the longest request as their block (mode none) or whole attention blocks;
    beside attention, the attention block grows until its page holds a state.
    """
    states = [layer.spec for layer in layers if isinstance(layer.spec, MambaSpec)]
    if not states:
        return tuple(layers)
    attention = next((la.spec for la in layers if isinstance(la.spec, AttentionSpec)), None)
    if attention is None:
        block = longest if state_cache_mode == "none" else rank.block()
        return tuple(la._replace(spec=la.spec.with_block_size(block)) for la in layers)
    latent = isinstance(attention, MLAAttentionSpec)
    aligned = align_attention_with_states(
        attention.num_kv_heads * attention.row_bytes,
        max(state.content_size_bytes for state in states),
        [LATENT_BLOCK if latent else MultipleOf(16)],
        block_size=rank.block(LATENT_BLOCK if latent else 16),
        state_cache_mode=state_cache_mode,
    )
    return tuple(layer._replace(spec=_aligned(layer.spec, aligned, longest)) for layer in layers)


def _aligned(spec: LayerSpec, aligned: Any, longest: int) -> LayerSpec:
    if not isinstance(spec, MambaSpec):
        return spec.with_block_size(aligned.attention_block_size)
    spec = spec.with_block_size(aligned.state_block_size or longest)
    page = aligned.state_page_size_padded
    return spec.padded_to(page) if page else spec
