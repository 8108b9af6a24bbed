"""Known faults of KV-cache planners, each as a test of its kind."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from prefixhash.errors import (
    InvalidArgumentError,
    NotEnoughMemoryError,
    UnsupportedCombinationError,
)
from prefixhash.layout import (
    LATENT_584,
    FullAttentionSpec,
    HiddenStateSpec,
    KVCachePlan,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    PlanOptions,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    align_attention_with_states,
    bytes_needed,
    group_layers,
    plan_kv_cache,
    plan_workers,
    select_common_layout,
)

PAGE = 4096


def full(block_size: int = 16, page: int = PAGE) -> FullAttentionSpec:
    """A full-attention layer whose page takes `page` bytes."""
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=page // block_size // 4
    )


def sliding(window: int = 128, page: int = PAGE) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=page // 64, window=window)


def layers(count: int, spec: LayerSpec, name: str = "l") -> dict[str, LayerSpec]:
    return {f"{name}{i}": spec for i in range(count)}


def tensor_bytes(plan: KVCachePlan) -> int:
    return sum(entry.size for entry in plan.tensors)


@pytest.mark.parametrize("override", [1, 2, 128])
def test_a_forced_block_count_is_checked(override: int) -> None:
    """PC-088."""
    options = PlanOptions(max_model_len=2048, num_blocks_override=override)
    with pytest.raises(NotEnoughMemoryError, match="num_blocks_override") as error:
        plan_kv_cache(layers(1, full()), 10**9, options)
    assert error.value.max_model_len == (override - 1) * 16


def test_a_forced_block_count_with_a_block_to_spare() -> None:
    """PC-088: 129 usable blocks hold the 128 that are needed."""
    options = PlanOptions(max_model_len=2048, num_blocks_override=130)
    assert plan_kv_cache(layers(1, full()), 1, options).usable_blocks == 129


@pytest.mark.parametrize(("block_size", "longest"), [(16, 112), (128, 896)])
def test_auto_fit_leaves_the_null_block_out(block_size: int, longest: int) -> None:
    """PC-090."""
    options = PlanOptions(max_model_len=100_000, auto_fit=True)
    plan = plan_kv_cache(layers(1, full(block_size)), 8 * PAGE, options)
    assert (plan.num_blocks, plan.max_model_len) == (8, longest)


def test_one_page_holds_not_even_one_token() -> None:
    """PC-090."""
    with pytest.raises(NotEnoughMemoryError, match="not even one token"):
        plan_kv_cache(layers(1, full()), PAGE, PlanOptions(auto_fit=True))


@pytest.mark.parametrize("swapped", [False, True])
def test_the_stage_with_least_memory_per_layer_limits(swapped: bool) -> None:
    """PC-091: the limit is neither the whole model on each stage nor the least memory."""
    stages = [layers(2, full(), "a"), layers(1, full(), "b")]
    memory = [20 * PAGE, 12 * PAGE]
    if swapped:
        stages.reverse()
        memory.reverse()
    plans = plan_workers(stages, memory, PlanOptions(max_model_len=4096, auto_fit=True))
    assert [plan.num_blocks for plan in plans] == [10, 10]
    assert {plan.max_model_len for plan in plans} == {144}
    assert sorted(map(tensor_bytes, plans)) == [40960, 81920]


def test_a_stage_gets_tensors_of_its_own_layers_only() -> None:
    """PC-093."""
    stages: list[Mapping[str, LayerSpec]] = [
        layers(2, sliding(), "s"),
        {"f0": full(), "f1": full(page=2 * PAGE), "s2": sliding(), "s3": sliding()},
    ]
    options = PlanOptions(max_model_len=256, cross_layer_packing=True)
    plans = plan_workers(stages, [4 << 20, 4 << 20], options)
    for plan, owned in zip(plans, stages, strict=True):
        named = {name for entry in plan.tensors for name in entry.shared_by}
        assert named == set(owned)
    assert plans[0].num_blocks == plans[1].num_blocks


def test_stages_agree_on_a_layout_that_all_support() -> None:
    """PC-094."""
    assert select_common_layout([("L1", "L2", "L3"), ("L2",)]) == "L2"
    with pytest.raises(UnsupportedCombinationError, match=r"\['L1'\], \['L2'\]"):
        select_common_layout([("L1",), ("L2",)])


@pytest.mark.parametrize("policy", ["reference", "least_cost"])
def test_nearly_equal_counts_make_two_groups(policy: str) -> None:
    """PC-096."""
    model = layers(19, full(), "f") | layers(18, sliding(), "s")
    groups = group_layers(model, PlanOptions(group_policy=policy))
    assert [len(group.layer_names) for group in groups] == [19, 18]
    plan = plan_kv_cache(model, 1 << 30, PlanOptions(group_policy=policy))
    assert plan.unused_bytes == (0, PAGE)


def test_state_pages_are_padded_to_the_common_page() -> None:
    """PC-097."""
    state = MambaSpec(block_size=16, state_shapes=((PAGE // 4,),), state_dtypes=("float32",))
    model = {"state": state, "attention": full(), "draft": full(page=2 * PAGE)}
    planned = plan_kv_cache(model, 1 << 30).layer_specs
    assert {spec.page_size_bytes for spec in planned.values()} == {2 * PAGE}
    assert [planned[name].block_size for name in model] == [16, 32, 16]


def latent_model() -> dict[str, LayerSpec]:
    attention = MLAAttentionSpec(block_size=256, head_size=512, dtype="uint8", row=LATENT_584)
    window = SlidingWindowMLASpec(
        block_size=64, head_size=512, dtype="uint8", row=LATENT_584, window=128
    )
    indexer = MLAAttentionSpec(block_size=256, head_size=132, dtype="uint8")
    return layers(20, attention, "a") | layers(21, window, "w") | layers(21, indexer, "i")


def test_hidden_states_do_not_inflate_every_block() -> None:
    """PC-099."""
    hidden = HiddenStateSpec(block_size=256, num_kv_heads=4, head_size=4096)
    assert hidden.page_size_bytes == 8 << 20
    options = PlanOptions(max_model_len=8192)
    without = bytes_needed(group_layers(latent_model(), options), options)
    model = {**latent_model(), "hidden": hidden}
    groups = group_layers(model, options)
    assert bytes_needed(groups, options) < without + (8 << 20) * 33
    plan = plan_kv_cache(model, 8 << 30, options)
    assert plan.layer_specs["hidden"].page_size_bytes <= plan.bytes_per_block


@pytest.mark.parametrize(("bytes_per_token", "block"), [(2048, 512), (1024, 1024)])
def test_attention_blocks_are_no_larger_than_the_state_needs(
    bytes_per_token: int, block: int
) -> None:
    """PC-100."""
    state = 1 << 20
    aligned = align_attention_with_states(bytes_per_token, state, [16])
    assert aligned.attention_block_size == block
    assert block * bytes_per_token - state < 16 * bytes_per_token
    equal = align_attention_with_states(
        bytes_per_token, state, [16], block_size=2048, equal_pages=True
    )
    assert equal.attention_block_size == block
    with pytest.raises(InvalidArgumentError, match="equal pages"):
        align_attention_with_states(bytes_per_token, state + 4, [16], equal_pages=True)


def test_a_large_user_block_stays_a_multiple_of_what_is_needed() -> None:
    """PC-100: without equal pages the user's block is kept, and the padding is reported."""
    aligned = align_attention_with_states(2048, 1 << 20, [16], block_size=2048)
    assert aligned == (2048, None, 2048 * 2048)


