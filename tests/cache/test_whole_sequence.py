"""Whole-sequence admission of a request that is alone: it ends if it is let in.

Where the states have the block size of attention, it is let in, too, if it would end. Where theirs
is larger, or a window is recycled, the most blocks of each kind are counted, though they may not
be needed at one time; that depends on steps to come.
"""

from __future__ import annotations

import pytest

from prefixhash.cache import CacheGroup, PrefixCache

from .test_known_faults import ask, full, mamba, sliding

LAYOUTS = {
    "full": [full(4)],
    "mamba": [full(4), mamba(4)],
    "large state": [full(4), mamba(8)],
    "two states": [full(4), mamba(4), mamba(4)],
    "drafts": [full(4), CacheGroup("mamba", 4, speculative_blocks=2)],
    "window": [full(4), sliding(4, 6), mamba(4)],
}


def serve(cache: PrefixCache, tokens: range, chunk: int, *, whole: bool) -> bool:
    """Whether the tokens were computed to their end; a refused first step is asked no more."""
    request = ask(cache, tokens)
    hit = cache.lookup(request)
    done, first = hit.num_tokens, hit
    while done < request.num_tokens:
        step = min(chunk, request.num_tokens - done)
        taken = hit if done == first.num_tokens else None
        if cache.allocate(request, step, taken, whole_sequence=whole) is None:
            cache.free(request)
            return False
        done += step
        cache.commit(request, done)
        cache.check()
    cache.free(request)
    return True


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk", [3, 4, 8, 100])
@pytest.mark.parametrize("before", [0, 8, 17])
def test_let_in_if_and_only_if_it_ends(layout: str, chunk: int, before: int) -> None:
    ended = 0
    for num_blocks in range(2, 26):
        outcomes = []
        for whole in (False, True):
            cache = PrefixCache(LAYOUTS[layout], num_blocks, max_batched_tokens=chunk)
            if before:
                serve(cache, range(before), 4, whole=False)
            outcomes.append(serve(cache, range(21), chunk, whole=whole))
        if layout in ("window", "large state"):
            assert outcomes[0] or not outcomes[1], num_blocks
        else:
            assert outcomes[0] == outcomes[1], num_blocks
        ended += outcomes[1]
    assert 0 < ended < 24


def test_a_window_counts_what_the_hit_holds_of_it() -> None:
    def admitted(num_blocks: int) -> bool:
        groups = [full(4), sliding(4, 9)]
        cache = PrefixCache(groups, num_blocks, max_batched_tokens=8)
        request = ask(cache, range(20))
        cache.allocate(request, 20)
        cache.commit(request, 20)  # its blocks stay: 10 of the pool's
        longer = ask(cache, range(40))
        hit = cache.lookup(longer)
        assert hit.num_tokens == 20
        assert [sum(map(bool, ids)) for ids in hit.block_ids] == [5, 2]
        return cache.allocate(longer, 8, hit, whole_sequence=True) is not None

    # Null, the 10, 5 more of full attention; at most 5 of the window, 2 of which were hit.
    assert [admitted(n) for n in (18, 19)] == [False, True]


def test_a_state_that_others_hold_is_not_given_back() -> None:
    def admitted(num_blocks: int) -> bool:
        cache = PrefixCache([full(4), mamba(4)], num_blocks)
        a = ask(cache, range(5))
        assert cache.allocate(a, 4) is not None
        cache.commit(a, 4)
        b = ask(cache, range(13))
        hit = cache.lookup(b)
        assert hit.num_tokens == 4
        return cache.allocate(b, 4, hit, whole_sequence=True) is not None

    # Null, a block and a state that both hold, 3 blocks more of b, its state and the one before.
    assert [admitted(n) for n in (7, 8, 9)] == [False, True, True]
