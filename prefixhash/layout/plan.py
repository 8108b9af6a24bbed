"""Plans: groups, block count and buffers of every worker, from layer specs and bytes of memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from prefixhash import _arguments
from prefixhash.errors import (
    InconsistentWorkersError,
    InvalidArgumentError,
    UnsupportedCombinationError,
)
from prefixhash.layout.checks import instance, keep, keep_integers, layer_names, mapping_of
from prefixhash.layout.grouping import group_layers
from prefixhash.layout.groups import KVCacheGroup, groups_of
from prefixhash.layout.kernel_layouts import Layouts
from prefixhash.layout.layer_spec import LayerSpec
from prefixhash.layout.need import Budget, NeedCurve, check_budgets
from prefixhash.layout.options import PlanOptions, one_each, options_or_default
from prefixhash.layout.packing import BlockLayout, KVCacheTensor, Slot, lay_out_block

if TYPE_CHECKING:
    from prefixhash.layout.tensors import KVCacheTensors

Layers = Mapping[str, LayerSpec]


@dataclass(frozen=True)
class KVCachePlan:
    """What one worker allocates, and what a request takes of it.

    groups: the block tables, the same on all workers, each with this worker's layers.
    layout: what one block holds, byte by byte.
    num_blocks: blocks of the pool, the null block included; the same on all workers.
    options: of the run; `max_model_len` is lowered where auto-fit did so.
    available_memory: bytes that were given.
    """

    groups: tuple[KVCacheGroup, ...]
    layout: BlockLayout
    num_blocks: int
    options: PlanOptions
    worker: int = 0
    available_memory: int = 0

    def __post_init__(self) -> None:
        keep(self, "groups", groups_of(self.groups))
        instance("layout", self.layout, BlockLayout, "a BlockLayout")
        keep_integers(self, 0, "num_blocks", "worker")
        instance("options", self.options, PlanOptions, "PlanOptions")
        keep_integers(self, None, "available_memory")

    @property
    def max_model_len(self) -> int:
        """Longest request in tokens, after auto-fit."""
        return self.options.max_model_len

    @cached_property
    def tensors(self) -> tuple[KVCacheTensor, ...]:
        """Buffer entries; packed ones alias one buffer, so their sizes must not be added up."""
        return self.layout.tensors(self.num_blocks)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers of this worker; 0 without layers."""
        return self.layout.bytes_per_block

    @property
    def total_bytes(self) -> int:
        """Bytes that this worker allocates."""
        return self.num_blocks * self.bytes_per_block

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block, unless that is counted."""
        return self.num_blocks - self.options.reserved_blocks

    @cached_property
    def need(self) -> NeedCurve:
        """Blocks that a request needs, as a function of its length."""
        return NeedCurve.of(self.groups, self.options)

    def blocks_needed(self, length: int | None = None) -> tuple[int, ...]:
        """Most blocks per group that a request of `length` tokens (default: the longest) holds."""
        length = _arguments.optional_integer("length", length)
        return self.need.blocks(self.max_model_len if length is None else length)

    def bytes_needed(self, length: int | None = None) -> int:
        """Most bytes on this worker that a request of `length` tokens holds."""
        return sum(self.blocks_needed(length)) * self.bytes_per_block

    @property
    def max_concurrency(self) -> float:
        """Requests of `max_model_len` that fit at a time; infinite if they need no block, and
        beyond what a float holds.
        """
        needed = sum(self.blocks_needed())
        try:
            return self.usable_blocks / needed if needed else math.inf
        except OverflowError:
            return math.inf

    @property
    def capacity_tokens(self) -> int:
        """Tokens of requests of `max_model_len` that fit at a time."""
        needed = sum(self.blocks_needed())
        return self.usable_blocks * self.max_model_len // needed if needed else 0

    @cached_property
    def unused_bytes(self) -> tuple[int, ...]:
        """Bytes that a block of each group leaves unused: padding and empty slots."""
        return tuple(self.bytes_per_block - group.content_size_bytes for group in self.groups)

    @cached_property
    def layer_specs(self) -> dict[str, LayerSpec]:
        """Spec of each of this worker's layers, as planned."""
        return {
            name: spec
            for group in self.groups
            for name, spec in zip(group.layer_names, group.specs, strict=True)
        }

    def slot(self, layer_name: str) -> Slot:
        """Where a layer's page lies within a block."""
        if not isinstance(layer_name, str) or layer_name not in self.layout.slot_of:
            problem = f"not a layer of worker {self.worker}"
            raise InvalidArgumentError("layer_name", layer_name, problem)
        return self.layout.slots[self.layout.slot_of[layer_name]]

    def allocate(
        self,
        device: Any = "cpu",
        layouts: Layouts = None,
        kernel_block_sizes: Sequence[int] | None = None,
    ) -> KVCacheTensors:
        """Makes the zeroed buffers and gives each layer its strided view; needs torch.

        `device`: what torch takes (`meta`, `cpu`, `cuda`). `layouts`: a `KernelLayout` for all
        layers with keys and values of one width, or one by layer name; default: token-major.
        `kernel_block_sizes`: tokens per kernel block, by group. Raises
        `UnsupportedCombinationError` where a kernel's layout cannot be had in this plan.
        """
        from prefixhash.layout.tensors import KVCacheTensors

        return KVCacheTensors(
            self.groups, self.layout, self.num_blocks, device, layouts, kernel_block_sizes
        )


