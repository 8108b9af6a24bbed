"""Any value, anywhere: the room's callables take it or refuse it by an error of this package."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from prefixhash import layout
from prefixhash.errors import PrefixHashError
from prefixhash.layout import (
    LATENT_584,
    PLAIN,
    TOKEN_MAJOR,
    BlockNeed,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateSpec,
    KVCacheGroup,
    MambaSpec,
    MLAAttentionSpec,
    MultipleOf,
    NeedCurve,
    PlanOptions,
    RowFormat,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    Slot,
)

from .realistic_models import CONFIGS

np = pytest.importorskip("numpy")

HUGE = 10**30
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, HUGE, 1.5, float("nan"), float("inf"), 1j),
    *("", "x", "auto", "\ud800", b"x", bytearray(b"x")),
    *([], (), {}, set(), {"x": 1}, {1: []}, [[]], [None], ["x"], iter([])),
    *(object(), object, len, NotImplemented, PLAIN, TOKEN_MAJOR),
    *(np.int64(3), np.uint8(2), np.float64(1.5), np.float32("nan"), np.bool_(True)),
    *(np.array([1, 2]), np.array(3), np.array(["x"], dtype=object), np.str_("x")),
)

# What JSON can hold, and what no field expects.
JSON_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, HUGE, 10**400, 1.5, float("nan"), float("inf"), "x", "\ud800"),
    *([], {}, [[]], [None], ["x"], {"type": "float", "num_bits": []}, {"rope_type": "yarn"}),
    {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 10**400},
)
COMMON_FIELDS = ("dtype", "quantization_config", "rope_scaling", "layer_types", "sliding_window")
CONFIG_FILES = (
    *("gemma-3-4b-it", "deepseek-v4-flash", "deepseek-v3.2", "nemotron-nano-9b-v2"),
    *("kimi-linear-48b-a3b", "llama-4-scout", "whisper-large-v3", "jamba-v0.1"),
)

SHAPE: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 8}
BASE: dict[str, Any] = {"block_size": 16, "page_size_padded": None, "alignment": None}
ATTENTION = {
    **BASE,
    **SHAPE,
    **{"head_size_v": None, "dtype": "uint8", "row": PLAIN, "reads_by_block_stride": True},
}
LATENT = {**ATTENTION, "num_kv_heads": 1, "compress_ratio": 4}
STATES = {**BASE, "state_shapes": ((4, 8),), "state_dtypes": ("float32",), "speculative_blocks": 1}
RECORDED: dict[str, Any] = {"recorded_window": 4, "recorded_chunk": None, "non_causal": False}

FULL = FullAttentionSpec(**SHAPE)
WINDOW = SlidingWindowSpec(window=32, **SHAPE)
STATE = MambaSpec(**STATES)
LATENT_SPEC = MLAAttentionSpec(**LATENT)
LATENT_WINDOW = SlidingWindowMLASpec(window=8, **LATENT)
LAYERS = {"a": FULL, "b": WINDOW}
OPTIONS = PlanOptions(max_model_len=64, max_encoder_tokens=8)
GROUPS = layout.group_layers(LAYERS)
PLAN = layout.plan_kv_cache(LAYERS, 1 << 16, OPTIONS)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": 4096,
}
MODEL = layout.read_model_config(CONFIG)
SERVING: dict[str, Any] = {
    **{"config": CONFIG, "block_size": 16, "tensor_parallel": 1, "kv_dtype": "auto"},
    **{"model_dtype": "auto", "state_dtype": "auto", "state_cache_mode": "none"},
    **{"max_model_len": 100, "speculative_tokens": 0},
}
MEMORY: dict[str, Any] = {"groups": GROUPS, "available_memory": 1 << 16, "options": OPTIONS}


class Case(NamedTuple):
    """Something to call, and arguments that it takes; each is replaced by every value in turn."""

    call: Callable[..., Any]
    arguments: dict[str, Any]


# What is made by the room alone, as plain tuples and records, and has nothing to refuse.
RESULTS = {
    *("AlignedBlocks", "BlockSizes", "KVCacheBuffers", "KVCacheTensor", "ModelLayer"),
    *("Slot", "TensorView"),
}
EXPORTED: dict[str, dict[str, Any]] = {
    "LayerSpec": BASE,
    "AttentionSpec": ATTENTION,
    "FullAttentionSpec": {**ATTENTION, **RECORDED, "sink_len": 0, "reference_window": None},
    "SlidingWindowSpec": {**ATTENTION, "window": 32},
    "ChunkedLocalAttentionSpec": {**ATTENTION, "chunk": 32},
    "CrossAttentionSpec": ATTENTION,
    "EncoderOnlyAttentionSpec": ATTENTION,
    "MLAAttentionSpec": LATENT,
    "HiddenStateSpec": LATENT,
    "SlidingWindowMLASpec": {**LATENT, "window": 8},
    "MambaSpec": STATES,
    "PlanOptions": {name: getattr(OPTIONS, name) for name in vars(OPTIONS)},
    "BlockNeed": {"unit": 16, "cap": 64, "extra": 1},
    "NeedCurve": {"per_group": (BlockNeed(16, None, 0),)},
    "RowFormat": {
        **{"name": "x", "bits": 4, "scale_group": 16, "scale_bytes": 4, "fixed_bytes": 0}
    },
    "KernelLayout": {"axes": ("blocks", 2, "tokens", "heads", "vector"), "order": None},
    "MultipleOf": {"base": 16},
    "KVCacheGroup": {
        **{"layer_names": ("a",), "spec": FULL, "layer_specs": (FULL,)},
        **{"is_draft": False, "overlay": False},
    },
    "BlockLayout": {"bytes_per_block": 64, "slots": (Slot(("a",), 0, 64),), "packed": False},
    "KVCachePlan": {
        **{"groups": GROUPS, "layout": PLAN.layout, "num_blocks": 4, "options": OPTIONS},
        **{"worker": 0, "available_memory": 99},
    },
    "ModelLayers": {name: getattr(MODEL, name) for name in vars(MODEL)},
    "align_attention_with_states": {
        **{"bytes_per_token": 4, "state_bytes": 100, "kernel_block_sizes": [16, MultipleOf(16)]},
        **{"block_size": None, "state_cache_mode": "all", "state_block_size": None},
        "equal_pages": False,
    },
    "approximate_gcd": {"values": [4, 6], "lower_bound": 3},
    "auto_fit_max_model_len": {
        **{"groups_per_worker": [GROUPS], "available_memory": [1 << 16], "options": OPTIONS}
    },
    "blocks_needed": {"groups": GROUPS, "options": OPTIONS},
    "bucket_layers_by_page_size": {"groups": GROUPS},
    "bytes_needed": {"groups": GROUPS, "options": OPTIONS},
    "bytes_per_block": {**SERVING},
    "check_enough_memory": {**MEMORY, "worker": 0},
    "equal_group_size": {"counts": [3, 4], "options": PlanOptions(group_policy="least_cost")},
    "estimate_max_model_len": MEMORY,
    "group_layer_tuples": {"families": [{"a": LATENT_SPEC}, {"b": LATENT_WINDOW}]},
    "group_layers": {"layer_specs": LAYERS, "options": PlanOptions(hybrid_groups=False)},
    "grow_quantised_blocks": {
        **{"quantised": FULL, "others": [WINDOW], "kernel_block_sizes": [16]},
    },
    "known_model_types": {},
    "lay_out_block": {"groups": GROUPS, "cross_layer_packing": True},
    "lay_out_kv_cache": {
        **{"groups": GROUPS, "available_memory": 1 << 16, "cross_layer_packing": True},
        "num_blocks_override": None,
    },
    "merge_specs": {"layers": {"a": FULL, "b": FULL}},
    "pack_kv_cache": {
        **{"groups": GROUPS, "available_memory": 1 << 16, "num_blocks_override": None}
    },
    "plan_kv_cache": {"layer_specs": LAYERS, "available_memory": 1 << 16, "options": OPTIONS},
    "plan_workers": {"layer_specs": [LAYERS], "available_memory": [1 << 16], "options": OPTIONS},
    "project_groups": {"groups": GROUPS, "owned": {"a"}},
    "read_model_config": SERVING,
    "resolve_block_sizes": {
        **{"groups": GROUPS, "block_size": 16, "context_ranks": 1, "prefix_caching": True},
        **{"connector": False, "hash_block_size": None},
    },
    "same_type": {"specs": [FULL, WINDOW]},
    "select_common_layout": {"supported": [["x", "y"], ["y"]]},
    "select_kernel_block_size": {"block_size": 64, "supported": [[16, MultipleOf(16)], [32]]},
    "slot_packed": {"slot_bytes": 8},
    "specs_from_model_config": SERVING,
    "split_layers": {"num_layers": 8, "stages": 2},
    "storage_of": {"kv_dtype": "fp8", "model_dtype": "bfloat16"},
    "tensor_views": {
        **{"groups": PLAN.groups, "layout": PLAN.layout, "num_blocks": 4},
        **{"layouts": {"a": TOKEN_MAJOR}, "kernel_block_sizes": [16, 16]},
    },
    "unify_page_sizes": {"layers": LAYERS},
}
SPECS = (
    *(FULL, WINDOW, STATE, LATENT_SPEC, LATENT_WINDOW),
    ChunkedLocalAttentionSpec(chunk=32, page_size_padded=1024, **SHAPE),
    *(CrossAttentionSpec(**SHAPE), EncoderOnlyAttentionSpec(**SHAPE), HiddenStateSpec(**LATENT)),
)
PACKED = layout.plan_kv_cache(
    LAYERS, 1 << 16, PlanOptions(max_model_len=64, cross_layer_packing=True)
)


def _methods() -> Iterator[Case]:
    for spec in SPECS:
        yield Case(spec.with_block_size, {"block_size": 32})
        yield Case(spec.padded_to, {"page_size": 4096})
        yield Case(spec.grown_to, {"page_size": 4096})
        yield Case(spec.aligned_to, {"alignment": 64})
        yield Case(spec.as_full, {"block_size": 16})
        yield Case(spec.block_need, {"options": OPTIONS})
    yield Case(OPTIONS.with_max_model_len, {"max_model_len": 8})
    yield Case(BlockNeed(16, 64, 1).at, {"length": 8})
    yield Case(NeedCurve.of, {"groups": GROUPS, "options": OPTIONS})
    curve = NeedCurve.of(GROUPS, OPTIONS)
    yield Case(curve.blocks, {"length": 8})
    yield Case(curve.total, {"length": 8})
    yield Case(curve.longest, {"limit": 100, "blocks": 4})
    for row in (PLAIN, LATENT_584, RowFormat("x", bits=4, scale_group=16, scale_bytes=4)):
        yield Case(row.vector_bytes, {"width": 8, "item_size": 2})
        yield Case(row.row_bytes, {"widths": (8, 8), "item_size": 2})
        yield Case(row.scales, {"widths": (8, 8)})
    yield Case(KVCacheGroup.of, {"layers": {"a": FULL}, "overlay": True})
    yield Case(GROUPS[0].project, {"owned": {"a"}})
    for plan in (PLAN, PACKED):
        yield Case(plan.layout.tensors, {"num_blocks": 3})
        yield Case(plan.layout.num_blocks, {"available_memory": 9999})
        yield Case(plan.blocks_needed, {"length": 8})
        yield Case(plan.bytes_needed, {"length": 8})
        yield Case(plan.slot, {"layer_name": "a"})
    yield Case(MODEL.stages, {"count": 2, "partition": [2, 2]})
    yield Case(MODEL.workers, {"pipeline_parallel": 2})
    yield Case(MODEL.options, EXPORTED["PlanOptions"])


def _tensor_methods() -> Iterator[Case]:
    for plan in (PLAN, PACKED):
        yield Case(plan.allocate, {"device": "cpu", "layouts": None, "kernel_block_sizes": None})
        tensors = plan.allocate()
        yield Case(tensors.copy_blocks, {"pairs": [(1, 2)]})
        yield Case(tensors.zero_blocks, {"block_ids": [1]})
        yield Case(tensors.block_bytes, {"block_id": 1})
        yield Case(tensors.load_block, {"block_id": 1, "data": tensors.block_bytes(1)})


def spoilt(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments with one of them, or one entry of a sequence or mapping, replaced."""
    for name, valid in arguments.items():
        for value in VALUES:
            for bad in (value, *_inside(valid, value)):
                yield {**arguments, name: bad}


