"""Grouping, merging, packing and plans: behaviour beside the golden cases."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable

import pytest

from prefixhash import BlockHasher, PrefixCache, Request
from prefixhash.errors import (
    IncompatibleLayersError,
    IncompatiblePageSizesError,
    InconsistentWorkersError,
    InvalidArgumentError,
    NoCommonBlockSizeError,
    NotEnoughMemoryError,
    PlanningError,
    UnsupportedCombinationError,
)
from prefixhash.layout import (
    PLAIN,
    FullAttentionSpec,
    HiddenStateSpec,
    KVCacheGroup,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    PlanOptions,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    approximate_gcd,
    auto_fit_max_model_len,
    bytes_needed,
    group_layers,
    lay_out_block,
    merge_specs,
    pack_kv_cache,
    plan_kv_cache,
    plan_workers,
    same_type,
    unify_page_sizes,
)

FULL = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
WIDE = FullAttentionSpec(block_size=16, num_kv_heads=16, head_size=128)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, window=128)
PAGE = FULL.page_size_bytes


def test_an_error_of_merging_names_layers_field_and_values() -> None:
    with pytest.raises(IncompatibleLayersError) as error:
        merge_specs({"a": FULL, "b": FULL, "c": WIDE})
    assert error.value.layers == ("a", "c")
    assert (error.value.field, error.value.values) == ("num_kv_heads", (8, 16))


def test_sinks_of_other_lengths_do_not_merge() -> None:
    sinks = {str(n): dataclasses.replace(FULL, sink_len=n) for n in (16, 64)}
    with pytest.raises(IncompatibleLayersError) as error:
        merge_specs(sinks)
    assert (error.value.field, error.value.values) == ("sink_len", (16, 64))


def test_merging_keeps_what_some_layers_record() -> None:
    recorded = FullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, recorded_window=512, non_causal=True
    )
    merged = merge_specs({"a": FULL, "b": recorded})
    assert merged == recorded
    with pytest.raises(InvalidArgumentError, match="layers"):
        merge_specs({})


def test_type_does_not_depend_on_the_order() -> None:
    latent = SlidingWindowMLASpec(block_size=16, head_size=512, dtype="uint8", window=128)
    assert same_type([WINDOW, latent])
    assert same_type([latent, WINDOW])
    assert not same_type([FULL, WINDOW])


def test_a_group_speaks_for_its_layers() -> None:
    group = KVCacheGroup.of({"a": FULL, "b": WIDE})
    assert (group.kind, group.block_size, group.window, group.chunk) == (
        "full_attention",
        16,
        None,
        None,
    )
    assert (group.page_sizes, group.page_size_bytes) == ((PAGE, 2 * PAGE), 3 * PAGE)
    assert KVCacheGroup(("w",), WINDOW).window == 128
    part = group.project({"b"})
    assert (part.layer_names, part.page_size_bytes) == (("b",), 2 * PAGE)
    assert group.project({"a", "b", "c"}) is group


@pytest.mark.parametrize(
    "make",
    [
        lambda: KVCacheGroup(("a", "b"), FULL, (FULL,)),
        lambda: KVCacheGroup(("a", "b"), FULL, (FULL, WINDOW)),
        lambda: KVCacheGroup.of({}),
    ],
)
def test_groups_of_other_layers_are_refused(make: Callable[[], KVCacheGroup]) -> None:
    with pytest.raises(InvalidArgumentError, match="layer"):
        make()


def test_page_sizes_that_cannot_be_unified_are_named() -> None:
    odd = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=96)
    with pytest.raises(IncompatiblePageSizesError) as error:
        unify_page_sizes({"a": FULL, "b": odd})
    assert error.value.page_sizes == {"b": 49152, "a": PAGE}
    assert unify_page_sizes({"a": FULL, "b": WINDOW}) == {"a": FULL, "b": WINDOW}


def test_only_hidden_states_are_planned_like_other_layers() -> None:
    model: dict[str, LayerSpec] = {
        "a": HiddenStateSpec(block_size=16, num_kv_heads=3, head_size=64),
        "b": HiddenStateSpec(block_size=32, num_kv_heads=3, head_size=64),
    }
    plan = plan_kv_cache(model, 1 << 20, PlanOptions(max_model_len=64))
    assert {spec.page_size_bytes for spec in plan.layer_specs.values()} == {32 * 3 * 64 * 2}


def test_ordinary_layers_beside_layer_tuples_do_not_widen_the_block() -> None:
    latent = MLAAttentionSpec(block_size=256, head_size=576)
    window = SlidingWindowMLASpec(block_size=64, head_size=576, window=128)
    model: dict[str, LayerSpec] = {"m": latent, "w": window}
    narrow = lay_out_block(group_layers(model)).bytes_per_block
    ordinary = FullAttentionSpec(block_size=256, num_kv_heads=8, head_size=128)
    assert ordinary.page_size_bytes > narrow
    groups = group_layers({**model, "x": ordinary, "y": ordinary})
    assert lay_out_block(groups).bytes_per_block == narrow
    assert {g.block_size for g in groups if g.overlay} == {64}
    options = PlanOptions(max_model_len=1024)
    assert bytes_needed(groups, options) == narrow * (4 + 17 + 16 + 16)


def test_overlaid_layers_of_one_type_share_the_smallest_block_that_fits() -> None:
    latent = MLAAttentionSpec(block_size=256, head_size=576)
    window = SlidingWindowMLASpec(block_size=64, head_size=576, window=128)
    narrow = FullAttentionSpec(block_size=256, num_kv_heads=8, head_size=128)
    wide = FullAttentionSpec(block_size=256, num_kv_heads=16, head_size=128)
    model: dict[str, LayerSpec] = {"m": latent, "w": window}
    width = lay_out_block(group_layers(model)).bytes_per_block
    groups = group_layers({**model, "x": narrow, "y": wide})
    assert {group.block_size for group in groups if group.overlay} == {32}
    assert lay_out_block(groups).bytes_per_block == width


def test_an_overlaid_state_that_cannot_shrink_widens_the_block() -> None:
    state = MambaSpec(block_size=64, state_shapes=((1 << 20,),), state_dtypes=("float32",))
    model: dict[str, LayerSpec] = {
        "m": MLAAttentionSpec(block_size=256, head_size=576),
        "w": SlidingWindowMLASpec(block_size=64, head_size=576, window=128),
        "s": state,
    }
    plan = plan_kv_cache(model, 1 << 26, PlanOptions(max_model_len=256))
    assert plan.bytes_per_block == state.page_size_bytes == 4 << 20
    assert plan.unused_bytes[-1] == 0


def test_a_padded_window_page_grows_with_the_blocks_of_full_attention() -> None:
    """Hybrid groups off: latent windows take the full layers' block size, and their padding."""
    latent = MLAAttentionSpec(block_size=256, head_size=512)
    window = SlidingWindowMLASpec(
        block_size=64, head_size=512, window=128, page_size_padded=64 * 512 * 2 + 512
    )
    (group,) = group_layers({"m": latent, "w": window}, PlanOptions(hybrid_groups=False))
    assert group.block_size == 256
    assert group.page_sizes == (256 * 1024, 256 * 1024 + 4 * 512)


