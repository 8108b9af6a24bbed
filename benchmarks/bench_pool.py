"""The block pool and a whole admission, beside vLLM's own in one run.

    PREFIXHASH_VLLM_PYTHON=VENV_WITH_VLLM/bin/python python benchmarks/bench_pool.py

Pool: nanoseconds per block of each call on a pool of 100,000 blocks and requests of 2,048 blocks;
`allocate` takes blocks without a hash, `evicting allocate` takes cached ones from a pool in which
every block is. Admission: microseconds for a prompt of 32,768 random ids, blocks of 16, SHA-256
over CBOR: make and hash the request, look it up, allocate and publish its blocks, free them; cold
(a new prompt) and warm (a prompt that is cached); and a decode step: append a token, allocate,
publish. Times are CPU times of the thread, and the garbage collector is off while the clock runs.
The two sides take turns; ratios are those of the medians. Without vLLM only ours is measured.
"""

from __future__ import annotations

import gc
import json
import platform
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from checkout import cpu_name, hand_over, make_parser

from prefixhash import BlockHasher, BlockPool, HashProfile, PrefixCache, Request
from prefixhash.hashing import KERNEL

BLOCK_SIZE = 16
ALGORITHM = "sha256_cbor"
VOCABULARY = 151_936
DECODE_STEPS = 64
Times = dict[str, list[float]]  # operation, seconds of each round
Figures = dict[str, Times]  # operation, side, seconds of each round
Side = Callable[[int], Times]  # one round, told its number


class PoolSide(Protocol):
    """The calls of a pool, over its own notion of a block."""

    def allocate(self, n: int) -> Any: ...
    def cache(self, blocks: Any, hashes: list[bytes]) -> None: ...
    def longest_prefix(self, hashes: list[bytes]) -> int: ...
    def touch(self, blocks: Any) -> None: ...
    def free(self, blocks: Any) -> None: ...
    def forget(self, blocks: Any) -> None: ...


class OurPool:
    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.allocate = self.pool.allocate
        self.cache = self.pool.cache
        self.touch = self.pool.touch

    def longest_prefix(self, hashes: list[bytes]) -> int:
        return len(self.pool.longest_prefix(hashes))

    def free(self, blocks: list[int]) -> None:
        self.pool.free(blocks[::-1])

    def forget(self, blocks: list[int]) -> None:
        self.pool.evict(blocks)
        self.free(blocks)


class EnginePool:
    def __init__(self, num_blocks: int) -> None:
        from types import SimpleNamespace

        from vllm.v1.core.block_pool import BlockPool as Pool

        self.pool = Pool(num_blocks, True, BLOCK_SIZE)
        self.request = SimpleNamespace
        self.allocate = self.pool.get_new_blocks
        self.touch = self.pool.touch

    def cache(self, blocks: Any, hashes: list[bytes]) -> None:
        request = self.request(block_hashes=hashes)
        self.pool.cache_full_blocks(request, blocks, 0, len(blocks), BLOCK_SIZE, 0)

    def longest_prefix(self, hashes: list[bytes]) -> int:
        found = []
        for block_hash in hashes:
            blocks = self.pool.get_cached_block(block_hash, [0])
            if not blocks:
                break
            found.append(blocks[0])
        return len(found)

    def free(self, blocks: Any) -> None:
        self.pool.free_blocks(reversed(blocks))

    def forget(self, blocks: Any) -> None:
        self.pool.evict_blocks({block.block_id for block in blocks})
        self.free(blocks)


class AdmissionSide(Protocol):
    """One request from its tokens to the release of its blocks."""

    def make(self, name: str, ids: list[int]) -> Any: ...
    def lookup(self, request: Any) -> Any: ...
    def allocate(self, request: Any, hit: Any) -> None: ...
    def decode(self, request: Any) -> None: ...
    def free(self, request: Any) -> None: ...


