"""Known faults of area trace: what shows only when requests run against each other for a while.

Numbers are those of tests/data/known_faults.jsonl.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from prefixhash import BlockHasher, LoRARequest, Request
from prefixhash.cache import CacheGroup, PrefixCache
from prefixhash.events.index import EventIndex
from prefixhash.trace import ReplayOptions, TraceRequest, replay


def prompt(name: str, tokens: list[int], size: int, **fields: Any) -> Request:
    return Request(name, tokens, block_hasher=BlockHasher(size), **fields)


# -- PC-121: a request above the real ceiling ------------------------------------------------


def rounds_to_finish(cache: PrefixCache, request: Request, chunk: int) -> int | None:
    """Rounds of a scheduler that gives the request a chunk each; None: refused at the door."""
    hit = cache.lookup(request)
    done = hit.num_tokens
    for rounds in range(1, 200):
        step = min(chunk, request.num_tokens - done)
        admission = {"hit": hit, "whole_sequence": True} if rounds == 1 else {}
        blocks = cache.allocate(request, step, num_lookahead_tokens=3 * 16, **admission)  # type: ignore[arg-type]
        if blocks is None:
            assert rounds == 1, f"put back after {done} of {request.num_tokens} tokens"
            return None
        done += step
        cache.commit(request, done)
        if done == request.num_tokens:
            cache.free(request)
            return rounds
    raise AssertionError("scheduled for ever")


@pytest.mark.parametrize("num_blocks", range(66, 73))
@pytest.mark.parametrize("chunk", [64, 100, 1024])
def test_pc_121_a_request_finishes_or_is_refused_at_the_door(num_blocks: int, chunk: int) -> None:
    groups = [CacheGroup("full_attention", 16), CacheGroup("mamba", 16, speculative_blocks=3)]
    cache = PrefixCache(groups, num_blocks, max_model_len=1024)
    rounds = rounds_to_finish(cache, prompt("r", [7] * 1024, 16), chunk)
    assert rounds in (None, -(-1024 // chunk))
    cache.check()
    assert cache.pool.num_free_blocks == num_blocks - 1
    # 64 blocks of attention, a state and its 3 drafts, the null block; where there is more than one
    # step, the state before.
    assert (rounds is not None) == (num_blocks >= 69 + (chunk < 1024))


@pytest.mark.parametrize("oversize", ["clip", "reject"])
@pytest.mark.parametrize("mode", [{}, {"concurrency": 3}, {"timed": True}])
def test_pc_121_a_replay_takes_each_request_once(oversize: str, mode: dict[str, Any]) -> None:
    sizes = [5, 80, 12, 80, 5, 200, 12]
    requests = [
        TraceRequest([(i, j) for j in range(n // 4)], n, 3, float(i + 1))
        for i, n in enumerate(sizes)
    ]
    for by_ids in (False, True):
        options = ReplayOptions(capacities=(8,), oversize=oversize, by_ids=by_ids, **mode)
        (result,) = replay(requests, trace_block_size=4, options=options).results
        assert result.meter.overall.requests == len(sizes)
        assert result.oversize == 3
        assert result.waits <= len(sizes)


# -- PC-123: a preempted request finds what is left of its prefix ----------------------------


@pytest.mark.parametrize("other_blocks", range(0, 13, 3))
def test_pc_123_a_preempted_request_resumes_with_what_was_not_overwritten(
    other_blocks: int,
) -> None:
    cache = PrefixCache.single(20, 4)
    first = prompt("first", list(range(49)), 4)
    cache.allocate(first, 32)
    cache.commit(first, 32)
    table = cache.block_table(first)
    owner = {block: ("first", place) for place, block in enumerate(table)}
    cache.preempt(first)
    if other_blocks:
        other = prompt("other", [1000 + i for i in range(4 * other_blocks)], 4)
        cache.allocate(other, other.num_tokens)
        owner.update({b: ("other", i) for i, b in enumerate(cache.block_table(other))})
        cache.commit(other, other.num_tokens)
        cache.free(other)
    left = 0
    while left < len(table) and owner[table[left]] == ("first", left):
        left += 1
    hit = cache.lookup(first)
    assert hit.num_tokens == 4 * left
    assert cache.allocate(first, first.num_tokens - hit.num_tokens, hit) is not None
    cache.commit(first, first.num_tokens)
    cache.check()


# -- PC-124: a random walk with a shadow of every block --------------------------------------

BLOCKS, SIZE = 13, 4
ADAPTERS = (LoRARequest("x"), LoRARequest("y"))
STEPS = 200  # 10,000 over the seeds
GROUPS = (
    CacheGroup("full_attention", SIZE),
    CacheGroup("sliding_window", SIZE, window=6),
    CacheGroup("chunked_local", SIZE, chunk=8),
)


class Walk:
    """Random operations on a cache, with a record of what every block was computed for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hasher = BlockHasher(SIZE)
        self.cache = PrefixCache(GROUPS, BLOCKS, events=True, block_hasher=self.hasher)
        self.running: list[Request] = []
        self.pinned: list[int] = []
        # (group, block) -> the requests' namespace and all tokens up to the block's end.
        self.shadow: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.index = EventIndex()
        self.number = 0
        self.hits = 0

    def step(self) -> None:
        operations = (self.admit,) * 5 + (self.append,) * 4 + (self.free,) * 3
        operations += (self.preempt, self.evict, self.reset, self.pin, self.unpin)
        self.random.choice(operations)()
        self.check()

    def admit(self) -> None:
        self.number += 1
        random_ = self.random
        request = Request(
            f"r{self.number}",
            self.tokens(),
            block_hasher=self.hasher,
            cache_salt=random_.choice(("a", "b")) if random_.random() < 0.3 else None,
            lora_request=random_.choice(ADAPTERS) if random_.random() < 0.3 else None,
        )
        hit = self.cache.lookup(request)
        self.compare(request, hit.num_tokens, hit.block_ids)
        used = hit if random_.random() < 0.8 else None
        new = request.num_tokens - (hit.num_tokens if used else 0)
        if self.cache.allocate(request, new, used) is None:
            return
        if random_.random() < 0.15:
            self.cache.free(request)  # aborted before anything was computed
            return
        self.hits += hit.num_tokens > 0 and used is not None
        self.computed(request)
        self.running.append(request)

    def tokens(self) -> list[int]:
        """A beginning that others have, too, and an end of its own."""
        shared = [(i // 5) % 3 for i in range(self.random.randrange(21))]
        return shared + self.random.choices(range(3), k=self.random.randrange(1, 4))

    def compare(self, request: Request, num_tokens: int, tables: tuple[list[int], ...]) -> None:
        for group, table in enumerate(tables):
            assert len(table) * SIZE == num_tokens
            for place, block in enumerate(table):
                if block:
                    assert self.shadow[group, block] == self.content(request, place)

    def content(self, request: Request, place: int) -> tuple[Any, ...]:
        lora = request.lora_request.lora_name if request.lora_request else None
        return request.cache_salt, lora, tuple(request.all_token_ids[: (place + 1) * SIZE])

    def computed(self, request: Request) -> None:
        for group in range(len(GROUPS)):
            for place, block in enumerate(self.cache.block_table(request, group)):
                if block and (place + 1) * SIZE <= request.num_tokens:
                    self.shadow[group, block] = self.content(request, place)
        self.cache.commit(request, request.num_tokens)

    def pick(self) -> Iterator[Request]:
        if self.running:
            yield self.random.choice(self.running)

    def append(self) -> None:
        for request in self.pick():
            count = self.random.randrange(1, 6)
            request.append_token_ids(self.random.choices(range(3), k=count))
            if self.cache.allocate(request, count) is None:
                request.truncate(request.num_tokens - count)
            else:
                self.computed(request)

    def free(self) -> None:
        for request in self.pick():
            self.cache.free(request)
            self.running.remove(request)

    def preempt(self) -> None:
        for request in self.pick():
            self.cache.preempt(request)
            self.running.remove(request)

    def evict(self) -> None:
        self.cache.pool.evict([self.random.randrange(1, BLOCKS)])

    def reset(self) -> None:
        if self.random.random() < 0.2:
            self.cache.reset(new_generation=self.random.random() < 0.3)

    def pin(self) -> None:
        if len(self.pinned) < 3 and self.cache.pool.num_free_blocks:
            self.pinned += self.cache.pool.allocate(1)

    def unpin(self) -> None:
        if self.pinned:
            self.cache.pool.free([self.pinned.pop()])

    def check(self) -> None:
        self.cache.check(self.pinned)
        pool = self.cache.pool
        held = sum(pool.ref_count(block) > 0 for block in range(1, BLOCKS))
        assert pool.num_free_blocks + held == BLOCKS - 1
        assert pool.num_cached_blocks <= BLOCKS - 1
        self.index.apply(self.cache.take_events())
        keys = {(group, bytes(key)) for group, key in pool.cached_hashes()}  # type: ignore[arg-type]
        assert self.index.keys() == keys


def test_pc_124_a_random_walk_never_hits_what_another_computed() -> None:
    hits = 0
    for seed in range(50):
        walk = Walk(seed)
        for _ in range(STEPS):
            walk.step()
        hits += walk.hits
    assert hits > 50, "a walk without hits shows nothing"
