"""Tensors of a plan: views over the buffers, whole-block operations."""

from __future__ import annotations

from typing import Any

import pytest

from prefixhash.errors import (
    InvalidArgumentError,
    InvalidBlockError,
    UnsupportedCombinationError,
)
from prefixhash.layout import (
    HEAD_MAJOR,
    KV_OUTERMOST,
    LATENT_584,
    TOKEN_MAJOR,
    FullAttentionSpec,
    KernelLayout,
    KVCachePlan,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    PlanOptions,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    plan_kv_cache,
)

torch = pytest.importorskip("torch")

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, window=64)
STATE = MambaSpec(
    block_size=64, state_shapes=((4, 6), (3, 8)), state_dtypes=("float32", "bfloat16")
)


def make(layers: dict[str, LayerSpec], blocks: int = 5, **options: Any) -> KVCachePlan:
    return plan_kv_cache(
        layers, 1, PlanOptions(max_model_len=1, num_blocks_override=blocks, **options)
    )


HYBRID: dict[str, LayerSpec] = {"s0": WINDOW, "f0": FULL, "s1": WINDOW, "f1": FULL}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layout", [TOKEN_MAJOR, HEAD_MAJOR])
def test_views_are_strided_over_shared_buffers(packed: bool, layout: KernelLayout) -> None:
    plan = make(HYBRID, cross_layer_packing=packed)
    tensors = plan.allocate("cpu", layout)
    assert set(tensors) == set(HYBRID)
    assert len(tensors.buffers) == (1 if packed else 2)
    assert sum(buffer.numel() for buffer in tensors.buffers) == plan.total_bytes
    layer = tensors["f1"]
    assert isinstance(layer, torch.Tensor)
    assert layer.shape == (5, 2, 16, 2, 8)
    assert layer.dtype == torch.bfloat16
    assert not layer.any()
    step = plan.bytes_per_block if packed else FULL.page_size_bytes
    assert layer.stride(0) == step // 2
    # Logical shape is the same; heads lie outside tokens in memory if the kernel wants that.
    assert (layer.stride(3) > layer.stride(2)) == (layout is HEAD_MAJOR)


def test_layers_of_one_slot_share_bytes() -> None:
    tensors = make(HYBRID).allocate()
    tensors["s0"][3] = 7  # type: ignore[index]
    assert tensors["f0"][3].eq(7).all()
    assert not tensors["s1"].any()  # type: ignore[union-attr]
    assert not tensors["f0"][2].any()


@pytest.mark.parametrize("packed", [False, True])
def test_states_keep_to_their_page(packed: bool) -> None:
    model: dict[str, LayerSpec] = {"m0": STATE, "a0": FULL, "m1": STATE, "a1": FULL}
    tensors = make(model, cross_layer_packing=packed).allocate()
    wide, narrow = tensors["m1"]
    assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
    assert (wide.shape, narrow.shape) == ((5, 4, 6), (5, 3, 8))
    wide[1], narrow[1] = 1, 2
    assert wide[1].eq(1).all()
    assert narrow[1].eq(2).all()
    assert not tensors["m0"][0].any()
    assert tensors["a1"][1].any()
    assert not tensors["a1"][2].any()


def test_a_single_state_is_a_tuple_too() -> None:
    spec = MambaSpec(block_size=64, state_shapes=((4,),), state_dtypes=("float32",))
    (state,) = make({"m": spec}).allocate()["m"]
    assert state.shape == (5, 4)


def test_kv_outermost_keeps_keys_first() -> None:
    tensors = make({"a": FULL, "b": FULL}).allocate(layouts=KV_OUTERMOST)
    layer = tensors["a"]
    assert isinstance(layer, torch.Tensor)
    assert layer.shape == (2, 5, 16, 2, 8)
    assert layer.is_contiguous()


def test_kv_outermost_beside_states_keeps_blocks_together() -> None:
    tensors = make({"m": STATE, "a": FULL}).allocate(layouts=KV_OUTERMOST)
    layer = tensors["a"]
    assert isinstance(layer, torch.Tensor)
    assert layer.shape == (2, 5, 16, 2, 8)
    assert layer.stride()[:2] == (256, 512)


def test_kv_outermost_beside_states_keeps_blocks_whole_in_every_buffer() -> None:
    """Also in the buffer that no state shares: kernels read all attention layers alike."""
    tensors = make({"m": STATE, "a": FULL, "b": FULL}, group_policy="least_cost").allocate(
        layouts=KV_OUTERMOST
    )
    strides = {tensors[name].stride() for name in "ab"}  # type: ignore[union-attr]
    assert len(tensors.buffers) == 2
    assert strides == {(256, 512, 16, 8, 1)}


def test_states_that_would_be_misaligned_are_refused() -> None:
    mixed = MambaSpec(
        block_size=64, state_shapes=((3,), (4,)), state_dtypes=("bfloat16", "float32")
    )
    with pytest.raises(UnsupportedCombinationError, match="wider elements first"):
        make({"m": mixed}).allocate("meta")


def test_kv_outermost_cannot_be_packed() -> None:
    with pytest.raises(UnsupportedCombinationError, match="packed page needs"):
        make(HYBRID, cross_layer_packing=True).allocate(layouts=KV_OUTERMOST)