def test_draft_layers_mark_their_groups() -> None:
    model: dict[str, LayerSpec] = {"a": FULL, "b": WINDOW, "c": FULL, "d": WINDOW}
    groups = group_layers(model, PlanOptions(draft_layers=("d",)))
    assert [group.is_draft for group in groups] == [False, True]
    assert [group.project({"a"}).is_draft for group in groups] == [False, False]


def test_shared_buffers_need_one_page_size() -> None:
    groups = [KVCacheGroup(("a",), FULL), KVCacheGroup(("b",), WIDE)]
    with pytest.raises(IncompatiblePageSizesError, match="pack the layers"):
        lay_out_block(groups)
    assert lay_out_block(groups, cross_layer_packing=True).bytes_per_block == 3 * PAGE


def test_buffers_of_a_pool() -> None:
    buffers = pack_kv_cache([KVCacheGroup(("a",), FULL), KVCacheGroup(("b",), WINDOW)], PAGE - 1)
    assert (buffers.num_blocks, buffers.bytes_per_block) == (0, PAGE)
    with pytest.raises(InvalidArgumentError, match="available_memory=0"):
        pack_kv_cache([KVCacheGroup(("a",), FULL)], 0)
    with pytest.raises(InvalidArgumentError, match="num_blocks_override=0"):
        pack_kv_cache([KVCacheGroup(("a",), FULL)], PAGE, num_blocks_override=0)


