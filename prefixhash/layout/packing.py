"""From groups to buffers: what one block holds, byte by byte, and the buffers of a pool of blocks.

Two layouts (S: bytes per block of the whole worker, n: blocks):

* shared: the i-th layer of every group lives in buffer i, block b at b * page;
* packed: one buffer of n * S bytes, block b at b * S, each layer's page at an offset inside it.

Layers of different groups may share bytes, since a block belongs to one group at a time; layers of
the same group never do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from prefixhash import _arguments
from prefixhash.errors import IncompatiblePageSizesError
from prefixhash.layout.checks import instances, keep, keep_flags, keep_integers
from prefixhash.layout.groups import KVCacheGroup, groups_of


@dataclass(frozen=True)
class KVCacheTensor:
    """A buffer entry: `size` bytes that the layers `shared_by` read.

    Packed entries (`block_stride` > 0) all alias one buffer of `size` bytes: the page of block b is
    at b * block_stride + offset. Other entries are buffers of their own: block b at b * page.
    """

    size: int
    shared_by: tuple[str, ...]
    offset: int = 0
    block_stride: int = 0


class Slot(NamedTuple):
    """Bytes offset ... offset + page_size of a block, used by one layer of some groups."""

    layers: tuple[str, ...]
    offset: int
    page_size: int


@dataclass(frozen=True)
class BlockLayout:
    """What one block holds on one worker, for any number of blocks."""

    bytes_per_block: int
    slots: tuple[Slot, ...]
    packed: bool

    def __post_init__(self) -> None:
        keep_integers(self, 0, "bytes_per_block")
        keep(self, "slots", instances("slots", self.slots, Slot, "Slot values"))
        keep_flags(self, "packed")

    def tensors(self, num_blocks: int) -> tuple[KVCacheTensor, ...]:
        """The buffer entries of a pool of `num_blocks` blocks, in the order of the slots."""
        num_blocks = _arguments.integer("num_blocks", num_blocks)
        stride = self.bytes_per_block
        if self.packed:
            size = stride * num_blocks
            return tuple(KVCacheTensor(size, s.layers, s.offset, stride) for s in self.slots)
        return tuple(KVCacheTensor(s.page_size * num_blocks, s.layers) for s in self.slots)

    def num_blocks(self, available_memory: int) -> int:
        """Blocks that fit in `available_memory` bytes; 1, for the null block, without layers."""
        available_memory = _arguments.integer("available_memory", available_memory)
        return available_memory // self.bytes_per_block if self.bytes_per_block else 1

    @cached_property
    def slot_of(self) -> dict[str, int]:
        """Layer name to the index of its slot."""
        return {name: index for index, slot in enumerate(self.slots) for name in slot.layers}


class KVCacheBuffers(NamedTuple):
    """The buffers of one worker."""

    num_blocks: int
    tensors: tuple[KVCacheTensor, ...]
    bytes_per_block: int


def bucket_layers_by_page_size(groups: Sequence[KVCacheGroup]) -> dict[int, list[list[str]]]:
    """Page size to slots to layer names: the k-th layer of a page size in a group is in slot k.

    Page sizes come in the order of first use; layers of one slot belong to different groups.
    Linear in the number of layers.
    """
    buckets: dict[int, list[list[str]]] = {}
    for group in groups_of(groups):
        by_page: defaultdict[int, list[str]] = defaultdict(list)
        for name, page in zip(group.layer_names, group.page_sizes, strict=True):
            by_page[page].append(name)
        for page, names in by_page.items():
            slots = buckets.setdefault(page, [])
            slots += [[] for _ in range(len(names) - len(slots))]
            for slot, name in zip(slots, names, strict=False):
                slot.append(name)
    return buckets


def lay_out_block(
    groups: Sequence[KVCacheGroup], *, cross_layer_packing: bool = False
) -> BlockLayout:
    """The layout that these groups get: one buffer per layer, packed, or shared.

    One group with a spec per layer: a buffer per layer. Only groups with a spec per layer, or
    several groups and `cross_layer_packing`: packed. Otherwise shared, which needs one page size.
    """
    groups = groups_of(groups)
    _arguments.flag("cross_layer_packing", cross_layer_packing)
    if not any(group.layer_names for group in groups):
        return BlockLayout(0, (), packed=False)
    if len(groups) == 1 and groups[0].has_layer_specs:
        return _one_buffer_per_layer(groups[0])
    if all(group.has_layer_specs for group in groups) or (cross_layer_packing and len(groups) > 1):
        return packed_layout(groups)
    return _shared_layout(groups)


def packed_layout(groups: Sequence[KVCacheGroup]) -> BlockLayout:
    """All pages of a block side by side: slots by page size, then overlay groups over them."""
    groups = groups_of(groups)
    slots: list[Slot] = []
    offset = 0
    plain = [group for group in groups if not group.overlay]
    for page, layers_of_slots in bucket_layers_by_page_size(plain).items():
        for layers in layers_of_slots:
            slots.append(Slot(tuple(layers), offset, page))
            offset += page
    width = offset
    for group in groups:
        if group.overlay:
            slots += _dense_slots(group)
            width = max(width, group.page_size_bytes)
    return BlockLayout(width, tuple(slots), packed=True)


def pack_kv_cache(
    groups: Sequence[KVCacheGroup],
    available_memory: int,
    *,
    num_blocks_override: int | None = None,
) -> KVCacheBuffers:
    """Packed buffers of as many blocks as `available_memory` bytes hold (or the override).

    Less memory than one block gives 0 blocks; no layers give 1, the null block, and no buffer.
    """
    return _fill(packed_layout(groups), available_memory, num_blocks_override)


def lay_out_kv_cache(
    groups: Sequence[KVCacheGroup],
    available_memory: int,
    *,
    cross_layer_packing: bool = False,
    num_blocks_override: int | None = None,
) -> KVCacheBuffers:
    """Buffers in the layout that these groups get (`lay_out_block`); else as `pack_kv_cache`."""
    layout = lay_out_block(groups, cross_layer_packing=cross_layer_packing)
    return _fill(layout, available_memory, num_blocks_override)


def _fill(
    layout: BlockLayout, available_memory: int, num_blocks_override: int | None = None
) -> KVCacheBuffers:
    """The buffers of as many blocks of `layout` as the memory holds, or the override says."""
    num_blocks = _arguments.optional_integer("num_blocks_override", num_blocks_override, 1)
    least = 1 if num_blocks is None and layout.slots else 0
    meaning = ": give the bytes that are left for the KV cache"
    available = _arguments.integer("available_memory", available_memory, least, meaning=meaning)
    if not layout.slots:
        return KVCacheBuffers(1, (), 0)
    if num_blocks is None:
        num_blocks = layout.num_blocks(available)
    return KVCacheBuffers(num_blocks, layout.tensors(num_blocks), layout.bytes_per_block)


def _one_buffer_per_layer(group: KVCacheGroup) -> BlockLayout:
    pairs = zip(group.layer_names, group.page_sizes, strict=True)
    slots = tuple(Slot((name,), 0, page) for name, page in pairs)
    return BlockLayout(group.page_size_bytes, slots, packed=False)


def _shared_layout(groups: Sequence[KVCacheGroup]) -> BlockLayout:
    pages = {
        page: name
        for group in groups
        for name, page in zip(group.layer_names, group.page_sizes, strict=True)
    }
    if len(pages) > 1:
        problem = "groups that share buffers need one page size: pad the pages, or pack the layers"
        raise IncompatiblePageSizesError({name: page for page, name in pages.items()}, problem)
    (page,) = pages
    longest = max(len(group.layer_names) for group in groups)
    slots = tuple(
        Slot(tuple(g.layer_names[i] for g in groups if i < len(g.layer_names)), 0, page)
        for i in range(longest)
    )
    return BlockLayout(page * longest, slots, packed=False)


def _dense_slots(group: KVCacheGroup) -> list[Slot]:
    slots, offset = [], 0
    for name, page in zip(group.layer_names, group.page_sizes, strict=True):
        slots.append(Slot((name,), offset, page))
        offset += page
    return slots
