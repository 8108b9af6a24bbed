"""Arguments of the wrong type or size are named, wherever a caller can hand them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixhash.errors import InvalidArgumentError
from prefixhash.layout import (
    HEAD_MAJOR,
    FullAttentionSpec,
    KernelLayout,
    KVCacheGroup,
    MambaSpec,
    MultipleOf,
    PlanOptions,
    RowFormat,
    SlidingWindowSpec,
    align_attention_with_states,
    approximate_gcd,
    auto_fit_max_model_len,
    check_enough_memory,
    equal_group_size,
    estimate_max_model_len,
    group_layers,
    merge_specs,
    pack_kv_cache,
    plan_kv_cache,
    plan_workers,
    read_model_config,
    resolve_block_sizes,
    select_kernel_block_size,
    slot_packed,
    split_layers,
    storage_of,
)

FIELDS: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 8}
FULL = FullAttentionSpec(**FIELDS)
WINDOW = SlidingWindowSpec(window=32, **FIELDS)
GROUPS = group_layers({"a": FULL, "b": WINDOW})
PLAN = plan_kv_cache({"a": FULL, "b": WINDOW}, 1 << 16, PlanOptions(max_model_len=64))
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": 4096,
}

Call = Callable[[Any], object]
# What is no whole number of 1 or more.
NUMBERS = (None, "8", 0, -1, 1.5, True, [4])
LARGER_THAN_0: list[tuple[str, Call]] = [
    ("block_size", lambda bad: FullAttentionSpec(**{**FIELDS, "block_size": bad})),
    ("window", lambda bad: SlidingWindowSpec(window=bad, **FIELDS)),
    ("slot_bytes", slot_packed),
    ("max_model_len", lambda bad: PlanOptions(max_model_len=bad)),
    ("values", lambda bad: approximate_gcd([6, bad])),
    ("counts", lambda bad: equal_group_size([3, bad], PlanOptions())),
    ("block_size", lambda bad: resolve_block_sizes(GROUPS, bad)),
    ("block_size", lambda bad: select_kernel_block_size(bad, [[16]])),
    ("supported", lambda bad: select_kernel_block_size(64, [[bad]])),
    ("base", MultipleOf),
    ("bytes_per_token", lambda bad: align_attention_with_states(bad, 100, [16])),
    ("kernel_block_sizes", lambda bad: align_attention_with_states(4, 100, [bad])),
    ("num_layers", lambda bad: split_layers(bad, 1)),
    ("stages", lambda bad: split_layers(4, bad)),
    ("count", lambda bad: read_model_config(CONFIG).stages(bad, [2, 2])),
    ("tensor_parallel", lambda bad: read_model_config(CONFIG, tensor_parallel=bad)),
    ("axes", lambda bad: KernelLayout(("blocks", bad))),
]
# What is no whole number, although None may mean something.
OTHER_NUMBERS = ("8", 1.5, True, [4], float("nan"))
WHOLE: list[tuple[str, Call]] = [
    ("available_memory", lambda bad: plan_kv_cache({"a": FULL}, bad)),
    ("available_memory", lambda bad: plan_kv_cache({}, bad)),
    ("available_memory", lambda bad: estimate_max_model_len(GROUPS, bad)),
    ("available_memory", lambda bad: check_enough_memory(GROUPS, bad)),
    ("available_memory", lambda bad: auto_fit_max_model_len([GROUPS], [bad])),
    ("available_memory", lambda bad: pack_kv_cache(GROUPS, bad)),
    ("num_blocks_override", lambda bad: pack_kv_cache(GROUPS, 1 << 20, num_blocks_override=bad)),
    ("lower_bound", lambda bad: approximate_gcd([6, 4], bad)),
    ("max_encoder_tokens", lambda bad: PlanOptions(max_encoder_tokens=bad)),
    ("sink_len", lambda bad: FullAttentionSpec(sink_len=bad, **FIELDS)),
    ("speculative_blocks", lambda bad: _states(speculative_blocks=bad)),
    ("scale_bytes", lambda bad: RowFormat(scale_bytes=bad)),
    ("bits", lambda bad: RowFormat(bits=bad)),
    ("state_bytes", lambda bad: align_attention_with_states(4, bad, [16])),
    ("block_size", lambda bad: align_attention_with_states(4, 100, [16], block_size=bad)),
    ("hash_block_size", lambda bad: resolve_block_sizes(GROUPS, 16, hash_block_size=bad)),
    ("length", PLAN.blocks_needed),
    ("length", PLAN.bytes_needed),
    ("partition", lambda bad: read_model_config(CONFIG).stages(2, [bad, 2])),
    ("max_model_len", lambda bad: read_model_config(CONFIG, max_model_len=bad)),
    ("speculative_tokens", lambda bad: read_model_config(CONFIG, speculative_tokens=bad)),
]
OTHERS: list[tuple[str, Call, tuple[Any, ...]]] = [
    ("reads_by_block_stride", lambda bad: _full(reads_by_block_stride=bad), ("no", 1, None)),
    ("non_causal", lambda bad: _full(non_causal=bad), ("no", 1, None)),
    ("row", lambda bad: _full(row=bad), (None, "fp8")),
    ("state_shapes", lambda bad: _states(state_shapes=bad), (None, 4, "ab", (4,), ("ab",))),
    ("state_dtypes", lambda bad: _states(state_dtypes=bad), (None, "float32", (4,))),
    ("auto_fit", lambda bad: PlanOptions(auto_fit=bad), ("false", None, 1)),
    ("hybrid_groups", lambda bad: PlanOptions(hybrid_groups=bad), ("false", None)),
    ("group_price", lambda bad: PlanOptions(group_price=bad), ("1", None, float("nan"), -1)),
    ("group_price", lambda bad: PlanOptions(group_price=bad), (float("inf"),)),
    ("draft_layers", lambda bad: PlanOptions(draft_layers=bad), ("layers.0", None, (3,))),
    ("state_cache_mode", lambda bad: PlanOptions(state_cache_mode=bad), ("some", None, [])),
    (
        "state_cache_mode",
        lambda bad: read_model_config(CONFIG, state_cache_mode=bad),
        ("some", None, []),
    ),
    ("options", lambda bad: plan_kv_cache({"a": FULL}, 1 << 30, bad), ({}, 8192)),
    ("layer_specs[0]", lambda bad: plan_kv_cache(bad, 1 << 30), (None, "a", [FULL])),
    ("layer_specs", lambda bad: plan_workers(bad, [1 << 30]), (None, {"a": FULL})),
    ("layer_specs", group_layers, (None, [FULL])),
    ("layer_specs['b']", lambda bad: group_layers({"a": FULL, "b": bad}), (None, [], "full")),
    ("layers['b']", lambda bad: merge_specs({"a": FULL, "b": bad}), (None, [], "full")),
    ("available_memory", lambda bad: plan_workers([{"a": FULL}], bad), (1 << 30, None, "8")),
    ("layer_names", lambda bad: KVCacheGroup(bad, FULL), ("ab", ("a", "a"), (3,))),
    ("spec", lambda bad: KVCacheGroup(("a",), bad), (None, "full")),
    ("layer_specs", lambda bad: KVCacheGroup(("a",), FULL, (bad,)), (None, "full")),
    ("counts", lambda bad: equal_group_size(bad, PlanOptions()), ([],)),
    ("partition", lambda bad: read_model_config(CONFIG).stages(2, bad), (4,)),
    ("kv_dtype", storage_of, (None, [], 8)),
]


def _full(**changes: Any) -> FullAttentionSpec:
    return FullAttentionSpec(**{**FIELDS, **changes})


def _states(**changes: Any) -> MambaSpec:
    fields: dict[str, Any] = {"state_shapes": ((4, 8),), "state_dtypes": ("float32",)}
    return MambaSpec(block_size=16, **{**fields, **changes})


CASES = [
    *((argument, call, bad) for argument, call in LARGER_THAN_0 for bad in NUMBERS),
    *((argument, call, bad) for argument, call in WHOLE for bad in OTHER_NUMBERS),
    *((argument, call, bad) for argument, call, values in OTHERS for bad in values),
]


@pytest.mark.parametrize(("argument", "call", "bad"), CASES)
def test_a_bad_argument_is_named(argument: str, call: Call, bad: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        call(bad)
    assert caught.value.argument == argument


def test_draft_layers_must_exist() -> None:
    with pytest.raises(InvalidArgumentError, match=r"draft_layers=\['c'\]"):
        group_layers({"a": FULL, "b": WINDOW}, PlanOptions(draft_layers=("b", "c")))


@pytest.mark.parametrize(
    ("argument", "layouts", "tokens"),
    [
        ("layouts", "head major", None),
        ("layouts", {"c": HEAD_MAJOR}, None),
        ("layouts['a']", {"a": "head major"}, None),
        ("kernel_block_sizes", None, [16]),
        ("kernel_block_sizes", None, [16, 16, 16]),
        ("kernel_block_sizes", None, [16, "16"]),
        ("kernel_block_sizes", None, [16, 0]),
    ],
)
def test_views_name_what_they_cannot_use(argument: str, layouts: Any, tokens: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InvalidArgumentError) as caught:
        PLAN.allocate("meta", layouts, tokens)
    assert caught.value.argument == argument


@pytest.mark.parametrize("bad", [None, "1", 1.5, True])
def test_block_ids_are_whole_numbers(bad: Any) -> None:
    pytest.importorskip("torch")
    tensors = PLAN.allocate()
    calls: list[Callable[[], object]] = [
        lambda: tensors.block_bytes(bad),
        lambda: tensors.zero_blocks([bad]),
        lambda: tensors.copy_blocks([(1, bad)]),
        lambda: tensors.copy_blocks([bad]),
        lambda: tensors.load_block(bad, tensors.block_bytes(1)),
        lambda: tensors.load_block(1, bad),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()
