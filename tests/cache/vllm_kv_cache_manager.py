"""Run by an interpreter that has vLLM 0.33.0: its KVCacheManager and PrefixCache on one workload.

Both are given the very same requests (vLLM's own, hashed by our BlockHasher). Compared at every
step: hit lengths, whether a step fits, new block ids, block tables without what neither needs,
free blocks. Prints one line of JSON.

Where the two differ on purpose, the workload or the comparison says so:

* vLLM publishes blocks when they are allocated, before they are computed (PC-064, PC-087, PC-129):
  here each step is committed at once, so that both publish at the same moment.
* vLLM gives the last, partly filled block of a prompt an entry in the index although no lookup
  can reach it where full attention has the largest block size (kin of PC-085); the entry changes
  the order of reuse, so these cases run in a pool in which nothing is evicted.
* A drafter's sliding group with smaller blocks than the alignment, at the start of a prompt that
  is shorter than its window: vLLM aligns before it drops and loses the hit (kin of PC-069; see
  test_drop_at_the_start_of_a_prompt). Windows here are as long as the alignment.
* With sparse retention vLLM keeps nothing for requests that part inside the last unit (PC-070), and
  a state that is no snapshot of its hash if a step ends between block ends; not compared.
* A whole sequence with states needs two of them at once (the one that a step reads, the one that it
  writes); vLLM admits it with one. Not compared: whole sequences beside states.
* vLLM frees blocks that left the window even when a step is refused; a refused step changes
  nothing here, and the workload calls `trim()`.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
import vllm
from vllm import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus

from prefixhash import BlockHasher, HashProfile
from prefixhash._compiled import kernel_features
from prefixhash.cache import CacheGroup, PrefixCache

HEAD = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
PARAMS = SamplingParams(max_tokens=10_000)


def full(size: int, eagle: bool = False) -> tuple[CacheGroup, Any]:
    return CacheGroup("full_attention", size, eagle=eagle), FullAttentionSpec(size, **HEAD)


def sliding(size: int, window: int, eagle: bool = False) -> tuple[CacheGroup, Any]:
    ours = CacheGroup("sliding_window", size, window=window, eagle=eagle)
    return ours, SlidingWindowSpec(size, sliding_window=window, **HEAD)


def chunked(size: int, chunk: int) -> tuple[CacheGroup, Any]:
    ours = CacheGroup("chunked_local", size, chunk=chunk)
    return ours, ChunkedLocalAttentionSpec(size, attention_chunk_size=chunk, **HEAD)


def mamba(size: int) -> tuple[CacheGroup, Any]:
    theirs = MambaSpec(size, shapes=((4,),), dtypes=(torch.float32,), mamba_cache_mode="align")
    return CacheGroup("mamba", size), theirs


# Nothing is evicted, so that the order of reuse does not matter.
ROOMY = {"blocks": 20_000, "order": False}
CASES: dict[str, tuple[list[tuple[CacheGroup, Any]], dict[str, Any]]] = {
    "full": ([full(16)], {}),
    "full, watermark": ([full(16)], {"watermark": 0.05}),
    "full, eagle": ([full(16, eagle=True)], {}),
    "sliding": ([sliding(16, 40)], {}),
    "full + sliding": ([full(16), sliding(16, 40)], {}),
    "full + two sliding": ([full(16), sliding(16, 40), sliding(16, 40)], {}),
    "full + two windows": ([full(16), sliding(16, 40), sliding(16, 96)], {}),
    "full 32 + sliding 16": ([full(32), sliding(16, 40)], ROOMY),
    "full 16 + sliding 32": ([full(16), sliding(32, 40)], {}),
    "full + sliding, eagle": ([full(16, eagle=True), sliding(16, 40)], {}),
    "full 32 + sliding 16, eagle": ([full(32), sliding(16, 32, eagle=True)], ROOMY),
    "full + chunked": ([full(16), chunked(16, 64)], {}),
    "full + mamba": ([full(16), mamba(16)], {}),
}


class Pair:
    """Both managers, and the requests that they share."""

    def __init__(self, name: str, seed: int) -> None:
        groups, options = CASES[name]
        self.random = random.Random(f"{name} {seed}")
        ours = [group for group, _ in groups]
        blocks = options.get("blocks", 70)
        self.order = options.get("order", True)
        self.ours = PrefixCache(
            ours,
            blocks,
            watermark=options.get("watermark", 0.0),
            max_model_len=600,
        )
        specs = [
            KVCacheGroupSpec([f"layer{i}"], spec, is_eagle_group=group.eagle)
            for i, (group, spec) in enumerate(groups)
        ]
        config = KVCacheConfig(blocks, [], specs)
        self.theirs = KVCacheManager(
            config,
            max_model_len=600,
            scheduler_block_size=self.ours.alignment,
            hash_block_size=self.ours.hash_block_size,
            use_eagle=any(group.eagle for group in ours),
            watermark=options.get("watermark", 0.0),
        )
        self.has_state = any(group.kind == "mamba" for group in ours)
        self.drafts = not self.has_state
        profile = HashProfile.vllm("0.33.0", "sha256_cbor")
        self.hasher = BlockHasher(self.ours.hash_block_size, profile)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.counts = dict.fromkeys(
            ("hits", "lookups", "hit_tokens", "steps", "batches", "refused", "preempted", "freed"),
            0,
        )
        self.number = 0

    def new_request(self) -> None:
        family = self.random.randrange(4)
        shared = [family * 1000 + i for i in range(self.random.choice((0, 48, 100, 200, 320)))]
        own = [self.random.randrange(10**6) for _ in range(self.random.choice((0, 1, 17, 70)))]
        tokens = (shared + own) or [1]
        self.number += 1
        request = Request(str(self.number), tokens, PARAMS, None, block_hasher=self.hasher)
        self.waiting.append(request)

    def admit(self) -> None:
        request = self.waiting[0]
        self.theirs.coordinator.new_step_starts()
        blocks, num_hit, junction = self.theirs.get_computed_blocks(request)
        hit = self.ours.lookup(request)
        assert hit.num_tokens == num_hit, ("hit", hit.num_tokens, num_hit)
        ids = [list(group) for group in blocks.get_block_ids()]
        for mine, other in zip(hit.block_ids, ids, strict=True):
            if self.order:
                assert mine == other[: len(mine)], ("hit blocks", mine, other)
        assert hit.shared_prefix_tokens == junction, ("junction", hit, junction)
        request.shared_prefix_boundary = junction
        self.counts["lookups"] += 1
        self.counts["hits"] += num_hit > 0
        self.counts["hit_tokens"] += num_hit
        left = request.num_tokens - num_hit
        new = self.chunk(request, min(left, self.random.choice((16, 64, 600))), hit)
        whole = self.random.random() < 0.3 and not self.has_state
        mine = self.ours.allocate(request, new, hit, whole_sequence=whole)
        other = self.theirs.allocate_slots(
            request,
            new,
            num_hit,
            blocks,
            full_sequence_must_fit=whole,
            has_scheduled_reqs=bool(self.running),
        )
        if not self.same(mine, other):
            return
        self.waiting.pop(0)
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        self.finish_step(request, num_hit + new)

    def chunk(self, request: Request, new: int, hit: Any = None) -> int:
        return self.ours.chunk_tokens(request, new, hit)

    def same(self, mine: Any, other: Any) -> bool:
        assert (mine is None) == (other is None), ("fits", mine, other)
        self.counts["refused"] += mine is None
        if mine is not None:
            ids = [[b for b in group if b] for group in other.get_block_ids()]
            assert list(map(len, mine)) == list(map(len, ids)), ("new blocks", mine, ids)
            assert not self.order or list(map(list, mine)) == ids, ("new blocks", mine, ids)
        return mine is not None

    def finish_step(self, request: Request, computed: int) -> None:
        """Tokens beyond those that the request knows were drafts, and are all rejected."""
        computed = min(computed, request.num_tokens)
        if self.random.random() < 0.5:
            self.ours.commit(request, computed)
        else:
            self.ours.commit_batch([request], [computed])
        request.num_computed_tokens = computed
        self.counts["steps"] += 1

    def decode(self, request: Request) -> None:
        self.theirs.coordinator.new_step_starts()
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids(self.random.randrange(50))
        left = request.num_tokens - request.num_computed_tokens
        new = self.chunk(request, min(left, self.random.choice((16, 64))))
        drafts = self.random.choice((0, 0, 3)) if left == 1 and self.drafts else 0
        ahead = self.random.choice((0, 0, 2)) if self.drafts else 0
        while True:
            mine = self.step_of_ours(request, new + drafts, ahead)
            other = self.theirs.allocate_slots(request, new + drafts, num_lookahead_tokens=ahead)
            if self.same(mine, other):
                self.finish_step(request, request.num_computed_tokens + new)
                return
            self.ours.trim(request)
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return

    def step_of_ours(self, request: Request, new: int, ahead: int) -> Any:
        """By a single call or by one for a batch, which must not matter."""
        if self.random.random() < 0.5:
            return self.ours.allocate(request, new, num_lookahead_tokens=ahead)
        self.counts["batches"] += 1
        return self.ours.allocate_batch([request], [new], ahead)[0]

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.ours.preempt(request)
        self.theirs.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.waiting.insert(0, request)
        self.counts["preempted"] += 1

    def free(self) -> None:
        request = self.running.pop(self.random.randrange(len(self.running)))
        self.ours.free(request)
        self.theirs.free(request)
        self.counts["freed"] += 1

    def compare(self) -> None:
        pool = self.theirs.block_pool
        assert self.ours.pool.num_free_blocks == pool.get_num_free_blocks(), "free blocks"
        for request in self.running if not self.order else ():
            for group, ids in enumerate(self.theirs.get_block_ids(request.request_id)):
                mine = self.ours.block_table(request, group)
                assert list(map(bool, mine)) == list(map(bool, ids)), "block table"
        if not self.order:
            return
        order = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
        assert self.ours.pool.free_block_ids() == order, "order of reuse"
        assert self.ours.pool.num_cached_hashes == len(pool.cached_block_hash_to_block), "index"
        for request in self.running:
            for group, ids in enumerate(self.theirs.get_block_ids(request.request_id)):
                assert self.ours.block_table(request, group) == ids, "block table"

    def step(self) -> None:
        if self.random.random() < 0.3:
            self.new_request()
        if self.waiting and len(self.running) < 6:
            self.admit()
        for request in list(self.running):
            if request in self.running and request.num_tokens < 580:
                self.decode(request)
        if self.running and (self.random.random() < 0.25 or len(self.running) == 6):
            self.free()
        self.compare()


def main() -> None:
    steps = int(sys.argv[1])
    report = {}
    for name in sys.argv[2:] or CASES:
        pair = Pair(name, seed=1)
        print(name, file=sys.stderr)  # names the case if a comparison fails
        for _ in range(steps):
            pair.step()
        pair.ours.check()
        report[name] = pair.counts
    kernel = kernel_features()["cache"]
    print(json.dumps({"vllm": vllm.__version__, "cache": kernel, "cases": report}))


main()
