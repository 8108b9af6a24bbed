"""What vLLM 0.25.0 computes where this library deliberately differs, as formulas of the input.

With them a difference is not merely tolerated: the reference's value is recomputed and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from prefixhash.layout import KVCacheGroup, KVCachePlan, LayerSpec, PlanOptions, bytes_needed
from prefixhash.layout.row_formats import ITEM_SIZES

from .golden_convert import FULL_KINDS, LATENT_KINDS, Data

_PER_TOKEN_HEAD = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")


def reference_page(data: Data) -> int | None:
    """Unpadded page, scales included; None for states. `data` holds every field.

    The format name decides the row; windows ignore 4-bit rows; latent rows carry two scales for
    every token, stored or not.
    """
    kind, mode, block = data["kind"], data["quant_mode"], data["block_size"]
    if kind == "mamba":
        return None
    heads, item = data["num_kv_heads"], ITEM_SIZES[data["dtype"]]
    scales = 2 * block * heads * 4 if mode in _PER_TOKEN_HEAD else 0
    return _reference_content(data, block, heads, item) + scales


def _reference_content(data: Data, block: int, heads: int, item: int) -> int:
    kind, mode = data["kind"], data["quant_mode"]
    if kind == "slot_packed_full_attention" and data["slot_bytes"]:
        return int(block * heads * data["slot_bytes"])
    if kind in LATENT_KINDS:
        rows = block // data["compress_ratio"]
        if data["cache_format"] == "fp8_ds_mla" and data["format_version"] == "deepseek_v4":
            return int(rows * 584)
        if data["cache_format"] == "fp8_ds_mla" and kind != "sliding_window_mla":
            return int(block * 656)
        halved = mode == "int4_per_token_head" and kind != "sliding_window_mla"
        return int(rows * heads * (data["head_size"] // (2 if halved else 1)) * item)
    key, value = data["head_size"], data.get("head_size_v") or data["head_size"]
    width = _reference_width(mode, kind, key) + _reference_width(mode, kind, value)
    return int(block * heads * width * item)


def _reference_width(mode: str, kind: str, width: int) -> int:
    if mode == "nvfp4":
        return width // 2 + width // 16
    if mode == "int4_per_token_head" and kind != "sliding_window":
        return width // 2
    return width


def reference_merges(first: Data, second: Data) -> bool:
    """Whether the reference puts these two different layers into one spec."""
    if first["kind"] in ("mla", "hidden_state") and second["kind"] in ("mla", "hidden_state"):
        compared = ["cache_format", "compress_ratio", "format_version", "reads_by_block_stride"]
    elif first["kind"] == second["kind"] == "sliding_window_mla":
        compared = ["cache_format", "compress_ratio", "format_version", "reads_by_block_stride"]
        compared.append("window")
    elif first["kind"] in FULL_KINDS and second["kind"] in (
        *FULL_KINDS,
        "reference_sliding_window",
    ):
        compared = ["block_size", "num_kv_heads", "head_size", "dtype", "quant_mode"]
        compared += ["page_size_padded", "reads_by_block_stride"]
    else:
        return False
    return all(first[field] == second[field] for field in compared)


def loses_its_row(data: Data) -> bool:
    """Whether a windowed layer gets another row when hybrid groups are off.

    Chunked layers lose their quantisation; a format name means other rows in the latent kind.
    """
    if data["kind"] == "chunked_local":
        return bool(data["quant_mode"] != "none")
    named = data["cache_format"] == "fp8_ds_mla" and data["format_version"] is None
    return data["kind"] == "sliding_window_mla" and named


def without_hybrid(specs: list[Data]) -> list[Data]:
    """What windowed layers become beside a layer that keeps every token."""
    full = [s for s in specs if s["kind"] in (*FULL_KINDS, "mla", "reference_sliding_window")]
    if not full:
        return specs
    dropped = {"reads_by_block_stride": False}
    made = {
        "sliding_window": {"kind": "full_attention", **dropped},
        "chunked_local": {"kind": "full_attention", "quant_mode": "none", **dropped},
        "sliding_window_mla": {"kind": "mla", "block_size": full[0]["block_size"], **dropped},
    }
    return [{**spec, **made.get(spec["kind"], {})} for spec in specs]


def _tuples(group: KVCacheGroup) -> int:
    return max(Counter(group.page_sizes).values(), default=0)


def is_layer_tuples(groups: Sequence[KVCacheGroup]) -> bool:
    return len(groups) > 1 and all(group.has_layer_specs for group in groups)


def needed_from_groups(groups: Sequence[KVCacheGroup], options: PlanOptions) -> int:
    """Layer tuples are charged t slots of every page size of group 0; else as here."""
    if not is_layer_tuples(groups):
        return bytes_needed(groups, options)
    blocks = [g.spec.block_need(options).at(options.max_model_len) for g in groups]
    return max(map(_tuples, groups)) * sum(blocks) * sum(set(groups[0].page_sizes))


def needed_per_layer(layers: Sequence[LayerSpec], options: PlanOptions) -> int:
    """The sum of the layers' own needs: padding of groups is left out."""
    length = options.max_model_len
    return sum(spec.block_need(options).at(length) * spec.page_size_bytes for spec in layers)


def longest(needed: Callable[[PlanOptions], int], memory: int, options: PlanOptions) -> int:
    """Longest length whose need, by the reference's formula, is within `memory` bytes."""
    low, high = 0, options.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if needed(options.with_max_model_len(middle)) <= memory:
            low = middle
        else:
            high = middle - 1
    return low


def projected(plan: KVCachePlan, whole: Sequence[KVCacheGroup]) -> tuple[KVCacheGroup, ...]:
    """A worker's groups as the reference has them: one without layers keeps all specs there."""
    return tuple(
        everywhere if group.has_layer_specs and not group.layer_names else group
        for group, everywhere in zip(plan.groups, whole, strict=True)
    )


def concurrency(plan: KVCachePlan, groups: Sequence[KVCacheGroup], *, scheduler: bool) -> float:
    """Blocks over ceil(L * sum of group maxima / (L * page of group 0)), L the longest group.

    The scheduler's copy of a group with many specs has only its first.
    """
    longest_group = max(len(group.layer_names) for group in plan.groups)
    pages = [
        group.spec.page_size_bytes
        if scheduler or not group.has_layer_specs
        else group.page_size_bytes
        for group in groups
    ]
    maxima = sum(b * page for b, page in zip(plan.blocks_needed(), pages, strict=True))
    return plan.num_blocks / -(-longest_group * maxima // (pages[0] * longest_group))


def all_specs(case_input: Any) -> list[Data]:
    """Every layer spec that stands anywhere in an input."""
    if isinstance(case_input, dict):
        if "kind" in case_input:
            return [case_input]
        return [spec for value in case_input.values() for spec in all_specs(value)]
    if isinstance(case_input, list):
        return [spec for value in case_input for spec in all_specs(value)]
    return []
