"""No KV is taken for that of other tokens: requests cut and grown again, other hashers, drafts.

PrefixCache sees a request at its calls only; between two of them it may be cut and grow again.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import (
    BlockHasher,
    HashProfile,
    InvalidArgumentError,
    InvalidRequestError,
    PrefixCache,
    Request,
    StaleHitError,
)
from prefixhash.cache import CacheGroup

from .test_known_faults import ask, full, run, start


def exchange(request: Request, cut: int, length: int) -> None:
    """Other tokens from `cut` on, up to `length`."""
    request.truncate(cut)
    request.append_token_ids(range(1000, 1000 + length - cut))


# -- computed tokens ------------------------------------------------------------------------


@given(computed=st.integers(1, 50), cut=st.integers(0, 50), length=st.integers(0, 60))
def test_a_cut_into_computed_tokens_is_seen_whatever_grows_there(
    computed: int, cut: int, length: int
) -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(computed))
    start(cache, request)
    request.append_token_ids(range(100, 110))
    cut = min(cut, computed - 1)
    exchange(request, cut, max(length, cut))
    for call in (cache.allocate, cache.commit):
        with pytest.raises(InvalidRequestError, match="preempt"):
            call(request, computed)
    with pytest.raises(InvalidRequestError, match="preempt"):
        cache.trim(request)
    cache.preempt(request)
    if request.num_tokens:
        assert start(cache, request) <= cut


@given(st.lists(st.integers(0, 40), max_size=40))
def test_a_cut_above_computed_tokens_is_none_of_the_cache(cuts: list[int]) -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(20))
    start(cache, request)
    for cut in cuts[:30]:  # as many as a request tells apart
        exchange(request, min(request.num_tokens, 20 + cut), 65)
    request.append_token_ids([7])
    assert cache.allocate(request, request.num_tokens - 20) is not None
    cache.commit(request, request.num_tokens)
    twin = Request("twin", list(request.all_token_ids), block_hasher=BlockHasher(16))
    assert cache.lookup(twin).num_tokens == (request.num_tokens - 1) // 16 * 16


def test_a_request_that_tells_of_no_cuts_is_known_by_its_hashes() -> None:
    cache = PrefixCache.single(10, 16)
    whole = ask(cache, range(40))
    foreign = SimpleNamespace(
        request_id="f", num_tokens=40, block_hashes=list(whole.block_hashes), all_token_ids=()
    )
    assert cache.allocate(foreign, 40) is not None
    cache.commit(foreign, 40)
    foreign.block_hashes = [whole.block_hashes[0], b"another"]
    with pytest.raises(InvalidRequestError, match="preempt"):
        cache.allocate(foreign, 1)


# -- tokens in flight -----------------------------------------------------------------------


def test_tokens_exchanged_while_their_step_runs_are_not_published() -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(40))
    cache.allocate(request, 40)
    exchange(request, 20, 40)
    with pytest.raises(InvalidArgumentError, match="commit 20 at most"):
        cache.commit(request, 40)
    assert (cache.pool.num_cached_blocks, cache.num_computed_tokens(request)) == (0, 0)
    cache.commit(request, 20)
    assert cache.allocate(request, 20) is not None
    cache.commit(request, 40)
    twin = Request("twin", list(request.all_token_ids), block_hasher=BlockHasher(16))
    assert cache.lookup(twin).num_tokens == 32


def test_tokens_exchanged_behind_a_chunk_that_is_committed() -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(40))
    cache.allocate(request, 20)
    cache.allocate(request, 20)
    exchange(request, 20, 40)
    cache.commit(request, 20)
    with pytest.raises(InvalidArgumentError, match="commit 20 at most"):
        cache.commit(request, 40)


@pytest.mark.parametrize("commit_first", [False, True])
def test_tokens_exchanged_behind_a_chunk_that_is_committed_in_part(commit_first: bool) -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(40))
    cache.allocate(request, 20)
    cache.allocate(request, 20)
    if commit_first:
        cache.commit(request, 10)
        exchange(request, 12, 40)
    else:
        exchange(request, 12, 40)
        cache.commit(request, 10)
    with pytest.raises(InvalidArgumentError, match="commit 12 at most"):
        cache.commit(request, 30)


def test_tokens_exchanged_before_their_step_was_allocated() -> None:
    cache = PrefixCache.single(20, 16)
    request = ask(cache, range(100))
    cache.allocate(request, 24)
    exchange(request, 50, 100)  # there is always a step in flight, but never of these tokens
    for end in (24, 48, 72):
        assert cache.allocate(request, 24) is not None
        cache.commit(request, end)
    assert cache.lookup(ask(cache, request.all_token_ids)).num_tokens == 64


def test_tokens_that_came_after_a_commit_ahead_of_them() -> None:
    cache = PrefixCache.single(10, 16)
    request = ask(cache, range(33))
    cache.allocate(request, 48)
    cache.commit(request, 48)  # the request learns its tokens later
    request.append_token_ids(range(100, 115))
    exchange(request, 40, 48)
    with pytest.raises(InvalidRequestError, match="preempt"):
        cache.commit(request, 48)


def decoding(cache: PrefixCache) -> Request:
    """15 tokens computed; one sampled and three drafts in the request and in flight."""
    request = ask(cache, range(15))
    start(cache, request)
    request.append_token_ids([900, 901, 902, 903])
    assert cache.allocate(request, 4) is not None
    return request


def accept(request: Request) -> None:
    """The first draft is right, the second is not; 77 was sampled in its place."""
    request.truncate(17)
    request.append_token_ids([77])


@pytest.mark.parametrize("commit_first", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_drafts_in_the_request(commit_first: bool, ahead: bool) -> None:
    cache = PrefixCache.single(10, 16)
    request = decoding(cache)
    if ahead:  # the next step is on its way before the drafts are judged
        assert cache.allocate(request, 1) is not None
    if commit_first:
        cache.commit(request, 17)
        accept(request)
    else:
        accept(request)
        cache.commit(request, 17)
    if not ahead:
        assert cache.allocate(request, 1) is not None
    cache.commit(request, 18)
    assert cache.lookup(ask(cache, [*range(15), 900, 1])).num_tokens == 16
    request.append_token_ids(range(14))
    assert cache.allocate(request, 14) is not None
    cache.commit(request, 32)
    assert cache.lookup(ask(cache, [*request.all_token_ids, 1])).num_tokens == 32


def test_the_token_in_place_of_a_rejected_draft_is_not_computed_yet() -> None:
    cache = PrefixCache.single(10, 16)
    request = decoding(cache)
    accept(request)
    with pytest.raises(InvalidArgumentError, match="commit 17 at most"):
        cache.commit(request, 18)
    cache.commit(request, 17)


# -- who hashed it --------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "length"), [(12, 18), (20, 30), (11, 16)])
def test_another_block_size_that_makes_as_many_hashes(size: int, length: int) -> None:
    cache = PrefixCache.single(10, 16)
    request = Request("r", range(length), block_hasher=BlockHasher(size))
    assert len(request.block_hashes) == length // 16
    with pytest.raises(InvalidRequestError, match=r"BlockHasher\(16\)"):
        cache.lookup(request)
    assert cache.allocate(request, length) is not None
    with pytest.raises(InvalidRequestError, match=r"BlockHasher\(16\)"):
        cache.commit(request, length)
    assert cache.pool.num_cached_blocks == 0


def test_another_profile_than_the_cache_was_built_with() -> None:
    hasher = BlockHasher(16)
    cache = PrefixCache.single(10, 16, block_hasher=hasher)
    other = BlockHasher(16, HashProfile.strict(namespace="other model"))
    with pytest.raises(InvalidRequestError, match="not what this cache was built with"):
        cache.lookup(Request("r", range(40), block_hasher=other))
    equal = BlockHasher(16, HashProfile.strict())
    assert cache.lookup(Request("r", range(40), block_hasher=equal)).num_tokens == 0


@pytest.mark.parametrize("length", [16, 48])
def test_a_hash_that_looks_ahead_waits_for_the_token_ahead(length: int) -> None:
    hasher = BlockHasher(16, HashProfile.vllm("0.33", lookahead_tokens=1))
    cache = PrefixCache.single(10, 16)
    request = Request("r", range(length), block_hasher=hasher)
    cache.allocate(request, length)
    request.append_token_ids([77])  # a draft
    cache.commit(request, length)
    assert cache.pool.num_cached_blocks == length // 16 - 1
    request.truncate(length)
    request.append_token_ids([78])
    cache.allocate(request, 1)
    cache.commit(request, length + 1)
    for token, expected in ((77, length - 16), (78, length)):
        twin = Request("t", [*range(length), token, 5], block_hasher=hasher)
        assert cache.lookup(twin).num_tokens == expected


# -- verify_tokens --------------------------------------------------------------------------


class FirstToken(BlockHasher):
    """A hash that depends on the first token of a block only."""

    def __call__(self, request: Any, /) -> list[bytes]:
        starts = range(len(request.block_hashes) * 4, request.num_tokens // 4 * 4, 4)
        return [b"%d" % request.all_token_ids[place] for place in starts]


def test_verify_tokens_holds_until_the_hit_is_used() -> None:
    hasher = FirstToken(4)
    cache = PrefixCache.single(2, 4, block_hasher=hasher, verify_tokens=True)

    def compute(tokens: list[int]) -> None:
        request = Request("w", tokens, block_hasher=hasher)
        assert cache.allocate(request, 4) is not None
        cache.commit(request, 4)
        cache.free(request)

    compute([0, 1, 2, 3])
    request = Request("r", [0, 1, 2, 3, 4], block_hasher=hasher)
    hit = cache.lookup(request)
    assert hit.num_tokens == 4
    compute([0, 7, 7, 7])  # into the same block, under the same hash
    with pytest.raises(StaleHitError, match="other tokens"):
        cache.allocate(request, 1, hit)
    assert cache.lookup(request).num_tokens == 0
    cache.check()


@pytest.mark.parametrize(
    "groups", [[full(4)], [full(8), CacheGroup("sliding_window", 4, window=6)]]
)
def test_verify_tokens_after_a_hit(groups: list[CacheGroup]) -> None:
    hasher = BlockHasher(4)
    cache = PrefixCache(groups, 60, block_hasher=hasher, hash_block_size=4, verify_tokens=True)
    for length in (20, 40, 60):  # each goes on from what the one before left
        request = Request(f"{length}", range(length), block_hasher=hasher)
        assert start(cache, request) == (length - 20) // cache.alignment * cache.alignment
        cache.free(request)
    other = Request("o", [*range(30), 99, *range(31, 60)], block_hasher=hasher)
    assert cache.lookup(other).num_tokens in (24, 28)


def test_verify_tokens_tells_the_same_tokens_elsewhere_in_a_prompt_apart() -> None:
    hasher = FirstToken(4)
    cache = PrefixCache.single(60, 4, block_hasher=hasher, verify_tokens=True)
    for i, tokens in enumerate(([5, 6, 7, 8], [1, 2, 3, 4])):
        request = Request(f"{i}", tokens, block_hasher=hasher)
        cache.allocate(request, 4)
        cache.commit(request, 4)
    both = Request("b", [1, 2, 3, 4, 5, 6, 7, 8, 9], block_hasher=hasher)
    assert cache.lookup(both).num_tokens == 4


def test_verify_tokens_keeps_one_record_of_a_shared_prefix() -> None:
    class Counting(BlockHasher):
        asked = 0

        def extra_keys(self, request: Any, block_index: int) -> tuple[Any, ...] | None:
            self.asked += 1
            return super().extra_keys(request, block_index)

    hasher = Counting(4)
    cache = PrefixCache.single(60, 4, block_hasher=hasher, verify_tokens=True)
    for length, blocks in ((40, 10), (48, 2)):
        request = Request(f"{length}", range(length), block_hasher=hasher)
        hit = cache.lookup(request)
        cache.allocate(request, length - hit.num_tokens, hit)
        hasher.asked = 0
        cache.commit(request, length)
        assert hasher.asked == blocks


# -- odd requests ---------------------------------------------------------------------------


def test_without_caching_nothing_need_be_hashed() -> None:
    cache = PrefixCache.single(10, 16, enable_caching=False)
    request = Request("r", range(40))
    assert cache.allocate(request, 40, cache.lookup(request)) is not None
    cache.commit(request, 40)
    cache.free(request)


def test_a_request_that_lacks_something_is_not_admitted() -> None:
    cache = PrefixCache.single(10, 16)
    with pytest.raises(InvalidRequestError, match="num_tokens"):
        cache.allocate(SimpleNamespace(request_id="r", block_hashes=[]), 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="block_hashes"):
        cache.allocate(SimpleNamespace(request_id="r", num_tokens=5), 1)  # type: ignore[arg-type]
    assert (cache.num_running, cache.stats.requests, cache.pool.usage) == (0, 0, 0.0)
    cache.check()


def test_a_reuse_that_cannot_be_reported_is_not_admitted() -> None:
    class Broken(BlockHasher):
        broken = False

        def extra_keys(self, request: Any, block_index: int) -> tuple[Any, ...] | None:
            if self.broken:
                raise RuntimeError("no such image")
            return None

    hasher = Broken(16)
    cache = PrefixCache.single(10, 16, events=True, report_reuse=True, block_hasher=hasher)
    run(cache, range(40))
    request = Request("r", range(40), block_hasher=hasher)
    hit = cache.lookup(request)
    hasher.broken = True
    with pytest.raises(RuntimeError, match="no such image"):
        cache.allocate(request, 8, hit)
    assert (cache.num_running, cache.stats.requests, cache.pool.usage) == (0, 1, 0.0)
    cache.check()
