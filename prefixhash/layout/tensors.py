"""The plan's buffers as torch tensors: a strided view per layer, and operations on whole blocks.

Needs torch, which is imported only here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from prefixhash.errors import InvalidArgumentError, InvalidBlockError
from prefixhash.layout.kernel_layouts import Layouts
from prefixhash.layout.options import require_integer
from prefixhash.layout.plan import KVCachePlan
from prefixhash.layout.specs import MambaSpec
from prefixhash.layout.views import TensorView, ranges_per_block, tensor_views

LayerTensor = torch.Tensor | tuple[torch.Tensor, ...]


class KVCacheTensors(Mapping[str, LayerTensor]):
    """Layer name to its tensor: one view, or for a state layer a tuple of one view per state.

    `buffers` are the zeroed allocations, one-dimensional uint8: a single one of
    num_blocks * bytes_per_block bytes in the packed layout, else one per slot. Views share their
    memory. Block operations touch all layers of the worker; block ids are those of the pool.
    """

    def __init__(
        self,
        plan: KVCachePlan,
        device: Any = "cpu",
        layouts: Layouts = None,
        kernel_block_sizes: Sequence[int] | None = None,
    ) -> None:
        views = tensor_views(plan.groups, plan.layout, plan.num_blocks, layouts, kernel_block_sizes)
        sizes = [entry.size for entry in plan.tensors]
        if plan.layout.packed:
            sizes = sizes[:1]
        self._num_blocks = plan.num_blocks
        self.buffers = tuple(torch.zeros(n, dtype=torch.uint8, device=device) for n in sizes)
        self._blocks = _by_block(self.buffers, plan, layouts)
        specs = plan.layer_specs
        self._layers: dict[str, LayerTensor] = {}
        for name, layer in views.items():
            tensors = tuple(self._tensor(view) for view in layer)
            self._layers[name] = tensors if isinstance(specs[name], MambaSpec) else tensors[0]

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
        pairs = list(pairs)
        if any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
            raise InvalidArgumentError("pairs", pairs, "must hold (source, destination) pairs")
        sources = self._checked("pairs", [source for source, _ in pairs])
        destinations = self._checked("pairs", [to for _, to in pairs], writable=True)
        if len(set(destinations)) < len(destinations):
            raise InvalidArgumentError("pairs", pairs, "a destination is named twice")
        if not pairs:
            return
        for blocks in self._blocks:
            blocks[self._index(destinations)] = blocks[self._index(sources)]

    def zero_blocks(self, block_ids: Iterable[int]) -> None:
        """Sets whole blocks to zero; the null block may be among them."""
        ids = self._checked("block_ids", list(block_ids))
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

    def _checked(self, argument: str, ids: list[int], *, writable: bool = False) -> list[int]:
        for block_id in ids:
            require_integer(argument, block_id, None)
            if not 0 <= block_id < self._num_blocks:
                problem = f"ids of this pool are 0 ... {self._num_blocks - 1}"
                raise InvalidBlockError(argument, block_id, problem)
            if writable and block_id == 0:
                raise InvalidBlockError(argument, block_id, "the null block is never written")
        return ids


def allocate(
    plan: KVCachePlan,
    device: Any = "cpu",
    layouts: Layouts = None,
    kernel_block_sizes: Sequence[int] | None = None,
) -> KVCacheTensors:
    """See `KVCachePlan.allocate`."""
    return KVCacheTensors(plan, device, layouts, kernel_block_sizes)


def _by_block(
    buffers: Sequence[torch.Tensor], plan: KVCachePlan, layouts: Layouts
) -> list[torch.Tensor]:
    """Each buffer as uint8 of shape (blocks, byte ranges of a block, bytes of a range)."""
    count = plan.num_blocks
    if plan.layout.packed:
        return [buffers[0].view(count, 1, plan.bytes_per_block)]
    parts = ranges_per_block(plan.groups, plan.layout, layouts)
    return [
        # K/V-outermost kernels keep all keys first: a block is one range of either half.
        buffer.view(part, count, slot.page_size // part).transpose(0, 1)
        for buffer, slot, part in zip(buffers, plan.layout.slots, parts, strict=True)
    ]
