"""Steps of a scheduler with many running requests, and how calls grow, beside vLLM's in one run.

    PREFIXHASH_VLLM_PYTHON=VENV_WITH_VLLM/bin/python python benchmarks/bench_steps.py

Decode: microseconds per request of a step in which each running request gets a token, slots for it
and its blocks published; one call per request and method, or one call for all (`allocate_batch`,
`commit_batch`). Prompts have 512 to 527 tokens, blocks 16, windows 128; a sample is 16 steps over
all requests, so each fills one block in it and each window leaves one. Hashing (SHA-256 over CBOR)
is part of it on both sides.

Growth: microseconds per prompt of a lookup, of an admission (allocate and publish) and of a free,
cold (a new prompt) and warm (one that is cached), in pools in which every block is cached, so that
each block taken is an eviction. A sample is as many prompts as have 131,072 tokens; a cold lookup,
which ends at the first block, is repeated up to 128 calls. Making and hashing is not part of it.

vLLM's side is its KVCacheManager: `append_output_token_ids`, `allocate_slots`, and what its
scheduler does: `new_step_starts` once a step, `num_computed_tokens += 1`. Not the same: vLLM
publishes in `allocate_slots`, we in `commit`; we check what we are given, it does not; we return
ids, it returns its blocks, and its scheduler turns these into ids in calls not counted here. At the
end both must hold as many free blocks and as many hashes.

Times are CPU times of the thread, and the garbage collector is off while the clock runs. The two
sides take turns; ratios are those of the medians. Without vLLM only ours is measured. `--leak`
measures no time: it runs decode steps of ours and watches the memory of the process.
"""

from __future__ import annotations

import gc
import json
import platform
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench_pool import (
    BLOCK_SIZE,
    VOCABULARY,
    Figures,
    Times,
    digits,
    engine_version,
    take_turns,
    timed,
)
from checkout import cpu_name, hand_over, make_parser
from leak import watch
from step_sides import FULL, MAMBA, SLIDING, EngineSteps, OurSteps, Steps

from prefixhash.hashing import KERNEL

PROMPT = 512
STEPS = 16  # of a sample: each request fills one block
DECODES: dict[str, tuple[tuple[str, ...], int]] = {  # groups, running requests
    "full attention, 256 requests": ((FULL,), 256),
    "full attention, 1,024 requests": ((FULL,), 1_024),
    "sliding window, 256 requests": ((SLIDING,), 256),
    "full + sliding, 256 requests": ((FULL, SLIDING), 256),
    "full + sliding + Mamba, 256 requests": ((FULL, SLIDING, MAMBA), 256),
}
POOLS = (10_000, 100_000, 1_000_000)
PROMPTS = (1_024, 8_192, 32_768, 131_072)
CALLS = ("cold lookup", "warm lookup", "cold admission", "warm admission", "free")


def random_ids(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(VOCABULARY), k=count)


def in_turns(sides: dict[str, Steps], a_round: Callable[[Steps, int], Times], n: int) -> Figures:
    """The caches are not walked by the collector before every round: millions of objects."""
    turns: dict[str, Callable[[int], Times]] = {
        name: partial(a_round, side) for name, side in sides.items()
    }
    gc.collect()
    gc.freeze()
    figures = take_turns(turns, n)
    gc.unfreeze()
    return figures


# -- decode --------------------------------------------------------------------------------


def start(side: Steps, count: int) -> list[Any]:
    """Running requests whose blocks fill at different steps."""
    rng = random.Random(1)
    requests = []
    for i in range(count):
        ids = random_ids(rng, PROMPT + i % BLOCK_SIZE)
        request = side.make(f"{i}", ids)
        # States are kept where a step ends, so that the last one ends not at a block's end.
        aligned = (len(ids) - 1) // BLOCK_SIZE * BLOCK_SIZE
        side.admit(request, side.lookup(request), aligned)
        side.extend(request, len(ids) - aligned)
        requests.append(request)
    return requests


def decode_round(running: dict[int, list[Any]], side: Steps, turn: int) -> Times:
    requests = running[id(side)]
    rng = random.Random(turn)
    tokens = [random_ids(rng, len(requests)) for _ in range(STEPS)]

    def steps() -> None:
        for of_step in tokens:
            side.decode(requests, of_step)

    times: Times = {}
    timed(times, "step", steps)
    return {"step": [times["step"][0] / STEPS / len(requests)]}


def decodes(rounds: int, engine: bool) -> Figures:
    figures: Figures = {}
    for title, (kinds, count) in DECODES.items():
        blocks = (PROMPT + STEPS * (rounds + 2)) // BLOCK_SIZE + 2
        size = max(100_000, count * len(kinds) * blocks)
        sides: dict[str, Steps] = {
            "ours": OurSteps(kinds, size),
            "batched": OurSteps(kinds, size, batched=True),
        }
        if engine:
            sides["vllm"] = EngineSteps(kinds, size)
        running = {id(side): start(side, count) for side in sides.values()}
        figures[title] = in_turns(sides, partial(decode_round, running), rounds)["step"]
        check_alike(title, sides)
    return figures