def _inside(valid: Any, value: Any) -> Iterator[Any]:
    if isinstance(valid, Mapping):
        for key, inner in valid.items():
            yield {**valid, key: value}
            yield from ({**valid, key: bad} for bad in _inside(inner, value))
        yield from [{**valid, value: valid}] if isinstance(value, (str, int, float, bytes)) else []
    elif isinstance(valid, (list, tuple)) and not hasattr(valid, "_fields"):
        for index, inner in enumerate(valid):
            for bad in (value, *_inside(inner, value)):
                yield type(valid)([*valid[:index], bad, *valid[index + 1 :]])
        yield type(valid)([*valid, value])


def check(case: Case, arguments: dict[str, Any]) -> None:
    """Calls it; what it returns must be usable all through."""
    try:
        result = case.call(**arguments)
        for part in result if isinstance(result, tuple) else (result,):
            _read(part)
    except PrefixHashError:
        return
    except OSError:  # the path of a config that is not there
        assert isinstance(arguments.get("config"), str)


def _read(value: Any) -> None:
    """Every property, and equality, hash and text of what is a value."""
    if not type(value).__module__.startswith("prefixhash.layout"):
        return
    for name, member in inspect.getmembers(type(value)):
        if not name.startswith("_") and (isinstance(member, property) or _is_cached(member)):
            getattr(value, name)
    assert value == value
    assert repr(value)
    if isinstance(value, layout.LayerSpec):
        hash(value)


