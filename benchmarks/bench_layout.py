"""Planning a KV cache: milliseconds, beside vLLM's planner in one run.

    PREFIXHASH_VLLM_PYTHON=VENV_WITH_VLLM_0.25/bin/python python benchmarks/bench_layout.py

Measured on a 61-layer model of the DeepSeek-V4 kinds (243 cached layers, a spec object per layer
and worker, as an engine has them): a plan; a plan with auto-fit of the length; the latter over 64
workers. Specs are made before the clock starts, on both sides (vLLM's planner changes them, so it
gets new ones for every round). The two sides take turns; the ratio is that of the medians. Both
must plan the same number of blocks. Without vLLM only our side is measured.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from checkout import cpu_name, hand_over, make_parser

from prefixhash.layout import (
    LATENT_584,
    LayerSpec,
    MLAAttentionSpec,
    PlanOptions,
    SlidingWindowMLASpec,
    plan_workers,
)

LAYERS = 61
BATCH = 8192
GIB = 1 << 30


@dataclass(frozen=True)
class Task:
    """One planning problem; `max_model_len` is the upper limit with auto-fit."""

    name: str
    workers: int
    memory: int
    max_model_len: int
    auto_fit: bool


TASKS = (
    Task("plan", 1, 30 * GIB, 131_072, auto_fit=False),
    Task("auto-fit", 1, 8 * GIB, 1_048_576, auto_fit=True),
    Task("auto-fit, 64 workers", 64, 8 * GIB, 1_048_576, auto_fit=True),
)

# A side makes the inputs of one round, and from them (blocks, longest length).
Side = tuple[Callable[[], Any], Callable[[Any], tuple[int, int]]]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    status = hand_over("PREFIXHASH_VLLM_PYTHON", "vllm")
    if status is not None:
        return status
    figures = [measure(task, args.rounds) for task in TASKS]
    machine = f"{cpu_name()}, {platform.python_implementation()} {platform.python_version()}"
    print(f"{machine}, vLLM {engine_version()}")
    print(f"{4 * LAYERS - 1} cached layers, {args.rounds} rounds, median (best) in milliseconds")
    print(table(figures))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(task: Task, rounds: int) -> dict[str, Any]:
    sides = {"ours": our_side(task)}
    engine = engine_side(task)
    if engine is not None:
        sides["vllm"] = engine
    answers = {name: run(make()) for name, (make, run) in sides.items()}
    if len({blocks for blocks, _ in answers.values()}) > 1:
        raise SystemExit(f"{task.name}: the block counts differ: {answers}")
    seconds = take_turns(sides, rounds)
    figures: dict[str, Any] = {"task": task.name, "workers": task.workers}
    for name, runs in seconds.items():
        figures[f"{name}_blocks"], figures[f"{name}_max_model_len"] = answers[name]
        figures[f"{name}_ms"] = median(runs) * 1e3
        figures[f"{name}_best_ms"] = min(runs) * 1e3
    if engine is not None:
        figures["times_faster"] = median(seconds["vllm"]) / median(seconds["ours"])
    return figures


def take_turns(sides: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, (make, run) in sides.items():
            inputs = make()
            start = time.perf_counter()
            run(inputs)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def our_side(task: Task) -> Side:
    options = PlanOptions(
        max_model_len=task.max_model_len,
        auto_fit=task.auto_fit,
        max_num_batched_tokens=BATCH,
        count_null_block=True,
    )
    memory = [task.memory] * task.workers

    def make() -> list[dict[str, LayerSpec]]:
        return [our_layers() for _ in range(task.workers)]

    def run(layers: list[dict[str, LayerSpec]]) -> tuple[int, int]:
        plans = plan_workers(layers, memory, options)
        entries = [plan.tensors for plan in plans]
        assert len(entries) == task.workers
        return plans[0].num_blocks, plans[0].max_model_len

    return make, run


def our_layers() -> dict[str, LayerSpec]:
    def latent(ratio: int) -> LayerSpec:
        return MLAAttentionSpec(
            block_size=256,
            head_size=512,
            dtype="uint8",
            row=LATENT_584,
            compress_ratio=ratio,
            alignment=576,
        )

    def indexer() -> LayerSpec:
        return MLAAttentionSpec(
            block_size=256, head_size=132, dtype="uint8", compress_ratio=4, alignment=576
        )

    def window() -> LayerSpec:
        return SlidingWindowMLASpec(
            block_size=64, head_size=512, dtype="uint8", row=LATENT_584, window=128, alignment=576
        )

    def state(block_size: int, width: int, tokens: int) -> LayerSpec:
        return SlidingWindowMLASpec(
            block_size=block_size, head_size=width, dtype="float32", window=tokens, alignment=576
        )

    return compressed_model(latent, indexer, window, state)


def compressed_model(
    latent: Callable[[int], Any],
    indexer: Callable[[], Any],
    window: Callable[[], Any],
    state: Callable[[int, int, int], Any],
) -> dict[str, Any]:
    """Layers in the order in which the model registers them."""
    layers: dict[str, Any] = {}
    for index in range(LAYERS):
        sparse = index >= 2 and index % 2 == 0
        if sparse:
            layers[f"L{index}.idx"] = indexer()
            layers[f"L{index}.idx_state"] = state(4, 512, 8)
        layers[f"L{index}.swa"] = window()
        layers[f"L{index}.attn"] = latent(4 if sparse else 128)
        layers[f"L{index}.state"] = state(4, 2048, 8) if sparse else state(8, 1024, 128)
    return layers


def engine_side(task: Task) -> Side | None:
    try:
        import torch
        from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
        from vllm.v1.kv_cache_interface import KVQuantMode
        from vllm.v1.kv_cache_interface import MLAAttentionSpec as Latent
        from vllm.v1.kv_cache_interface import SlidingWindowMLASpec as Window
    except ImportError:
        return None
    rows: dict[str, Any] = {
        "num_kv_heads": 1,
        "head_size": 512,
        "dtype": torch.uint8,
        "cache_dtype_str": "fp8_ds_mla",
        "model_version": "deepseek_v4",
        "kv_quant_mode": KVQuantMode.FP8_PER_TENSOR,
        "alignment": 576,
    }
    plain: dict[str, Any] = {"num_kv_heads": 1, "alignment": 576}

    def layers() -> dict[str, Any]:
        return compressed_model(
            lambda ratio: Latent(block_size=256, compress_ratio=ratio, **rows),
            lambda: Latent(
                block_size=256, head_size=132, dtype=torch.uint8, compress_ratio=4, **plain
            ),
            lambda: Window(block_size=64, sliding_window=128, **rows),
            lambda block, width, tokens: Window(
                block_size=block,
                head_size=width,
                dtype=torch.float32,
                sliding_window=tokens,
                **plain,
            ),
        )

    def make() -> tuple[Any, list[dict[str, Any]]]:
        return engine_config(task), [layers() for _ in range(task.workers)]

    def run(inputs: tuple[Any, list[dict[str, Any]]]) -> tuple[int, int]:
        config, specs = inputs
        configs = get_kv_cache_configs(config, specs, [task.memory] * task.workers)
        return configs[0].num_blocks, config.model_config.max_model_len

    return make, run


def engine_config(task: Task) -> Any:
    """The part of an engine's configuration that its planner reads."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=task.max_model_len,
            original_max_model_len=-1 if task.auto_fit else task.max_model_len,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=BATCH,
            disable_hybrid_kv_cache_manager=False,
            max_num_encoder_input_tokens=0,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None, mamba_cache_mode="none"),
        kv_transfer_config=None,
        speculative_config=None,
    )


def engine_version() -> str:
    vllm = sys.modules.get("vllm")
    return str(vllm.__version__) if vllm else "not installed"


def table(figures: list[dict[str, Any]]) -> str:
    lines = ["| task | ours | vLLM | faster |", "|---|---|---|---|"]
    for row in figures:
        ratio = f"{row['times_faster']:.0f}" if "times_faster" in row else "-"
        cells = (row["task"], milliseconds(row, "ours"), milliseconds(row, "vllm"), ratio)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def milliseconds(row: dict[str, Any], side: str) -> str:
    if f"{side}_ms" not in row:
        return "-"
    return f"{row[f'{side}_ms']:.2f} ({row[f'{side}_best_ms']:.2f})"


if __name__ == "__main__":
    sys.exit(main())
