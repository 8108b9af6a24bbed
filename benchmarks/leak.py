"""Whether the memory of the process grows over many decode steps; see `bench_steps.py --leak`.

64 requests run in a cache of full attention, a sliding window and states whose pool is full, so
that blocks are evicted all the time. Steps go one by one and in batches by turns. At their longest,
requests are freed and others admitted, whose prompts are half shared; now and then one is preempted
and admitted again.
"""

from __future__ import annotations

import os
import platform
import random
from pathlib import Path

from checkout import cpu_name

from prefixhash import BlockHasher, CacheGroup, HashProfile, PrefixCache, Request
from prefixhash.hashing import KERNEL

BLOCK_SIZE = 16
RUNNING = 64
LONGEST = 768
NUM_BLOCKS = 10_000
ALLOWED = 4 << 20  # bytes
PARTS = 10


class Workload:
    def __init__(self) -> None:
        groups = [
            CacheGroup("full_attention", BLOCK_SIZE),
            CacheGroup("sliding_window", BLOCK_SIZE, window=128),
            CacheGroup("mamba", BLOCK_SIZE),
        ]
        self.cache = PrefixCache(groups, NUM_BLOCKS)
        self.hasher = BlockHasher(BLOCK_SIZE, HashProfile.vllm("0.33", "sha256_cbor"))
        self.random = random.Random(0)
        self.number = self.steps = 0
        self.running = [self.new_request() for _ in range(RUNNING)]

    def new_request(self) -> Request:
        self.number += 1
        shared = [self.random.randrange(8)] * 128
        own = [self.random.randrange(150_000) for _ in range(self.random.randrange(1, 128))]
        request = Request(f"{self.number}", shared + own, block_hasher=self.hasher)
        self.admit(request)
        return request

    def admit(self, request: Request) -> None:
        cache = self.cache
        hit = cache.lookup(request)
        computed = hit.num_tokens
        while computed < request.num_tokens:
            left = request.num_tokens - computed
            first = None if cache.num_computed_tokens(request) else hit
            new = cache.chunk_tokens(request, left, first)
            if cache.allocate(request, new, first) is None:
                raise SystemExit("the pool is too small for this workload")
            computed += new
            cache.commit(request, computed)

    def step(self) -> None:
        """One token for each request."""
        self.steps += 1
        cache, running = self.cache, self.running
        token = self.random.randrange(150_000)
        for request in running:
            request.append_token_ids(token)
        if self.steps % 2:
            cache.allocate_batch(running)
            cache.commit_batch(running)
        else:
            for request in running:
                cache.allocate(request, 1)
                cache.commit(request, request.num_tokens)
        for i, request in enumerate(running):
            if request.num_tokens >= LONGEST:
                cache.free(request)
                running[i] = self.new_request()
        if self.steps % 50 == 0:
            victim = self.random.choice(running)
            cache.preempt(victim)
            self.admit(victim)


def resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError as error:
        raise SystemExit(f"no memory to read: {error}") from None
    return pages * os.sysconf("SC_PAGE_SIZE")


def watch(steps: int) -> int:
    """Run so many decode steps of single requests; 1 if more memory is held than allowed."""
    if steps < PARTS * RUNNING:
        raise SystemExit(f"--leak {steps}: give at least {PARTS * RUNNING} steps")
    print(f"hash kernel {KERNEL}, {cpu_name()}, Python {platform.python_version()}")
    workload = Workload()
    for _ in range(max(steps // PARTS // RUNNING, 2_000)):  # warm-up: the pool fills, then evicts
        workload.step()
    start = resident_bytes()
    print(f"start: {start / 2**20:.1f} MiB", flush=True)
    now = start
    for part in range(1, PARTS + 1):
        for _ in range(steps // PARTS // RUNNING):
            workload.step()
        now = resident_bytes()
        done = part * (steps // PARTS // RUNNING) * RUNNING
        print(f"{done:,} steps: {now / 2**20:.1f} MiB", flush=True)
    workload.cache.check()
    print(f"grown by {(now - start) / 2**20:.2f} MiB, {workload.cache.stats}")
    return int(now - start > ALLOWED)
