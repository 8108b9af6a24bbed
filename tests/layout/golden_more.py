"""Operations of the golden file beside planning: block sizes, views, the pool, hash keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixhash.errors import UnsupportedCombinationError
from prefixhash.layout import (
    KernelLayout,
    KVCacheGroup,
    LayerSpec,
    MultipleOf,
    PlanOptions,
    align_attention_with_states,
    lay_out_block,
    resolve_block_sizes,
    select_kernel_block_size,
    storage_of,
    tensor_views,
)
from prefixhash.layout.row_formats import ITEM_SIZES

from .golden_convert import Data, Specs, axis_sizes, canon_group, canon_tensors, category
from .golden_hash import block_hash_extra_keys


class OtherOperations:
    """Mixed into `Answers`, one method per operation."""

    specs: Specs

    def option_data(self, data: Data) -> Data:
        raise NotImplementedError

    def options(self, data: Data) -> PlanOptions:
        raise NotImplementedError

    def grouped(self, data: Data) -> tuple[KVCacheGroup, ...]:
        raise NotImplementedError

    def resolve_block_sizes(self, data: Data) -> Data:
        options = self.option_data(data)
        sizes = resolve_block_sizes(
            [self.specs.make(spec) for spec in data["group_specs"]],
            options["block_size"],
            context_ranks=options["dcp"] * options["pcp"],
            prefix_caching=options["prefix_caching"],
            connector=options["connector"],
            hash_block_size=options["hash_block_size"],
        )
        return {"scheduler_block_size": sizes.scheduler, "hash_block_size": sizes.hash}

    def select_kernel_block_size(self, data: Data) -> Data:
        supported = [_kernel_sizes(sizes) for sizes in data["supported"]]
        return {"kernel_block_size": select_kernel_block_size(data["block_size"], supported)}

    def align_attention_with_states(self, data: Data) -> Data:
        dtype, row = storage_of(data.get("cache_dtype", "auto"))
        vectors = 1 if data.get("use_mla") else 2
        row_bytes = row.row_bytes((data["head_size"],) * vectors, ITEM_SIZES[dtype])
        shapes, types = data["state_shapes"], data["state_dtypes"]
        state: LayerSpec | None = None
        if shapes:
            state = self.specs.make(
                {"kind": "mamba", "block_size": 1, "state_shapes": shapes, "state_dtypes": types}
            )
        block_size = data.get("block_size", self.option_data({})["block_size"])
        aligned = align_attention_with_states(
            data["num_kv_heads"] * row_bytes,
            state.page_size_bytes if state else 0,
            _kernel_sizes(data["kernel_block_sizes"]),
            block_size=block_size,
            state_cache_mode=data.get("mamba_cache_mode", "none"),
            state_block_size=data.get("mamba_block_size") or data.get("chunk_size"),
        )
        return {
            "attention_block_size": aligned.attention_block_size,
            "mamba_block_size": aligned.state_block_size,
            "mamba_page_size_padded": aligned.state_page_size_padded,
        }

    def tensor_views(self, data: Data) -> Data:
        groups, options = self.grouped(data), self.options(data)
        layout = lay_out_block(groups, cross_layer_packing=options.cross_layer_packing)
        num_blocks = options.num_blocks_override or layout.num_blocks(data["available_memory"])
        tokens = data["kernel_block_sizes"] or [group.block_size for group in groups]
        output: Data = {
            "groups": [canon_group(group) for group in groups],
            "num_blocks": num_blocks,
            "tensors": canon_tensors(layout.tensors(num_blocks)),
            "kernel_block_sizes": tokens,
        }
        try:
            views = tensor_views(groups, layout, num_blocks, self.kernel_layouts(data), tokens)
        except UnsupportedCombinationError as error:
            output["views"] = {"error": category(error)}
            return output
        output["views"] = {
            name: [_view(view) for view in layer_views] for name, layer_views in views.items()
        }
        return output

    def kernel_layouts(self, data: Data) -> dict[str, KernelLayout]:
        """Layouts by layer; a kernel's dims follow the layer's format, whatever its mode."""
        layouts = {}
        for name, key in data["layers"]:
            backend = data["backends"].get(key)
            if backend is None:
                continue
            spec = self.specs.fill(data["specs"][key])
            by_format = backend.get("dims_by_format", {})
            dims = by_format.get(spec["cache_format"], backend["dims"])
            sizes = axis_sizes(dims, self.specs.make(data["specs"][key]))
            order = backend["order"]
            layouts[name] = KernelLayout(tuple(sizes), None if order is None else tuple(order))
        return layouts

    def usable_blocks(self, data: Data) -> Data:
        options = PlanOptions(num_blocks_override=data["num_blocks"])
        usable = data["num_blocks"] - options.reserved_blocks
        return {"null_block_id": 0, "usable_blocks": usable, "usage": 0}

    def admit_request(self, data: Data) -> Data:
        needed = -(-data["tokens"] // data["block_size"])
        free = self.usable_blocks(data)["usable_blocks"]
        return {"blocks_needed": needed, "blocks_free": free, "can_run": needed <= free}

    def block_hash_extra_keys(self, data: Data) -> Data:
        return block_hash_extra_keys(data)


def _kernel_sizes(sizes: Sequence[Any]) -> list[int | MultipleOf]:
    return [size if isinstance(size, int) else MultipleOf(size["multiple_of"]) for size in sizes]


def _view(view: Any) -> Data:
    return {
        "buffer": view.buffer,
        "dtype": view.dtype,
        "shape": list(view.shape),
        "stride": list(view.stride),
        "storage_offset": view.storage_offset,
    }
