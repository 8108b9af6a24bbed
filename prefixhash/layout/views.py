"""How each layer's tensor lies in the buffers: shape, strides, offset. Needs no torch.

A kernel states logical axes and their physical order (`KernelLayout`); strides follow from bytes in
physical order. In the packed layout and where a page is padded, only the distance of two blocks
differs from the contiguous case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefixhash import _arguments
from prefixhash._arguments import sequence
from prefixhash.errors import InvalidArgumentError, UnsupportedCombinationError
from prefixhash.layout.checks import instance
from prefixhash.layout.groups import KVCacheGroup, groups_of
from prefixhash.layout.kernel_layouts import Axis, KernelLayout, Layouts, layouts_by_layer
from prefixhash.layout.layer_spec import AttentionSpec, LayerSpec
from prefixhash.layout.packing import BlockLayout, Slot
from prefixhash.layout.row_formats import ITEM_SIZES
from prefixhash.layout.specs import MambaSpec


@dataclass(frozen=True)
class TensorView:
    """A strided view of a buffer; `stride` and `storage_offset` in elements of `dtype`."""

    buffer: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int


@dataclass(frozen=True)
class _Place:
    """Where a layer's pages are: block b at b * step + offset of the buffer, in bytes."""

    buffer: int
    offset: int
    step: int
    packed: bool


def tensor_views(
    groups: Sequence[KVCacheGroup],
    layout: BlockLayout,
    num_blocks: int,
    layouts: Layouts = None,
    kernel_block_sizes: Sequence[int] | None = None,
) -> dict[str, tuple[TensorView, ...]]:
    """Views of every layer: one, or one per state tensor of a state layer.

    `kernel_block_sizes` gives, per group, the tokens per kernel block; default: the block size.
    Packed layers all view buffer 0, others the buffer of their slot. Raises
    `UnsupportedCombinationError` where a kernel's layout cannot be had: a split or K/V-outermost
    block in a packed or padded page, bytes that do not divide into elements.
    """
    groups = groups_of(groups)
    _check_layout(groups, layout)
    num_blocks = _arguments.integer("num_blocks", num_blocks)
    tokens_of = _kernel_tokens(groups, kernel_block_sizes)
    chosen = layouts_by_layer(groups, layouts)
    close = _blocks_to_keep_together(groups, layout, chosen)
    views: dict[str, tuple[TensorView, ...]] = {}
    for group, tokens in zip(groups, tokens_of, strict=True):
        for name, spec in zip(group.layer_names, group.specs, strict=True):
            place = _place(layout, name, spec)
            if isinstance(spec, MambaSpec):
                views[name] = _state_views(spec, place, num_blocks)
            elif isinstance(spec, AttentionSpec):
                split = _split(group.block_size, tokens)
                view = _LayerView(name, spec, chosen[name], place, num_blocks, split)
                views[name] = (view.make(name in close),)
    return views


def parts_of_block(spec: AttentionSpec, layout: KernelLayout) -> int:
    """Separate byte ranges of a block if the kernel's order is kept: 1 for blocks outermost."""
    outer = layout.physical[: layout.physical.index(layout.block_axis)]
    sizes = {"tokens": spec.rows_per_block, "heads": spec.num_kv_heads}
    axes = [layout.axes[axis] for axis in outer]
    return math.prod(axis if isinstance(axis, int) else sizes.get(axis, 1) for axis in axes)


def ranges_per_block(
    groups: Sequence[KVCacheGroup], layout: BlockLayout, layouts: Layouts = None
) -> tuple[int, ...]:
    """Per slot: into how many equally distant byte ranges a block falls; 1 unless K/V-outermost."""
    chosen = layouts_by_layer(groups, layouts)
    specs = {n: s for g in groups for n, s in zip(g.layer_names, g.specs, strict=True)}
    close = _blocks_to_keep_together(groups, layout, chosen)
    return tuple(
        1 if slot.layers[0] in close else _slot_parts(slot, specs, chosen).pop()
        for slot in layout.slots
    )


def _check_layout(groups: Sequence[KVCacheGroup], layout: BlockLayout) -> None:
    """Raises `InvalidArgumentError` unless the layout is one of exactly these groups."""
    instance("layout", layout, BlockLayout, "a BlockLayout")
    names = {name for group in groups for name in group.layer_names}
    if names != layout.slot_of.keys():
        lacking = sorted(names ^ layout.slot_of.keys(), key=str)
        raise InvalidArgumentError("layout", lacking, "these layers are not in both: lay out again")


def _kernel_tokens(groups: Sequence[KVCacheGroup], sizes: object) -> tuple[int, ...]:
    """Tokens per kernel block of each group."""
    if sizes is None:
        return tuple(group.block_size for group in groups)
    name = "kernel_block_sizes"
    given = sequence(name, sizes, "a sequence with an entry per group")
    if len(given) != len(groups):
        raise InvalidArgumentError(name, given, f"needs one entry per group ({len(groups)})")
    return tuple(_arguments.integer(name, tokens, 1) for tokens in given)


def _split(block_size: int, tokens: int) -> int:
    if block_size % tokens:
        problem = f"must divide the group's block size {block_size}"
        raise InvalidArgumentError("kernel_block_sizes", tokens, problem)
    return block_size // tokens


