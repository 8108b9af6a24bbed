"""Both sides of `bench_steps.py`: a cache, and what a scheduler does with it.

The two do the same work in the same loops; what is not the same is said in `bench_steps.py`.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

import checkout  # noqa: F401  # loads the package from the checkout
from bench_pool import ALGORITHM, BLOCK_SIZE

from prefixhash import BlockHasher, CacheGroup, HashProfile, PrefixCache, Request

WINDOW = 128
FULL, SLIDING, MAMBA = "full_attention", "sliding_window", "mamba"


class Steps(Protocol):
    """A cache and what a scheduler does with it."""

    def make(self, name: str, ids: list[int]) -> Any: ...
    def lookup(self, request: Any) -> Any: ...
    def hit_tokens(self, hit: Any) -> int: ...
    def admit(self, request: Any, hit: Any, until: int) -> None: ...
    def extend(self, request: Any, new: int) -> None: ...
    def decode(self, requests: list[Any], tokens: list[int]) -> None: ...
    def free(self, request: Any) -> None: ...
    def fill(self) -> None: ...
    def counts(self) -> tuple[int, int]: ...


class OurSteps:
    def __init__(self, kinds: tuple[str, ...], num_blocks: int, batched: bool = False) -> None:
        windows = {SLIDING: WINDOW}
        groups = [CacheGroup(kind, BLOCK_SIZE, window=windows.get(kind)) for kind in kinds]
        self.cache = PrefixCache(groups, num_blocks)
        self.hasher = BlockHasher(BLOCK_SIZE, HashProfile.vllm("0.33", ALGORITHM))
        self.lookup = self.cache.lookup
        self.free = self.cache.free
        self.decode = self.decode_batched if batched else self.decode_singly

    def make(self, name: str, ids: list[int]) -> Request:
        return Request(name, ids, block_hasher=self.hasher)

    def hit_tokens(self, hit: Any) -> int:
        return int(hit.num_tokens)

    def admit(self, request: Request, hit: Any, until: int) -> None:
        self.cache.allocate(request, until - hit.num_tokens, hit)
        self.cache.commit(request, until)

    def extend(self, request: Request, new: int) -> None:
        self.cache.allocate(request, new)
        self.cache.commit(request, request.num_tokens)

    def decode_singly(self, requests: list[Request], tokens: list[int]) -> None:
        allocate, commit = self.cache.allocate, self.cache.commit
        for request, token in zip(requests, tokens, strict=True):
            request.append_token_ids(token)
            allocate(request, 1)
            commit(request, request.num_tokens)

    def decode_batched(self, requests: list[Request], tokens: list[int]) -> None:
        for request, token in zip(requests, tokens, strict=True):
            request.append_token_ids(token)
        self.cache.allocate_batch(requests)
        self.cache.commit_batch(requests)

    def fill(self) -> None:
        pool = self.cache.pool
        blocks = pool.allocate(pool.num_blocks - 1)
        pool.cache(blocks, random_hashes(len(blocks)))
        pool.free(blocks)

    def counts(self) -> tuple[int, int]:
        return self.cache.pool.num_free_blocks, self.cache.pool.num_cached_hashes


class EngineSteps:
    def __init__(self, kinds: tuple[str, ...], num_blocks: int) -> None:
        from vllm import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request as EngineRequest

        groups = [
            KVCacheGroupSpec([f"layer{i}"], engine_spec(kind)) for i, kind in enumerate(kinds)
        ]
        config = KVCacheConfig(num_blocks, [], groups)
        self.manager = KVCacheManager(config, 1 << 20, BLOCK_SIZE, BLOCK_SIZE)
        function = get_hash_fn_by_name(ALGORITHM)
        init_none_hash(function)
        self.hasher = get_request_block_hasher(BLOCK_SIZE, function)
        self.params = SamplingParams(max_tokens=1 << 20)
        self.request = EngineRequest
        self.lookup = self.manager.get_computed_blocks
        self.free = self.manager.free

    def make(self, name: str, ids: list[int]) -> Any:
        return self.request(name, ids, self.params, None, block_hasher=self.hasher)

    def hit_tokens(self, hit: Any) -> int:
        return int(hit[1])

    def admit(self, request: Any, hit: Any, until: int) -> None:
        blocks, num_hit, _ = hit
        self.manager.allocate_slots(request, until - num_hit, num_hit, blocks)
        request.num_computed_tokens = until

    def extend(self, request: Any, new: int) -> None:
        self.manager.new_step_starts()
        self.manager.allocate_slots(request, new)
        request.num_computed_tokens += new

    def decode(self, requests: list[Any], tokens: list[int]) -> None:
        allocate_slots = self.manager.allocate_slots
        self.manager.new_step_starts()
        for request, token in zip(requests, tokens, strict=True):
            request.append_output_token_ids(token)
            allocate_slots(request, 1)
            request.num_computed_tokens += 1

    def fill(self) -> None:
        from types import SimpleNamespace

        pool = self.manager.block_pool
        count = pool.num_gpu_blocks - 1
        blocks = pool.get_new_blocks(count)
        request = SimpleNamespace(block_hashes=random_hashes(count))
        pool.cache_full_blocks(request, blocks, 0, count, BLOCK_SIZE, 0)
        pool.free_blocks(blocks)

    def counts(self) -> tuple[int, int]:
        pool = self.manager.block_pool
        return pool.get_num_free_blocks(), len(pool.cached_block_hash_to_block)


def engine_spec(kind: str) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    if kind == MAMBA:
        dtypes = (torch.float32,)
        return MambaSpec(BLOCK_SIZE, shapes=((4,),), dtypes=dtypes, mamba_cache_mode="align")
    head = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    if kind == SLIDING:
        return SlidingWindowSpec(BLOCK_SIZE, sliding_window=WINDOW, **head)
    return FullAttentionSpec(BLOCK_SIZE, **head)


def random_hashes(count: int) -> list[bytes]:
    rng = random.Random(0)
    return [rng.randbytes(32) for _ in range(count)]