def test_kernel_blocks_split_plain_pages_only() -> None:
    spec = FullAttentionSpec(block_size=64, num_kv_heads=2, head_size=8)
    layer = make({"a": spec}).allocate(kernel_block_sizes=[16])["a"]
    assert layer.shape == (20, 2, 16, 2, 8)  # type: ignore[union-attr]
    message = "of 64 tokens cannot be split into 4 kernel blocks: pages of 4096 bytes lie 8192"
    with pytest.raises(UnsupportedCombinationError, match=message):
        make({"a": spec, "b": WINDOW, "c": spec, "d": WINDOW}, cross_layer_packing=True).allocate(
            kernel_block_sizes=[16, 16]
        )
    with pytest.raises(InvalidArgumentError, match="kernel_block_sizes=48"):
        make({"a": spec}).allocate(kernel_block_sizes=[48])


def test_latent_and_window_latent_rows() -> None:
    latent = MLAAttentionSpec(
        block_size=64, head_size=512, dtype="uint8", row=LATENT_584, compress_ratio=4, alignment=576
    )
    window = SlidingWindowMLASpec(block_size=4, head_size=512, dtype="float32", window=8)
    tensors = make({"a": latent, "w": window}).allocate()
    assert tensors["a"].shape == (5, 16, 584)  # type: ignore[union-attr]
    assert tensors["w"].shape == (5, 4, 512)  # type: ignore[union-attr]
    assert len(tensors.buffers) == 1


def test_a_kernel_that_asks_for_another_width_is_refused() -> None:
    latent = MLAAttentionSpec(block_size=64, head_size=576, dtype="uint8", row=LATENT_584)
    wrong = KernelLayout(("blocks", "tokens", 576))
    with pytest.raises(UnsupportedCombinationError, match="36864 bytes of a block"):
        make({"a": latent}).allocate(layouts={"a": wrong})


def test_rows_with_two_widths_are_whole_rows() -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=24, head_size_v=16)
    assert make({"a": spec}).allocate()["a"].shape == (5, 16, 2, 40)  # type: ignore[union-attr]


def test_meta_needs_no_memory() -> None:
    plan = plan_kv_cache({"a": FULL}, 1 << 50)
    tensors = plan.allocate("meta")
    assert tensors["a"].shape[0] == plan.num_blocks  # type: ignore[union-attr]
    assert tensors.block_size_bytes == plan.bytes_per_block


PLANS: dict[str, tuple[dict[str, LayerSpec], dict[str, Any], KernelLayout | None]] = {
    "shared": (HYBRID, {}, None),
    "packed": (HYBRID, {"cross_layer_packing": True}, HEAD_MAJOR),
    "kv outermost": ({"a": FULL, "b": FULL}, {}, KV_OUTERMOST),
    "states": ({"m": STATE, "a": FULL}, {}, None),
}


@pytest.mark.parametrize("name", PLANS)
def test_block_operations_touch_whole_blocks(name: str) -> None:
    layers, options, layout = PLANS[name]
    plan = make(layers, **options)
    tensors = plan.allocate(layouts=layout)
    for buffer in tensors.buffers:
        buffer.copy_(torch.randint(1, 255, buffer.shape, dtype=torch.uint8))
    before = [tensors.block_bytes(i) for i in range(5)]
    assert {len(block) for block in before} == {plan.bytes_per_block}
    tensors.copy_blocks([(1, 2), (2, 1), (1, 4)])
    after = [tensors.block_bytes(i) for i in range(5)]
    for block, source in enumerate((0, 2, 1, 3, 1)):
        assert after[block].equal(before[source])
    tensors.zero_blocks([0, 3])
    assert not tensors.block_bytes(3).any()
    assert tensors.block_bytes(4).equal(before[1])
    tensors.load_block(3, before[3])
    assert tensors.block_bytes(3).equal(before[3])


def test_a_block_holds_what_the_views_show() -> None:
    """K/V-outermost: both halves of a block move together."""
    tensors = make({"a": FULL}).allocate(layouts=KV_OUTERMOST)
    layer = tensors["a"]
    assert isinstance(layer, torch.Tensor)
    layer[0, 1], layer[1, 1] = 3, 4
    tensors.copy_blocks([(1, 4)])
    assert layer[:, 4].equal(layer[:, 1])
    assert not layer[:, 3].any()


@pytest.mark.parametrize("pairs", [[(1, 5)], [(-1, 2)], [(1, 0)], [(1, 2), (9, 3)]])
def test_bad_copies_change_nothing(pairs: list[tuple[int, int]]) -> None:
    tensors = make({"a": FULL}).allocate()
    tensors["a"][1] = 1  # type: ignore[index]
    with pytest.raises(InvalidBlockError):
        tensors.copy_blocks(pairs)
    assert not tensors["a"][2:].any()


def test_a_destination_is_named_once() -> None:
    with pytest.raises(InvalidArgumentError, match="twice"):
        make({"a": FULL}).allocate().copy_blocks([(1, 2), (3, 2)])


def test_only_a_block_of_this_plan_can_be_loaded() -> None:
    tensors = make({"a": FULL}).allocate()
    with pytest.raises(InvalidArgumentError, match=r"shape \(1024,\)"):
        tensors.load_block(1, torch.zeros(3, dtype=torch.uint8))


def test_a_worker_without_layers_has_no_tensors() -> None:
    tensors = make({}).allocate()
    assert len(tensors) == 0
    assert tensors.buffers == ()
    assert tensors.block_size_bytes == 0
    tensors.zero_blocks([0])
