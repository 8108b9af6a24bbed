"""Run by an interpreter that has vLLM 0.25.0: random planning cases with its planner's answers.

Prints one line of JSON: the version, and a golden file of the format of tests/data/kv_layout.json.
Arguments: cases per operation, seed.
"""

from __future__ import annotations

import copy
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import vllm
import vllm.v1.core.kv_cache_utils as planner
import vllm.v1.kv_cache_interface as kinds
from random_models import Cases, inputs

Data = dict[str, Any]
GOLDEN = json.loads((Path(__file__).parents[1] / "data/kv_layout.json").read_text(encoding="utf-8"))
MODES = {mode.name.lower(): mode for mode in kinds.KVQuantMode}
RENAMED = {
    "reads_by_block_stride": "indexes_kv_by_block_stride",
    "quant_mode": "kv_quant_mode",
    "cache_format": "cache_dtype_str",
    "format_version": "model_version",
    "slot_bytes": "tq_slot_size",
    "reference_window": "rswa_window",
    "speculative_blocks": "num_speculative_blocks",
    "state_shapes": "shapes",
    "state_dtypes": "dtypes",
    "cache_mode": "mamba_cache_mode",
}
CLASSES = {
    "full_attention": kinds.FullAttentionSpec,
    "sink_full_attention": kinds.SinkFullAttentionSpec,
    "slot_packed_full_attention": kinds.TQFullAttentionSpec,
    "reference_sliding_window": kinds.RSWASpec,
    "sliding_window": kinds.SlidingWindowSpec,
    "chunked_local": kinds.ChunkedLocalAttentionSpec,
    "cross_attention": kinds.CrossAttentionSpec,
    "encoder_only": kinds.EncoderOnlyAttentionSpec,
    "mla": kinds.MLAAttentionSpec,
    "hidden_state": kinds.HiddenStateCacheSpec,
    "sliding_window_mla": kinds.SlidingWindowMLASpec,
    "mamba": kinds.MambaSpec,
}
KIND_OF = {cls: kind for kind, cls in CLASSES.items()}
INTERNAL = (ArithmeticError, AttributeError, LookupError)
# Where an error was raised tells what it is about.
CATEGORIES = {
    "page_size_bytes": "invalid_padding",
    "real_page_size_bytes": "invalid_layer",
    "max_memory_usage_bytes": "unsupported_parallelism",
    "unify_kv_cache_spec_page_size": "incompatible_page_sizes",
    "_check_enough_kv_cache_memory": "not_enough_memory",
    "_auto_fit_max_model_len": "not_enough_memory",
    "get_kv_cache_configs": "inconsistent_workers",
    "check_kv_cache_spec_registry": "unsupported_layer",
    "is_uniform_with_collection": "unsupported_layer",
    "get_kv_cache_config_from_groups": "worker_without_layers",
    "get_uniform_page_size": "incompatible_page_sizes",
    "resolve_kv_cache_block_sizes": "unsupported_block_sizes",
}


def to_vllm(data: Data) -> Any:
    fields: Data = {}
    for name, value in data.items():
        if name == "kind":
            continue
        if name == "window":
            fields["sliding_window"] = value
        elif name == "chunk":
            fields["attention_chunk_size"] = value
        elif name == "dtype":
            fields[name] = getattr(torch, value)
        elif name == "state_dtypes":
            fields["dtypes"] = tuple(getattr(torch, dtype) for dtype in value)
        elif name == "state_shapes":
            fields["shapes"] = tuple(tuple(shape) for shape in value)
        elif name == "quant_mode":
            fields["kv_quant_mode"] = MODES[value]
        else:
            fields[RENAMED.get(name, name)] = value
    return CLASSES[data["kind"]](**fields)


def from_vllm(spec: Any) -> Data:
    kind = KIND_OF[type(spec)]
    data: Data = {"kind": kind, "page_size_bytes": spec.page_size_bytes}
    names = {v: k for k, v in RENAMED.items()}
    for field in spec.__dataclass_fields__:
        value = getattr(spec, field)
        name = names.get(field, field)
        name = {"sliding_window": "window", "attention_chunk_size": "chunk"}.get(name, name)
        if field == "kv_quant_mode":
            value = value.name.lower()
        elif field in ("dtype", "dtypes"):
            value = [str(d)[6:] for d in value] if field == "dtypes" else str(value)[6:]
        elif field == "shapes":
            value = [list(shape) for shape in value]
        elif field == "head_size_v" and value == spec.head_size:
            continue
        if field != "mamba_type" and value != GOLDEN["spec_defaults"].get(name, "no default"):
            data[name] = value
    return data