def check_alike(title: str, sides: dict[str, Steps]) -> None:
    counts = {side: steps.counts() for side, steps in sides.items()}
    if len(set(counts.values())) > 1:
        raise SystemExit(f"{title}: not the same work: free blocks and hashes are {counts}")


# -- growth --------------------------------------------------------------------------------


def growth_round(tokens: int, side: Steps, turn: int) -> Times:
    """Seconds per prompt."""
    rng = random.Random(tokens * 1_000 + turn)
    count = max(PROMPTS) // tokens
    prompts = [random_ids(rng, tokens) for _ in range(count)]
    times: Times = {}
    for state, expected, repeats in (
        ("cold", 0, tokens // 1_024),
        ("warm", tokens - BLOCK_SIZE, 1),
    ):
        requests = [side.make(f"{state} {i}", ids) for i, ids in enumerate(prompts)]
        hits = timed(times, f"{state} lookup", lambda r=requests, n=repeats: look_up(side, r, n))  # type: ignore[misc]
        if any(side.hit_tokens(hit) != expected for hit in hits):
            raise SystemExit(f"{state} lookup of {tokens:,} tokens: a hit is not {expected:,}")
        times[f"{state} lookup"] = [times[f"{state} lookup"][0] / repeats]
        timed(times, f"{state} admission", lambda r=requests, h=hits: admit_all(side, r, h))  # type: ignore[misc]
        timed(times, "free", lambda r=requests: free_all(side, r))  # type: ignore[misc]
    return {call: [seconds / count for seconds in times[call]] for call in CALLS}


def look_up(side: Steps, requests: list[Any], repeats: int) -> list[Any]:
    lookup = side.lookup
    for _ in range(repeats):
        hits = [lookup(request) for request in requests]
    return hits


def admit_all(side: Steps, requests: list[Any], hits: list[Any]) -> None:
    for request, hit in zip(requests, hits, strict=True):
        side.admit(request, hit, request.num_tokens)


def free_all(side: Steps, requests: list[Any]) -> None:
    for request in requests:
        side.free(request)


def growth(rounds: int, engine: bool) -> dict[str, Figures]:
    """By "call, tokens": the figures of each size of the pool."""
    figures: dict[str, Figures] = {}
    for size in POOLS:
        sides: dict[str, Steps] = {"ours": OurSteps((FULL,), size)}
        if engine:
            sides["vllm"] = EngineSteps((FULL,), size)
        for steps in sides.values():
            steps.fill()
        for tokens in PROMPTS:
            for call, times in in_turns(sides, partial(growth_round, tokens), rounds).items():
                figures.setdefault(f"{call}, {tokens:,}", {})[f"{size:,}"] = times
        check_alike(f"pool of {size:,} blocks", sides)
    return {f"{call}, {n:,}": figures[f"{call}, {n:,}"] for call in CALLS for n in PROMPTS}


# -- tables --------------------------------------------------------------------------------


def decode_table(figures: Figures) -> str:
    lines = [
        "| decode step, us per request | ours | ours, batched | vLLM | times faster | batched |",
        "|---|---|---|---|---|---|",
    ]
    for title, sides in figures.items():
        cells = [decode_cell(sides.get(side)) for side in ("ours", "batched", "vllm")]
        cells += [times_faster(sides, side) for side in ("ours", "batched")]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def decode_cell(seconds: list[float] | None) -> str:
    if seconds is None:
        return "-"
    return f"{median(seconds) * 1e6:.2f} ({min(seconds) * 1e6:.2f})"


def times_faster(sides: dict[str, list[float]], side: str) -> str:
    return f"{median(sides['vllm']) / median(sides[side]):.1f}" if "vllm" in sides else "-"


def growth_table(figures: dict[str, Figures]) -> str:
    heads = [f"{size:,} blocks | vLLM | times faster" for size in POOLS]
    lines = [f"| us, tokens | {' | '.join(heads)} |", "|---" * (1 + 3 * len(POOLS)) + "|"]
    for title, pools in figures.items():
        cells = [cell for sides in pools.values() for cell in growth_cells(sides)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def growth_cells(sides: dict[str, list[float]]) -> list[str]:
    ours = digits(median(sides["ours"]) * 1e6)
    vllm = digits(median(sides["vllm"]) * 1e6) if "vllm" in sides else "-"
    return [ours, vllm, times_faster(sides, "ours")]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--leak", type=int, metavar="STEPS", help="only watch the memory")
    args = parser.parse_args()
    if args.leak is not None:
        return watch(args.leak)
    status = hand_over("PREFIXHASH_VLLM_PYTHON", "vllm")
    if status is not None:
        return status
    version = engine_version()
    python = f"{cpu_name()}, Python {platform.python_version()}"
    print(f"hash kernel {KERNEL}, {python}, vLLM {version}, CPU time, median (best)")
    decode = decodes(args.rounds, version is not None)
    print(decode_table(decode))
    grown = growth(max(args.rounds // 2, 1), version is not None)
    print(growth_table(grown))
    if args.json:
        figures = {"decode": decode, "growth": grown}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
