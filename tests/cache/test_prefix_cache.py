"""PrefixCache, method by method, beyond the known faults and the state machine."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from prefixhash import (
    BlockHasher,
    BlockPool,
    CacheGroup,
    CacheHit,
    HashProfile,
    InvalidArgumentError,
    InvalidRequestError,
    LoRARequest,
    PrefixCache,
    Request,
    StaleHitError,
)
from prefixhash.errors import InvariantError
from prefixhash.events import BlockStored, EventIndex
from prefixhash.pool import ResidencySampler

from .test_known_faults import ask, full, mamba, run, sliding, start

# -- construction ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"hash_block_size": 3}, "hash_block_size"),
        ({"hash_block_size": 0}, "hash_block_size"),
        ({"hash_block_size": 32}, "hash_block_size"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_batched_tokens": -1}, "max_batched_tokens"),
        ({"watermark": 1.0}, "watermark"),
        ({"watermark": -0.1}, "watermark"),
        ({"watermark": "much"}, "watermark"),
        ({"retention_interval": 5}, "retention_interval"),
        ({"retention_interval": -16}, "retention_interval"),
        ({"verify_tokens": True}, "verify_tokens"),
        ({"block_hasher": BlockHasher(8)}, "block_hasher"),
    ],
)
def test_init_refuses(options: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        PrefixCache.single(10, 16, **options)
    assert caught.value.argument == argument


def test_init_needs_a_group() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one group"):
        PrefixCache([], 10)
    with pytest.raises(InvalidArgumentError, match="groups"):
        PrefixCache(5, 10)  # type: ignore[arg-type]


def test_unit_and_alignment() -> None:
    cache = PrefixCache([full(48), sliding(32, 100)], 10)
    assert (cache.hash_block_size, cache.alignment) == (16, 96)


# -- lookup ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 32, 64])
def test_lookup_refuses_hashes_of_another_block_size(size: int) -> None:
    cache = PrefixCache.single(10, 16)
    request = Request("r", range(128), block_hasher=BlockHasher(size))
    with pytest.raises(InvalidRequestError, match=r"BlockHasher\(16\)"):
        cache.lookup(request)


def test_lookup_refuses_a_request_that_is_not_hashed() -> None:
    request = Request("r", range(128))
    with pytest.raises(InvalidRequestError, match="enable_caching=False"):
        PrefixCache.single(10, 16).lookup(request)
    cache = PrefixCache.single(10, 16, enable_caching=False)
    assert cache.lookup(request) == CacheHit(0, ((),))
    assert cache.allocate(request, 128) is not None
    cache.commit(request, 128)
    cache.free(request)
    assert cache.pool.num_cached_blocks == 0


def test_lookup_with_hashes_that_look_ahead() -> None:
    hasher = BlockHasher(16, HashProfile.vllm("0.33", lookahead_tokens=1))
    for options in ({}, {"block_hasher": hasher}):
        cache = PrefixCache.single(10, 16, **options)
        for expected in (0, 32):
            request = Request(f"{expected}", range(48), block_hasher=hasher)
            hit = cache.lookup(request)
            assert hit.num_tokens == expected
            cache.allocate(request, 48 - hit.num_tokens, hit)
            cache.commit(request, 48)


def test_lookup_ends_where_all_block_sizes_do() -> None:
    cache = PrefixCache([full(32), full(48)], 60)
    run(cache, range(400))
    for length, expected in ((400, 384), (383, 288), (150, 96), (96, 0)):
        hit = cache.lookup(ask(cache, range(length)))
        assert hit.num_tokens == expected
        assert [len(ids) for ids in hit.block_ids] == [expected // 32, expected // 48]


def test_lookup_asks_a_window_again_when_a_state_shortens_the_hit() -> None:
    cache = PrefixCache([sliding(4, 6), mamba(4)], 60)
    request = ask(cache, range(24))
    for end in (8, 24):
        cache.allocate(request, end - cache.num_computed_tokens(request))
        cache.commit(request, end)
    assert cache.lookup(ask(cache, range(22))).num_tokens == 8
    cache.pool.evict([cache.pool.lookup(request.block_hashes[1], 0) or 0])
    # The window before 20 is there, but no state; the state at 8 is there, but not its window.
    assert cache.lookup(ask(cache, range(22))).num_tokens == 0


def test_lookup_changes_nothing() -> None:
    cache = PrefixCache.single(10, 16, events=True)
    run(cache, range(50))
    cache.take_events()
    before = cache.pool.free_block_ids(), cache.stats
    for _ in range(3):
        assert cache.lookup(ask(cache, range(50))).num_tokens == 48
    assert (cache.pool.free_block_ids(), cache.stats) == before
    assert cache.take_events() == []


def test_tenants_share_nothing() -> None:
    cache = PrefixCache.single(40, 16)
    run(cache, range(50), cache_salt="a")
    run(cache, range(50), lora_request=LoRARequest("x", "/x"))
    for fields in ({}, {"cache_salt": "b"}, {"lora_request": LoRARequest("x", "/x", "2")}):
        assert cache.lookup(ask(cache, range(50), **fields)).num_tokens == 0  # type: ignore[arg-type]
    assert cache.lookup(ask(cache, range(50), cache_salt="a")).num_tokens == 48


# -- allocate -------------------------------------------------------------------------------


def test_allocate_stops_at_the_model_length() -> None:
    cache = PrefixCache.single(10, 16, max_model_len=40)
    request = ask(cache, range(36))
    assert cache.allocate(request, 36, num_lookahead_tokens=30) == ([1, 2, 3],)
    assert cache.allocate(request, 4, num_lookahead_tokens=30) == ((),)


def test_allocate_watermark_is_for_admissions_beside_others() -> None:
    cache = PrefixCache.single(11, 16, watermark=0.3)
    first, second = ask(cache, range(16 * 8)), ask(cache, [5] * 16)
    assert cache.allocate(first, first.num_tokens) is not None
    assert cache.allocate(second, 16) is None
    assert cache.allocate(first, 32) is not None
    cache.free(first)
    assert cache.allocate(second, 16) is not None


def test_allocate_whole_sequence() -> None:
    cache = PrefixCache.single(6, 16)
    request = ask(cache, range(96))
    assert cache.allocate(request, 16, whole_sequence=True) is None
    assert cache.allocate(request, 16) is not None
    cache.free(request)
    cache = PrefixCache.single(6, 16, whole_sequence=True)
    assert cache.allocate(request, 16) is None
    assert cache.allocate(ask(cache, range(80)), 16) is not None


def test_allocate_refuses_the_hit_of_another_request() -> None:
    cache = PrefixCache.single(10, 16)
    run(cache, range(50))
    hit = cache.lookup(ask(cache, range(50)))
    with pytest.raises(StaleHitError):
        cache.allocate(ask(cache, [9] * 50), 2, hit)
    with pytest.raises(InvalidArgumentError, match="no lookup of this request"):
        cache.allocate(ask(cache, range(20)), 2, hit)
    assert cache.pool.usage == 0.0


def test_allocate_refuses_a_request_that_was_cut() -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(50))
    start(cache, request)
    request.truncate(20)
    with pytest.raises(InvalidRequestError, match="preempt"):
        cache.allocate(request, 1)
    request.append_token_ids(list(range(500, 540)))
    with pytest.raises(InvalidRequestError, match="preempt"):
        cache.commit(request, 50)
    assert cache.lookup(ask(cache, range(50))).num_tokens == 48
    cache.preempt(request)
    assert start(cache, request) == 16


def test_allocate_refuses_a_cut_inside_the_hit() -> None:
    cache = PrefixCache.single(10, 16)
    run(cache, range(50))
    request = ask(cache, range(50))
    assert cache.allocate(request, 2, cache.lookup(request)) is not None
    request.truncate(20)
    request.append_token_ids(range(70, 110))
    with pytest.raises(InvalidRequestError, match="preempt"):
        cache.commit(request, 50)


def test_allocate_refuses_a_cut_inside_the_last_block() -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(30))
    start(cache, request)
    request.truncate(20)  # no hash is lost, but KV of tokens 20 to 29 would be taken for others'
    with pytest.raises(InvalidRequestError, match="preempt"):
        cache.allocate(request, 1)
    with pytest.raises(InvalidRequestError, match="preempt"):
        cache.commit(request, 30)


def test_allocate_cross_attention_once() -> None:
    cross = CacheGroup("cross_attention", 16)
    cache = PrefixCache([full(16), cross, CacheGroup("encoder_only", 16)], 20)
    assert not cache.pool.enable_caching
    request = ask(cache, range(33))
    new = cache.allocate(request, 33, num_encoder_tokens=40)
    assert new is not None
    assert list(map(len, new)) == [3, 3, 0]
    cache.commit(request, 33)
    again = cache.allocate(request, 16, num_encoder_tokens=40)
    assert again is not None
    assert list(map(len, again)) == [1, 0, 0]
    cache.check()
    cache.free(request)
    assert cache.pool.num_free_blocks == 19
    trusting = PrefixCache([full(16), cross], 20, enable_caching=True)
    assert run(trusting, range(33)) == 0
    assert run(trusting, range(33)) == 32


def test_allocate_speculative_state_blocks_move_along() -> None:
    cache = PrefixCache([full(4), CacheGroup("mamba", 4, speculative_blocks=2)], 30)
    request = ask(cache, range(6))
    cache.allocate(request, 6)
    assert [bool(block) for block in cache.block_table(request, 1)] == [False, True, True, True]
    cache.commit(request, 6)
    table = cache.block_table(request, 1)
    request.append_token_ids(range(20))
    cache.allocate(request, 20)
    assert cache.block_table(request, 1)[-3:-1] == table[-2:]
    cache.check()


def test_a_state_after_rejected_drafts_is_not_published() -> None:
    cache = PrefixCache([full(4), mamba(4)], 30)
    request = ask(cache, range(7))
    start(cache, request)
    request.append_token_ids([7])
    cache.allocate(request, 4)  # positions 7 to 10; only the first is right
    cache.commit(request, 8)
    assert cache.lookup(ask(cache, range(9))).num_tokens == 0


def test_a_state_where_only_a_rejected_step_ended_is_not_published() -> None:
    cache = PrefixCache([full(4), mamba(4)], 30)
    request = ask(cache, range(7))
    start(cache, request)
    request.append_token_ids(range(7, 10))
    cache.allocate(request, 5)  # would end at 12, the end of a block, but two are rejected
    cache.commit(request, 10)
    request.append_token_ids(range(10, 13))
    cache.allocate(request, 3)
    cache.commit(request, 13)
    assert cache.lookup(ask(cache, range(14))).num_tokens == 0


def test_allocate_does_not_count_on_blocks_that_others_hold() -> None:
    cache = PrefixCache([sliding(4, 5)], 6)
    a = ask(cache, range(8))
    start(cache, a)
    b = ask(cache, range(9))
    assert cache.allocate(b, 1, cache.lookup(b)) is not None  # holds the second block of a
    a.append_token_ids(range(8, 17))
    assert cache.allocate(a, 8) is not None  # gives the first block back
    cache.commit(a, 16)
    (spare,) = cache.pool.allocate(1)
    table = cache.block_table(a)
    assert list(map(bool, table)) == [False, True, True, True]
    # Two blocks have left the window, one of which b holds.
    assert cache.allocate(a, 8) is None
    assert cache.block_table(a) == table
    cache.check(pinned=[spare])
    assert cache.allocate(a, 4) is not None


# -- commit ---------------------------------------------------------------------------------


def test_commit_keeps_a_window_that_a_later_request_needs() -> None:
    cache = PrefixCache([full(16), sliding(16, 40)], 100)
    run(cache, range(200), chunk=48)
    hit = cache.lookup(ask(cache, range(200)))
    assert hit.num_tokens == 192
    assert list(map(bool, hit.block_ids[1])) == [False] * 9 + [True] * 3


def test_commit_that_fails_changes_nothing() -> None:
    class Broken(BlockHasher):
        def extra_keys(self, request: Any, block_index: int) -> tuple[Any, ...] | None:
            raise RuntimeError("no such image")

    cache = PrefixCache.single(10, 16, events=True, block_hasher=Broken(16))
    request = ask(cache, range(33))
    cache.allocate(request, 33)
    with pytest.raises(RuntimeError, match="no such image"):
        cache.commit(request, 33)
    assert (cache.num_computed_tokens(request), cache.pool.num_cached_blocks) == (0, 0)
    assert cache.take_events() == []
    cache.check()


@pytest.mark.parametrize("window", [16, 24])
def test_commit_events_of_a_hybrid_name_reported_parents(window: int) -> None:
    cache = PrefixCache(
        [full(32), sliding(16, window)], 100, events=True, retention_interval=0, hash_block_size=16
    )
    reported: set[Any] = set()
    for tokens in (range(200), [*range(100), *range(500, 600)]):
        run(cache, tokens, chunk=64)
        for event in cache.take_events():
            if isinstance(event, BlockStored):
                assert event.parent_block_hash is None or event.parent_block_hash in reported
                assert len(event.token_ids) == len(event.block_hashes) * event.block_size
                reported.update(event.block_hashes)
    kinds = {"full_attention", "sliding_window"}
    cache.reset()
    run(cache, range(64))
    events = [event for event in cache.take_events() if isinstance(event, BlockStored)]
    assert {event.kv_cache_spec_kind for event in events} == kinds


def test_commit_events_replay_to_the_index() -> None:
    cache = PrefixCache([full(16), sliding(16, 24)], 14, events=True)
    index = EventIndex()
    for i in range(12):
        run(cache, [*range(32), *range(1000 * i, 1000 * i + 40)])
        index.apply(cache.take_events())
        assert index.keys() == cache.pool.cached_hashes()
    assert cache.stats.evictions > 0


# -- verify_tokens --------------------------------------------------------------------------


class Colliding(BlockHasher):
    """A hash that only depends on the first token of a block."""

    def __call__(self, request: Any, /) -> list[bytes]:
        done = len(request.block_hashes)
        ids = request.all_token_ids
        return [
            b"%d" % ids[place * self.block_size]
            for place in range(done, request.num_tokens // self.block_size)
        ]


@pytest.mark.parametrize(
    "groups", [[full(4)], [full(8)], [sliding(4, 6)], [full(8), sliding(4, 6)]]
)
def test_verify_tokens_sees_a_collision(groups: list[CacheGroup]) -> None:
    hasher = Colliding(4)

    def served(tokens: list[int], **options: Any) -> int:
        cache = PrefixCache(groups, 60, hash_block_size=4, block_hasher=hasher, **options)
        for i, ids in enumerate((list(range(40)), tokens)):
            request = Request(f"{i}", ids, block_hasher=hasher)
            hit = cache.lookup(request)
            cache.allocate(request, len(ids) - hit.num_tokens, hit)
            cache.commit(request, len(ids))
            cache.check()
        return hit.num_tokens

    assert served(list(range(40)), verify_tokens=True) in (32, 36)
    other = list(range(40))
    other[17] = 99  # not the first token of a block
    assert served(other) in (32, 36)
    assert served(other, verify_tokens=True) == 16
    other[1] = 99
    assert served(other, verify_tokens=True) == 0


def test_verify_tokens_sees_equal_tokens_under_another_salt() -> None:
    hasher = Colliding(4)
    cache = PrefixCache.single(60, 4, block_hasher=hasher, verify_tokens=True)
    for salt, expected in (("a", 0), ("a", 36), ("b", 0)):
        request = Request(salt, range(40), block_hasher=hasher, cache_salt=salt)
        hit = cache.lookup(request)
        assert hit.num_tokens == expected
        cache.allocate(request, 40 - hit.num_tokens, hit)
        cache.commit(request, 40)
        cache.free(request)


# -- free, reset, what it holds -------------------------------------------------------------


def test_free_of_a_waiting_request_forgets_that_it_was_preempted() -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(33))
    start(cache, request)
    cache.preempt(request)
    cache.free(request)
    start(cache, request)
    assert (cache.stats.requests, cache.stats.preempted_requests) == (2, 0)
    cache.free(request)
    cache.free(request)


def test_reset_makes_hits_stale() -> None:
    cache = PrefixCache.single(10, 16)
    run(cache, range(33))
    request = ask(cache, range(33))
    hit = cache.lookup(request)
    cache.reset()
    with pytest.raises(StaleHitError):
        cache.allocate(request, 1, hit)


def test_common_prefix_blocks() -> None:
    cache = PrefixCache([full(16), sliding(16, 24)], 60)
    assert cache.common_prefix_blocks() == [0, 0]
    run(cache, range(65))
    a, b = ask(cache, range(65)), ask(cache, [*range(48), *range(300, 320)])
    start(cache, a)
    assert cache.common_prefix_blocks()[0] == 5
    start(cache, b)
    assert cache.common_prefix_blocks() == [3, 0]


def test_chunk_tokens() -> None:
    cache = PrefixCache([full(16), mamba(16)], 60)
    request = ask(cache, range(100))
    assert cache.chunk_tokens(request, 100) == 96
    assert cache.chunk_tokens(request, 50) == 48
    assert cache.chunk_tokens(request, 10) == 10
    assert cache.chunk_tokens(ask(cache, range(96)), 96) == 80  # the last token is computed again
    assert cache.chunk_tokens(request, 100, CacheHit(0, ([], []), 32)) == 32
    assert PrefixCache.single(9, 16).chunk_tokens(request, 77) == 77


@pytest.mark.parametrize("retention", [None, 0])
@pytest.mark.parametrize("length", [33, 40, 48, 49, 100])
def test_chunk_tokens_leave_a_state_where_a_drafter_drops_to(
    length: int, retention: int | None
) -> None:
    cache = PrefixCache([full(16, eagle=True), mamba(16)], 60, retention_interval=retention)
    hits = []
    for _ in range(2):
        request = ask(cache, range(length))
        hit: CacheHit | None = cache.lookup(request)
        assert hit is not None
        hits.append(hit.num_tokens)
        done = hit.num_tokens
        while done < length:
            step = cache.chunk_tokens(request, length - done, hit)
            assert cache.allocate(request, step, hit) is not None
            hit = None
            done += step
            cache.commit(request, done)
        cache.free(request)
    assert hits == [0, (length - 16) // 16 * 16]


@pytest.mark.parametrize("length", [80, 100, 127, 128, 144, 256, 280])
def test_sparse_retention_keeps_what_a_drafter_drops_to(length: int) -> None:
    """The same prompt hits as much as with dense retention."""
    hits = []
    for retention in (None, 0):
        groups = [full(64), sliding(16, 32, eagle=True)]
        cache = PrefixCache(groups, 100, retention_interval=retention)
        run(cache, range(length))
        hits.append(run(cache, range(length)))
    assert hits == [(length - 16) // 64 * 64] * 2


def test_chunk_tokens_with_a_drafter_and_larger_states() -> None:
    cache = PrefixCache([full(16), mamba(64)], 60, eagle=True)
    hits = []
    for _ in range(2):
        request = ask(cache, range(100))
        hit = cache.lookup(request)
        hits.append(hit.num_tokens)
        step = cache.chunk_tokens(request, 100 - hit.num_tokens, hit)
        assert cache.allocate(request, step, hit) is not None
        cache.commit(request, hit.num_tokens + step)
        cache.allocate(request, 100 - cache.num_computed_tokens(request) or 1)
        cache.commit(request, 100)
    assert hits == [0, 64]


def test_sparse_retention_keeps_what_a_drafter_drops_to_where_requests_part() -> None:
    hits = []
    for retention in (None, 0):
        groups = [full(64), sliding(16, 32, eagle=True)]
        cache = PrefixCache(groups, 200, retention_interval=retention)
        for i in range(3):  # the second sees where the first and it part, and keeps what is needed
            hit = run(cache, [*range(140), *range(1000 * (i + 1), 1000 * (i + 1) + 300)])
        hits.append(hit)
    assert hits == [64, 64]


@pytest.mark.parametrize("bad", [0, -1, None, 1.5, "x"])
def test_chunk_tokens_refuses(bad: Any) -> None:
    cache = PrefixCache([full(16), mamba(16)], 60)
    with pytest.raises(InvalidArgumentError, match="num_new_tokens"):
        cache.chunk_tokens(ask(cache, range(100)), bad)


@pytest.mark.parametrize("bad", [1, -1, None, "x"])
def test_block_table_refuses_what_is_no_group(bad: Any) -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(33))
    start(cache, request)
    with pytest.raises(InvalidArgumentError, match="group"):
        cache.block_table(request, bad)


@pytest.mark.parametrize(
    "bad",
    [
        5,
        "hit",
        (0, ([], [])),
        CacheHit("16", ([], [])),  # type: ignore[arg-type]
        CacheHit(16, ([1],)),
        CacheHit(17, ([1], [4])),
        CacheHit(31, ([1], [4])),
        CacheHit(8, ([], [])),
        CacheHit(16, [[1], [2]]),  # type: ignore[arg-type]
        CacheHit(16, (5, 6)),  # type: ignore[arg-type]
        CacheHit(16, ([None], [None])),  # type: ignore[list-item]
        CacheHit(16, ([[1]], [[2]])),  # type: ignore[list-item]
        CacheHit(0, ([], []), None),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_hit_is_refused(bad: Any) -> None:
    cache = PrefixCache([full(16), mamba(16)], 60)
    run(cache, range(32), chunk=16)
    before = cache.pool.free_block_ids(), cache.stats
    with pytest.raises((InvalidArgumentError, StaleHitError)):
        cache.allocate(ask(cache, range(40)), 8, bad)
    assert (cache.pool.free_block_ids(), cache.stats, cache.num_running) == (*before, 0)


def test_check_finds_a_hold_that_no_table_has() -> None:
    cache = PrefixCache.single(10, 16)
    start(cache, ask(cache, range(33)))
    extra = cache.pool.allocate(1)
    with pytest.raises(InvariantError, match="tables hold it"):
        cache.check()
    cache.check(pinned=extra)


def test_stats() -> None:
    cache = PrefixCache.single(10, 16)
    run(cache, range(40))
    request = ask(cache, range(40))
    start(cache, request)
    stats = cache.stats
    assert (stats.requests, stats.queries, stats.hits) == (2, 80, 32)
    assert (stats.query_blocks, stats.hit_blocks) == (4, 2)
    assert (stats.token_hit_rate, stats.full_block_hit_rate) == (0.4, 0.5)
    assert stats.usage == pytest.approx(3 / 9)


def test_residency() -> None:
    sampler = ResidencySampler(1.0, seed=0)
    cache = PrefixCache.single(4, 16, residency=sampler)
    run(cache, range(48))
    run(cache, range(48))  # hits two blocks, evicts the third
    run(cache, [7] * 48)
    assert len(sampler.take()) == 4


# -- groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"kind": "linear", "block_size": 16}, "kind"),
        ({"kind": ["full_attention"], "block_size": 16}, "kind"),
        ({"kind": "full_attention", "block_size": 0}, "block_size"),
        ({"kind": "sliding_window", "block_size": 16}, "window"),
        ({"kind": "chunked_local", "block_size": 16}, "chunk"),
        ({"kind": "mamba", "block_size": 16, "speculative_blocks": -1}, "speculative_blocks"),
        ({"kind": "chunked_local", "block_size": 16, "chunk": 64, "eagle": True}, "eagle"),
    ],
)
def test_group_refuses(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        CacheGroup(**arguments)
    assert caught.value.argument == argument


def test_groups_of_layer_specs_and_plans() -> None:
    layout = pytest.importorskip("prefixhash.layout")
    head = {"num_kv_heads": 1, "head_size": 8, "dtype": "float16"}
    specs = [
        layout.FullAttentionSpec(block_size=16, **head),
        layout.MLAAttentionSpec(block_size=32, head_size=8, dtype="float16"),
        layout.SlidingWindowSpec(block_size=16, window=40, **head),
        layout.SlidingWindowMLASpec(block_size=16, window=40, head_size=8, dtype="float16"),
        layout.ChunkedLocalAttentionSpec(block_size=16, chunk=64, **head),
        layout.MambaSpec(
            block_size=16, state_shapes=((4,),), state_dtypes=("float32",), speculative_blocks=1
        ),
        layout.CrossAttentionSpec(block_size=16, **head),
        layout.EncoderOnlyAttentionSpec(block_size=16, **head),
    ]
    expected = (
        CacheGroup("full_attention", 16),
        CacheGroup("mla", 32),
        CacheGroup("sliding_window", 16, window=40),
        CacheGroup("sliding_window_mla", 16, window=40),
        CacheGroup("chunked_local", 16, chunk=64),
        CacheGroup("mamba", 16, speculative_blocks=1),
        CacheGroup("cross_attention", 16),
        CacheGroup("encoder_only", 16),
    )
    assert PrefixCache(specs, 10).groups == expected
    planned = [layout.KVCacheGroup(("a",), specs[0]), layout.KVCacheGroup(("b",), specs[2])]
    assert PrefixCache(planned, 10).groups == (expected[0], expected[2])


def test_groups_of_other_objects() -> None:
    spec = SimpleNamespace(kind="sliding_window", block_size=16, sliding_window=8)
    group = SimpleNamespace(kv_cache_spec=spec, is_eagle_group=True)
    assert PrefixCache([group], 10).groups == (CacheGroup("sliding_window", 16, window=8),)
    eagle = PrefixCache([group, CacheGroup("full_attention", 16)], 10, eagle=True).groups
    assert [g.eagle for g in eagle] == [True, False]
    assert [g.eagle for g in PrefixCache.single(10, 16, eagle=True).groups] == [True]
    with pytest.raises(InvalidArgumentError, match="layer specs"):
        PrefixCache([object()], 10)


def test_blocks_taken_beside_the_cache() -> None:
    cache = PrefixCache.single(10, 16)
    assert isinstance(cache.pool, BlockPool)
    outside = cache.pool.allocate(3)
    request = ask(cache, range(33))
    cache.allocate(request, 33)
    assert not set(outside) & set(cache.block_table(request))
    cache.check(pinned=outside)


@pytest.mark.parametrize("length", [-1, 1 << 62, 10**30, -(10**30), True, 8.0, None])
@pytest.mark.parametrize("field", ["num_tokens", "shared_prefix_tokens"])
def test_a_hit_of_no_lookup_is_refused_and_changes_nothing(field: str, length: Any) -> None:
    cache = PrefixCache([CacheGroup("mamba", 4)], 20)
    request = ask(cache, range(13))
    cache.allocate(request, 12)
    cache.commit(request, 12)
    cache.free(request)
    again = ask(cache, range(13))
    hit = cache.lookup(again)
    assert hit.num_tokens == 12
    forged = hit._replace(**{field: length})
    before = cache.pool.free_block_ids()
    for call in (cache.allocate, cache.chunk_tokens):
        with pytest.raises(InvalidArgumentError) as caught:
            call(again, 1, forged)
        assert caught.value.argument == "hit"
    assert cache.pool.free_block_ids() == before
    assert cache.num_running == 0


def test_a_window_of_one_token_can_be_hit() -> None:
    """No earlier token is attended to; the block before is held all the same, to know the hit."""
    cache = PrefixCache([CacheGroup("sliding_window", 4, window=1)], 20)
    request = ask(cache, range(13))
    cache.allocate(request, 13)
    cache.commit(request, 13)
    cache.free(request)
    again = ask(cache, range(13))
    hit = cache.lookup(again)
    assert hit.num_tokens == 12
    assert cache.allocate(again, 1, hit) is not None
    cache.commit(again, 13)
    cache.trim(again)
    assert list(map(bool, cache.block_table(again))) == [False, False, False, True]
    cache.check()


@pytest.mark.parametrize("kind", ["full_attention", "chunked_local", "sliding_window", "mamba"])
def test_tokens_behind_the_longest_request_cannot_be_committed(kind: str) -> None:
    """Such a step is allocated as far as there are slots: nothing behind them was computed."""
    cache = PrefixCache([CacheGroup(kind, 4, window=6, chunk=8)], 20, max_model_len=10)
    request = ask(cache, range(16))
    assert cache.allocate(request, 16) is not None
    with pytest.raises(InvalidArgumentError, match="and the 10 that have slots"):
        cache.commit(request, 16)
    assert (cache.num_computed_tokens(request), cache.pool.num_cached_hashes) == (0, 0)
    cache.commit(request, 10)
    assert cache.num_computed_tokens(request) == 10
    cache.check()


def test_a_cache_can_be_watched_without_holding_it() -> None:
    cache = PrefixCache.single(10, 16)
    assert weakref.ref(cache)() is cache
