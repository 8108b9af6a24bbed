"""Properties of plans that must hold for every model."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from prefixhash.errors import (
    IncompatibleLayersError,
    IncompatiblePageSizesError,
    InvalidArgumentError,
    NotEnoughMemoryError,
    UnsupportedCombinationError,
)
from prefixhash.layout import (
    HEAD_MAJOR,
    KV_OUTERMOST,
    TOKEN_MAJOR,
    BlockLayout,
    FullAttentionSpec,
    KernelLayout,
    KVCacheGroup,
    KVCachePlan,
    LayerSpec,
    MambaSpec,
    PlanOptions,
    SlidingWindowSpec,
    TensorView,
    approximate_gcd,
    equal_group_size,
    estimate_max_model_len,
    group_layers,
    lay_out_block,
    plan_kv_cache,
    plan_workers,
    tensor_views,
)
from prefixhash.layout.kernel_layouts import Layouts, layouts_by_layer
from prefixhash.layout.row_formats import ITEM_SIZES

from .models import OPTIONS, models

LAYOUTS = st.sampled_from([None, TOKEN_MAJOR, HEAD_MAJOR, KV_OUTERMOST])
REFUSED = (IncompatibleLayersError, IncompatiblePageSizesError, UnsupportedCombinationError)


def grouped(model: dict[str, LayerSpec], options: PlanOptions) -> tuple[KVCacheGroup, ...]:
    """Groups, or the example is given up: not every mixture of layers can be planned."""
    try:
        return group_layers(model, options)
    except REFUSED as error:
        note(repr(error))
        assume(False)
        raise


def touched(view: TensorView, layout: KernelLayout | None, split: int) -> Iterator[tuple[int, Any]]:
    """(block id, bytes of the buffer) for every block of a view."""
    item = ITEM_SIZES[view.dtype]
    axis = 0 if layout is None else layout.block_axis
    inner = numpy.zeros(1, dtype=numpy.int64)
    for place, (size, stride) in enumerate(zip(view.shape, view.stride, strict=True)):
        if place != axis:
            inner = (inner[:, None] + numpy.arange(size) * stride).ravel()
    for block in range(view.shape[axis] // split):
        kernels = numpy.arange(block * split, (block + 1) * split) * view.stride[axis]
        elements = (kernels[:, None] + inner).ravel() + view.storage_offset
        yield block, (elements[:, None] * item + numpy.arange(item)).ravel()


@settings(max_examples=150)
@given(models(), OPTIONS, LAYOUTS, st.integers(1, 3), st.sampled_from([1, 1, 2]))
def test_no_byte_has_two_owners(
    model: dict[str, LayerSpec],
    options: PlanOptions,
    layouts: KernelLayout | None,
    blocks: int,
    split: int,
) -> None:
    """Within a group a byte has one (layer, block); across groups only equal ids share bytes."""
    groups = grouped(model, options)
    layout = lay_out_block(groups, cross_layer_packing=options.cross_layer_packing)
    tokens = [group.block_size // split for group in groups]
    try:
        tensor_views(groups, layout, blocks, layouts, tokens)
    except (UnsupportedCombinationError, InvalidArgumentError) as error:
        note(repr(error))
        assume(False)
    check_owners(groups, layout, blocks, layouts, split)


ATTENTION = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=4)
STATE = MambaSpec(block_size=64, state_shapes=((4, 6), (3,)), state_dtypes=("float32", "bfloat16"))
WINDOW = SlidingWindowSpec(block_size=4, num_kv_heads=2, head_size=4, window=8)


@pytest.mark.parametrize("second", [STATE, WINDOW], ids=["states", "window"])
@pytest.mark.parametrize("layouts", [TOKEN_MAJOR, HEAD_MAJOR, KV_OUTERMOST])
@pytest.mark.parametrize("packed", [False, True])
def test_no_byte_has_two_owners_next_to_other_kinds(
    second: LayerSpec, layouts: KernelLayout, packed: bool
) -> None:
    names = [f"{kind}{i}" for i in range(3) for kind in "ax"]
    model = {name: ATTENTION if name[0] == "a" else second for name in names}
    options = PlanOptions(cross_layer_packing=packed)
    groups = group_layers(model, options)
    layout = lay_out_block(groups, cross_layer_packing=packed)
    if packed and layouts is KV_OUTERMOST:
        with pytest.raises(UnsupportedCombinationError, match="packed page needs"):
            tensor_views(groups, layout, 3, layouts)
        return
    check_owners(groups, layout, 3, layouts, 1)
    if layouts is KV_OUTERMOST:
        # Mixed in one buffer: the second kind reads whole blocks.
        check_owners(groups, layout, 3, dict.fromkeys(names[::2], KV_OUTERMOST), 1)


def check_owners(
    groups: tuple[KVCacheGroup, ...], layout: BlockLayout, blocks: int, layouts: Layouts, split: int
) -> None:
    """Marks every byte of every buffer with who owns it; the first double owner fails."""
    tokens = [group.block_size // split for group in groups]
    views = tensor_views(groups, layout, blocks, layouts, tokens)
    chosen = layouts_by_layer(groups, layouts)
    sizes = [entry.size for entry in layout.tensors(blocks)]
    block_of = [numpy.full(size, -1) for size in sizes]
    for group in groups:
        owned = [numpy.zeros(size, dtype=bool) for size in sizes]
        for name in group.layer_names:
            pieces = split if name in chosen else 1
            for view in views[name]:
                for block, where in touched(view, chosen.get(name), pieces):
                    assert where.min() >= 0
                    assert where.max() < sizes[view.buffer]
                    assert len(numpy.unique(where)) == len(where)
                    assert not owned[view.buffer][where].any(), "one group, two owners"
                    owned[view.buffer][where] = True
                    others = block_of[view.buffer][where]
                    assert numpy.isin(others, (-1, block)).all(), "groups share unequal blocks"
                    block_of[view.buffer][where] = block


@given(models(), OPTIONS)
def test_grouping_keeps_every_layer_once_and_changes_nothing(
    model: dict[str, LayerSpec], options: PlanOptions
) -> None:
    before = copy.deepcopy(model)
    groups = grouped(model, options)
    assert (list(model), model) == (list(before), before)
    names = [name for group in groups for name in group.layer_names]
    assert sorted(names) == sorted(model)
    for group in groups:
        for name, spec in zip(group.layer_names, group.specs, strict=True):
            assert spec.content_size_bytes >= 1
            assert spec.type_key == group.spec.type_key
            assert getattr(spec, "num_kv_heads", None) == getattr(model[name], "num_kv_heads", None)


@given(models(), OPTIONS, st.integers(-10, 60_000))
def test_longest_length_is_the_exact_maximum(
    model: dict[str, LayerSpec], options: PlanOptions, memory: int
) -> None:
    groups = grouped(model, options)
    size = lay_out_block(groups, cross_layer_packing=options.cross_layer_packing).bytes_per_block

    def fits(length: int) -> bool:
        needed = sum(group.spec.block_need(options).at(length) for group in groups)
        blocks = memory // size
        return blocks > 0 and needed + (0 if options.count_null_block else 1) <= blocks

    scanned = max((n for n in range(1, options.max_model_len + 1) if fits(n)), default=0)
    assert estimate_max_model_len(groups, memory, options) == scanned


def plan_or_error(
    model: dict[str, LayerSpec], memory: int, options: PlanOptions
) -> KVCachePlan | NotEnoughMemoryError:
    try:
        return plan_kv_cache(model, memory, options)
    except NotEnoughMemoryError as error:
        return error


@given(models(), OPTIONS, st.integers(1, 10**6), st.booleans())
def test_a_plan_stays_within_its_memory(
    model: dict[str, LayerSpec], options: PlanOptions, memory: int, auto_fit: bool
) -> None:
    options = replace(options, auto_fit=auto_fit)
    grouped(model, options)
    plan = plan_or_error(model, memory, options)
    if isinstance(plan, NotEnoughMemoryError):
        assert plan.max_model_len < options.max_model_len
        assert not auto_fit or plan.max_model_len == 0
        assert plan.needed + plan.reserved > memory or plan.needed == 0
        return
    assert plan.total_bytes <= memory < plan.total_bytes + plan.bytes_per_block
    assert sum(plan.blocks_needed()) <= plan.usable_blocks
    assert plan.bytes_needed() <= plan.total_bytes
    assert all(unused >= 0 for unused in plan.unused_bytes)
    if plan.layout.packed:
        assert {entry.size for entry in plan.tensors} == {plan.total_bytes}
    else:
        assert sum(entry.size for entry in plan.tensors) == plan.total_bytes


@given(models(), OPTIONS, st.integers(1, 10**5), st.integers(0, 10**5))
def test_more_memory_is_never_worse(
    model: dict[str, LayerSpec], options: PlanOptions, memory: int, more: int
) -> None:
    options = replace(options, auto_fit=True)
    grouped(model, options)
    less = plan_or_error(model, memory, options)
    assume(isinstance(less, KVCachePlan))
    plan = plan_kv_cache(model, memory + more, options)
    assert isinstance(less, KVCachePlan)
    assert plan.num_blocks >= less.num_blocks
    assert plan.max_model_len >= less.max_model_len


@given(models(), OPTIONS, st.data())
def test_workers_agree(model: dict[str, LayerSpec], options: PlanOptions, data: Any) -> None:
    """Stages partition the layers; all get the same block tables and block count."""
    options = replace(options, max_model_len=1)
    grouped(model, options)
    stage_of = {name: data.draw(st.integers(0, 2)) for name in model}
    stages = [{n: s for n, s in model.items() if stage_of[n] == k} for k in range(3)]
    try:
        plans = plan_workers(stages, [1 << 20] * 3, options)
    except REFUSED:
        # The stages in turn may list the layers in another order than the model.
        assume(False)
        raise
    assert len({plan.num_blocks for plan in plans}) == 1
    assert len({plan.blocks_needed() for plan in plans}) == 1
    for plan, stage in zip(plans, stages, strict=True):
        assert set(plan.layer_specs) == set(stage)
        assert plan.total_bytes <= 1 << 20
        assert bool(plan.tensors) == bool(stage)
    sizes = [[group.block_size for group in plan.groups] for plan in plans]
    assert sizes[0] == sizes[1] == sizes[2]


@given(models(), OPTIONS)
def test_plans_are_values(model: dict[str, LayerSpec], options: PlanOptions) -> None:
    options = replace(options, max_model_len=1)
    grouped(model, options)
    plan = plan_kv_cache(model, 1 << 22, options)
    again: KVCachePlan = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.tensors == plan.tensors


SIZES = st.sampled_from([3, 12, 60, 400])


@settings(max_examples=300)
@given(
    st.lists(SIZES.flatmap(lambda top: st.integers(1, top)), min_size=1, max_size=6),
    st.none() | SIZES.flatmap(lambda top: st.integers(-3, top)),
)
def test_approximate_gcd_equals_the_brute_force(values: list[int], bound: int | None) -> None:
    low = max(1, bound or 1)

    def padding(d: int) -> tuple[int, int]:
        return sum(-value % d for value in values), -d

    brute = min(range(low, max(values) + 1), key=padding) if low <= max(values) else low
    assert approximate_gcd(values, lower_bound=bound) == brute


@settings(max_examples=100)
@given(st.lists(st.integers(1, 20_000), min_size=2, max_size=5), st.integers(1, 2_000))
def test_approximate_gcd_of_large_values(values: list[int], bound: int) -> None:
    """Only where a quotient drops can padding be least: ceil(x / k), tried for every k."""
    assume(bound <= max(values))
    quotients = range(1, max(values) // bound + 2)
    tried = {bound} | {-(-value // k) for value in values for k in quotients}

    def padding(d: int) -> tuple[int, int]:
        return sum(-value % d for value in values), -d

    assert approximate_gcd(values, bound) == min((d for d in tried if d >= bound), key=padding)


@pytest.mark.parametrize(
    ("values", "bound", "expected"),
    [
        # Linear in the maximum, these would take weeks.
        ([10**30, 10**30 + 1], None, 1),
        ([10**30, 6], 4, 8),
        ([6 * 10**11, 9 * 10**11 + 3], None, 3),
        ([6 * 10**11, 9 * 10**11], 3 * 10**11, 3 * 10**11),
        ([10**12 - 1, 10**12 - 39], 2, 37),
        ([10**12 - 1, 10**12 - 39], 10**5, 10**12 - 1),
    ],
)
def test_approximate_gcd_of_huge_values(
    values: list[int], bound: int | None, expected: int
) -> None:
    assert approximate_gcd(values, lower_bound=bound) == expected


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.floats(0, 5))
def test_least_cost_is_least(counts: list[int], price: float) -> None:
    def cost(size: int) -> float:
        groups = sum(-(-count // size) for count in counts)
        return groups * size - sum(counts) + price * groups

    options = PlanOptions(group_policy="least_cost", group_price=price)
    best = cost(equal_group_size(counts, options))
    assert best == min(cost(size) for size in range(1, max(counts) + 1))
    assert best <= cost(equal_group_size(counts, PlanOptions()))


def test_least_cost_of_a_wide_draft() -> None:
    """12 + 12 + 1 layers: the 1.5 rule makes 25 groups of one layer."""
    counts = [12, 12, 1]
    assert equal_group_size(counts, PlanOptions()) == 1
    assert equal_group_size(counts, PlanOptions(group_policy="least_cost")) == 6


def test_needs_never_fall_with_the_length() -> None:
    for mode, batch in itertools.product(("none", "align", "all"), (1, 64)):
        options = PlanOptions(
            state_cache_mode=mode, max_num_batched_tokens=batch, max_encoder_tokens=9
        )
        for spec in _one_of_each():
            need = spec.block_need(options)
            blocks = [need.at(length) for length in range(1, 400)]
            assert blocks == sorted(blocks)


def _one_of_each() -> list[LayerSpec]:
    from .test_specs import ALL_KINDS

    return ALL_KINDS