def test_an_error_of_memory_has_the_numbers() -> None:
    stages = [{"a": FULL}, {"b": FULL, "c": FULL}]
    with pytest.raises(NotEnoughMemoryError, match="worker 1: one request") as error:
        plan_workers(stages, [8 * PAGE, 8 * PAGE], PlanOptions(max_model_len=64))
    found = error.value
    assert (found.worker, found.needed, found.available) == (1, 8 * PAGE, 8 * PAGE)
    assert (found.max_model_len, found.reserved) == (48, 2 * PAGE)
    assert found.per_worker == ((4 * PAGE, 8 * PAGE, 64), (8 * PAGE, 8 * PAGE, 48))


def test_workers_that_disagree_are_named() -> None:
    with pytest.raises(InconsistentWorkersError, match="worker 1 and an earlier one"):
        plan_workers([{"a": FULL}, {"a": WIDE}], [1 << 30, 1 << 30])


def test_each_worker_has_its_memory() -> None:
    with pytest.raises(InvalidArgumentError, match="one entry per worker"):
        plan_workers([{"a": FULL}], [1, 2])
    with pytest.raises(InvalidArgumentError, match="one entry per worker"):
        auto_fit_max_model_len([[]], [])


def test_auto_fit_over_workers() -> None:
    groups = [KVCacheGroup(("a",), FULL)]
    options = PlanOptions(max_model_len=1000)
    assert auto_fit_max_model_len([groups, []], [11 * PAGE, 0], options) == 160
    assert auto_fit_max_model_len([], [], options) == 1000
    with pytest.raises(NotEnoughMemoryError) as error:
        auto_fit_max_model_len([groups, groups], [11 * PAGE, PAGE], options)
    assert error.value.worker == 1


def test_a_cache_takes_the_planned_groups() -> None:
    plan = plan_kv_cache({"a": FULL, "b": WINDOW}, 100 * PAGE, PlanOptions(max_model_len=16))
    cache = PrefixCache(plan.groups, plan.num_blocks)
    request = Request("r", range(40), block_hasher=BlockHasher(16))
    assert cache.allocate(request, 40) is not None
    tables = [cache.block_table(request, group) for group in range(len(plan.groups))]
    assert [len(table) for table in tables] == [3, 3]


def test_a_layer_is_found_in_the_block() -> None:
    plan = plan_kv_cache(
        {"a": FULL, "b": WINDOW, "c": FULL},
        1 << 22,
        PlanOptions(max_model_len=16, cross_layer_packing=True, group_policy="least_cost"),
    )
    assert plan.slot("c").offset == PAGE
    assert plan.slot("a").layers == ("a", "b")
    with pytest.raises(InvalidArgumentError, match="layer_name='z'"):
        plan.slot("z")


def test_unused_bytes_are_padding_and_empty_slots() -> None:
    padded = FULL.padded_to(PAGE + 1000)
    plan = plan_kv_cache({"a": padded, "b": padded}, 1 << 22, PlanOptions(max_model_len=16))
    assert plan.unused_bytes == (2000,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_model_len", 0),
        ("max_num_batched_tokens", -1),
        ("num_blocks_override", 0),
        ("decode_context_parallel", 0),
        ("max_encoder_tokens", -1),
        ("group_price", -0.5),
        ("state_cache_mode", "some"),
        ("group_policy", "best"),
    ],
)
def test_bad_options_are_named(field: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        PlanOptions(**{field: value})  # type: ignore[arg-type]
    assert error.value.argument == field


def test_values_of_approximate_gcd_are_checked() -> None:
    for values in ([], [4, 0], [-1]):
        with pytest.raises(InvalidArgumentError, match="values"):
            approximate_gcd(values)


def test_planning_errors_survive_pickling() -> None:
    errors: list[PlanningError] = [
        NotEnoughMemoryError("p", needed=3, available=2, max_model_len=1, worker=4, reserved=1),
        IncompatibleLayersError(("a", "b"), "row", (PLAIN, 1), "p"),
        InconsistentWorkersError(("a", "a"), "spec", (1, 2), "p"),
        IncompatiblePageSizesError({"a": 1}, "p"),
        NoCommonBlockSizeError(16, ((64,),)),
        UnsupportedCombinationError("view", "p"),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))
        assert isinstance(error, ValueError)
