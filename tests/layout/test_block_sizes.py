"""Block sizes of the scheduler, the hash, the kernels, and attention beside states."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash.errors import (
    InvalidArgumentError,
    NoCommonBlockSizeError,
    UnsupportedCombinationError,
)
from prefixhash.layout import (
    FP4_BLOCK_SCALED,
    FullAttentionSpec,
    KVCacheGroup,
    MambaSpec,
    MultipleOf,
    SlidingWindowSpec,
    align_attention_with_states,
    grow_quantised_blocks,
    resolve_block_sizes,
    select_kernel_block_size,
)


def full(block_size: int) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=8, head_size=128)


def state(block_size: int) -> MambaSpec:
    return MambaSpec(block_size=block_size, state_shapes=((4, 8),), state_dtypes=("float32",))


@given(st.lists(st.sampled_from([4, 8, 12, 16, 48, 64]), min_size=2, max_size=4))
def test_hashes_of_every_group_are_a_subsequence(sizes: list[int]) -> None:
    found = resolve_block_sizes([full(size) for size in sizes], 16)
    assert all(size % found.hash == 0 and found.scheduler % size == 0 for size in sizes)
    assert found == (math.lcm(*sizes), math.gcd(*sizes))


def test_groups_and_specs_are_taken_alike() -> None:
    specs = [full(32), full(16)]
    groups = [KVCacheGroup((f"l{i}",), spec) for i, spec in enumerate(specs)]
    assert resolve_block_sizes(groups, 16) == resolve_block_sizes(specs, 16) == (32, 16)


def test_hashes_stay_coarse_where_states_have_other_blocks() -> None:
    assert resolve_block_sizes([full(16), state(16)], 16) == (16, 16)
    assert resolve_block_sizes([full(16), state(48)], 16, hash_block_size=8) == (48, 48)
    assert resolve_block_sizes([full(32), full(16)], 16, prefix_caching=False) == (32, 32)
    assert resolve_block_sizes([full(32), full(16)], 16, prefix_caching=False, connector=True) == (
        32,
        16,
    )


def test_a_requested_hash_block_must_divide() -> None:
    assert resolve_block_sizes([full(32), full(16)], 16, hash_block_size=8).hash == 8
    with pytest.raises(InvalidArgumentError, match=r"hash_block_size=12: .*use 16"):
        resolve_block_sizes([full(32), full(16)], 16, hash_block_size=12)


def test_context_parallelism_needs_one_group() -> None:
    assert resolve_block_sizes([full(16)], 16, context_ranks=8) == (128, 128)
    with pytest.raises(UnsupportedCombinationError, match="context_ranks"):
        resolve_block_sizes([full(16), full(32)], 16, context_ranks=2)


def test_a_kernel_block_divides_the_block_and_suits_all() -> None:
    assert select_kernel_block_size(256, [[64]]) == 64
    assert select_kernel_block_size(96, [[MultipleOf(16)], [32, 64]]) == 32
    assert select_kernel_block_size(40, []) == 40
    with pytest.raises(NoCommonBlockSizeError) as error:
        select_kernel_block_size(128, [[16], [64]])
    assert error.value.supported == ((16,), (64,))


@given(
    st.sampled_from([1024, 4096]),
    st.integers(1, 1 << 22),
    st.sampled_from([16, 64]),
    st.none() | st.sampled_from([16, 64, 512]),
)
def test_an_aligned_page_holds_the_state_with_little_padding(
    token: int, state_bytes: int, kernel: int, block_size: int | None
) -> None:
    found = align_attention_with_states(token, state_bytes, [kernel], block_size=block_size)
    page = found.attention_block_size * token
    assert page >= state_bytes
    assert page - state_bytes < max(kernel, block_size or 0) * token
    assert found.state_page_size_padded in (page, None)
    assert (found.state_page_size_padded is None) == (page == state_bytes)


def test_states_of_every_block_are_aligned_to_whole_chunks() -> None:
    """Mode `all`: blocks of 48 tokens that kernels take, chunks of 64: counted in 192s."""
    found = align_attention_with_states(
        100, 20_000, [48], state_cache_mode="all", state_block_size=64
    )
    assert found == (384, 384, 38_400)


def test_alignment_refuses_what_it_cannot_read() -> None:
    with pytest.raises(InvalidArgumentError, match="state_cache_mode"):
        align_attention_with_states(1024, 4096, [16], state_cache_mode="some")
    with pytest.raises(InvalidArgumentError, match="kernel_block_sizes"):
        align_attention_with_states(1024, 4096, [])
    assert align_attention_with_states(1024, 0, [MultipleOf(16)]) == (16, None, None)


def test_quantised_blocks_grow_over_the_others_page() -> None:
    quantised = FullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, dtype="uint8", row=FP4_BLOCK_SCALED
    )
    window = SlidingWindowSpec(block_size=32, num_kv_heads=8, head_size=128, window=1024)
    grown, (padded, larger) = grow_quantised_blocks(quantised, [window, full(64)], [16])
    assert grown.page_size_bytes >= window.page_size_bytes
    assert grown.page_size_bytes - window.page_size_bytes < quantised.page_size_bytes
    assert padded.page_size_bytes == grown.page_size_bytes
    assert (larger, window.page_size_bytes) == (full(64), 131072)
    assert grow_quantised_blocks(quantised, [], [16]) == (quantised, ())
