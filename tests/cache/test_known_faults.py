"""Known faults of prefix caches, areas pool, manager and events, as tests of their kind.

Numbers are those of tests/data/known_faults.jsonl. Faults of the pool alone are in
tests/pool/test_block_pool.py, those of consumers of events in tests/pool/test_event_index.py.
Not applicable, and why:

* PC-045: levels of offload storage; there is one level here, and no counter per level.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from prefixhash import BlockHasher, LoRARequest, Request, StaleHitError
from prefixhash.cache import CacheGroup, PrefixCache
from prefixhash.events import AllBlocksCleared, BlockRemoved, BlockStored

from ..conftest import DATA

NOT_APPLICABLE = {"PC-045"}


def full(block_size: int, **options: Any) -> CacheGroup:
    return CacheGroup("full_attention", block_size, **options)


def sliding(block_size: int, window: int, **options: Any) -> CacheGroup:
    return CacheGroup("sliding_window", block_size, window=window, **options)


def mamba(block_size: int) -> CacheGroup:
    return CacheGroup("mamba", block_size)


counter = iter(range(10**9))


def ask(cache: PrefixCache, tokens: Iterable[int], **fields: Any) -> Request:
    hasher = BlockHasher(cache.hash_block_size)
    return Request(f"r{next(counter)}", list(tokens), block_hasher=hasher, **fields)


def start(cache: PrefixCache, request: Request, chunk: int = 10**9) -> int:
    """Look up, compute the whole prompt in chunks, commit each; the length of the hit."""
    hit = cache.lookup(request)
    done = hit.num_tokens
    while done < request.num_tokens:
        step = min(chunk, request.num_tokens - done)
        blocks = cache.allocate(request, step, hit if done == hit.num_tokens else None)
        assert blocks is not None
        done += step
        cache.commit(request, done)
        cache.check()
    return hit.num_tokens


def run(cache: PrefixCache, tokens: Iterable[int], chunk: int = 10**9, **fields: Any) -> int:
    """Start and free; the length of the hit."""
    request = ask(cache, tokens, **fields)
    hit = start(cache, request, chunk)
    cache.free(request)
    cache.check()
    return hit


def test_pc_040_reused_block_is_no_hit() -> None:
    cache = PrefixCache.single(4, 16)
    a = ask(cache, [1] * 16)
    start(cache, a)
    cache.free(a)
    b = ask(cache, [2] * 48)
    start(cache, b)
    assert cache.lookup(ask(cache, [1] * 17)).num_tokens == 0
    assert cache.pool.num_cached_hashes == 3


def test_pc_048_failed_step_keeps_what_the_request_holds() -> None:
    cache = PrefixCache.single(6, 16)
    request = ask(cache, range(96))
    assert cache.allocate(request, 32) == ([1, 2],)
    assert cache.allocate(request, 64) is None
    assert (cache.pool.num_free_blocks, cache.block_table(request)) == (3, [1, 2])
    cache.free(request)
    assert cache.pool.num_free_blocks == 5


def test_pc_051_no_block_of_a_chain_is_resident_but_unreachable() -> None:
    cache = PrefixCache.single(4, 16)
    request = ask(cache, range(48))
    cache.allocate(request, 32)
    cache.commit(request, 32)
    cache.allocate(request, 16)
    cache.commit(request, 48)
    table = cache.block_table(request)
    cache.free(request)
    assert cache.pool.allocate(1) == table[2:]
    assert cache.lookup(ask(cache, range(49))).num_tokens == 32


@pytest.mark.parametrize("leave", [PrefixCache.free, PrefixCache.preempt])
def test_pc_052_every_way_out_gives_one_order(leave: Any) -> None:
    cache = PrefixCache([full(16), sliding(16, 32)], 12)
    request = ask(cache, range(48))
    start(cache, request)
    tables = cache.block_table(request, 0), cache.block_table(request, 1)
    unused = cache.pool.free_block_ids()
    leave(cache, request)
    assert cache.pool.free_block_ids() == unused + tables[0][::-1] + tables[1][::-1]


def test_pc_054_two_equal_prompts_in_one_step() -> None:
    cache = PrefixCache.single(8, 16)
    a, b = ask(cache, range(17)), ask(cache, range(17))
    for request in (a, b):
        assert cache.lookup(request).num_tokens == 0
        cache.allocate(request, 17)
    for request in (a, b):
        cache.commit(request, 17)
    assert (cache.pool.num_cached_hashes, cache.pool.num_cached_blocks) == (1, 2)
    copy_a, copy_b = cache.block_table(a)[0], cache.block_table(b)[0]
    cache.free(a)
    cache.pool.evict([copy_a])
    assert cache.lookup(ask(cache, range(17))).block_ids == ([copy_b],)
    cache.free(b)
    cache.pool.evict([copy_b])
    assert cache.lookup(ask(cache, range(17))).num_tokens == 0


def test_pc_055_a_hit_on_a_free_block_uses_a_free_block() -> None:
    cache = PrefixCache.single(6, 16)
    run(cache, range(32))
    other = ask(cache, [7] * 10)
    start(cache, other)
    b = ask(cache, range(65))
    hit = cache.lookup(b)
    assert hit.num_tokens == 32
    free = cache.pool.free_block_ids()
    assert cache.allocate(b, 33, hit) is None
    assert cache.pool.free_block_ids() == free
    assert cache.lookup(ask(cache, range(33))).num_tokens == 32
    c = ask(cache, range(64))
    assert cache.allocate(c, 32, cache.lookup(c)) is not None
    held = cache.block_table(c) + cache.block_table(other)
    assert [cache.pool.ref_count(block) for block in held] == [1] * 5


def test_pc_057_commit_again_changes_nothing() -> None:
    cache = PrefixCache.single(6, 16, events=True)
    request = ask(cache, range(20))
    start(cache, request)
    cache.take_events()
    cache.commit(request, 20)
    assert cache.take_events() == []


def test_pc_058_reset_waits_and_a_forced_one_is_final() -> None:
    cache = PrefixCache.single(6, 16, events=True)
    request = ask(cache, range(17))
    start(cache, request)
    cache.take_events()
    assert cache.reset() is False
    assert cache.lookup(ask(cache, range(17))).num_tokens == 16
    cache.free(request)
    assert cache.reset() is True
    assert cache.lookup(ask(cache, range(17))).num_tokens == 0
    assert cache.take_events() == [AllBlocksCleared()]


@pytest.mark.parametrize(
    ("block_size", "length", "expected"),
    [(16, 15, 0), (16, 16, 0), (16, 17, 16), (16, 32, 16), (16, 33, 32), (1, 1, 0), (1, 5, 4)],
)
def test_pc_060_the_last_token_is_computed(block_size: int, length: int, expected: int) -> None:
    cache = PrefixCache.single(50, block_size)
    assert run(cache, range(length)) == 0
    assert run(cache, range(length)) == expected


def test_pc_061_a_state_is_hit_only_where_a_step_ended() -> None:
    cache = PrefixCache([full(16), mamba(16)], 50)
    run(cache, range(48), chunk=16)
    hit = cache.lookup(ask(cache, range(48)))
    assert hit.num_tokens == 32
    assert [len(ids) for ids in hit.block_ids] == [2, 2]
    assert hit.block_ids[1][0] == 0


def test_a_state_between_block_ends_is_never_published() -> None:
    cache = PrefixCache([full(16), mamba(16)], 50)
    run(cache, range(100), chunk=50)  # steps end at 50 and 100: no state at any multiple of 16
    hit = cache.lookup(ask(cache, range(100)))
    assert (hit.num_tokens, hit.shared_prefix_tokens) == (0, 96)


def test_pc_063_a_hit_is_checked_again() -> None:
    cache = PrefixCache.single(6, 16)
    run(cache, range(17))
    a = ask(cache, range(17))
    hit = cache.lookup(a)
    assert hit.num_tokens == 16
    run(cache, range(100, 180))
    before = cache.pool.free_block_ids()
    with pytest.raises(StaleHitError, match="look it up again"):
        cache.allocate(a, 1, hit)
    assert cache.pool.free_block_ids() == before
    cache.check()


def test_pc_064_pc_081_nothing_is_findable_before_commit() -> None:
    cache = PrefixCache.single(10, 16)
    a = ask(cache, range(33))
    cache.allocate(a, 33)
    assert cache.lookup(ask(cache, range(33))).num_tokens == 0
    cache.free(a)
    b = ask(cache, range(33))
    assert start(cache, b) == 0
    cache.free(b)
    assert cache.pool.num_free_blocks == 9


def test_pc_066_the_drop_leaves_a_full_window() -> None:
    cache = PrefixCache([sliding(2, 4, eagle=True)], 50)
    run(cache, range(9))
    hit = cache.lookup(ask(cache, range(9)))
    assert hit.num_tokens == 6
    assert [bool(block) for block in hit.block_ids[0]] == [False, True, True]


def test_pc_067_what_the_drop_needs_is_kept() -> None:
    cache = PrefixCache([full(64), sliding(16, 32, eagle=True)], 100)
    assert run(cache, range(257)) == 0
    assert run(cache, range(257)) == 192


@pytest.mark.parametrize("eagle_full", [False, True])
def test_pc_069_drop_with_unequal_block_sizes(eagle_full: bool) -> None:
    cache = PrefixCache([full(32, eagle=eagle_full), sliding(16, 64, eagle=True)], 100)
    assert run(cache, range(200)) == 0
    assert run(cache, range(200)) == 160


def test_drop_at_the_start_of_a_prompt() -> None:
    # Blocks 0 to 2 are there: 32 tokens, and the block after them for the drafter.
    cache = PrefixCache([full(32), sliding(16, 40, eagle=True)], 100)
    run(cache, range(49))
    assert cache.lookup(ask(cache, [*range(48), 7, 8])).num_tokens == 32


def test_pc_070_sparse_retention_keeps_the_boundary_before_the_last() -> None:
    cache = PrefixCache([full(32), sliding(16, 64)], 100, retention_interval=0)
    run(cache, range(161))
    assert cache.lookup(ask(cache, range(161))).num_tokens == 160
    assert cache.lookup(ask(cache, [*range(150), *range(900, 920)])).num_tokens == 128


def test_pc_072_what_lookup_needs_is_kept() -> None:
    cache = PrefixCache([full(128), sliding(16, 32)], 200)
    run(cache, range(1025))
    assert run(cache, range(1025)) == 1024


@pytest.mark.parametrize("retention", [None, 0])
def test_pc_073_a_state_is_kept_where_prompts_part(retention: int | None) -> None:
    cache = PrefixCache([full(528), mamba(528)], 60, retention_interval=retention)
    hits = []
    for i in range(3):
        request = ask(cache, [*range(1500), *range(10_000 * (i + 1), 10_000 * (i + 1) + 700)])
        hit = cache.lookup(request)
        hits.append(hit.num_tokens)
        if hit.num_tokens:
            assert all(ids[-1] for ids in hit.block_ids)
        done = hit.num_tokens
        while done < request.num_tokens:
            first = hit if done == hit.num_tokens else None
            step = cache.chunk_tokens(request, request.num_tokens - done, first)
            assert cache.allocate(request, step, first) is not None
            done += step
            cache.commit(request, done)
            cache.check()
        cache.free(request)
    assert hits == [0, 0, 1056]


def test_pc_075_drafts_are_not_published() -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(15))
    start(cache, request)
    request.append_token_ids([900])
    cache.allocate(request, 4)  # the sampled token and three drafts
    assert len(cache.block_table(request)) == 2
    cache.commit(request, 16)  # all drafts rejected
    assert cache.pool.num_cached_blocks == 1
    assert cache.lookup(ask(cache, [*range(15), 900, 5])).num_tokens == 16
    assert cache.allocate(request, 4) == ((),)  # again from token 16 on: the slots are there
    request.append_token_ids([7, 8])
    cache.commit(request, 18)
    assert cache.pool.num_cached_blocks == 1


def test_pc_076_a_request_that_fits_when_recycling_is_admitted() -> None:
    minimum = 1024 // 16 + 9
    cache = PrefixCache(
        [full(16), sliding(16, 64)],
        minimum + 1,
        max_model_len=1024,
        max_batched_tokens=64,
        whole_sequence=True,
    )
    request = ask(cache, range(1024))
    peak = 0
    for done in range(0, 1024, 64):
        assert cache.allocate(request, 64) is not None
        peak = max(peak, sum(map(bool, cache.block_table(request, 1))))
        cache.commit(request, done + 64)
    assert peak <= 9
    assert cache.allocate(ask(cache, range(1024)), 64) is None
    options = {"max_model_len": 1024, "max_batched_tokens": 64, "whole_sequence": True}
    small = PrefixCache([full(16), sliding(16, 64)], minimum, **options)  # type: ignore[arg-type]
    assert small.allocate(ask(small, range(1024)), 64) is None


def test_pc_078_statistics_count_a_request_once() -> None:
    cache = PrefixCache.single(6, 16)
    blocker = ask(cache, [5] * 80)
    start(cache, blocker)
    request = ask(cache, range(33))
    for _ in range(5):
        assert cache.allocate(request, 33, cache.lookup(request)) is None
    assert cache.stats.requests == 1
    cache.free(blocker)
    start(cache, request)
    cache.preempt(request)
    assert start(cache, request) == 32
    stats = cache.stats
    assert (stats.requests, stats.queries, stats.hits) == (2, 113, 0)
    again = stats.preempted_requests, stats.preempted_queries, stats.preempted_hits
    assert again == (1, 33, 32)
    assert stats.preemptions == 1
    assert stats.token_hit_rate == 0.0


def test_pc_079_free_and_used_are_the_pool() -> None:
    cache = PrefixCache.single(20, 16)
    a = ask(cache, range(60))
    b = ask(cache, [*range(52), *range(300, 308)])
    for request in (a, b):
        start(cache, request)
        used = {*cache.block_table(a), *(cache.block_table(b) if request is b else ())}
        assert cache.pool.num_free_blocks + len(used) == 19
    for request in (a, b):
        cache.free(request)
    assert cache.pool.num_free_blocks == 19


def test_pc_082_commit_takes_no_block() -> None:
    cache = PrefixCache([full(16), mamba(16)], 5)
    request = ask(cache, range(32))
    cache.allocate(request, 16)
    cache.commit(request, 16)
    cache.allocate(request, 16)
    assert cache.pool.num_free_blocks == 0
    before = [cache.block_table(request, group) for group in (0, 1)]
    cache.commit(request, 32)
    assert [cache.block_table(request, group) for group in (0, 1)] == before
    assert cache.pool.num_free_blocks == 0
    cache.check()


def test_pc_084_no_phantom_hit_after_churn() -> None:
    cache = PrefixCache.single(41, 16)
    content: dict[int, tuple[int, ...]] = {}
    mismatches = 0

    def go(tokens: list[int]) -> int:
        nonlocal mismatches
        request = ask(cache, tokens)
        hit = cache.lookup(request)
        for place, block in enumerate(hit.block_ids[0]):
            mismatches += content.get(block) != tuple(tokens[place * 16 : place * 16 + 16])
        cache.allocate(request, len(tokens) - hit.num_tokens, hit)
        for place, block in enumerate(cache.block_table(request)):
            content[block] = tuple(tokens[place * 16 : place * 16 + 16])
        cache.commit(request, len(tokens))
        cache.free(request)
        return hit.num_tokens // 16

    p = list(range(480))
    for i in range(20):
        assert go(p) <= 29
        assert go(p) == 29
        go(list(range(1000 * (i + 1), 1000 * (i + 1) + 608)))
        alive = sum(tuple(p[b * 16 : b * 16 + 16]) in content.values() for b in range(30))
        assert go(p) <= alive
    assert mismatches == 0


def test_pc_085_the_shorter_prefix_of_a_full_block_is_a_miss() -> None:
    cache = PrefixCache([full(8)], 10, hash_block_size=4, events=True)
    request = ask(cache, range(6))
    start(cache, request)
    request.append_token_ids([6, 7])
    cache.allocate(request, 2)
    cache.commit(request, 8)
    cache.take_events()
    cache.commit(request, 8)
    assert cache.pool.lookup(request.block_hashes[0]) is None
    assert cache.take_events() == []


def test_pc_087_pc_129_a_batch_does_not_hit_itself() -> None:
    cache = PrefixCache.single(20, 16)
    a, b = ask(cache, range(33)), ask(cache, range(33))
    for request in (a, b):
        hit = cache.lookup(request)
        assert hit.num_tokens == 0
        cache.allocate(request, 33, hit)
    assert cache.lookup(ask(cache, range(33))).num_tokens == 0
    cache.commit(a, 33)
    assert cache.lookup(ask(cache, range(33))).num_tokens == 32


def test_pc_109_a_copy_that_goes_is_no_removal() -> None:
    cache = PrefixCache.single(4, 16, events=True)
    a, b = ask(cache, range(16)), ask(cache, range(16))
    for request in (a, b):
        cache.allocate(request, 16)
    for request in (a, b):
        cache.commit(request, 16)
    assert len(cache.take_events()) == 1
    cache.free(a)
    cache.pool.allocate(2)
    assert cache.take_events() == []
    assert cache.lookup(ask(cache, range(17))).num_tokens == 16
    cache.free(b)
    cache.pool.allocate(1)
    assert cache.take_events() == [BlockRemoved((a.block_hashes[0],), "GPU", 0)]


def test_pc_112_extra_keys_tell_adapters_and_salts_apart() -> None:
    hasher = BlockHasher(16)
    cache = PrefixCache.single(20, 16, events=True, block_hasher=hasher)
    for fields in (
        {"lora_request": LoRARequest("X", "/a")},
        {"cache_salt": "X"},
        {"lora_request": LoRARequest("X", "/b")},
    ):
        start(cache, ask(cache, range(17), **fields))
    keys = set()
    for event in cache.take_events():
        assert isinstance(event, BlockStored)
        assert event.extra_keys is not None
        keys.add(repr(event.extra_keys[0]))
    assert len(keys) == 3


def test_pc_115_parents_across_blocks_that_were_stored_before() -> None:
    cache = PrefixCache.single(40, 16, events=True)
    request = ask(cache, range(80))
    h = request.block_hashes
    cache.pool.cache(cache.pool.allocate(2), h[1:3])
    cache.take_events()
    start_blocks = cache.allocate(request, 80)
    assert start_blocks is not None
    cache.commit(request, 80)
    first, second = cache.take_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.block_hashes, first.parents()) == ((h[0],), (None,))
    assert (second.block_hashes, second.parents()) == ((h[3], h[4]), (h[2], h[3]))
    assert second.token_ids == tuple(range(48, 80))


def test_pc_118_reuse_is_reported_at_admission_once() -> None:
    cache = PrefixCache.single(20, 16, events=True, report_reuse=True)
    run(cache, range(33))
    cache.take_events()
    b = ask(cache, range(33))
    for _ in range(2):
        hit = cache.lookup(b)
    assert cache.take_events() == []
    cache.allocate(b, 1, hit)
    (event,) = cache.take_events()
    assert isinstance(event, BlockStored)
    assert event.block_hashes == tuple(b.block_hashes)
    assert event.token_ids == tuple(range(32))
    cache.check()


def test_pc_127_every_entry_point_evicts_and_none_takes_a_held_block() -> None:
    cache = PrefixCache.single(6, 16)
    run(cache, range(80))
    request = ask(cache, [9] * 16)
    assert cache.allocate(request, 16) is not None  # prompt
    cache.commit(request, 16)
    assert cache.allocate(request, 1) is not None  # decode
    cache.commit(request, 17)
    assert cache.allocate(request, 15, num_lookahead_tokens=16) is not None  # draft slots
    assert (cache.pool.num_free_blocks, cache.stats.evictions) == (2, 3)
    assert cache.lookup(ask(cache, range(80))).num_tokens == 32
    held = cache.block_table(request)
    assert cache.allocate(ask(cache, [4] * 64), 64) is None
    assert cache.block_table(request) == held
    cache.check()


def test_pc_130_a_late_commit_still_publishes() -> None:
    cache = PrefixCache.single(20, 16)
    request = ask(cache, range(33))
    cache.allocate(request, 33)
    cache.allocate(request, 16)  # decode steps, scheduled before their tokens are known
    assert len(cache.block_table(request)) == 4
    cache.commit(request, 33)
    assert cache.lookup(ask(cache, range(33))).num_tokens == 32
    assert cache.pool.num_cached_blocks == 2
    request.append_token_ids(list(range(100, 116)))
    cache.commit(request, 49)
    assert cache.pool.num_cached_blocks == 3


def test_pc_132_new_weights() -> None:
    cache = PrefixCache.single(20, 16, events=True)
    running = ask(cache, range(33))
    start(cache, running)
    assert cache.reset(new_generation=True) is True
    assert cache.lookup(ask(cache, range(33))).num_tokens == 0
    running.append_token_ids(list(range(40)))
    cache.allocate(running, 40)
    cache.commit(running, 73)
    assert cache.pool.num_cached_blocks == 0
    cache.free(running)
    assert run(cache, range(33)) == 0
    assert run(cache, range(33)) == 32


def test_pc_133_a_pinned_state_is_not_evicted() -> None:
    cache = PrefixCache([full(16), mamba(16)], 5)
    run(cache, range(32), chunk=16)
    hit = cache.lookup(ask(cache, range(33)))
    state = hit.block_ids[1][-1]
    cache.pool.touch([state])
    request = ask(cache, [3] * 64)
    assert cache.allocate(request, 64) is None
    cache.check(pinned=[state])
    cache.pool.free([state])
    assert cache.allocate(ask(cache, [3] * 48), 48) is not None
    cache.check()


def test_px_010_an_empty_request() -> None:
    cache = PrefixCache.single(4, 16)
    assert cache.lookup(ask(cache, [])).num_tokens == 0


def _tested() -> Iterator[str]:
    for folder in ("cache", "events", "pool"):
        for path in (DATA.parent / folder).glob("test_*.py"):
            text = path.read_text()
            yield from (f"{a.upper()}-{n}" for a, n in re.findall(r"(pc|px)_(\d+)", text))
            yield from re.findall(r"P[CX]-\d+", text)


def test_every_fault_of_these_areas_is_tested() -> None:
    lines = (DATA / "known_faults.jsonl").read_text().splitlines()
    faults = map(json.loads, lines)
    ours = {fault["id"] for fault in faults if fault["area"] in ("pool", "manager", "events")}
    assert len(ours) == 47
    assert ours - set(_tested()) - NOT_APPLICABLE == set()
