"""Hit-rate traces: reading, the one-pass curve, and replay, beside vLLM's own pool in one run.

    PREFIXHASH_VLLM_PYTHON=VENV_WITH_VLLM/bin/python python benchmarks/bench_traces.py TRACE...

Without traces a synthetic one is made; without vLLM only our side is measured. Printed per trace:

* the curve (requests in memory) and the passes of a plain LRU over an OrderedDict that it replaces;
* requests/s of hash + lookup + allocate + commit + free at small blocks, tokens made before the
  clock starts: `PrefixCache` and `BlockHasher` beside vLLM's `KVCacheManager` and its block hasher
  (sha256_cbor on both sides);
* requests/s of lookup + allocate + cache + free with the trace's ids as hashes, beside vLLM's
  `BlockPool`.

Both sides take turns in one process and must hit the same blocks; medians (best) over the rounds,
in CPU seconds of the process, which is single-threaded.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from checkout import cpu_name, hand_over, make_parser

import prefixhash as ph
from prefixhash.cache import PrefixCache
from prefixhash.hashing import KERNEL
from prefixhash.pool import BlockPool
from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.engine import tokens_of_blocks
from prefixhash.trace.interning import Interner
from prefixhash.trace.policies import make_policy
from prefixhash.trace.reading import read_trace
from prefixhash.trace.records import TraceRequest
from prefixhash.trace.synth import synthesize

SEED = "0"
ALGORITHM = "sha256_cbor"
Side = Callable[[], int]
Figures = dict[str, Any]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("traces", nargs="*", metavar="TRACE")
    parser.add_argument("--block-size", type=int, default=16, help="of the engine replay")
    parser.add_argument("--requests", type=int, default=400, help="of the engine replay")
    parser.add_argument("--pool", type=float, default=0.25, help="share of the unique blocks")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    status = hand_over("PREFIXHASH_VLLM_PYTHON", "vllm")
    if status is not None:
        return status
    print(f"hash kernel {KERNEL}, {machine()}, vLLM {engine_version()}")
    figures = [measure(path, args) for path in args.traces or [None]]
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(path: str | None, args: argparse.Namespace) -> Figures:
    name, block_size, requests = load(path)
    print(f"\n{name}: {len(requests):,} requests, blocks of {block_size} tokens")
    figures: Figures = {"trace": name, "requests": len(requests)}
    figures["curve"] = measure_curve(requests, block_size, args.rounds)
    figures["engine"] = measure_engine(requests[: args.requests], block_size, args)
    figures["ids"] = measure_ids(requests, block_size, args)
    return figures


def load(path: str | None) -> tuple[str, int, list[TraceRequest]]:
    if path is None:
        return "synthetic (mixed, seed 0)", 64, list(synthesize("mixed", block_size=64))
    start = time.process_time()
    trace = read_trace(path)
    requests = list(trace)
    print(f"\nreading {trace.name}: {time.process_time() - start:.3f} s")
    return trace.name, trace.block_size, requests


def measure_curve(requests: list[TraceRequest], block_size: int, rounds: int) -> Figures:
    """The one-pass curve, and one run of a plain LRU at one capacity."""
    curve = hit_rate_curve(requests, block_size=block_size)
    capacity = max(curve.num_unique // 10, 1)

    def rerun() -> int:
        policy = make_policy("lru", capacity)
        ids: Any = (r.ids[: r.num_tokens // block_size] for r in requests)
        return sum(policy.take(blocks) for blocks in ids)

    sides: dict[str, Side] = {
        "curve": lambda: int(hit_rate_curve(requests, block_size=block_size).hits[-1]),
        "rerun": rerun,
    }
    seconds = take_turns(sides, rounds)
    one_pass, one_run = median(seconds["curve"]), median(seconds["rerun"])
    print(
        f"  curve at all {curve.max_capacity:,} capacities: {one_pass:.3f} s "
        f"({min(seconds['curve']):.3f}); one rerun of a plain LRU: {one_run:.3f} s, "
        f"so {curve.max_capacity * one_run / one_pass:,.0f} times as long for all"
    )
    return {"seconds": one_pass, "rerun_seconds": one_run, "capacities": curve.max_capacity}


def measure_engine(
    requests: list[TraceRequest], block_size: int, args: argparse.Namespace
) -> Figures:
    """Hash, look up, allocate, commit, free: every request through the whole engine."""
    size = args.block_size
    interner = Interner()
    prompts = [
        tokens_of_blocks(interner.intern(r.ids), r.num_tokens, block_size, index)
        for index, r in enumerate(requests)
    ]
    prompts = [tokens for tokens in prompts if tokens]
    longest = max(map(len, prompts)) // size
    num_blocks = max(int(args.pool * len(interner) * block_size / size), longest) + 3
    sides: dict[str, Side] = {"ours": lambda: our_engine(prompts, size, num_blocks)}
    if engine_version() != "not installed":
        lists = [tokens.tolist() for tokens in prompts]
        sides["vllm"] = lambda: vllm_engine(lists, size, num_blocks)
    seconds = take_turns(sides, args.rounds)
    tokens = sum(map(len, prompts))
    return report(
        "engine", seconds, len(prompts), tokens // size, f"{num_blocks:,} blocks of {size}"
    )


def our_engine(prompts: list[array[int]], size: int, num_blocks: int) -> int:
    hasher = ph.BlockHasher(size, ph.HashProfile.vllm("0.33", ALGORITHM, SEED))
    cache = PrefixCache.single(num_blocks, size)
    hits = 0
    for number, tokens in enumerate(prompts):
        request = ph.Request(str(number), tokens, block_hasher=hasher)
        hit = cache.lookup(request)
        if cache.allocate(request, request.num_tokens - hit.num_tokens, hit) is None:
            raise SystemExit("the pool is too small")
        cache.commit(request, request.num_tokens)
        cache.free(request)
        hits += hit.num_tokens
    return hits


def vllm_engine(prompts: list[list[int]], size: int, num_blocks: int) -> int:
    import torch
    from vllm import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    function = get_hash_fn_by_name(ALGORITHM)
    init_none_hash(function)
    hasher = get_request_block_hasher(size, function)
    spec = FullAttentionSpec(size, num_kv_heads=1, head_size=8, dtype=torch.float32)
    longest = max(map(len, prompts)) + 1
    manager = KVCacheManager(
        KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        max_model_len=longest,
        scheduler_block_size=size,
        hash_block_size=size,
        enable_caching=True,
    )
    params = SamplingParams(max_tokens=1)
    hits = 0
    for number, tokens in enumerate(prompts):
        request = Request(str(number), tokens, params, None, block_hasher=hasher)
        blocks, found, _ = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, len(tokens) - found, found, blocks) is None:
            raise SystemExit("the pool is too small")
        request.num_computed_tokens = len(tokens)
        manager.free(request)
        hits += found
    return hits


def measure_ids(requests: list[TraceRequest], block_size: int, args: argparse.Namespace) -> Figures:
    """Look up, allocate, cache, free, with the ids as hashes."""
    interner = Interner()
    prompts: list[tuple[list[bytes], int]] = []
    for request in requests:
        names = interner.intern(request.ids[: request.num_tokens // block_size])
        prompts.append(([b"%032d" % name for name in names], request.num_tokens))
    longest = max(-(-tokens // block_size) for _, tokens in prompts)
    num_blocks = max(int(args.pool * len(interner)), longest) + 3
    sides: dict[str, Side] = {"ours": lambda: our_pool(prompts, block_size, num_blocks)}
    if engine_version() != "not installed":
        sides["vllm"] = lambda: vllm_pool(prompts, block_size, num_blocks)
    seconds = take_turns(sides, args.rounds)
    references = sum(len(hashes) for hashes, _ in prompts)
    return report("ids", seconds, len(prompts), references, f"{num_blocks:,} blocks")


def our_pool(prompts: list[tuple[list[bytes], int]], size: int, num_blocks: int) -> int:
    pool = BlockPool(num_blocks)
    hits = 0
    for hashes, tokens in prompts:
        found = pool.longest_prefix(hashes[: max(tokens - 1, 0) // size])
        pool.touch(found)
        held = found + pool.allocate(-(-tokens // size) - len(found))
        pool.cache(held[len(found) : len(hashes)], hashes[len(found) :])
        pool.free(held[::-1])
        hits += len(found)
    return hits


def vllm_pool(prompts: list[tuple[list[bytes], int]], size: int, num_blocks: int) -> int:
    from vllm.v1.core.block_pool import BlockPool as VllmPool

    pool = VllmPool(num_blocks, True, size)
    hits = 0
    for number, (hashes, tokens) in enumerate(prompts):
        found: list[Any] = []
        for block_hash in hashes[: max(tokens - 1, 0) // size]:
            cached = pool.get_cached_block(block_hash, [0])
            if cached is None:
                break
            found.append(cached[0])
        pool.touch(found)
        held = found + pool.get_new_blocks(-(-tokens // size) - len(found))
        if len(hashes) > len(found):
            request = _HashedRequest(str(number), hashes)
            pool.cache_full_blocks(request, held, len(found), len(hashes), size, 0)
        pool.free_blocks(reversed(held))
        hits += len(found)
    return hits


class _HashedRequest:
    """What vLLM's pool reads of a request."""

    def __init__(self, request_id: str, block_hashes: list[bytes]) -> None:
        self.request_id = request_id
        self.block_hashes = block_hashes


