"""The plan's buffers as torch tensors: a strided view per layer, and operations on whole blocks.

Needs torch, which is imported only here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from prefixhash import _arguments
from prefixhash._arguments import sequence
from prefixhash.errors import (
    InvalidArgumentError,
    InvalidBlockError,
    UnsupportedCombinationError,
    shorten,
)
from prefixhash.layout.groups import KVCacheGroup
from prefixhash.layout.kernel_layouts import Layouts
from prefixhash.layout.packing import BlockLayout
from prefixhash.layout.specs import MambaSpec
from prefixhash.layout.views import TensorView, ranges_per_block, tensor_views

LayerTensor = torch.Tensor | tuple[torch.Tensor, ...]


class KVCacheTensors(Mapping[str, LayerTensor]):
    """Layer name to its tensor: one view, or for a state layer a tuple of one view per state.

    `buffers` are the zeroed allocations, one-dimensional uint8: a single one of
    num_blocks * bytes_per_block bytes in the packed layout, else one per slot. Views share their
    memory. Block operations touch all layers of the worker; block ids are those of the pool.
    Made from what a plan holds of one worker: its groups, what one block holds, and the blocks.
    """

    def __init__(
        self,
        groups: Sequence[KVCacheGroup],
        layout: BlockLayout,
        num_blocks: int,
        device: Any = "cpu",
        layouts: Layouts = None,
        kernel_block_sizes: Sequence[int] | None = None,
    ) -> None:
        views = tensor_views(groups, layout, num_blocks, layouts, kernel_block_sizes)
        sizes = [entry.size for entry in layout.tensors(num_blocks)]
        if layout.packed:
            sizes = sizes[:1]
        self._num_blocks = num_blocks
        self.buffers = tuple(_zeros(size, device) for size in sizes)
        parts = ranges_per_block(groups, layout, layouts)
        self._blocks = _by_block(self.buffers, layout, num_blocks, parts)
        self._layers: dict[str, LayerTensor] = {}
        for group in groups:
            for name, spec in zip(group.layer_names, group.specs, strict=True):
                tensors = tuple(self._tensor(view) for view in views[name])
                self._layers[name] = tensors if isinstance(spec, MambaSpec) else tensors[0]

    def __getitem__(self, layer_name: str) -> LayerTensor:
        return self._layers[layer_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def block_size_bytes(self) -> int:
        """Bytes of one block over all buffers."""
        return sum(blocks[0].numel() for blocks in self._blocks)

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copies whole blocks, `(source, destination)` each; all are read before any is written.

        Raises `InvalidBlockError`, before anything is copied, for an id outside the pool, the null
        block as a destination, or a destination that is named twice.
        """
        what = "a sequence of (source, destination) pairs"
        both = [sequence("pairs", pair, what) for pair in sequence("pairs", pairs, what)]
        if any(len(pair) != 2 for pair in both):
            raise InvalidArgumentError("pairs", pairs, f"must be {what}")
        sources = self._checked("pairs", [source for source, _ in both])
        destinations = self._checked("pairs", [to for _, to in both], writable=True)
        if len(set(destinations)) < len(destinations):
            raise InvalidArgumentError("pairs", pairs, "a destination is named twice")
        if not both:
            return
        for blocks in self._blocks:
            blocks[self._index(destinations)] = blocks[self._index(sources)]

    def zero_blocks(self, block_ids: Iterable[int]) -> None:
        """Sets whole blocks to zero; the null block may be among them."""
        ids = self._checked("block_ids", sequence("block_ids", block_ids, "a sequence of ids"))
        if not ids:
            return
        for blocks in self._blocks:
            blocks[self._index(ids)] = 0

    def block_bytes(self, block_id: int) -> torch.Tensor:
        """A copy of all bytes of a block, uint8 of shape (block_size_bytes,), buffer after buffer.

        Equal on every worker that holds the same layers in the same layout, so it can be stored
        elsewhere and brought back with `load_block`.
        """
        (block_id,) = self._checked("block_id", [block_id])
        parts = [blocks[block_id].reshape(-1) for blocks in self._blocks]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def load_block(self, block_id: int, data: torch.Tensor) -> None:
        """Writes what `block_bytes` gave into a block."""
        (block_id,) = self._checked("block_id", [block_id], writable=True)
        if not isinstance(data, torch.Tensor):
            raise InvalidArgumentError("data", data, "must be a tensor, as `block_bytes` gives it")
        if data.dtype != torch.uint8 or tuple(data.shape) != (self.block_size_bytes,):
            problem = f"must be uint8 of shape ({self.block_size_bytes},)"
            raise InvalidArgumentError("data", (data.dtype, tuple(data.shape)), problem)
        start = 0
        for blocks in self._blocks:
            block = blocks[block_id]
            block.copy_(data[start : start + block.numel()].reshape(block.shape))
            start += block.numel()

    def _tensor(self, view: TensorView) -> torch.Tensor:
        dtype = getattr(torch, view.dtype)
        buffer = self.buffers[view.buffer].view(dtype)
        return buffer.as_strided(view.shape, view.stride, view.storage_offset)

    def _index(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.buffers[0].device)

    def _checked(self, argument: str, ids: Sequence[int], *, writable: bool = False) -> list[int]:
        checked = [_arguments.integer(argument, block_id, None) for block_id in ids]
        for block_id in checked:
            if not 0 <= block_id < self._num_blocks:
                problem = f"ids of this pool are 0 ... {self._num_blocks - 1}"
                raise InvalidBlockError(argument, block_id, problem)
            if writable and block_id == 0:
                raise InvalidBlockError(argument, block_id, "the null block is never written")
        return checked


def _zeros(size: int, device: Any) -> torch.Tensor:
    """A zeroed buffer of `size` bytes; torch's own complaints come as one of ours."""
    try:
        return torch.zeros(size, dtype=torch.uint8, device=device)
    except Exception as error:  # unknown device, no such backend, no room: torch raises any type
        problem = f"has no {size} bytes for a buffer: {error}"
        raise UnsupportedCombinationError(f"device={shorten(device)}", problem) from error


def _by_block(
    buffers: Sequence[torch.Tensor], layout: BlockLayout, num_blocks: int, parts: Sequence[int]
) -> list[torch.Tensor]:
    """Each buffer as uint8 of shape (blocks, byte ranges of a block, bytes of a range)."""
    if layout.packed:
        return [buffers[0].view(num_blocks, 1, layout.bytes_per_block)]
    return [
        # K/V-outermost kernels keep all keys first: a block is one range of either half.
        buffer.view(part, num_blocks, slot.page_size // part).transpose(0, 1)
        for buffer, slot, part in zip(buffers, layout.slots, parts, strict=True)
    ]