def _place(layout: BlockLayout, name: str, spec: LayerSpec) -> _Place:
    index = layout.slot_of[name]
    if layout.packed:
        return _Place(0, layout.slots[index].offset, layout.bytes_per_block, packed=True)
    return _Place(index, 0, spec.page_size_bytes, packed=False)


def _blocks_to_keep_together(
    groups: Sequence[KVCacheGroup], layout: BlockLayout, chosen: Mapping[str, KernelLayout]
) -> set[str]:
    """Layers whose block must be one byte range, whatever their kernel prefers.

    Where a buffer is shared, equal block ids must mean equal bytes: next to state layers, and in a
    buffer that a block-outermost kernel reads, keys and values of a block have to be adjacent.
    """
    specs = {n: s for g in groups for n, s in zip(g.layer_names, g.specs, strict=True)}
    has_states = any(isinstance(spec, MambaSpec) for spec in specs.values())
    close: set[str] = set()
    for slot in layout.slots:
        parts = _slot_parts(slot, specs, chosen)
        if has_states or len(parts) > 1 or parts == {1}:
            close.update(slot.layers)
    return close


def _slot_parts(
    slot: Slot, specs: Mapping[str, LayerSpec], chosen: Mapping[str, KernelLayout]
) -> set[int]:
    parts = set()
    for name in slot.layers:
        spec = specs[name]
        parts.add(parts_of_block(spec, chosen[name]) if isinstance(spec, AttentionSpec) else 1)
    return parts


@dataclass(frozen=True)
class _LayerView:
    """The pieces of one attention layer's view; `split` kernel blocks per block."""

    name: str
    spec: AttentionSpec
    layout: KernelLayout
    place: _Place
    num_blocks: int
    split: int

    def make(self, together: bool) -> TensorView:
        shape = tuple(self._size(axis) for axis in self.layout.axes)
        block_axis = self.layout.block_axis
        self._check_content(shape, block_axis)
        order = self.layout.physical
        if self.layout.is_block_outermost or together:
            order = (block_axis, *(axis for axis in order if axis != block_axis))
        stride = list(_contiguous(shape, order))
        if self._is_spread:
            self._check_spread()
            stride[block_axis] = self._elements(self.place.step, "the distance of two blocks")
        offset = self._elements(self.place.offset, "the offset in the block")
        return TensorView(self.place.buffer, self.spec.dtype, shape, tuple(stride), offset)

    @property
    def _is_spread(self) -> bool:
        """Whether other bytes lie between two of the layer's pages."""
        return self.place.packed or self.spec.content_size_bytes != self.place.step

    def _size(self, axis: Axis) -> int:
        spec = self.spec
        if isinstance(axis, int):
            return axis
        if axis == "blocks":
            return self.num_blocks * self.split
        if axis == "tokens":
            return spec.rows_per_block // self.split
        if axis == "heads":
            return spec.num_kv_heads
        width = spec.row_bytes
        if axis == "vector" and len(spec.vector_widths) == 2:
            width //= 2
        return self._elements(width, f"a {axis}")

    def _elements(self, size: int, what: str) -> int:
        if size % self.spec.item_size:
            raise self._refuse(f"{what} of {size} bytes is no whole number of {self.spec.dtype}")
        return size // self.spec.item_size

    def _check_content(self, shape: tuple[int, ...], block_axis: int) -> None:
        sizes = (size for axis, size in enumerate(shape) if axis != block_axis)
        given = math.prod(sizes) * self.spec.item_size * self.split
        if given != self.spec.content_size_bytes:
            raise self._refuse(
                f"the kernel's axes {self.layout.axes} take {given} bytes of a block, "
                f"the layer stores {self.spec.content_size_bytes}"
            )

    def _check_spread(self) -> None:
        where = "packed" if self.place.packed else "padded"
        if self.split > 1:
            raise self._refuse(
                f"a {where} block of {self.spec.block_size} tokens cannot be split into "
                f"{self.split} kernel blocks: pages of {self.spec.content_size_bytes} bytes lie "
                f"{self.place.step} bytes apart"
            )
        if not self.layout.is_block_outermost:
            raise self._refuse(f"a {where} page needs a layout with blocks outermost")

    def _refuse(self, problem: str) -> UnsupportedCombinationError:
        return UnsupportedCombinationError("view", f"layer {self.name!r}: {problem}")


def _contiguous(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense tensor whose axes lie in memory in `order`."""
    stride = [1] * len(shape)
    step = 1
    for axis in reversed(order):
        stride[axis] = step
        step *= shape[axis]
    return tuple(stride)


def _state_views(spec: MambaSpec, place: _Place, num_blocks: int) -> tuple[TensorView, ...]:
    views = []
    offset = place.offset
    for shape, dtype, size in zip(
        spec.state_shapes, spec.state_dtypes, spec.state_sizes, strict=True
    ):
        item = ITEM_SIZES[dtype]
        if offset % item or place.step % item:
            problem = (
                f"a {dtype} state at byte {offset} of blocks {place.step} bytes apart is not "
                "aligned: put states with wider elements first"
            )
            raise UnsupportedCombinationError("view", problem)
        stride = (place.step // item, *_contiguous(shape, range(len(shape))))
        views.append(TensorView(place.buffer, dtype, (num_blocks, *shape), stride, offset // item))
        offset += size
    return tuple(views)
