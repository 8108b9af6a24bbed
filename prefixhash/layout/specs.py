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
from typing import Any, ClassVar, TypeVar

from prefixhash.errors import InvalidArgumentError, UnsupportedCombinationError
from prefixhash.layout.options import BlockNeed, PlanOptions, require_positive
from prefixhash.layout.rows import ITEM_SIZES, PLAIN, RowFormat, dtype_name

SpecT = TypeVar("SpecT", bound="LayerSpec")


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerSpec:
    """What all kinds share: tokens per block, and padding of the page.

    `page_size_padded` (bytes) replaces the page and must not be below the real one; `alignment`
    rounds the page up to a multiple, unless `page_size_padded` is given.
    """

    kind: ClassVar[str]
    # Layers of one family with equal blocks (and windows) need equally many blocks.
    family: ClassVar[str]

    block_size: int
    page_size_padded: int | None = None
    alignment: int | None = None

    def __post_init__(self) -> None:
        require_positive("block_size", self.block_size)
        require_positive("page_size_padded", self.page_size_padded, optional=True)
        require_positive("alignment", self.alignment, optional=True)
        self._check()
        real = self._content_bytes()
        page = -(-real // (self.alignment or 1)) * (self.alignment or 1)
        if self.page_size_padded is not None:
            page = self.page_size_padded
        if page < real:
            problem = f"is below the {real} bytes that the page holds"
            raise InvalidArgumentError("page_size_padded", page, problem)
        set_once = object.__setattr__
        set_once(self, "_content", real)
        set_once(self, "_page", page)
        set_once(self, "_identity", (type(self), *self._compared().values()))
        set_once(self, "_hash", hash(self._identity))  # type: ignore[attr-defined]

    def _check(self) -> None:
        """Normalises and checks the fields of the kind."""

    def _content_bytes(self) -> int:
        raise NotImplementedError

    def _compared(self) -> dict[str, object]:
        """Field name to value, in the form that is compared."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block in this layer, padding included."""
        return self._page  # type: ignore[attr-defined,no-any-return]

    @property
    def content_size_bytes(self) -> int:
        """Bytes of one block in this layer that are used."""
        return self._content  # type: ignore[attr-defined,no-any-return]

    @property
    def rows_per_block(self) -> int:
        """Stored rows per block: the tokens, fewer where a layer compresses them."""
        return self.block_size

    @property
    def type_key(self) -> tuple[object, ...]:
        """Layers with equal keys need equally many blocks and can form one group."""
        return self.family, self.block_size

    def block_need(self, options: PlanOptions) -> BlockNeed:
        """Most blocks that one request holds in this layer, as a function of its length."""
        raise NotImplementedError

    def with_block_size(self: SpecT, block_size: int) -> SpecT:
        """The same layer with other blocks; a padded page grows or shrinks with them."""
        padded = self.page_size_padded
        if padded is not None:
            padded = -(-padded * block_size // self.block_size)
        return dataclasses.replace(self, block_size=block_size, page_size_padded=padded)

    def padded_to(self: SpecT, page_size: int) -> SpecT:
        """The same layer with a page of exactly `page_size` bytes."""
        if page_size == self.page_size_bytes:
            return self
        return dataclasses.replace(self, page_size_padded=page_size)

    def aligned_to(self: SpecT, alignment: int) -> SpecT:
        """The same layer with its page rounded up to a multiple of `alignment` bytes."""
        return dataclasses.replace(self, page_size_padded=None, alignment=alignment)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, LayerSpec):
            return NotImplemented
        mine, theirs = self._identity, other._identity  # type: ignore[attr-defined]
        return bool(mine == theirs)

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        # Rebuilt from the fields: hashes of strings differ from process to process.
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _rebuild, (type(self), values)


def _rebuild(cls: type[LayerSpec], values: dict[str, Any]) -> LayerSpec:
    return cls(**values)


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionSpec(LayerSpec):
    """Shared by all attention kinds.

    `dtype`: element type of the stored tensor, `row`: how a row of it is laid out; a packed or
    opaque row needs one-byte elements. `head_size_v` defaults to `head_size`.
    `reads_by_block_stride`: the kernel takes the distance of two blocks at run time, so that the
    page may be padded.
    """

    num_kv_heads: int
    head_size: int
    head_size_v: int | None = None
    dtype: str = "bfloat16"
    row: RowFormat = PLAIN
    reads_by_block_stride: bool = False

    def _check(self) -> None:
        require_positive("num_kv_heads", self.num_kv_heads)
        require_positive("head_size", self.head_size)
        require_positive("head_size_v", self.head_size_v, optional=True)
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        if not self.row.is_plain and self.item_size != 1:
            problem = f"row format {self.row.name!r} stores bytes: use uint8 or another 1-byte type"
            raise InvalidArgumentError("dtype", self.dtype, problem)

    def _compared(self) -> dict[str, object]:
        return {**super()._compared(), "head_size_v": self.value_size}

    def _content_bytes(self) -> int:
        return self.rows_per_block * self.num_kv_heads * self.row_bytes

    @property
    def item_size(self) -> int:
        """Bytes per element."""
        return ITEM_SIZES[self.dtype]

    @property
    def value_size(self) -> int:
        """Width of a value vector in elements."""
        return self.head_size if self.head_size_v is None else self.head_size_v

    @property
    def vector_widths(self) -> tuple[int, ...]:
        """Widths of the vectors of one row, in elements."""
        return self.head_size, self.value_size

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of one head."""
        return self.row.row_bytes(self.vector_widths, self.item_size)

    @property
    def scale_size_bytes(self) -> int:
        """Bytes of per-vector scales in one page."""
        return self.rows_per_block * self.num_kv_heads * self.row.scales(self.vector_widths)


@dataclass(frozen=True, eq=False, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Every token is kept. Need: ceil(length / (ranks * b)) blocks.

    `recorded_window`, `recorded_chunk`: the kernel attends locally although all is kept;
    `sink_len`, `reference_window`: carried for the kernel; `non_causal`: for the scheduler.
    """

    kind: ClassVar[str] = "full_attention"
    family: ClassVar[str] = "full"

    recorded_window: int | None = None
    recorded_chunk: int | None = None
    non_causal: bool = False
    sink_len: int | None = None
    reference_window: int | None = None

    def _check(self) -> None:
        super()._check()
        for field in ("recorded_window", "recorded_chunk", "reference_window"):
            require_positive(field, getattr(self, field), optional=True)

    def block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(self.block_size * options.context_ranks, None, 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """The last `window` tokens are kept. Need: ceil(min(window - 1 + step, length) / b) + 1 blocks:
    one more, because a window need not begin at a block's edge.
    """

    kind: ClassVar[str] = "sliding_window"
    family: ClassVar[str] = "sliding"

    window: int

    def _check(self) -> None:
        super()._check()
        require_positive("window", self.window)

    @property
    def type_key(self) -> tuple[object, ...]:
        return self.family, self.block_size, self.window

    def block_need(self, options: PlanOptions) -> BlockNeed:
        if options.decode_context_parallel > 1:
            raise UnsupportedCombinationError(
                "decode_context_parallel", "sliding windows cannot be dealt over ranks: use 1"
            )
        return BlockNeed(self.block_size, self.window - 1 + options.max_num_batched_tokens, 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """The current chunk of `chunk` tokens is kept. Need: ceil(min(chunk + step, length) / b)."""

    kind: ClassVar[str] = "chunked_local"
    family: ClassVar[str] = "chunked"

    chunk: int

    def _check(self) -> None:
        super()._check()
        require_positive("chunk", self.chunk)

    @property
    def type_key(self) -> tuple[object, ...]:
        return self.family, self.block_size, self.chunk

    def block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(self.block_size, self.chunk + options.max_num_batched_tokens, 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Keys and values of the encoder's tokens: ceil(encoder tokens / b) blocks at any length."""

    kind: ClassVar[str] = "cross_attention"
    family: ClassVar[str] = "cross"

    def block_need(self, options: PlanOptions) -> BlockNeed:
        if options.max_encoder_tokens is None:
            problem = "must be given for cross-attention layers"
            raise InvalidArgumentError("max_encoder_tokens", None, problem)
        return BlockNeed(1, 0, -(-options.max_encoder_tokens // self.block_size))


@dataclass(frozen=True, eq=False, kw_only=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """Keeps nothing between steps; the planner refuses it (such layers join without memory)."""

    kind: ClassVar[str] = "encoder_only"
    family: ClassVar[str] = "encoder_only"

    def block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(1, 0, 0)


class _LatentRows:
    """Rows of the latent kinds: one vector, one row per `compress_ratio` tokens."""

    block_size: int
    head_size: int
    head_size_v: int | None
    compress_ratio: int

    def _check_ratio(self) -> None:
        require_positive("compress_ratio", self.compress_ratio)
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
    family: ClassVar[str] = "full"

    num_kv_heads: int = 1
    compress_ratio: int = 1

    def _check(self) -> None:
        super()._check()
        self._check_ratio()

    def block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(self.block_size * options.context_ranks, None, 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class HiddenStateSpec(MLAAttentionSpec):
    """Captured hidden states: `num_kv_heads` layers of width `head_size` for every token."""

    kind: ClassVar[str] = "hidden_state"


@dataclass(frozen=True, eq=False, kw_only=True)
class SlidingWindowMLASpec(_LatentRows, SlidingWindowSpec):
    """Latent attention of which the last `window` tokens are kept."""

    kind: ClassVar[str] = "sliding_window_mla"

    num_kv_heads: int = 1
    compress_ratio: int = 1

    def _check(self) -> None:
        super()._check()
        self._check_ratio()


@dataclass(frozen=True, eq=False, kw_only=True)
class MambaSpec(LayerSpec):
    """State-space or linear-attention layer: state tensors of `state_shapes` and `state_dtypes`.

    The page does not depend on the block size, and is a multiple of every element size. Need: 1
    block (mode none), 2 (align) or ceil(length / b) (all), plus `speculative_blocks`.
    """

    kind: ClassVar[str] = "mamba"
    family: ClassVar[str] = "mamba"

    state_shapes: tuple[tuple[int, ...], ...]
    state_dtypes: tuple[str, ...]
    speculative_blocks: int = 0

    def _check(self) -> None:
        shapes = tuple(tuple(shape) for shape in self.state_shapes)
        dtypes = tuple(dtype_name(dtype, "state_dtypes") for dtype in self.state_dtypes)
        if not shapes or len(shapes) != len(dtypes):
            problem = (
                f"must name as many types as there are state_shapes ({len(shapes)}, at least 1)"
            )
            raise InvalidArgumentError("state_dtypes", dtypes, problem)
        for shape in shapes:
            for size in shape:
                require_positive("state_shapes", size)
        object.__setattr__(self, "state_shapes", shapes)
        object.__setattr__(self, "state_dtypes", dtypes)
        if self.speculative_blocks < 0:
            raise InvalidArgumentError("speculative_blocks", self.speculative_blocks, "negative")
        if self.page_size_padded is not None and self.page_size_padded % self._granule:
            problem = f"must be a multiple of {self._granule}, the states' widest element"
            raise InvalidArgumentError("page_size_padded", self.page_size_padded, problem)

    @property
    def _granule(self) -> int:
        return math.lcm(*(ITEM_SIZES[dtype] for dtype in self.state_dtypes))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Bytes of each state tensor."""
        pairs = zip(self.state_shapes, self.state_dtypes, strict=True)
        return tuple(math.prod(shape) * ITEM_SIZES[dtype] for shape, dtype in pairs)

    def _content_bytes(self) -> int:
        return -(-sum(self.state_sizes) // self._granule) * self._granule

    @property
    def type_key(self) -> tuple[object, ...]:
        return self.family, self.block_size, self.speculative_blocks

    def block_need(self, options: PlanOptions) -> BlockNeed:
        if options.state_cache_mode == "all":
            return BlockNeed(self.block_size, None, self.speculative_blocks)
        kept = 2 if options.state_cache_mode == "align" else 1
        return BlockNeed(1, 0, kept + self.speculative_blocks)

    def with_block_size(self: SpecT, block_size: int) -> SpecT:
        return dataclasses.replace(self, block_size=block_size)