class Tables:
    """Output specs by name, as the golden file has them."""

    def __init__(self) -> None:
        self.specs: Data = {}

    def name(self, spec: Any) -> str:
        data = from_vllm(spec)
        for name, known in self.specs.items():
            if known == data:
                return str(name)
        self.specs[f"s{len(self.specs)}"] = data
        return f"s{len(self.specs) - 1}"

    def groups(self, groups: list[Any]) -> list[Data]:
        return [self._group(group) for group in groups]

    def _group(self, group: Any) -> Data:
        spec = group.kv_cache_spec
        data: Data = {"layers": list(group.layer_names)}
        if isinstance(spec, kinds.UniformTypeKVCacheSpecs):
            data["uniform_type"] = {
                "block_size": spec.block_size,
                "page_size_bytes": spec.page_size_bytes,
                "layer_specs": [[n, self.name(s)] for n, s in spec.kv_cache_specs.items()],
            }
        else:
            data["spec"] = self.name(spec)
        if group.is_eagle_group:
            data["draft_group"] = True
        return data


def config_of(options: Data) -> Any:
    data = {**GOLDEN["option_defaults"], **options}
    eagle = SimpleNamespace(use_eagle=lambda: True) if data["draft_model"] else None
    auto = data["auto_fit"]
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=data["max_model_len"],
            original_max_model_len=-1 if auto else data["max_model_len"],
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=data["max_num_batched_tokens"],
            max_num_encoder_input_tokens=data["max_encoder_tokens"],
            disable_hybrid_kv_cache_manager=data["disable_hybrid"],
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=data["dcp"], prefill_context_parallel_size=data["pcp"]
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=data["num_blocks_override"],
            mamba_cache_mode=data["mamba_cache_mode"],
            block_size=data["block_size"],
            enable_prefix_caching=data["prefix_caching"],
            hash_block_size=data["hash_block_size"],
        ),
        kv_transfer_config=None,
        speculative_config=eagle,
    )


def layers_of(pairs: list[list[str]], table: Data) -> Data:
    # An object of its own for every layer: the planner changes specs in place.
    return {name: to_vllm(table[key]) for name, key in pairs}


def layer_page_size(data: Data) -> Data:
    spec = to_vllm(data["spec"])
    output = {
        "page_size_bytes": spec.page_size_bytes,
        "storage_block_size": spec.storage_block_size,
    }
    if hasattr(spec, "real_page_size_bytes"):
        output["unpadded_page_size_bytes"] = spec.real_page_size_bytes
    return output


