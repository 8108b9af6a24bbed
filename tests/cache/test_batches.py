"""`allocate_batch` and `commit_batch`: the single calls in order, and all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from prefixhash import BlockHasher, InvalidArgumentError, InvalidRequestError, Request
from prefixhash.cache import CacheGroup, PrefixCache
from prefixhash.errors import PrefixHashError

GROUPS = (
    CacheGroup("full_attention", 4),
    CacheGroup("sliding_window", 2, window=5),
    CacheGroup("mamba", 4, speculative_blocks=1),
)
HASHER = BlockHasher(2)


def make(name: str, num_tokens: int) -> Request:
    """Requests of different names share nothing."""
    first = 100 * ord(name)
    return Request(name, range(first, first + num_tokens), block_hasher=HASHER)


def running(
    names: str = "abc", num_blocks: int = 60, **options: Any
) -> tuple[PrefixCache, list[Request]]:
    """A cache in which requests of 9, 10, ... tokens are computed up to the last token."""
    cache = PrefixCache(GROUPS, num_blocks, events=True, block_hasher=HASHER, **options)
    requests = [make(name, 9 + i) for i, name in enumerate(names)]
    for request in requests:
        assert cache.allocate(request, request.num_tokens) is not None
        cache.commit(request, request.num_tokens)
    cache.take_events()
    return cache, requests


def state(cache: PrefixCache, requests: list[Request]) -> Any:
    tables = [[cache.block_table(r, g) for g in range(len(GROUPS))] for r in requests]
    pool = cache.pool
    counts = [pool.ref_count(block) for block in range(pool.num_blocks)]
    computed = [cache.num_computed_tokens(request) for request in requests]
    return tables, counts, computed, pool.free_block_ids(), pool.cached_hashes(), cache.stats


def refused(
    cache: PrefixCache, requests: list[Request], call: Callable[[], Any], error: Any
) -> PrefixHashError:
    """The call changes nothing, and neither does it open or close a step."""
    before = state(cache, requests)
    with pytest.raises(error) as caught:
        call()
    assert state(cache, requests) == before
    assert cache.take_events() == []
    cache.check()
    found: PrefixHashError = caught.value
    return found


@pytest.mark.parametrize("num_blocks", [200, 45, 36])
def test_a_batch_is_the_sequence_of_single_calls(num_blocks: int) -> None:
    """The same ids in the same order, also where blocks are lacking for some of them."""
    (single, ones), (batched, others) = (
        running(num_blocks=num_blocks),
        running(num_blocks=num_blocks),
    )
    open_steps: list[list[int]] = [[], [], []]
    lacking = 0
    for step in range(30):
        news, ahead = [1 + (step + i) % 3 for i in range(3)], step % 2
        expected = [single.allocate(r, n, None, ahead) for r, n in zip(ones, news, strict=True)]
        assert batched.allocate_batch(others, news, ahead) == expected
        lacking += expected.count(None)
        for steps, new, blocks in zip(open_steps, news, expected, strict=True):
            steps += [] if blocks is None else [new]
        if step % 3 == 2:
            numbers = close(single, ones, open_steps, rejected=step % 2)
            tell(others, numbers)
            batched.commit_batch(others, numbers)
        assert state(batched, others) == state(single, ones)
        assert batched.take_events() == single.take_events()
    assert (lacking > 0) == (num_blocks < 200)
    assert batched.pool.num_cached_hashes > 20
    batched.check()


def close(
    cache: PrefixCache, requests: list[Request], open_steps: list[list[int]], rejected: int
) -> list[int]:
    """Commit the oldest two open steps of each, less some tokens of the second; the numbers."""
    numbers = [cache.num_computed_tokens(request) for request in requests]
    for i, steps in enumerate(open_steps):
        numbers[i] += max(sum(steps[:2]) - rejected, 0)
        del steps[:2]
    tell(requests, numbers)
    for request, number in zip(requests, numbers, strict=True):
        cache.commit(request, number)
    return numbers


def tell(requests: list[Request], numbers: list[int]) -> None:
    for request, number in zip(requests, numbers, strict=True):
        request.append_token_ids(range(request.num_tokens, number))


def test_the_rest_of_a_batch_goes_on_where_blocks_are_lacking() -> None:
    cache, requests = running(num_blocks=33)
    before = state(cache, requests[1:2])[0]
    blocks = cache.allocate_batch(requests, [1, 200, 1])
    assert [found is None for found in blocks] == [False, True, False]
    assert state(cache, requests[1:2])[0] == before
    cache.commit_batch([requests[0], requests[2]])
    assert [cache.num_computed_tokens(r) for r in requests] == [10, 10, 12]
    with pytest.raises(InvalidArgumentError, match="between the 10 tokens committed before and"):
        cache.commit(requests[1], 11)  # its step was never opened
    cache.check()


def test_without_numbers_every_open_step_is_computed() -> None:
    cache, requests = running()
    cache.allocate_batch(requests, [1, 2, 3])
    cache.allocate_batch(requests[:2])
    cache.commit_batch(requests)
    assert [cache.num_computed_tokens(r) for r in requests] == [9 + 2, 10 + 3, 11 + 3]


def test_an_empty_batch_is_nothing() -> None:
    cache, requests = running()
    before = state(cache, requests)
    assert cache.allocate_batch([]) == cache.allocate_batch((), [], 3) == []
    cache.commit_batch([])
    cache.commit_batch((), [])
    assert state(cache, requests) == before


def test_a_batch_is_a_list_of_requests() -> None:
    cache, requests = running()
    for wrong in (requests[0], iter(requests), set(requests), "abc", None):
        for call in (cache.allocate_batch, cache.commit_batch):
            error = refused(cache, requests, lambda c=call, w=wrong: c(w), InvalidArgumentError)  # type: ignore[misc]
            assert "requests" in str(error)


BAD_BATCHES: dict[str, Callable[[list[Request]], list[Any]]] = {
    "twice": lambda known: [known[0], known[1], known[0]],
    "waiting": lambda known: [known[0], known[1], make("w", 20)],
    "twin": lambda known: [known[0], known[1], make("c", 11)],
    "none": lambda known: [known[0], known[1], None],
    "foreign": lambda known: [known[0], known[1], SimpleNamespace(request_id=3)],
}


@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_a_batch_with_a_bad_request_changes_nothing(batch: Any) -> None:
    cache, requests = running()
    cache.allocate_batch(requests, 3)
    bad = batch(requests)
    refused(cache, requests, lambda: cache.allocate_batch(bad, 9), InvalidRequestError)
    refused(cache, requests, lambda: cache.commit_batch(bad), InvalidRequestError)
    # No step was opened or closed: the first request stands where it was, and may stand in a batch.
    cache.commit_batch(requests, [12, 13, 14])
    assert [cache.num_computed_tokens(request) for request in requests] == [12, 13, 14]


def test_a_batch_with_a_cut_request_changes_nothing() -> None:
    cache, requests = running()
    cache.allocate_batch(requests, 3)
    requests[2].truncate(5)
    for call in (cache.allocate_batch, cache.commit_batch):
        error = refused(cache, requests, lambda c=call: c(requests), InvalidRequestError)  # type: ignore[misc]
        assert "preempt" in str(error)


@pytest.mark.parametrize(
    "numbers",
    [[1, 1], [1, 1, 1, 1], [], [1, 1, 0], [1, 1, -1], [1, 1, 1.0], [1, 1, True], [1, 1, None],
     [1, 1, 10**30], 0, -1, 10**30, 1.5, True, None, "111", b"111"],
)  # fmt: skip
def test_bad_numbers_of_new_tokens_change_nothing(numbers: Any) -> None:
    cache, requests = running()
    call = lambda: cache.allocate_batch(requests, numbers)  # noqa: E731
    error = refused(cache, requests, call, InvalidArgumentError)
    assert "num_new_tokens" in str(error)


@pytest.mark.parametrize(
    "numbers",
    [[11, 12], [11, 12, 13, 14], [], [11, 12, 10], [11, 12, 15], [11, 12, -1], [11, 12, 13.0],
     [11, 12, 10**30], [11, 12, None], 11.0, True, "999"],
)  # fmt: skip
def test_bad_numbers_of_computed_tokens_change_nothing(numbers: Any) -> None:
    cache, requests = running()
    cache.allocate_batch(requests, 3)
    tell(requests, [12, 13, 14])
    call = lambda: cache.commit_batch(requests, numbers)  # noqa: E731
    error = refused(cache, requests, call, InvalidArgumentError)
    assert "num_computed_tokens" in str(error)


def test_one_number_stands_for_all() -> None:
    (one, ones), (each, others) = running(), running()
    expected = each.allocate_batch(others, (6, 6, 6))
    assert one.allocate_batch(ones, 6) == expected
    assert all(map(any, expected))  # type: ignore[arg-type]
    for ahead in (-1, None, 1.0, 10**30):
        call = lambda n=ahead: one.allocate_batch(ones, 1, n)  # noqa: E731
        with pytest.raises(InvalidArgumentError, match="num_lookahead_tokens"):
            call()


def test_a_commit_that_finds_one_request_hashed_wrongly_changes_nothing() -> None:
    """The check of the hashes comes before the first request of the batch is committed."""
    cache, requests = running()
    foreign = SimpleNamespace(
        request_id="f", num_tokens=9, num_prompt_tokens=9, block_hashes=[], all_token_ids=range(9)
    )
    assert cache.allocate(foreign, 9) is not None  # type: ignore[arg-type]
    batch: list[Any] = [*requests, foreign]
    cache.allocate_batch(requests, 3)
    tell(requests, [12, 13, 14])
    numbers = [12, 13, 14, 9]
    call = lambda: cache.commit_batch(batch, numbers)  # noqa: E731
    error = refused(cache, batch, call, InvalidRequestError)
    assert "9 tokens make 4 hashes" in str(error)
    cache.commit_batch(requests, numbers[:3])


def test_a_commit_beyond_the_slots_changes_nothing() -> None:
    """Tokens behind `max_model_len` have no slots, so no step has computed them."""
    cache, requests = running(max_model_len=14)
    cache.allocate_batch(requests, 4)  # the last request's step ends at 15
    tell(requests, [15, 15, 15])
    for numbers in (None, [13, 14, 15]):
        call = lambda n=numbers: cache.commit_batch(requests, n)  # noqa: E731
        error = refused(cache, requests, call, InvalidArgumentError)
        assert "between the 11 tokens committed before and the 14 that have slots" in str(error)
    cache.commit_batch(requests, [13, 14, 14])
    cache.check()