def _is_cached(member: object) -> bool:
    return type(member).__name__ == "cached_property"


CASES = [
    *(Case(getattr(layout, name), arguments) for name, arguments in EXPORTED.items()),
    *_methods(),
]


def _name(case: Case) -> str:
    owner = getattr(case.call, "__self__", None)
    of = f"{getattr(owner, 'kind', None) or type(owner).__name__}." if owner is not None else ""
    return f"{of}{case.call.__name__}"


def test_every_callable_is_tried() -> None:
    callables = {name for name in layout.__all__ if callable(getattr(layout, name))}
    assert callables - EXPORTED.keys() == RESULTS


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_a_value_is_taken_or_refused_by_an_error_of_ours(case: Case) -> None:
    before = repr(getattr(case.call, "__self__", None))
    case.call(**case.arguments) if _name(case) not in ("LayerSpec", "AttentionSpec") else None
    for arguments in spoilt(case.arguments):
        check(case, arguments)
    assert repr(getattr(case.call, "__self__", None)) == before


def _planned(config: object) -> tuple[layout.KVCachePlan, ...]:
    model = layout.read_model_config(config)
    return layout.plan_workers(model.stages(1), [1 << 30], model.options())


@pytest.mark.parametrize("name", CONFIG_FILES)
def test_any_field_of_a_config_is_taken_or_refused(name: str) -> None:
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    for part in (config, config.get("text_config")):
        for field in (*(part or ()), *COMMON_FIELDS):
            for value in JSON_VALUES:
                changed = {**part, field: value} if part else {}
                whole = changed if part is config else {**config, "text_config": changed}
                check(Case(_planned, {}), {"config": whole})


def test_tensors_take_or_refuse_a_value() -> None:
    pytest.importorskip("torch")
    for case in _tensor_methods():
        case.call(**case.arguments)
        for arguments in spoilt(case.arguments):
            check(case, arguments)
