"""Long random histories of the cache against the naive cache, without a search for short ones.

    python -m tests.cache.random_histories --steps 100000 --seed 1

spreads the steps over all layouts, each with short and with roomy pools and with the end of
`max_model_len` near or far. The state machine finds small examples; these histories reach states
that need hundreds of steps.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from prefixhash._compiled import kernel_features
from prefixhash.cache import CacheStats

from .test_stateful import LAYOUTS, CacheMachine

Draw = Callable[[random.Random], dict[str, Any]]


def several(rng: random.Random, values: range | list[int]) -> list[int]:
    return rng.choices(values, k=rng.randrange(5))


# Name of the rule -> how often it is drawn, and its arguments.
RULES: dict[str, tuple[int, Draw]] = {
    "new": (
        8,
        lambda rng: {
            "family": rng.choice([0, 0, 0, 1]),
            "shared": rng.randint(0, 34),
            "own": several(rng, range(3)),
            "serve": rng.random() < 0.5,
            "leave": rng.random() < 0.5,
        },
    ),
    "serve_waiting": (3, lambda rng: {"chunk": rng.choice([4, 5, 7, 8, 60])}),
    "lookup": (3, lambda rng: {}),
    "admit": (
        4,
        lambda rng: {
            "new": rng.randint(1, 20),
            "ahead": rng.randrange(4),
            "encoder": rng.choice([0, 5]),
        },
    ),
    "extend": (
        4,
        lambda rng: {
            "new": rng.randint(1, 6),
            "ahead": rng.randrange(4),
            "encoder": rng.choice([0, 0, 0, 9]),
        },
    ),
    "decode": (8, lambda rng: {"count": rng.randint(1, 12), "ahead": rng.choice([0, 0, 2])}),
    "extend_batch": (
        5,
        lambda rng: {"news": several(rng, [1, 1, 1, 2, 5]), "ahead": rng.randrange(3)},
    ),
    "commit": (5, lambda rng: {"rejected": rng.choice([0, 0, 1, 3])}),
    "commit_batch": (4, lambda rng: {"rejected": several(rng, [0, 0, 0, 1, 3])}),
    "commit_all_steps": (2, lambda rng: {"count": rng.randrange(5)}),
    "append": (
        6,
        lambda rng: {"running": rng.random() < 0.8, "ids": several(rng, range(3))},
    ),
    "leave": (3, lambda rng: {"preempt": rng.random() < 0.5}),
    "abort": (1, lambda rng: {}),
    "trim": (1, lambda rng: {}),
    "reset": (1, lambda rng: {"new_generation": rng.random() < 0.2}),
    "evict": (1, lambda rng: {"block": rng.randint(1, 13)}),
    "pin": (1, lambda rng: {"block": rng.randint(1, 13)}),
    "unpin": (1, lambda rng: {}),
    "bad_calls": (1, lambda rng: {"new": rng.choice([0, None]), "ahead": -1}),
    "forged_hit": (
        1,
        lambda rng: {"place": rng.randrange(4), "block": rng.randint(-2, 15)},
    ),
}
WITHOUT_REQUEST = {"new", "reset", "evict", "pin", "unpin"}


def run_history(layout: str, seed: int, steps: int) -> CacheStats:
    """So many random operations on one layout, and what the cache has counted of them."""
    rng = random.Random(f"{layout} {seed}")
    size = {"blocks": rng.choice([14, 24, 40]), "longest": rng.choice([60, 60, 41])}
    machine = type("Machine", (CacheMachine,), {"groups": LAYOUTS[layout], **size})()
    names = list(RULES)
    weights = [weight for weight, _ in RULES.values()]
    for name in rng.choices(names, weights, k=steps):
        if name == "new" and len(machine.requests) >= 6:
            continue
        arguments = RULES[name][1](rng)
        if name not in WITHOUT_REQUEST:
            arguments["i"] = rng.randrange(30)
        getattr(machine, name)(**arguments)
        machine.same()
        machine.events()
    stats: CacheStats = machine.cache.stats
    return stats


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    start = time.perf_counter()
    length = 400
    for i in range(max(args.steps // length, 1)):
        layout = list(LAYOUTS)[i % len(LAYOUTS)]
        seed = args.seed + i // len(LAYOUTS)
        try:
            run_history(layout, seed, length)
        except BaseException:
            print(f"layout {layout}, seed {seed}", file=sys.stderr)
            raise
    kernel = kernel_features()["cache"]
    seconds = time.perf_counter() - start
    print(f"cache ({kernel}): {args.steps:,} operations, no difference, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