def test_the_need_of_a_windowed_model_is_pinned() -> None:
    """PC-102: a new release may only lower this."""
    window = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=256, window=1024)
    wide = FullAttentionSpec(block_size=64, num_kv_heads=1, head_size=512)
    model = layers(40, window, "s") | layers(8, wide, "f")
    options = PlanOptions(max_model_len=131072, max_num_batched_tokens=8192)
    assert bytes_needed(group_layers(model, options), options) == 4933 * 8 * 131072


@pytest.mark.parametrize(("block_size", "blocks"), [(1, 65), (8, 9)])
def test_small_blocks_work(block_size: int, blocks: int) -> None:
    """PC-105."""
    spec = full(block_size, page=64 * block_size)
    options = PlanOptions(max_model_len=64)
    plan = plan_kv_cache(layers(1, spec), blocks * spec.page_size_bytes, options)
    assert plan.num_blocks == blocks
    with pytest.raises(NotEnoughMemoryError):
        plan_kv_cache(layers(1, spec), blocks * spec.page_size_bytes - 1, options)


@pytest.mark.parametrize("memory", [0, -PAGE, PAGE - 1, PAGE])
@pytest.mark.parametrize("auto_fit", [False, True])
@pytest.mark.parametrize("count_null_block", [False, True])
def test_too_little_memory_is_one_clear_error(
    memory: int, auto_fit: bool, count_null_block: bool
) -> None:
    """PC-106: never a negative number of blocks; a single block is the null block."""
    options = PlanOptions(max_model_len=16, auto_fit=auto_fit, count_null_block=count_null_block)
    if count_null_block and memory == PAGE:
        assert plan_kv_cache(layers(1, full()), memory, options).num_blocks == 1
        return
    with pytest.raises(NotEnoughMemoryError) as error:
        plan_kv_cache(layers(1, full()), memory, options)
    assert (error.value.available, error.value.max_model_len) == (memory, 0)
    assert isinstance(error.value, ValueError)


def test_a_block_costs_the_pages_of_all_layers() -> None:
    """PC-108."""
    plan = plan_kv_cache(layers(28, full()), 280 * PAGE, PlanOptions(max_model_len=16))
    assert (plan.num_blocks, plan.bytes_per_block) == (10, 28 * PAGE)


@pytest.mark.parametrize("memory", [20 * PAGE, 0, -1])
def test_a_stage_without_layers_takes_the_others_block_count(memory: int) -> None:
    """PX-013."""
    options = PlanOptions(max_model_len=64)
    first, second = plan_workers([layers(2, full()), {}], [20 * PAGE, memory], options)
    assert (first.num_blocks, second.num_blocks) == (10, 10)
    assert second.tensors == ()
    assert first.max_concurrency == second.max_concurrency


@pytest.mark.parametrize("memory", [0, -5])
def test_a_model_without_cached_layers_needs_nothing(memory: int) -> None:
    """PX-014."""
    options = PlanOptions(auto_fit=True, num_blocks_override=7)
    for plan in plan_workers([{}, {}], [memory, memory], options):
        assert (plan.num_blocks, plan.max_model_len) == (1, options.max_model_len)
        assert (plan.tensors, plan.groups) == ((), ())
