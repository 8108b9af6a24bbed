"""Random models for the properties of the planner: few layers, small pages, every kind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from prefixhash.layout import (
    INT4_PER_TOKEN_HEAD,
    PER_TOKEN_HEAD,
    PLAIN,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    PlanOptions,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

Draw = st.DrawFn


@st.composite
def attention(draw: Draw, kind: type[LayerSpec], **extra: Any) -> LayerSpec:
    row = draw(st.sampled_from([PLAIN, PLAIN, PER_TOKEN_HEAD, INT4_PER_TOKEN_HEAD]))
    dtype = draw(st.sampled_from(["bfloat16", "float32"])) if row is PLAIN else "uint8"
    return kind(
        block_size=draw(st.sampled_from([4, 8, 16])),
        num_kv_heads=draw(st.sampled_from([1, 2, 3])),
        head_size=draw(st.sampled_from([4, 8, 12])),
        dtype=dtype,
        row=row,
        reads_by_block_stride=draw(st.booleans()),
        **{name: draw(values) for name, values in extra.items()},
    )  # type: ignore[call-arg]


@st.composite
def states(draw: Draw) -> MambaSpec:
    shapes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=2))
    dtypes = draw(
        st.lists(
            st.sampled_from(["float32", "bfloat16"]), min_size=len(shapes), max_size=len(shapes)
        )
    )
    return MambaSpec(
        block_size=draw(st.sampled_from([8, 64])),
        state_shapes=tuple(shapes),
        state_dtypes=tuple(sorted(dtypes, reverse=True)),
        speculative_blocks=draw(st.integers(0, 2)),
    )


@st.composite
def latent(draw: Draw, kind: type[LayerSpec] = MLAAttentionSpec, **extra: Any) -> LayerSpec:
    return kind(
        block_size=16,
        head_size=draw(st.sampled_from([8, 12, 32])),
        dtype="uint8",
        compress_ratio=draw(st.sampled_from([1, 4, 16])),
        alignment=draw(st.sampled_from([None, 24])),
        **{name: draw(values) for name, values in extra.items()},
    )  # type: ignore[call-arg]


ATTENTION = st.one_of(
    attention(FullAttentionSpec),
    attention(FullAttentionSpec, head_size_v=st.sampled_from([4, 8])),
    attention(SlidingWindowSpec, window=st.sampled_from([1, 9, 32])),
    attention(ChunkedLocalAttentionSpec, chunk=st.sampled_from([8, 20])),
    attention(CrossAttentionSpec),
)
HIDDEN = st.builds(
    HiddenStateSpec, block_size=st.just(16), num_kv_heads=st.integers(1, 3), head_size=st.just(8)
)
WINDOW_LATENT = st.builds(
    SlidingWindowMLASpec,
    block_size=st.sampled_from([2, 4]),
    head_size=st.sampled_from([8, 16]),
    dtype=st.just("uint8"),
    window=st.sampled_from([4, 8]),
)


@st.composite
def models(draw: Draw) -> dict[str, LayerSpec]:
    """Up to 12 layers of up to 4 different specs; sometimes of one kind, sometimes latent."""
    choices = draw(
        st.sampled_from(
            [
                ATTENTION,
                states(),
                ATTENTION | states(),
                latent(),
                latent() | WINDOW_LATENT,
                latent() | WINDOW_LATENT | HIDDEN | ATTENTION,
                ATTENTION | HIDDEN,
            ]
        )
    )
    specs = draw(st.lists(choices, min_size=1, max_size=4))
    order = draw(st.lists(st.integers(0, len(specs) - 1), min_size=1, max_size=12))
    return {f"layer{i}": specs[index] for i, index in enumerate(order)}


OPTIONS = st.builds(
    PlanOptions,
    max_model_len=st.integers(1, 300),
    max_num_batched_tokens=st.integers(1, 64),
    max_encoder_tokens=st.integers(0, 40),
    state_cache_mode=st.sampled_from(["none", "align", "all"]),
    cross_layer_packing=st.booleans(),
    hybrid_groups=st.booleans() | st.just(True),
    group_policy=st.sampled_from(["reference", "least_cost"]),
    count_null_block=st.booleans(),
)
