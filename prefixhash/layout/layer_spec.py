"""What all layer specs share: identity by value, pages, padding, rows of attention layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError, UnsupportedCombinationError
from prefixhash.layout.checks import instance, keep, keep_flags, keep_integers
from prefixhash.layout.options import BlockNeed, PlanOptions
from prefixhash.layout.row_formats import ITEM_SIZES, PLAIN, RowFormat, dtype_name

SpecT = TypeVar("SpecT", bound="LayerSpec")
AttentionT = TypeVar("AttentionT", bound="AttentionSpec")


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerSpec:
    """What all kinds share: tokens per block, and padding of the page.

    `page_size_padded` (bytes) replaces the page and must not be below the real one; `alignment`
    rounds the page up to a multiple, unless `page_size_padded` is given.
    """

    # Name of the kind in records, "" for a base of several kinds; `title` is what people read.
    kind: ClassVar[str] = ""
    title: ClassVar[str] = ""
    # Layers of one family with equal blocks (and windows) need equally many blocks.
    family: ClassVar[str] = ""
    # Whether anything is stored between two steps.
    is_cached: ClassVar[bool] = True
    # Worked out once for each spec, at construction; no fields. `identity` is what is compared and
    # hashed: the class, and the fields in one form. Layers with equal `type_key` need equally many
    # blocks and can form one group.
    identity: ClassVar[tuple[object, ...]]
    type_key: ClassVar[tuple[object, ...]]

    block_size: int
    page_size_padded: int | None = None
    alignment: int | None = None

    def __post_init__(self) -> None:
        if not self.kind:
            problem = "is what several kinds share: use one of them, such as FullAttentionSpec"
            raise UnsupportedCombinationError(type(self).__name__, problem)
        keep_integers(self, 1, "block_size")
        keep_integers(self, 1, "page_size_padded", "alignment", optional=True)
        self._check()
        real = self._content_bytes()
        page = -(-real // (self.alignment or 1)) * (self.alignment or 1)
        if self.page_size_padded is not None:
            page = self.page_size_padded
        if page < real:
            problem = f"is below the {real} bytes that the page holds"
            raise InvalidArgumentError("page_size_padded", page, problem)
        keep(self, "_content", real)
        keep(self, "_page", page)
        keep(self, "identity", (type(self), *self._compared().values()))
        keep(self, "_hash", hash(self.identity))
        keep(self, "type_key", self._type_key())

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
    def reach(self) -> int | None:
        """Tokens of the window or chunk that is kept; None where that is no fixed number."""
        return None

    @property
    def granule(self) -> int:
        """The page is a whole number of so many bytes."""
        return 1

    def _type_key(self) -> tuple[object, ...]:
        return self.family, self.block_size

    def block_need(self, options: PlanOptions) -> BlockNeed:
        """Most blocks that one request holds in this layer, as a function of its length."""
        return self._block_need(instance("options", options, PlanOptions, "PlanOptions"))

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        raise NotImplementedError

    def with_block_size(self: SpecT, block_size: int) -> SpecT:
        """The same layer with other blocks; a padded page grows or shrinks with them."""
        block_size = _arguments.integer("block_size", block_size, 1)
        padded = self.page_size_padded
        if padded is not None:
            padded = -(-padded * block_size // self.block_size)
        return dataclasses.replace(self, block_size=block_size, page_size_padded=padded)

    def padded_to(self: SpecT, page_size: int) -> SpecT:
        """The same layer with a page of exactly `page_size` bytes."""
        page_size = _arguments.integer("page_size", page_size, 1)
        if page_size == self.page_size_bytes:
            return self
        return dataclasses.replace(self, page_size_padded=page_size)

    def grown_to(self: SpecT, page_size: int) -> SpecT | None:
        """The same layer with a page of exactly `page_size` bytes: larger blocks, or padding if its
        kernel takes that; None where neither comes to this size.
        """
        page_size = _arguments.integer("page_size", page_size, 1)
        growth, rest = divmod(page_size, self.page_size_bytes)
        if rest or not growth:
            return None
        # Pages grow no faster than blocks; what alignment loses on the way is padded.
        return self.with_block_size(self.block_size * growth).padded_to(page_size)

    def as_full(self, block_size: int) -> LayerSpec:
        """The layer as one that keeps every token, beside layers with blocks of `block_size`
        tokens; the layer itself where it keeps them all or has no such form.
        """
        return self

    def aligned_to(self: SpecT, alignment: int) -> SpecT:
        """The same layer with its page rounded up to a multiple of `alignment` bytes."""
        return dataclasses.replace(self, page_size_padded=None, alignment=alignment)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, LayerSpec):
            return NotImplemented
        return self.identity == other.identity

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
        keep_integers(self, 1, "num_kv_heads", "head_size")
        keep_integers(self, 1, "head_size_v", optional=True)
        keep_flags(self, "reads_by_block_stride")
        keep(self, "dtype", dtype_name(self.dtype))
        instance("row", self.row, RowFormat, "a RowFormat, such as PLAIN")
        if not self.row.is_plain and self.item_size != 1:
            problem = f"row format {self.row.name!r} stores bytes: use uint8 or another 1-byte type"
            raise InvalidArgumentError("dtype", self.dtype, problem)

    def _compared(self) -> dict[str, object]:
        return {**super()._compared(), "head_size_v": self.value_size}

    def grown_to(self: AttentionT, page_size: int) -> AttentionT | None:
        grown = super().grown_to(page_size)
        if grown is None and self.reads_by_block_stride:
            return self.padded_to(page_size)
        return grown

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
