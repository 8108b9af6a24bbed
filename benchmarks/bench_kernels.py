"""Hashing by algorithm, block size and form of the tokens; memory and import; the floor.

    python benchmarks/bench_kernels.py [--json FILE]

Runs in any interpreter that can import this package and measures beside it whatever that
interpreter has: vLLM's block hasher (a request that exists, its tokens a list) or the block hasher
of ai-dynamo-runtime (64 bits per block, not chained; from a list, and from an array of uint32).
`benchmarks/readme_table.py` runs it in both and puts the table together. Nanoseconds per block of
thread CPU time, validation of the ids included; the sides take turns, the garbage collector is off.

The floor of a SHA-256 block is its compressions, timed on a long message; the floor of a pool
operation is one probe of a dictionary of as many 32-byte keys.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import sys
import time
import tracemalloc
import warnings
from array import array
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from checkout import make_parser

import prefixhash as ph
from prefixhash._compiled import kernel_features
from prefixhash.hashing import ALGORITHMS
from prefixhash.hashing._cbor import encode
from prefixhash.hashing.algorithms import to_pickle

VOCABULARY = 151_936
BLOCK_SIZES = (16, 64, 256)
POOL_BLOCKS = 100_000
Calls = dict[str, Callable[[], Any]]


def prompt(tokens: int) -> list[int]:
    rng = random.Random(1)
    return [rng.randrange(VOCABULARY) for _ in range(tokens)]


def take_turns(calls: Calls, rounds: int, blocks: int) -> dict[str, float]:
    """Median nanoseconds per block of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.thread_time_ns()
            call()
            if turn:  # the first round warms up
                times[name].append((time.thread_time_ns() - start) / blocks)
    gc.enable()
    return {name: median(values) for name, values in times.items()}


def hashing(tokens: int, rounds: int) -> list[dict[str, Any]]:
    ids = prompt(tokens)
    rows = []
    for algorithm in ALGORITHMS:
        for block_size in BLOCK_SIZES:
            calls = our_calls(algorithm, block_size, ids)
            calls |= engine_calls(algorithm, block_size, ids)
            row: dict[str, Any] = {"algorithm": algorithm, "block_size": block_size}
            row |= take_turns(calls, rounds, tokens // block_size)
            if algorithm.startswith("sha256"):
                row["floor"] = sha256_floor(algorithm, block_size, ids)
            rows.append(row)
    return rows


def our_calls(algorithm: str, block_size: int, ids: list[int]) -> Calls:
    hasher = ph.BlockHasher(block_size, ph.HashProfile.vllm("0.33", algorithm, "0"))
    buffer = array("i", ids)
    return {
        "list": lambda: hasher.hash_tokens(ids),
        "buffer": lambda: hasher.hash_tokens(buffer),
        "request": lambda: ph.Request("r", ids, block_hasher=hasher),
    }


def engine_calls(algorithm: str, block_size: int, ids: list[int]) -> Calls:
    calls: Calls = {}
    try:
        from vllm import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request
    except ImportError:
        pass
    else:
        function = get_hash_fn_by_name(algorithm)
        init_none_hash(function)
        hasher = get_request_block_hasher(block_size, function)
        params = SamplingParams(max_tokens=1)
        request = Request("r", ids, params, None)
        check = ph.BlockHasher(block_size, ph.HashProfile.vllm("0.33", algorithm, "0"))
        if hasher(request) != check.hash_tokens(ids):
            raise SystemExit(f"{algorithm}: the hashes differ")
        calls["vllm"] = lambda: hasher(request)
        calls["vllm_request"] = lambda: Request("r", ids, params, None, block_hasher=hasher)
    try:
        from dynamo.llm import compute_block_hash_for_seq
    except ImportError:
        return calls
    buffer = array("I", ids)
    calls["dynamo"] = lambda: compute_block_hash_for_seq(ids, block_size)
    calls["dynamo_buffer"] = lambda: compute_block_hash_for_seq(buffer, block_size)
    return calls


def sha256_floor(algorithm: str, block_size: int, ids: list[int]) -> float:
    """Nanoseconds of the compressions of an average block."""
    write = encode if algorithm.endswith("cbor") else to_pickle
    starts = range(0, len(ids) - block_size + 1, block_size)
    keys = [write((b"\0" * 32, tuple(ids[i : i + block_size]), None)) for i in starts]
    compressions = sum((len(key) + 9 + 63) // 64 for key in keys) / len(keys)
    message = bytes(1 << 20)
    long = take_turns({"sha256": lambda: hashlib.sha256(message).digest()}, 20, (1 << 20) // 64)
    return compressions * long["sha256"]


def dict_floor(rounds: int, batch: int = 2_048) -> dict[str, float]:
    """Nanoseconds of one probe, in a dictionary that takes and loses keys as a pool's does: new
    keys are put in, looked up at once, and deleted and freed when they are the oldest."""
    rng = random.Random(2)
    keys = [rng.randbytes(32) for _ in range(POOL_BLOCKS)]
    table = {key: 1_000 + i for i, key in enumerate(keys)}
    times: dict[str, list[float]] = {"insert": [], "get": [], "delete": []}
    for _ in range(rounds):
        old, new = keys[:batch], [rng.randbytes(32) for _ in range(batch)]
        keys = keys[batch:] + new
        gc.collect()
        gc.disable()
        for name, probe, probed in (
            ("insert", dict_insert, new),
            ("get", dict_get, new),
            ("delete", dict_delete, old),
        ):
            start = time.thread_time_ns()
            probe(table, probed)
            times[name].append((time.thread_time_ns() - start) / batch)
        gc.enable()
    return {name: median(values) for name, values in times.items()}


def dict_insert(table: dict[bytes, int], keys: list[bytes]) -> None:
    for value, key in enumerate(keys, 1_000):
        table[key] = value  # noqa: PERF403  # the probe is what is measured


def dict_get(table: dict[bytes, int], keys: list[bytes]) -> None:
    for key in keys:
        table[key]


def dict_delete(table: dict[bytes, int], keys: list[bytes]) -> None:
    """Takes the keys from the list, last first as a pool does, so that they are freed, too."""
    while keys:
        del table[keys.pop()]


def memory() -> dict[str, float]:
    """Bytes per block of a pool, as built."""
    figures = {"ours": bytes_per_block(lambda: ph.BlockPool(POOL_BLOCKS))}
    try:
        from vllm.v1.core.block_pool import BlockPool
    except ImportError:
        return figures
    figures["vllm"] = bytes_per_block(lambda: BlockPool(POOL_BLOCKS, True, 16))
    return figures


def bytes_per_block(build: Callable[[], Any]) -> float:
    build()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    pool = build()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del pool
    return used / POOL_BLOCKS


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ph.CollisionRiskWarning)
    os.environ.setdefault("PYTHONHASHSEED", "0")
    figures = {
        "features": kernel_features(),
        "vllm": version("vllm"),
        "dynamo": version("ai-dynamo-runtime"),
        "tokens": args.tokens,
        "hashing": hashing(args.tokens, args.rounds),
        "dict": dict_floor(args.rounds),
        "memory": memory(),
    }
    text = json.dumps(figures, indent=2) + "\n"
    if args.json:
        Path(args.json).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