class OurCache:
    def __init__(self, num_blocks: int) -> None:
        self.cache = PrefixCache.single(num_blocks, BLOCK_SIZE)
        self.hasher = BlockHasher(BLOCK_SIZE, HashProfile.vllm("0.33", ALGORITHM))
        self.lookup = self.cache.lookup
        self.free = self.cache.free

    def make(self, name: str, ids: list[int]) -> Request:
        return Request(name, ids, block_hasher=self.hasher)

    def allocate(self, request: Request, hit: Any) -> None:
        self.cache.allocate(request, request.num_tokens - hit.num_tokens, hit)
        self.cache.commit(request, request.num_tokens)

    def decode(self, request: Request) -> None:
        request.append_token_ids(5)
        self.cache.allocate(request, 1)
        self.cache.commit(request, request.num_tokens)


class EngineCache:
    def __init__(self, num_blocks: int) -> None:
        import torch
        from vllm import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request as EngineRequest

        spec = FullAttentionSpec(BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
        config = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
        self.manager = KVCacheManager(config, 1 << 20, BLOCK_SIZE, BLOCK_SIZE)
        function = get_hash_fn_by_name(ALGORITHM)
        init_none_hash(function)
        self.hasher = get_request_block_hasher(BLOCK_SIZE, function)
        self.params = SamplingParams(max_tokens=1)
        self.request = EngineRequest
        self.lookup = self.manager.get_computed_blocks
        self.free = self.manager.free

    def make(self, name: str, ids: list[int]) -> Any:
        return self.request(name, ids, self.params, None, block_hasher=self.hasher)

    def allocate(self, request: Any, hit: Any) -> None:
        blocks, num_hit, _ = hit
        self.manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, blocks)
        request.num_computed_tokens = request.num_tokens

    def decode(self, request: Any) -> None:
        request.append_output_token_ids(5)
        self.manager.allocate_slots(request, 1)
        request.num_computed_tokens += 1


def timed(figures: Times, name: str, call: Callable[[], Any]) -> Any:
    start = time.thread_time()
    result = call()
    figures.setdefault(name, []).append(time.thread_time() - start)
    return result


def pool_round(side: PoolSide, full: PoolSide, n: int, seed: int) -> Times:
    rng = random.Random(seed)
    hashes = [rng.randbytes(32) for _ in range(n)]
    times: Times = {}
    blocks = timed(times, "allocate", lambda: side.allocate(n))
    timed(times, "cache", lambda: side.cache(blocks, hashes))
    found = timed(times, "longest_prefix", lambda: side.longest_prefix(hashes))
    if found != n:
        raise SystemExit(f"{found} of {n} blocks found")
    timed(times, "free", lambda: side.free(blocks))
    timed(times, "touch", lambda: side.touch(blocks))
    side.forget(blocks)
    blocks = timed(times, "evicting allocate", lambda: full.allocate(n))
    full.cache(blocks, hashes)
    full.free(blocks)
    return times


def fill(side: PoolSide, num_blocks: int) -> PoolSide:
    """Cache and free every block, so that each later allocation evicts."""
    blocks = side.allocate(num_blocks - 1)
    rng = random.Random(0)
    side.cache(blocks, [rng.randbytes(32) for _ in range(num_blocks - 1)])
    side.free(blocks)
    return side


def admission_round(side: AdmissionSide, tokens: int, seed: int) -> Times:
    rng = random.Random(seed)
    ids = [rng.randrange(VOCABULARY) for _ in range(tokens)]
    times: Times = {}
    for state in ("cold", "warm"):
        request = timed(times, f"{state}: make and hash", lambda: side.make(f"{seed}", ids))
        hit = timed(times, f"{state}: look up", lambda r=request: side.lookup(r))  # type: ignore[misc]
        timed(times, f"{state}: allocate", lambda r=request, h=hit: side.allocate(r, h))  # type: ignore[misc]
        for _ in range(DECODE_STEPS if state == "cold" else 0):
            timed(times, "one decode step", lambda r=request: side.decode(r))  # type: ignore[misc]
        timed(times, f"{state}: free", lambda r=request: side.free(r))  # type: ignore[misc]
        parts = ("make and hash", "look up", "allocate", "free")
        times[f"{state}: all"] = [sum(times[f"{state}: {part}"][0] for part in parts)]
    return times


