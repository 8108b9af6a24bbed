"""`prefixhash plan`: a model's config.json and bytes of memory in, its KV-cache plan out."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from prefixhash._units import parse_bytes
from prefixhash.cli._plan_text import plan_lines
from prefixhash.errors import InvalidArgumentError
from prefixhash.layout import (
    KVCachePlan,
    ModelLayers,
    known_model_types,
    plan_workers,
    read_model_config,
    resolve_block_sizes,
)
from prefixhash.layout.options import GROUP_POLICIES, STATE_CACHE_MODES

_DESCRIPTION = """\
Plans the KV cache of a model: groups of layers that share block tables, buffers, number of blocks,
bytes that padding wastes, how many requests fit and how long they may be.

--memory is what one worker has left for the KV cache, after weights and activations. With
--max-model-len auto the longest length that fits is found; with a number, a plan that cannot hold
one request of it is an error that names the longest length."""

_EPILOG = """\
examples:
  prefixhash plan Llama-3.1-8B/config.json --memory 60GiB
  prefixhash plan config.json --memory 60GiB --tp 8 --kv-dtype fp8 --json
  prefixhash plan config.json --memory 60GiB,50GiB --pp 2 --plot block.svg"""


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "plan",
        help="KV-cache plan of a model: blocks, bytes, groups, lengths",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", nargs="?", help="config.json, its folder, or - (standard input)")
    parser.add_argument(
        "--memory",
        metavar="SIZE[,SIZE...]",
        help="per worker: 60GiB, 80GB or bytes; several: one per pipeline stage",
    )
    parser.add_argument("--list", action="store_true", help="print the known model types")
    _add_serving(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="the plan as one JSON object")
    output.add_argument("--output", metavar="FILE", default="-", help="default: standard output")
    output.add_argument("--plot", metavar="FILE", help="picture of one block: .svg, .png or .pdf")
    parser.set_defaults(run=run)


def _add_serving(parser: argparse.ArgumentParser) -> None:
    serving = parser.add_argument_group("serving")
    add = serving.add_argument
    add("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks (default 1)")
    add("--pp", type=int, default=1, metavar="N", help="pipeline stages (default 1)")
    add("--pp-layers", metavar="N,N...", help="layers per stage (default: as vLLM splits)")
    add("--block-size", default="auto", metavar="TOKENS", help="default: as engines choose")
    add("--kv-dtype", default="auto", metavar="TYPE", help="auto, bfloat16, float16, fp8, ...")
    add("--dtype", default="auto", metavar="TYPE", help="of the model (default: its config's)")
    add("--state-dtype", default="auto", metavar="TYPE", help="of recurrent states")
    add("--state-cache-mode", default="none", choices=STATE_CACHE_MODES)
    add("--max-model-len", default="auto", metavar="TOKENS", help="auto or a number")
    add("--max-num-batched-tokens", type=int, default=8192, metavar="TOKENS")
    add("--num-speculative-tokens", type=int, default=0, metavar="N")
    add("--group-policy", default="reference", choices=GROUP_POLICIES)
    add("--pack", action="store_true", help="all layers of a block side by side in one buffer")
    add("--count-null-block", action="store_true", help="as usable, like vLLM before 0.29")


def run(args: argparse.Namespace) -> int:
    """Prints the plan, or the known model types."""
    if args.list:
        print("\n".join(known_model_types()))
        return 0
    if args.config is None or args.memory is None:
        missing = "config" if args.config is None else "--memory"
        raise InvalidArgumentError(missing, None, "is needed (prefixhash plan --help)")
    model = _model(args)
    plans = _plans(args, model)
    if args.plot:
        from prefixhash.cli._plan_plot import save_picture

        save_picture(args.plot, model, plans)
    if model.generic:
        text = f"unknown model_type {model.model_type!r}: read by its general fields"
        print(f"prefixhash plan: note: {text}", file=sys.stderr)
    if args.json:
        _write(args.output, json.dumps(plan_record(model, plans), indent=2))
    else:
        _write(args.output, "\n".join(plan_lines(model, plans)))
    return 0


def plan_record(model: ModelLayers, plans: Sequence[KVCachePlan]) -> dict[str, Any]:
    """The plan as plain data; sizes in bytes, lengths and block sizes in tokens."""
    plan = plans[0]
    needs = plan.blocks_needed()
    concurrency = plan.max_concurrency
    return {
        "model_type": model.model_type,
        "known_architecture": not model.generic,
        "kv_dtype": model.kv_dtype,
        "tensor_parallel": model.tensor_parallel,
        "pipeline_parallel": len(plans),
        "max_model_len": plan.max_model_len,
        "num_blocks": plan.num_blocks,
        "usable_blocks": plan.usable_blocks,
        "blocks_needed": sum(needs),
        "max_concurrency": None if math.isinf(concurrency) else round(concurrency, 6),
        "capacity_tokens": plan.capacity_tokens,
        "scheduler_block_size": _scheduler_block_size(plan),
        "groups": [
            {
                "kind": group.kind,
                "block_size": group.block_size,
                "window": group.window,
                "chunk": group.chunk,
                "blocks_needed": need,
                "layers": [name for part in plans for name in part.groups[index].layer_names],
            }
            for index, (group, need) in enumerate(zip(plan.groups, needs, strict=True))
        ],
        "stages": [_stage_record(part) for part in plans],
    }


def _stage_record(plan: KVCachePlan) -> dict[str, Any]:
    return {
        "available_memory": plan.available_memory,
        "bytes_per_block": plan.bytes_per_block,
        "total_bytes": plan.total_bytes,
        "bytes_needed": plan.bytes_needed(),
        "unused_bytes_per_block": list(plan.unused_bytes),
        "packed": plan.layout.packed,
        "tensors": [
            {
                "size": tensor.size,
                "shared_by": list(tensor.shared_by),
                "offset": tensor.offset,
                "block_stride": tensor.block_stride,
            }
            for tensor in plan.tensors
        ],
    }


def _scheduler_block_size(plan: KVCachePlan) -> int:
    return resolve_block_sizes(plan.groups, plan.groups[0].block_size).scheduler


def _model(args: argparse.Namespace) -> ModelLayers:
    config: Any = args.config
    if config == "-":
        config = _standard_input()
    block_size, length = args.block_size, args.max_model_len
    return read_model_config(
        config,
        block_size=None if block_size == "auto" else _integer("--block-size", block_size),
        tensor_parallel=args.tp,
        kv_dtype=args.kv_dtype,
        model_dtype=args.dtype,
        state_dtype=args.state_dtype,
        state_cache_mode=args.state_cache_mode,
        max_model_len=None if length == "auto" else _integer("--max-model-len", length),
        speculative_tokens=args.num_speculative_tokens,
    )


def _plans(args: argparse.Namespace, model: ModelLayers) -> tuple[KVCachePlan, ...]:
    """One plan per pipeline stage: the ranks of a stage are alike."""
    partition = None
    if args.pp_layers is not None:
        partition = [_integer("--pp-layers", part) for part in args.pp_layers.split(",")]
    stages = model.stages(args.pp, partition)
    memory = [parse_bytes("--memory", part) for part in args.memory.split(",")]
    if len(memory) not in (1, len(stages)):
        problem = f"give one size, or one for each of {len(stages)} stages"
        raise InvalidArgumentError("--memory", args.memory, problem)
    options = model.options(
        auto_fit=args.max_model_len == "auto",
        max_num_batched_tokens=args.max_num_batched_tokens,
        group_policy=args.group_policy,
        cross_layer_packing=args.pack,
        count_null_block=args.count_null_block,
    )
    return plan_workers(stages, memory * len(stages) if len(memory) == 1 else memory, options)


def _standard_input() -> Any:
    try:
        config = json.load(sys.stdin)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("config", "-", f"no JSON on standard input: {error}") from None
    if not isinstance(config, dict):
        raise InvalidArgumentError("config", "-", "standard input must hold a JSON object")
    return config


def _integer(argument: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(argument, text, "must be a whole number or auto") from None


def _write(path: str, text: str) -> None:
    if path == "-":
        print(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")