def layer_max_memory(data: Data) -> Data:
    spec = to_vllm(data["spec"])
    needed = spec.max_memory_usage_bytes(config_of(data["options"]))
    return {"max_bytes": needed, "max_blocks": needed // spec.page_size_bytes}


def merge_specs(data: Data) -> Data:
    specs = [to_vllm(spec) for spec in data["specs"]]
    return {"merged": from_vllm(specs[0].merge(specs))}


def classify_specs(data: Data) -> Data:
    specs = {str(i): to_vllm(spec) for i, spec in enumerate(data["specs"])}
    return {
        "identical_spec": planner.is_kv_cache_spec_uniform(specs),
        "uniform_type": kinds.UniformTypeKVCacheSpecs.is_uniform_type(specs),
    }


def group_layers(data: Data) -> Data:
    tables = Tables()
    layers = layers_of(data["layers"], data["specs"])
    groups = planner.get_kv_cache_groups(_config(data), layers)
    return {"groups": tables.groups(groups), "specs": tables.specs}


def estimate_max_model_len(data: Data) -> Data:
    config = config_of(data["options"])
    layers = layers_of(data["layers"], data["specs"])
    groups = planner.get_kv_cache_groups(config, layers)
    return {
        "from_groups": [
            planner._estimate_max_model_len_from_groups(config, groups, memory)
            for memory in data["available_memory"]
        ],
        "per_layer": [
            planner.estimate_max_model_len(config, layers, memory)
            for memory in data["available_memory"]
        ],
        "needed_from_groups": planner._max_memory_usage_bytes_from_groups(config, groups),
        "needed_per_layer": planner.max_memory_usage_bytes(config, layers.values()),
    }


def project_to_worker(data: Data) -> Data:
    tables = Tables()
    layers = layers_of(data["layers"], data["specs"])
    groups = planner.get_kv_cache_groups(_config(data), layers)
    owned = {name: layers[name] for name in data["owned_layers"]}
    projected = planner._project_kv_cache_groups_to_worker(groups, owned)
    return {"groups": tables.groups(projected), "specs": tables.specs}


def plan(data: Data) -> Data:
    config, tables = _config(data), Tables()
    workers = [layers_of(worker["layers"], data["specs"]) for worker in data["workers"]]
    memory = [worker["available_memory"] for worker in data["workers"]]
    merged: Data = {}
    for worker in workers:
        merged.update(copy.deepcopy(worker))
    whole = planner.get_kv_cache_groups(copy.copy(config), merged)
    plans = planner.get_kv_cache_configs(config, workers, memory)
    output: Data = {
        "global_groups": tables.groups(whole),
        "max_model_len": config.model_config.max_model_len,
        "num_blocks": plans[0].num_blocks,
        "workers": [_worker(config, found) for found in plans],
    }
    if plans[0].kv_cache_groups:
        output["scheduler"] = _scheduler(config, plans, tables)
    return {**output, "specs": tables.specs}


def _config(data: Data) -> Any:
    config = config_of(data["options"])
    if {**GOLDEN["option_defaults"], **data["options"]}["cross_layer_packing"]:
        config.kv_transfer_config = SimpleNamespace(
            kv_connector_extra_config={"enable_cross_layers_blocks": "true"}
        )
    return config


def _worker(config: Any, found: Any) -> Data:
    groups = found.kv_cache_groups
    data: Data = {
        "group_layers": [list(group.layer_names) for group in groups],
        "tensors": [
            {
                "size": tensor.size,
                "shared_by": list(tensor.shared_by),
                "offset": tensor.offset,
                "block_stride": tensor.block_stride,
            }
            for tensor in found.kv_cache_tensors
        ],
    }
    if groups:
        data["bytes_per_block"] = planner._pool_bytes_per_block(config, groups)
        needed = planner._max_memory_usage_bytes_from_groups(config, groups)
        data["bytes_needed_for_one_request"] = needed
        tokens, times = planner.get_kv_cache_capacity(config, found)
        data.update(capacity_tokens=tokens, max_concurrency=times)
    return data


def _scheduler(config: Any, plans: list[Any], tables: Tables) -> Data:
    found = planner.generate_scheduler_kv_cache_config(plans)
    config = copy.deepcopy(config)
    sizes = [group.kv_cache_spec.block_size for group in found.kv_cache_groups]
    config.cache_config.block_size = min(sizes)
    tokens, times = planner.get_kv_cache_capacity(config, found)
    scheduler, hashed = planner.resolve_kv_cache_block_sizes(found, config)
    return {
        "scheduler_block_size": scheduler,
        "hash_block_size": hashed,
        "group_specs": [tables.name(group.kv_cache_spec) for group in found.kv_cache_groups],
        "min_block_size": min(sizes),
        "capacity_tokens": tokens,
        "max_concurrency": times,
    }


OPERATIONS: dict[str, Callable[[Data], Data]] = {
    "layer_page_size": layer_page_size,
    "layer_max_memory": layer_max_memory,
    "merge_specs": merge_specs,
    "classify_specs": classify_specs,
    "group_layers": group_layers,
    "estimate_max_model_len": estimate_max_model_len,
    "project_to_worker": project_to_worker,
    "plan": plan,
}


def answer(op: str, data: Data) -> Data:
    try:
        return {"output": OPERATIONS[op](copy.deepcopy(data))}
    except (*INTERNAL, AssertionError, ValueError, NotImplementedError) as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, INTERNAL):
            category = "internal"
        else:
            found = [CATEGORIES[name] for name in reversed(frames) if name in CATEGORIES]
            category = found[0] if found else "incompatible_layers"
        return {"error": {"category": category, "type": type(error).__name__}}


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    cases = Cases(seed)
    made = []
    for op in OPERATIONS:
        for number in range(count):
            data = inputs(cases, op)
            made.append({"id": f"{op}/{number}", "op": op, "input": data, **answer(op, data)})
    defaults = {key: GOLDEN[key] for key in ("option_defaults", "spec_defaults")}
    print(json.dumps({"vllm": vllm.__version__, "golden": {**defaults, "cases": made}}))


if __name__ == "__main__":
    main()