def take_turns(sides: dict[str, Callable[[int], dict[str, list[float]]]], rounds: int) -> Figures:
    figures: Figures = {}
    for turn in range(rounds + 1):  # the first round warms up
        for name, side in sides.items():
            gc.collect()
            gc.disable()
            times = side(turn)
            gc.enable()
            for operation, seconds in times.items() if turn else ():
                figures.setdefault(operation, {}).setdefault(name, []).extend(seconds)
    return figures


def pools(num_blocks: int, n: int, rounds: int, engine: bool) -> Figures:
    kinds: dict[str, Callable[[int], PoolSide]] = {"ours": OurPool}
    if engine:
        kinds["vllm"] = EnginePool
    sides: dict[str, Side] = {}
    for name, kind in kinds.items():
        side, full = kind(num_blocks), fill(kind(num_blocks), num_blocks)
        sides[name] = partial(pool_round, side, full, n)
    return take_turns(sides, rounds)


def admissions(num_blocks: int, tokens: int, rounds: int, engine: bool) -> Figures:
    kinds: dict[str, AdmissionSide] = {"ours": OurCache(num_blocks)}
    if engine:
        kinds["vllm"] = EngineCache(num_blocks)
    sides: dict[str, Side] = {
        name: partial(admission_round, side, tokens) for name, side in kinds.items()
    }
    return take_turns(sides, rounds)


def build_seconds(num_blocks: int, engine: bool) -> Figures:
    kinds: dict[str, Callable[[int], Any]] = {"ours": OurPool}
    if engine:
        kinds["vllm"] = EnginePool
    sides: dict[str, Side] = {
        name: partial(timed_build, kind, num_blocks) for name, kind in kinds.items()
    }
    return take_turns(sides, 3)


def timed_build(kind: Callable[[int], Any], num_blocks: int, _: int) -> Times:
    times: Times = {}
    timed(times, f"build {num_blocks:,} blocks", lambda: kind(num_blocks))
    return times


def table(figures: Figures, unit: str, scale: float) -> str:
    lines = [f"| {unit} | ours | vLLM | faster |", "|---|---|---|---|"]
    for operation, sides in figures.items():
        cells = [
            f"{digits(median(sides[side]) * scale)} ({digits(min(sides[side]) * scale)})"
            if side in sides
            else "-"
            for side in ("ours", "vllm")
        ]
        ratio = f"{median(sides['vllm']) / median(sides['ours']):.1f}" if "vllm" in sides else "-"
        lines.append(f"| {operation} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def engine_version() -> str | None:
    try:
        import vllm
    except ImportError:
        return None
    return str(vllm.__version__)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--request-blocks", type=int, default=2_048)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    status = hand_over("PREFIXHASH_VLLM_PYTHON", "vllm")
    if status is not None:
        return status
    version = engine_version()
    engine = version is not None
    python = f"{cpu_name()}, Python {platform.python_version()}"
    print(f"hash kernel {KERNEL}, {python}, vLLM {version}, CPU time, median (best)")
    pool = pools(args.blocks, args.request_blocks, args.rounds, engine)
    print(table(pool, "ns per block", 1e9 / args.request_blocks))
    admission = admissions(args.blocks, args.tokens, args.rounds, engine)
    print(table(admission, f"us, {args.tokens:,} tokens", 1e6))
    build = build_seconds(1_000_000, engine)
    print(table(build, "ms", 1e3))
    if args.json:
        figures = {"pool": pool, "admission": admission, "build": build}
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