def take_turns(sides: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side; those that replay the same prompts must give the same hits."""
    results = {name: side() for name, side in sides.items()}
    if "vllm" in results and len(set(results.values())) > 1:
        raise SystemExit(f"the hits differ: {results}")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.process_time()
            side()
            seconds[name].append(time.process_time() - start)
    return seconds


def report(
    name: str, seconds: dict[str, list[float]], requests: int, blocks: int, pool: str
) -> Figures:
    figures: Figures = {"requests": requests, "blocks": blocks}
    print(f"  {name}: {requests:,} requests, {blocks:,} blocks, pool of {pool}")
    for side, runs in seconds.items():
        rate = requests / median(runs)
        figures[f"{side}_requests_per_second"] = rate
        print(
            f"    {side:>5}: {rate:10,.0f} requests/s ({requests / min(runs):,.0f}), "
            f"{median(runs) / blocks * 1e9:,.0f} ns/block"
        )
    if "vllm" in seconds:
        ratio = median(seconds["vllm"]) / median(seconds["ours"])
        figures["times_faster"] = ratio
        print(f"    {ratio:.2f} times as fast as vLLM")
    return figures


def engine_version() -> str:
    try:
        import vllm
    except ImportError:
        return "not installed"
    return str(vllm.__version__)


def machine() -> str:
    return f"{cpu_name()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
