"""The compiled pool does what its source does, with good arguments and with odd ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefixhash._compiled import SWITCH, why_no_twins

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, random, sys
import numpy as np
import prefixhash as ph

ODD = [-1, 0, 11, 12, 2**31, 2**63, -(2**70), True, 1.0, "1", None, np.int64(3), np.int32(99), (1,)]
HASHES = [b"a", b"b", b"c", "text", 5, None, [], b"d"]

def block(rng, held):
    if held and rng.random() < 0.8:
        return rng.choice(held)
    return rng.choice(ODD) if rng.random() < 0.5 else rng.randrange(1, 11)

def blocks(rng, held):
    ids = [block(rng, held) for _ in range(rng.randrange(4))]
    return rng.choice((list, tuple, iter))(ids)

def step(rng, pool, held):
    call = rng.choice(("allocate", "free", "free", "touch", "cache", "cache", "evict", "lookup",
                       "longest_prefix", "reset", "ref_count", "block_hashes", "take_events"))
    if call == "allocate":
        # Interpreted, the pool keeps the caller's integer objects, numpy scalars included.
        result = [int(i) for i in pool.allocate(rng.choice((0, 1, 2, 3, 2**70, -1, True, 1.5)))]
        held += result
        return call, result
    if call in ("free", "touch", "evict"):
        ids = list(blocks(rng, held))
        getattr(pool, call)(ids)
        if call == "free":
            for i in ids:
                held.remove(i)
        if call == "touch":
            held += ids
        return call, [int(i) for i in ids]
    if call == "cache":
        ids = list(blocks(rng, held))
        hashes = [rng.choice(HASHES) for _ in ids][: rng.choice((9, 9, 9, 1))]
        return call, pool.cache(ids, hashes, rng.choice((0, 0, 1, 2**70, -1)))
    if call in ("lookup", "longest_prefix"):
        hashes = [rng.choice(HASHES) for _ in range(3)]
        if call == "lookup":
            found = pool.lookup(hashes[0])
            return call, found if found is None else int(found)
        return call, [int(i) for i in pool.longest_prefix(hashes)]
    if call in ("ref_count", "block_hashes"):
        return call, getattr(pool, call)(block(rng, held))
    return call, getattr(pool, call)()

def run(seed):
    rng = random.Random(seed)
    pool = ph.BlockPool(12, events=rng.random() < 0.5)
    held, log = [], []
    for _ in range(60):
        try:
            log.append(repr(step(rng, pool, held)))
        except Exception as error:
            log.append(f"{type(error).__name__}: {error}")
        pool.check()
        free = [int(i) for i in pool.free_block_ids()]
        log.append(repr([free, pool.num_cached_blocks, pool.num_cached_hashes]))
    return log

print(json.dumps([run(seed) for seed in range(int(sys.argv[1]))]))
"""


def outcomes(switch: str) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "150"],
        cwd=ROOT,
        env={**os.environ, SWITCH: switch},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: list[list[str]] = json.loads(done.stdout)
    return result


def test_random_histories_end_alike() -> None:
    if why_no_twins("pool"):
        pytest.skip("the pool is not compiled here")
    interpreted, compiled = outcomes("1"), outcomes("0")
    for seed, (expected, got) in enumerate(zip(interpreted, compiled, strict=True)):
        assert got == expected, f"seed {seed}"
    assert any("InvalidBlockError" in line for log in compiled for line in log)
