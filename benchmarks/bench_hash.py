"""Hashing a prompt: nanoseconds per block and tokens per second, beside vLLM's hasher in one run.

    PREFIXHASH_VLLM_PYTHON=VENV_WITH_VLLM/bin/python python benchmarks/bench_hash.py

Measured per algorithm: the hashes of all full blocks of a prompt of random ids below 151,936, from
a request that exists already (both sides), and from a bare list (ours, validation included). The
Python kernel remembers the bytes of ids it has met, so `--ids` tells how far that helps. The
sides take turns; the ratio is that of the medians. Without vLLM only our side is measured.
"""

from __future__ import annotations

import json
import platform
import random
import sys
import time
import warnings
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from checkout import cpu_name, hand_over, make_parser

import prefixhash as ph
from prefixhash.hashing import ALGORITHMS, KERNEL

SEED = "0"
VOCABULARY = 151_936


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--ids",
        choices=("same", "zipf", "uniform"),
        default="same",
        help="one uniform prompt for all rounds (default), or a new one for each: with ids as "
        "frequent as words are (Zipf), or all equally frequent",
    )
    args = parser.parse_args()
    status = hand_over("PREFIXHASH_VLLM_PYTHON", "vllm")
    if status is not None:
        return status
    warnings.simplefilter("ignore", ph.CollisionRiskWarning)
    prompts = make_prompts(args.ids, args.tokens, args.rounds)
    figures = [measure(name, prompts, args.block_size) for name in ALGORITHMS]
    machine = f"{cpu_name()}, {platform.python_implementation()} {platform.python_version()}"
    print(f"kernel {KERNEL}, {machine}, vLLM {engine_version()}")
    rounds = f"{args.rounds} rounds, ids {args.ids}"
    print(f"{args.tokens:,} tokens, blocks of {args.block_size}, {rounds}, median (best)")
    print(table(figures))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def make_prompts(kind: str, tokens: int, rounds: int) -> list[list[int]]:
    """A prompt for each round, and one before them to warm up."""
    rng = random.Random(1)
    if kind == "zipf":
        order = rng.sample(range(VOCABULARY), VOCABULARY)  # frequent ids are spread over all
        weights = list(accumulate(1 / (rank + 2.7) for rank in range(VOCABULARY)))
        return [rng.choices(order, cum_weights=weights, k=tokens) for _ in range(rounds + 1)]
    prompts = [[rng.randrange(VOCABULARY) for _ in range(tokens)]]
    if kind == "same":
        return prompts * (rounds + 1)
    return [[rng.randrange(VOCABULARY) for _ in range(tokens)] for _ in range(rounds + 1)]


def measure(algorithm: str, prompts: list[list[int]], block_size: int) -> dict[str, Any]:
    hasher = ph.BlockHasher(block_size, ph.HashProfile.vllm("0.33", algorithm, SEED))
    requests = [ph.Request("r", ids) for ids in prompts]
    sides: dict[str, Callable[[int], Any]] = {
        "ours": lambda i: hasher(requests[i]),
        "ours_from_list": lambda i: hasher.hash_tokens(prompts[i]),
    }
    engine = engine_hasher(algorithm, prompts, block_size)
    if engine is not None:
        sides["vllm"] = engine
        if engine(0) != hasher(requests[0]):
            raise SystemExit(f"{algorithm}: the hashes differ")
    tokens = len(prompts[0])
    blocks = tokens // block_size
    seconds = take_turns(sides, len(prompts) - 1)
    figures: dict[str, Any] = {"algorithm": algorithm, "blocks": blocks}
    for side, runs in seconds.items():
        figures[f"{side}_ns_per_block"] = median(runs) / blocks * 1e9
        figures[f"{side}_best_ns_per_block"] = min(runs) / blocks * 1e9
    figures["tokens_per_second"] = tokens / median(seconds["ours"])
    if "vllm" in seconds:
        for side in ("ours", "ours_from_list"):
            figures[f"{side}_times_faster"] = median(seconds["vllm"]) / median(seconds[side])
    return figures


def take_turns(sides: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, list[float]]:
    for side in sides.values():
        side(0)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            side(number)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def engine_hasher(
    algorithm: str, prompts: list[list[int]], block_size: int
) -> Callable[[int], Any] | None:
    try:
        from vllm import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request
    except ImportError:
        return None
    hash_function = get_hash_fn_by_name(algorithm)
    init_none_hash(hash_function)
    requests = [Request("r", ids, SamplingParams(max_tokens=1), None) for ids in prompts]
    hasher = get_request_block_hasher(block_size, hash_function)
    return lambda i: hasher(requests[i])


def engine_version() -> str:
    vllm = sys.modules.get("vllm")
    return str(vllm.__version__) if vllm else "not installed"


def table(figures: list[dict[str, Any]]) -> str:
    lines = [
        "| algorithm | ours, ns/block | from a list | vLLM | faster | from a list | M tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in figures:
        cells = [
            row["algorithm"],
            *(nanoseconds(row, side) for side in ("ours", "ours_from_list", "vllm")),
            *(times_faster(row, side) for side in ("ours", "ours_from_list")),
            f"{row['tokens_per_second'] / 1e6:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def times_faster(row: dict[str, Any], side: str) -> str:
    ratio = row.get(f"{side}_times_faster")
    return "-" if ratio is None else f"{ratio:.2f}"


def nanoseconds(row: dict[str, Any], side: str) -> str:
    if f"{side}_ns_per_block" not in row:
        return "-"
    return f"{row[f'{side}_ns_per_block']:,.0f} ({row[f'{side}_best_ns_per_block']:,.0f})"


if __name__ == "__main__":
    sys.exit(main())
