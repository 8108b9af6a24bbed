"""The hit rates by hand, and what an unbounded cache shares against a naive search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.definitions import DEFINITIONS, find_definition
from prefixhash.trace.engine import HashedTrace
from prefixhash.trace.records import TokenPrompt, TraceRequest
from prefixhash.trace.survey import Prefixes
from tests.trace.oracles import BLOCK, run, traces

# (tokens, ids, leading blocks that hit): numerator and denominator by each definition.
BY_HAND = {
    (10, 3, 3): {  # a recorded tail of two tokens: one of them is computed
        "tokens": (8, 10),
        "tokens-tail": (9, 10),
        "blocks": (3, 3),
        "full-blocks": (2, 2),
        "requests": (1, 1),
        "requests-full": (1, 1),
    },
    (10, 3, 1): {
        "tokens": (4, 10),
        "tokens-tail": (4, 10),
        "blocks": (1, 3),
        "full-blocks": (1, 2),
        "requests": (1 / 3, 1),
        "requests-full": (1 / 2, 1),
    },
    (10, 2, 2): {  # the tail was not recorded
        "tokens": (8, 10),
        "tokens-tail": (8, 10),
        "blocks": (2, 2),
        "full-blocks": (2, 2),
        "requests": (1, 1),
        "requests-full": (1, 1),
    },
    (8, 2, 2): {  # ends on a boundary: the last block is computed again for its last token
        "tokens": (4, 8),
        "tokens-tail": (4, 8),
        "blocks": (2, 2),
        "full-blocks": (2, 2),
        "requests": (1, 1),
        "requests-full": (1, 1),
    },
    (3, 1, 1): {
        "tokens": (0, 3),
        "tokens-tail": (2, 3),
        "blocks": (1, 1),
        "full-blocks": (0, 0),
        "requests": (1, 1),
        "requests-full": (0, 1),
    },
}


@pytest.mark.parametrize("shape", BY_HAND)
def test_definitions_by_hand(shape: tuple[int, int, int]) -> None:
    tokens, ids, hits = shape
    for name, expected in BY_HAND[shape].items():
        weights = find_definition(name).weigh(tokens, ids, BLOCK)
        found = weights.value(min(hits, weights.cached)), weights.total
        assert found == pytest.approx(expected), name


@given(traces(), st.sampled_from(tuple(DEFINITIONS)))
def test_a_pool_without_evictions_reaches_the_ceiling_of_every_definition(
    requests: list[TraceRequest], count: str
) -> None:
    (result,) = run(requests, capacities=(10_000,), counts=(count,), by_ids=True).results
    assert (result.level, result.evictions) == ("pool", 0)
    assert result.rate == pytest.approx(hit_rate_curve(requests, block_size=4, count=count).ceiling)


@given(st.lists(st.lists(st.integers(0, 2), max_size=11), max_size=12))
def test_what_is_shared_is_the_longest_common_beginning(prompts: list[list[int]]) -> None:
    requests = [TraceRequest((), len(p), prompt=TokenPrompt(p)) for p in prompts]
    prefixes = Prefixes(BLOCK)
    found = [prefixes.shared_tokens(request) for request in HashedTrace(requests, BLOCK)]
    for place, prompt in enumerate(prompts):
        longest = max((common(prompt, other) for other in prompts[:place]), default=0)
        assert found[place] == max(min(longest, len(prompt) - 1), 0)


def common(one: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length
