"""Layer specs: frozen values that say what one layer keeps per block, in bytes.

Page formulas (b tokens per block, h heads on this rank, d / dv key / value width):

* attention: b * h * row, where row holds a key of d and a value of dv elements;
* latent: (b / ratio) * h * row, where row holds one vector of d elements;
* state space: the sum of the state tensors, whatever b.

Specs are compared and hashed by all their fields; both are worked out once, at construction.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from prefixhash import _arguments
from prefixhash._arguments import sequence
from prefixhash.errors import InvalidArgumentError, UnsupportedCombinationError
from prefixhash.layout.checks import integers, keep, keep_flags, keep_integers
from prefixhash.layout.layer_spec import AttentionSpec, LayerSpec, SpecT
from prefixhash.layout.options import BlockNeed, PlanOptions
from prefixhash.layout.row_formats import ITEM_SIZES, dtype_name

__all__ = [
    "AttentionSpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "HiddenStateSpec",
    "LayerSpec",
    "MLAAttentionSpec",
    "MambaSpec",
    "SlidingWindowMLASpec",
    "SlidingWindowSpec",
]


@dataclass(frozen=True, eq=False, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Every token is kept. Need: ceil(length / (ranks * b)) blocks.

    `recorded_window`, `recorded_chunk`: the kernel attends locally although all is kept;
    `sink_len`, `reference_window`: carried for the kernel; `non_causal`: for the scheduler.
    """

    kind: ClassVar[str] = "full_attention"
    title: ClassVar[str] = "full attention"
    family: ClassVar[str] = "full"

    recorded_window: int | None = None
    recorded_chunk: int | None = None
    non_causal: bool = False
    sink_len: int | None = None
    reference_window: int | None = None

    def _check(self) -> None:
        super()._check()
        fields = ("recorded_window", "recorded_chunk", "reference_window")
        keep_integers(self, 1, *fields, optional=True)
        keep_integers(self, 0, "sink_len", optional=True)
        keep_flags(self, "non_causal")

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(self.block_size * options.context_ranks, None, 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """The last `window` tokens are kept. Need: ceil(min(window - 1 + step, length) / b) + 1 blocks:
    one more, because a window need not begin at a block's edge.
    """

    kind: ClassVar[str] = "sliding_window"
    title: ClassVar[str] = "sliding window"
    family: ClassVar[str] = "sliding"

    window: int

    def _check(self) -> None:
        super()._check()
        keep_integers(self, 1, "window")

    @property
    def reach(self) -> int:
        return self.window

    def _type_key(self) -> tuple[object, ...]:
        return self.family, self.block_size, self.window

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        if options.decode_context_parallel > 1:
            raise UnsupportedCombinationError(
                "decode_context_parallel", "sliding windows cannot be dealt over ranks: use 1"
            )
        return BlockNeed(self.block_size, self.window - 1 + options.max_num_batched_tokens, 1)

    def as_full(self, block_size: int) -> LayerSpec:
        return FullAttentionSpec(**_kept(self), recorded_window=self.window)


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """The current chunk of `chunk` tokens is kept. Need: ceil(min(chunk + step, length) / b)."""

    kind: ClassVar[str] = "chunked_local"
    title: ClassVar[str] = "chunked local"
    family: ClassVar[str] = "chunked"

    chunk: int

    def _check(self) -> None:
        super()._check()
        keep_integers(self, 1, "chunk")

    @property
    def reach(self) -> int:
        return self.chunk

    def _type_key(self) -> tuple[object, ...]:
        return self.family, self.block_size, self.chunk

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(self.block_size, self.chunk + options.max_num_batched_tokens, 0)

    def as_full(self, block_size: int) -> LayerSpec:
        return FullAttentionSpec(**_kept(self), recorded_chunk=self.chunk)


@dataclass(frozen=True, eq=False, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Keys and values of the encoder's tokens: ceil(encoder tokens / b) blocks at any length."""

    kind: ClassVar[str] = "cross_attention"
    title: ClassVar[str] = "cross attention"
    family: ClassVar[str] = "cross"

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        if options.max_encoder_tokens is None:
            problem = "must be given for cross-attention layers"
            raise InvalidArgumentError("max_encoder_tokens", None, problem)
        return BlockNeed(1, 0, -(-options.max_encoder_tokens // self.block_size))


@dataclass(frozen=True, eq=False, kw_only=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """Keeps nothing between steps; the planner refuses it (such layers join without memory)."""

    kind: ClassVar[str] = "encoder_only"
    title: ClassVar[str] = "encoder-only"
    family: ClassVar[str] = "encoder_only"
    is_cached: ClassVar[bool] = False

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(1, 0, 0)


class _LatentRows:
    """Rows of the latent kinds: one vector, one row per `compress_ratio` tokens."""

    block_size: int
    head_size: int
    head_size_v: int | None
    compress_ratio: int

    def _check_ratio(self) -> None:
        keep_integers(self, 1, "compress_ratio")
        if self.block_size % self.compress_ratio:
            problem = f"must divide block_size={self.block_size}"
            raise InvalidArgumentError("compress_ratio", self.compress_ratio, problem)
        if self.head_size_v is not None:
            problem = "a latent row has no separate value: leave it out"
            raise InvalidArgumentError("head_size_v", self.head_size_v, problem)

    @property
    def rows_per_block(self) -> int:
        return self.block_size // self.compress_ratio

    @property
    def vector_widths(self) -> tuple[int, ...]:
        return (self.head_size,)


@dataclass(frozen=True, eq=False, kw_only=True)
class MLAAttentionSpec(_LatentRows, AttentionSpec):
    """Latent attention: one vector per row, every token kept."""

    kind: ClassVar[str] = "mla"
    title: ClassVar[str] = "MLA"
    family: ClassVar[str] = "full"

    num_kv_heads: int = 1
    compress_ratio: int = 1

    def _check(self) -> None:
        super()._check()
        self._check_ratio()

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(self.block_size * options.context_ranks, None, 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class HiddenStateSpec(MLAAttentionSpec):
    """Captured hidden states: `num_kv_heads` layers of width `head_size` for every token."""

    kind: ClassVar[str] = "hidden_state"
    title: ClassVar[str] = "hidden states"


@dataclass(frozen=True, eq=False, kw_only=True)
class SlidingWindowMLASpec(_LatentRows, SlidingWindowSpec):
    """Latent attention of which the last `window` tokens are kept."""

    kind: ClassVar[str] = "sliding_window_mla"
    title: ClassVar[str] = "sliding-window MLA"

    num_kv_heads: int = 1
    compress_ratio: int = 1

    def _check(self) -> None:
        super()._check()
        self._check_ratio()

    def as_full(self, block_size: int) -> LayerSpec:
        block_size = _arguments.integer("block_size", block_size, 1)
        moved = self if block_size == self.block_size else self.with_block_size(block_size)
        return MLAAttentionSpec(**_kept(moved))


@dataclass(frozen=True, eq=False, kw_only=True)
class MambaSpec(LayerSpec):
    """State-space or linear-attention layer: state tensors of `state_shapes` and `state_dtypes`.

    The page does not depend on the block size, and is a multiple of every element size. Need: 1
    block (mode none), 2 (align) or ceil(length / b) (all), plus `speculative_blocks`.
    """

    kind: ClassVar[str] = "mamba"
    title: ClassVar[str] = "state (Mamba)"
    family: ClassVar[str] = "mamba"

    state_shapes: tuple[tuple[int, ...], ...]
    state_dtypes: tuple[str, ...]
    speculative_blocks: int = 0

    def _check(self) -> None:
        what = "a sequence with an entry per state"
        shapes = tuple(
            integers("state_shapes", shape, 1, "a sequence of sizes for each state")
            for shape in sequence("state_shapes", self.state_shapes, what)
        )
        dtypes = tuple(
            dtype_name(dtype, "state_dtypes")
            for dtype in sequence("state_dtypes", self.state_dtypes, what)
        )
        if not shapes or len(shapes) != len(dtypes):
            problem = (
                f"must name as many types as there are state_shapes ({len(shapes)}, at least 1)"
            )
            raise InvalidArgumentError("state_dtypes", dtypes, problem)
        keep(self, "state_shapes", shapes)
        keep(self, "state_dtypes", dtypes)
        keep_integers(self, 0, "speculative_blocks")
        if self.page_size_padded is not None and self.page_size_padded % self.granule:
            problem = f"must be a multiple of {self.granule}, the states' widest element"
            raise InvalidArgumentError("page_size_padded", self.page_size_padded, problem)

    @property
    def granule(self) -> int:
        """The least common multiple of the states' elements, each of which its view counts in."""
        return math.lcm(*(ITEM_SIZES[dtype] for dtype in self.state_dtypes))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Bytes of each state tensor."""
        pairs = zip(self.state_shapes, self.state_dtypes, strict=True)
        return tuple(math.prod(shape) * ITEM_SIZES[dtype] for shape, dtype in pairs)

    def _content_bytes(self) -> int:
        return -(-sum(self.state_sizes) // self.granule) * self.granule

    def _type_key(self) -> tuple[object, ...]:
        return self.family, self.block_size, self.speculative_blocks

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        if options.state_cache_mode == "all":
            return BlockNeed(self.block_size, None, self.speculative_blocks)
        kept = 2 if options.state_cache_mode == "align" else 1
        return BlockNeed(1, 0, kept + self.speculative_blocks)

    def with_block_size(self: SpecT, block_size: int) -> SpecT:
        return dataclasses.replace(self, block_size=block_size)

    def grown_to(self: SpecT, page_size: int) -> SpecT:
        # The page does not grow with its block.
        return self.padded_to(page_size)


def _kept(spec: AttentionSpec) -> dict[str, Any]:
    """The fields that the form with every token has, too."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    # A stride is of no use in a single group, and vLLM drops it, too.
    for name in ("window", "chunk", "reads_by_block_stride"):
        fields.pop(name, None)
    return fields