def plan_kv_cache(
    layer_specs: Layers, available_memory: int, options: PlanOptions | None = None
) -> KVCachePlan:
    """The plan of a model that lives on one worker.

    `layer_specs` maps layer names to specs in the model's order, `available_memory` is in bytes.
    See `plan_workers` for the errors.
    """
    return plan_workers([layer_specs], [available_memory], options)[0]


def plan_workers(
    layer_specs: Sequence[Layers],
    available_memory: Sequence[int],
    options: PlanOptions | None = None,
) -> tuple[KVCachePlan, ...]:
    """The plans of all workers (tensor ranks and pipeline stages alike), in the order given.

    The whole model is grouped once, so that block tables and block ids mean the same everywhere;
    each worker keeps its own layers, and all take the smallest block count. A worker without layers
    is legal. The inputs are not changed. Linear in the number of layers over all workers.

    Raises `NotEnoughMemoryError` if a request of `max_model_len` tokens does not fit on a worker
    (with `auto_fit`: if not even one token does), `InconsistentWorkersError` if two workers
    disagree about a layer, `UnsupportedCombinationError` for encoder-only layers, and what
    `group_layers` raises.
    """
    options = options_or_default(options)
    workers, memories = one_each("layer_specs", layer_specs, "available_memory", available_memory)
    model = _merge_workers(workers)
    _refuse_uncached(model)
    groups = group_layers(model, options)
    stages = _Stages(groups, options)
    parts = [stages.part(layers) for layers in workers]
    budgets = {
        worker: Budget.for_bytes(layout.bytes_per_block, memory, options)
        for worker, ((_, layout), memory) in enumerate(zip(parts, memories, strict=True))
    }
    curve = NeedCurve.of(groups, options)
    limited = [budget for budget in budgets.values() if budget is not None]
    if options.auto_fit and limited:
        longest = curve.longest(options.max_model_len, min(b.usable_blocks for b in limited))
        options = options.with_max_model_len(longest or options.max_model_len)
    check_budgets(curve, budgets, options)
    num_blocks = min((b.usable_blocks for b in limited), default=1 - options.reserved_blocks)
    return tuple(
        KVCachePlan(own, layout, num_blocks + options.reserved_blocks, options, worker, memory)
        for worker, ((own, layout), memory) in enumerate(zip(parts, memories, strict=True))
    )


class _Stages:
    """Each worker's part of the groups; ranks with the same layers share one."""

    def __init__(self, groups: tuple[KVCacheGroup, ...], options: PlanOptions) -> None:
        self._groups = groups
        self._packing = options.cross_layer_packing
        self._parts: dict[frozenset[str], tuple[tuple[KVCacheGroup, ...], BlockLayout]] = {}

    def part(self, layers: Layers) -> tuple[tuple[KVCacheGroup, ...], BlockLayout]:
        owned = frozenset(layers)
        if owned not in self._parts:
            groups = tuple(group.project(owned) for group in self._groups)
            layout = lay_out_block(groups, cross_layer_packing=self._packing)
            self._parts[owned] = groups, layout
        return self._parts[owned]


def project_groups(
    groups: Sequence[KVCacheGroup], owned: Collection[str]
) -> tuple[KVCacheGroup, ...]:
    """The groups as a worker sees them that owns the layers in `owned`; empty groups are kept."""
    owned = frozenset(layer_names("owned", owned))
    return tuple(group.project(owned) for group in groups_of(groups))


def _merge_workers(workers: Sequence[Layers]) -> dict[str, LayerSpec]:
    """The whole model's layers, in the order of first appearance."""
    merged: dict[str, LayerSpec] = {}
    for index, layers in enumerate(workers):
        mapping_of(f"layer_specs[{index}]", layers, LayerSpec, "layer specs")
        for name, spec in layers.items():
            known = merged.setdefault(name, spec)
            if known is not spec and known.identity != spec.identity:
                problem = f"worker {index} and an earlier one disagree about layer {name!r}"
                raise InconsistentWorkersError((name, name), "spec", (known, spec), problem)
    return merged


def _refuse_uncached(layers: Layers) -> None:
    for name, spec in layers.items():
        if not spec.is_cached:
            problem = f"{spec.title} layers keep nothing between steps: leave them out of the plan"
            raise UnsupportedCombinationError(name, problem)
