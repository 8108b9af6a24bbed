"""From the golden file's plain data to this library's values, and to one comparable form."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from prefixhash.errors import (
    IncompatibleLayersError,
    IncompatiblePageSizesError,
    InconsistentWorkersError,
    InvalidArgumentError,
    NoCommonBlockSizeError,
    NotEnoughMemoryError,
    PrefixHashError,
    UnsupportedCombinationError,
)
from prefixhash.layout import (
    FP4_BLOCK_SCALED,
    INT4_PER_TOKEN_HEAD,
    LATENT_584,
    LATENT_656,
    PER_TOKEN_HEAD,
    PLAIN,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateSpec,
    KVCacheGroup,
    KVCacheTensor,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    PlanOptions,
    RowFormat,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    slot_packed,
)

Data = dict[str, Any]

_ROWS = {
    "none": PLAIN,
    "fp8_per_tensor": PLAIN,
    "int8_per_token_head": PER_TOKEN_HEAD,
    "fp8_per_token_head": PER_TOKEN_HEAD,
    "int4_per_token_head": INT4_PER_TOKEN_HEAD,
    "nvfp4": FP4_BLOCK_SCALED,
}
_KINDS: dict[str, type[LayerSpec]] = {
    "full_attention": FullAttentionSpec,
    "sink_full_attention": FullAttentionSpec,
    "slot_packed_full_attention": FullAttentionSpec,
    "reference_sliding_window": FullAttentionSpec,
    "sliding_window": SlidingWindowSpec,
    "chunked_local": ChunkedLocalAttentionSpec,
    "cross_attention": CrossAttentionSpec,
    "encoder_only": EncoderOnlyAttentionSpec,
    "mla": MLAAttentionSpec,
    "hidden_state": HiddenStateSpec,
    "sliding_window_mla": SlidingWindowMLASpec,
    "mamba": MambaSpec,
}
LATENT_KINDS = ("mla", "hidden_state", "sliding_window_mla")
FULL_KINDS = ("full_attention", "sink_full_attention", "slot_packed_full_attention")
# Golden field to ours, per kind of layer.
_RENAMED = {
    "window": "recorded_window",
    "chunk": "recorded_chunk",
    "non_causal": "non_causal",
    "sink_len": "sink_len",
    "reference_window": "reference_window",
}


class Specs:
    """Builds specs of one golden file; equal data give one object."""

    def __init__(self, defaults: Data) -> None:
        self._defaults = defaults
        self._made: dict[str, LayerSpec] = {}

    def fill(self, data: Data) -> Data:
        return {**self._defaults, **data}

    def make(self, data: Data) -> LayerSpec:
        key = repr(sorted(data.items()))
        if key not in self._made:
            self._made[key] = _spec(self.fill(data))
        return self._made[key]

    def layers(self, pairs: Sequence[Any], table: Data) -> dict[str, LayerSpec]:
        return {name: self.make(table[key]) for name, key in pairs}

    def group(self, data: Data) -> KVCacheGroup:
        """A group given in an input: `layers` + `spec`, or `uniform_type`."""
        if "uniform_type" in data:
            pairs = data["uniform_type"]
            return KVCacheGroup.of({name: self.make(spec) for name, spec in pairs})
        return KVCacheGroup(tuple(data["layers"]), self.make(data["spec"]))

    def canon_groups(self, groups: Sequence[Data], table: Data) -> list[Data]:
        return [self._canon_group(group, table) for group in groups]

    def _canon_group(self, group: Data, table: Data) -> Data:
        draft = bool(group.get("draft_group"))
        if "uniform_type" not in group:
            specs = [self.canon_spec(table[group["spec"]])]
            return {"layers": group["layers"], "specs": specs, "per_layer": False, "draft": draft}
        inner = group["uniform_type"]
        pairs = {name: table[key] for name, key in inner["layer_specs"]}
        return {
            "layers": group["layers"],
            "specs": [self.canon_spec(spec) for spec in pairs.values()],
            "per_layer": True,
            "draft": draft,
            "page_size_bytes": inner["page_size_bytes"],
        }

    def canon_spec(self, data: Data) -> Data:
        """An output spec in comparable form; its page is what the reference says it is."""
        plain = {k: v for k, v in data.items() if k not in ("page_size_bytes", "page_size_padded")}
        try:
            spec: Any = _without_padding(self.make({**plain, "alignment": None}))
        except InvalidArgumentError as error:
            # A spec that only the reference can have, such as a ratio that does not divide.
            spec = str(error)
        return {
            "spec": spec,
            "page_size_bytes": data["page_size_bytes"],
            "alignment": data.get("alignment"),
        }


def _without_padding(spec: LayerSpec) -> LayerSpec:
    return dataclasses.replace(spec, page_size_padded=None, alignment=None)


def canon_spec(spec: LayerSpec) -> Data:
    return {
        "spec": _without_padding(spec),
        "page_size_bytes": spec.page_size_bytes,
        "alignment": spec.alignment,
    }


def canon_group(group: KVCacheGroup) -> Data:
    specs = group.specs if group.has_layer_specs else (group.spec,)
    data: Data = {
        "layers": list(group.layer_names),
        "specs": [canon_spec(spec) for spec in specs],
        "per_layer": group.has_layer_specs,
        "draft": group.is_draft,
    }
    if group.has_layer_specs:
        data["page_size_bytes"] = group.page_size_bytes
    return data


def canon_tensors(tensors: Sequence[KVCacheTensor]) -> list[Data]:
    return [{**dataclasses.asdict(entry), "shared_by": list(entry.shared_by)} for entry in tensors]


def _spec(data: Data) -> LayerSpec:
    kind = data["kind"]
    fields: Data = {"block_size": data["block_size"], "page_size_padded": data["page_size_padded"]}
    if kind == "mamba":
        fields["state_shapes"] = data["state_shapes"]
        fields["state_dtypes"] = data["state_dtypes"]
        fields["speculative_blocks"] = data["speculative_blocks"]
        return MambaSpec(**fields)
    for field in ("num_kv_heads", "head_size", "dtype", "reads_by_block_stride"):
        fields[field] = data[field]
    fields["row"] = _row(data)
    if kind in LATENT_KINDS:
        fields.update(_latent_fields(data))
    elif data.get("head_size_v") is not None:
        fields["head_size_v"] = data["head_size_v"]
    if kind in ("sliding_window", "sliding_window_mla"):
        fields["window"] = data["window"]
    elif kind == "chunked_local":
        fields["chunk"] = data["chunk"]
    elif _KINDS[kind] is FullAttentionSpec:
        fields.update({new: data.get(old) for old, new in _RENAMED.items()})
    return _KINDS[kind](**fields)


def _latent_fields(data: Data) -> Data:
    fields: Data = {"compress_ratio": data["compress_ratio"], "alignment": data["alignment"]}
    if data["alignment"] and data["page_size_padded"]:
        # The reference rounds the real page up; an explicit padding stays only where that is even.
        bare = _spec({**data, "alignment": None, "page_size_padded": None})
        if bare.content_size_bytes % data["alignment"]:
            fields["page_size_padded"] = None
    return fields


def _row(data: Data) -> RowFormat:
    kind, version, cache = data["kind"], data["format_version"], data["cache_format"]
    row = _ROWS[data["quant_mode"]]
    label = data["quant_mode"]
    if kind == "slot_packed_full_attention" and data["slot_bytes"]:
        return dataclasses.replace(slot_packed(data["slot_bytes"]), name=f"slot/{label}")
    if kind not in LATENT_KINDS:
        # Per-tensor FP8 has the bytes of plain rows, but is another way to store them.
        return dataclasses.replace(row, name=label)
    if cache == "fp8_ds_mla" and version == "deepseek_v4":
        row = LATENT_584
    elif cache == "fp8_ds_mla" and kind != "sliding_window_mla":
        row = LATENT_656
    elif kind == "sliding_window_mla" and version not in (None, "deepseek_v4"):
        raise InvalidArgumentError("format_version", version, "use None or deepseek_v4")
    return dataclasses.replace(row, name=f"{_ROWS[label].name}/{cache}/{version}")


def options_from(data: Data, *, count_null: bool) -> PlanOptions:
    """`data` holds every option of the golden file."""
    return PlanOptions(
        max_model_len=data["max_model_len"],
        auto_fit=data["auto_fit"],
        max_num_batched_tokens=data["max_num_batched_tokens"],
        max_encoder_tokens=data["max_encoder_tokens"],
        num_blocks_override=data["num_blocks_override"],
        decode_context_parallel=data["dcp"],
        prefill_context_parallel=data["pcp"],
        state_cache_mode=data["mamba_cache_mode"],
        hybrid_groups=not data["disable_hybrid"],
        cross_layer_packing=data["cross_layer_packing"],
        count_null_block=count_null,
    )


def category(error: PrefixHashError) -> str:
    """The golden file's name for one of our errors."""
    if isinstance(error, InvalidArgumentError):
        named = {
            "page_size_padded": "invalid_padding",
            "format_version": "invalid_layer",
            "hash_block_size": "unsupported_block_sizes",
        }
        return named.get(error.argument, "invalid_argument")
    if isinstance(error, UnsupportedCombinationError):
        subjects = {
            "decode_context_parallel": "unsupported_parallelism",
            "context_ranks": "unsupported_block_sizes",
            "view": "unsupported_view",
        }
        return subjects.get(error.subject, "unsupported_layer")
    names: Mapping[type, str] = {
        InconsistentWorkersError: "inconsistent_workers",
        IncompatibleLayersError: "incompatible_layers",
        IncompatiblePageSizesError: "incompatible_page_sizes",
        NoCommonBlockSizeError: "no_common_block_size",
        NotEnoughMemoryError: "not_enough_memory",
    }
    return next(name for kind, name in names.items() if isinstance(error, kind))


def axis_sizes(dims: Sequence[Any], spec: LayerSpec) -> list[Any]:
    """Golden dims with every expression of `head_dim` worked out: `head_dim/2+4`."""
    return [dim if dim in ("blocks", "tokens", "heads") else _axis(dim, spec) for dim in dims]


def _axis(dim: Any, spec: LayerSpec) -> int:
    if isinstance(dim, int):
        return dim
    head_dim = getattr(spec, "head_size", 0)
    total = 0
    for term in dim.split("+"):
        factors = re.findall(r"([*/]?)(\w+)", term)
        value = math.prod(_value(f, head_dim) for sign, f in factors if sign != "/")
        for sign, factor in factors:
            if sign == "/":
                value //= _value(factor, head_dim)
        total += value
    return total


def _value(factor: str, head_dim: int) -> int:
    return head_dim if factor == "head_dim" else int(factor)
