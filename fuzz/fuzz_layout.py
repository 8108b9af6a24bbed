"""Fuzz target: any model is refused by a planning error, or planned within its memory.

python fuzz/fuzz_layout.py fuzz/corpus/layout        # with atheris installed
"""

from __future__ import annotations

import sys

from prefixhash.errors import InvalidArgumentError, PlanningError
from prefixhash.layout import (
    INT4_PER_TOKEN_HEAD,
    PER_TOKEN_HEAD,
    PLAIN,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateSpec,
    KVCachePlan,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    PlanOptions,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    plan_workers,
    tensor_views,
)


class _Bytes:
    """Small decisions read off the input; zeros when it is used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, limit: int) -> int:
        self._at += 1
        return self._data[self._at - 1] % limit if self._at <= len(self._data) else 0

    def large(self) -> int:
        return self.below(256) << self.below(24)


def TestOneInput(data: bytes) -> None:
    source = _Bytes(data)
    try:
        options = _options(source)
        specs = [_spec(source) for _ in range(1 + source.below(4))]
        layers = {f"layer{i}": specs[source.below(len(specs))] for i in range(source.below(13))}
        stages: list[dict[str, LayerSpec]] = [{} for _ in range(1 + source.below(3))]
        for name, spec in layers.items():
            stages[source.below(len(stages))][name] = spec
        memory = [source.large() - 4 for _ in stages]
        plans = plan_workers(stages, memory, options)
    except (PlanningError, InvalidArgumentError):
        return
    for plan, stage, available in zip(plans, stages, memory, strict=True):
        _check(plan, stage, available)


def _options(source: _Bytes) -> PlanOptions:
    return PlanOptions(
        max_model_len=source.large(),
        auto_fit=bool(source.below(2)),
        max_num_batched_tokens=1 + source.below(99),
        max_encoder_tokens=source.below(99) - 1,
        num_blocks_override=[None, None, None, source.below(9)][source.below(4)],
        decode_context_parallel=1 + source.below(2),
        state_cache_mode=["none", "align", "all"][source.below(3)],
        hybrid_groups=bool(source.below(3)),
        cross_layer_packing=bool(source.below(2)),
        group_policy=["reference", "least_cost"][source.below(2)],
        count_null_block=bool(source.below(2)),
    )


def _spec(source: _Bytes) -> LayerSpec:
    row = [PLAIN, PLAIN, PER_TOKEN_HEAD, INT4_PER_TOKEN_HEAD][source.below(4)]
    dtype = "uint8" if row is not PLAIN else ["float32", "bfloat16"][source.below(2)]
    block, heads, size = 1 << source.below(7), 1 + source.below(4), 1 + source.below(40)
    padded = [None, source.large()][source.below(2)]
    alignment = [None, None, 24][source.below(3)]
    shape = {"block_size": block, "page_size_padded": padded, "alignment": alignment}
    attention = {"num_kv_heads": heads, "head_size": size, "dtype": dtype, "row": row, **shape}
    attention["reads_by_block_stride"] = bool(source.below(2))
    window = source.below(40)
    kind = source.below(9)
    if kind == 0:
        states = {"state_shapes": ((heads, size), (size,)), "state_dtypes": (dtype, "bfloat16")}
        return MambaSpec(**states, speculative_blocks=heads - 1, **shape)  # type: ignore[arg-type]
    if kind in (1, 2):
        classes = (MLAAttentionSpec, HiddenStateSpec)
        return classes[kind - 1](compress_ratio=1 << source.below(4), **attention)  # type: ignore[arg-type]
    if kind == 3:
        return SlidingWindowMLASpec(window=window, **attention)  # type: ignore[arg-type]
    if kind == 4:
        return SlidingWindowSpec(window=window, **attention)  # type: ignore[arg-type]
    if kind == 5:
        return ChunkedLocalAttentionSpec(chunk=window, **attention)  # type: ignore[arg-type]
    plain = (FullAttentionSpec, CrossAttentionSpec, EncoderOnlyAttentionSpec)
    return plain[kind - 6](**attention)  # type: ignore[arg-type]


def _check(plan: KVCachePlan, stage: dict[str, LayerSpec], available: int) -> None:
    if set(plan.layer_specs) != set(stage):
        raise AssertionError("layers were lost or invented")
    override = plan.options.num_blocks_override
    if stage and override is None and plan.total_bytes > available:
        raise AssertionError("the plan exceeds its memory")
    if stage and sum(plan.blocks_needed()) > plan.usable_blocks:
        raise AssertionError("a request of the planned length does not fit")
    if any(unused < 0 for unused in plan.unused_bytes):
        raise AssertionError("a group holds more than a block")
    try:
        tensor_views(plan.groups, plan.layout, 2)
    except PlanningError:
        return


if __name__ == "__main__":
    import atheris

    atheris.Setup(sys.argv, TestOneInput)
    atheris.Fuzz()
