"""Replays against the curve, against each other, and what requests that hold blocks change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixhash import InvalidArgumentError, LoRARequest, MultiModalFeature, PlaceholderRange
from prefixhash.trace.capacity import parse_capacity
from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.definitions import DEFINITIONS
from prefixhash.trace.engine import HashedTrace, tokens_of_blocks
from prefixhash.trace.metering import TurnCounter, turn_group, turn_label
from prefixhash.trace.policies import POLICIES
from prefixhash.trace.reading import read_trace
from prefixhash.trace.records import TokenPrompt, TraceRequest
from prefixhash.trace.replaying import replay
from prefixhash.trace.survey import Prefixes, survey_trace
from prefixhash.trace.synth import synthesize
from tests.trace.oracles import BLOCK, prompts, run
from tests.trace.oracles import traces as random_traces


def media(identifier: str, offset: int, length: int) -> MultiModalFeature:
    return MultiModalFeature(identifier, PlaceholderRange(offset, length))


def with_tails(requests: list[TraceRequest]) -> list[TraceRequest]:
    """The requests as prompts that end inside a block: every one needs a tail block."""
    return [
        TraceRequest(r.ids[: r.num_tokens // BLOCK], r.num_tokens // BLOCK * BLOCK + 1)
        for r in requests
    ]


@settings(max_examples=40)
@given(random_traces(), st.integers(3, 14))
def test_engine_and_pool_of_n_blocks_equal_the_curve_at_n_minus_2(
    requests: list[TraceRequest], num_blocks: int
) -> None:
    requests = with_tails(requests)
    curve = hit_rate_curve(requests, block_size=BLOCK)
    for by_ids in (False, True):
        (result,) = run(requests, capacities=(num_blocks,), by_ids=by_ids).results
        assert result.level == ("pool" if by_ids else "engine")
        assert result.rate == curve.rate_at(num_blocks - 2)


@settings(max_examples=25)
@given(random_traces(), st.integers(1, 10), st.sampled_from(tuple(DEFINITIONS)))
def test_policies_of_the_replay_equal_the_curve_and_stay_below_the_optimum(
    requests: list[TraceRequest], capacity: int, count: str
) -> None:
    report = run(
        requests, capacities=(capacity, "inf"), policies=tuple(POLICIES)[1:], counts=(count,)
    )
    curve = hit_rate_curve(requests, block_size=BLOCK, count=count)
    for result in report.results:
        assert result.level == "cache"
        assert result.meter.overall.total == pytest.approx(curve.total)
        if math.isinf(result.capacity):
            assert result.rate == pytest.approx(curve.ceiling)
    if count in ("tokens", "blocks", "full-blocks"):
        best = report.results[-2]
        assert best.policy == "optimal"
        assert all(r.rate <= best.rate for r in report.results[:-2] if math.isfinite(r.capacity))


def test_smaller_blocks_of_the_pool_reuse_a_part_of_a_trace_block() -> None:
    requests = prompts(([0, 1], 8), ([0, 2], 8))
    coarse = run(requests, capacities=(20,), block_size=8)
    fine = run(requests, capacities=(20,), block_size=2)
    assert coarse.results[0].meter.overall.hits == 0
    assert fine.results[0].meter.overall.hits == 4
    assert (coarse.losses.shared, coarse.losses.rounding) == (4, 4)
    assert (fine.losses.shared, fine.losses.rounding) == (4, 0)


def test_a_last_block_that_was_not_recorded_is_shared_with_nobody() -> None:
    requests = prompts(([0], 7), ([0], 7))
    (result,) = run(requests, capacities=(20,), block_size=1).results
    assert result.meter.overall.hits == 4
    assert tokens_of_blocks([0], 7, 4, 5)[4:] != tokens_of_blocks([0], 7, 4, 6)[4:]


@pytest.mark.parametrize("by_ids", [False, True])
def test_a_prompt_larger_than_the_pool_is_clipped_or_rejected(by_ids: bool) -> None:
    requests = prompts(([0, 1, 2, 3], 17), ([0, 1, 2, 3], 17))
    (clipped,) = run(requests, capacities=(4,), by_ids=by_ids).results
    assert (clipped.meter.overall.hits, clipped.oversize) == (8, 2)
    (refused,) = run(requests, capacities=(4,), by_ids=by_ids, oversize="reject").results
    assert (refused.meter.overall.hits, refused.oversize) == (0, 2)
    assert refused.meter.overall.total == 34


def test_a_clipped_prompt_is_cut_where_it_may_be() -> None:
    prompt = TokenPrompt(list(range(40)), media=(media("img", 5, 30),))
    requests = [TraceRequest((), 40, prompt=prompt)] * 2
    (result,) = run(requests, capacities=(6,)).results
    assert (result.oversize, result.meter.overall.hits) == (2, 16)


def test_warmup_is_left_out_of_every_count() -> None:
    requests = prompts(([0], 5), ([0], 5), ([0], 5), ([0], 5))
    for warmup in (2, "50%"):
        report = run(requests, capacities=(8, "inf"), warmup=warmup)
        assert report.warmup == 2
        assert [r.rate for r in report.results] == [0.8, 0.8]
        assert (report.losses.prompt, report.losses.shared) == (10, 8)


def test_reuse_per_type_and_per_turn() -> None:
    requests = [
        TraceRequest([0], 5, session="a", kind="chat"),
        TraceRequest([0], 5, session="a", kind="chat"),
        TraceRequest([1], 5, session="b", kind="agent"),
    ]
    (result,) = run(requests, capacities=(8,)).results
    assert {k: (t.requests, t.hits) for k, t in result.meter.by_kind.items()} == {
        "chat": (2, 4),
        "agent": (1, 0),
    }
    assert {k: (t.requests, t.hits) for k, t in result.meter.by_turn.items()} == {
        1: (2, 0),
        2: (1, 4),
    }


def test_turns_are_taken_as_recorded_or_counted() -> None:
    counter = TurnCounter()
    assert counter.turn(TraceRequest([], 0)) is None
    assert counter.turn(TraceRequest([], 0, session="a", turn=7)) == 7
    assert [counter.turn(TraceRequest([], 0, session="a")) for _ in range(2)] == [1, 2]
    assert [turn_group(t) for t in (0, 1, 4, 8, 9, 500)] == [1, 1, 4, 5, 9, 33]
    assert [turn_label(t) for t in (1, 5, 33)] == ["1", "5-8", "33+"]


def test_types_without_end_are_counted_together() -> None:
    requests = [TraceRequest([0], 5, kind=f"k{i}") for i in range(200)]
    (result,) = run(requests, capacities=(8,)).results
    assert len(result.meter.by_kind) == 51
    assert sum(t.requests for t in result.meter.by_kind.values()) == 200


def test_token_traces_keep_tenants_adapters_and_images_apart() -> None:
    tokens = list(range(9))
    image = (media("one", 0, 3),)
    prompts_ = [
        TokenPrompt(tokens),
        TokenPrompt(tokens, lora=LoRARequest("sql")),
        TokenPrompt(tokens, cache_salt="t1"),
        TokenPrompt(tokens, media=image),
        TokenPrompt(tokens, media=(media("two", 0, 3),)),
    ]
    once = [TraceRequest((), 9, prompt=p) for p in prompts_]
    for by_ids in (False, True):
        (result,) = run(once * 2, capacities=(40,), by_ids=by_ids).results
        assert result.meter.overall.hits == 5 * 8
    assert len(set().union(*(r.ids for r in HashedTrace(once, BLOCK)))) == 10


def test_tokens_shared_inside_a_block_are_lost_to_rounding() -> None:
    def prompt(*tokens: int, **fields: Any) -> TraceRequest:
        return TraceRequest((), len(tokens), prompt=TokenPrompt(tokens, **fields))

    prefixes = Prefixes(BLOCK)
    image = (media("i", 6, 2),)
    trace = [
        prompt(1, 2, 3, 4, 5, 6, 7, 8, 9),
        prompt(1, 2, 3, 4, 5, 6, 0, 0, 0),
        prompt(1, 2, 0, 0),
        prompt(1, 2, 3, cache_salt="other"),
        prompt(1, 2, 3, 4, 5, 6, 7, 8, media=image),
        prompt(1, 2, 3, 4, 5, 6, 7, 8, 9),
    ]
    shared = [prefixes.shared_tokens(r) for r in HashedTrace(trace, BLOCK)]
    assert shared == [0, 6, 2, 0, 6, 8]


def test_survey_sizes() -> None:
    requests = prompts(([0, 1], 7), ([0, 2], 8), ([0, 1], 7), ([], 3))
    survey = survey_trace(requests, BLOCK)
    assert (survey.num_requests, survey.prompt_tokens, survey.unique_blocks) == (4, 25, 3)
    assert (survey.unique_tokens, survey.longest_prompt) == (11, 8)
    assert survey.unique_blocks_of(2, BLOCK) == 5


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("5000", 5000),
        (7, 7),
        ("25%", 25),
        ("0.1%", 1),
        ("2ktok", 125),
        ("1_600tok", 100),
        ("1.5MiB", 1536),
        ("1.5MB", 1464),
        ("1_000 kB", 976),
        ("120%", 120),
        ("0.29%", 1),
        ("29 %", 29),
        ("2.3ktok", 143),
        ("1.0", 1),
        ("INF", math.inf),
        (math.inf, math.inf),
        ("inf", math.inf),
    ],
)
def test_capacities_as_people_write_them(text: str | int, blocks: float) -> None:
    capacity = parse_capacity(text)
    assert capacity.blocks(block_size=16, unique_blocks=100, bytes_per_block=1024) == blocks


@pytest.mark.parametrize(
    "text",
    ["", "abc", "-3", "5 apples", "1.5", "%", "nan", "0", "0%", "1e3", "1__0", "5G", "9" * 41],
)
def test_capacities_that_cannot_be_used(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="capacity="):
        parse_capacity(text).blocks(block_size=16, unique_blocks=100, bytes_per_block=None)
    with pytest.raises(InvalidArgumentError, match="--model"):
        parse_capacity("1GiB").blocks(block_size=16, unique_blocks=100, bytes_per_block=None)


@pytest.mark.parametrize(
    "options",
    [
        {"policies": ("mru",)},
        {"order": "x"},
        {"counts": ("x",)},
        {"oversize": "x"},
        {"block_size": 0},
        {"concurrency": 0},
        {"policies": ("fifo",), "concurrency": 2},
        {"by_ids": True, "block_size": 8},
        {"warmup": "x"},
        {"warmup": "100%"},
        {"warmup": -1},
        {"warmup": 1},
        {"capacities": ()},
        {"policies": ()},
        {"counts": ()},
        {"capacities": (2,)},
        {"capacities": (2,), "by_ids": True},
    ],
)
def test_bad_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        run(prompts(([0], 5)), **options)


def test_a_pool_takes_no_more_memory_than_the_trace_could_use() -> None:
    requests = prompts(([0, 1], 8), ([0, 1], 8), ([2], 5))
    for by_ids in (False, True):
        (result,) = run(requests, capacities=(10**20,), by_ids=by_ids).results
        assert (result.capacity, result.meter.overall.hits, result.evictions) == (10**20, 4, 0)


def test_tokens_are_made_for_the_prompt_alone() -> None:
    requests = prompts(([0], 5), ([0], 5), ([], 3))
    (result,) = run(requests, ids_block=10**30, capacities=(9,)).results
    assert result.meter.overall.total == 13
    with pytest.raises(InvalidArgumentError, match="--ids"):
        run(prompts(([], 10**12)), ids_block=10**13)


def test_empty_prompts_are_counted_and_harmless() -> None:
    requests = prompts(([], 0), ([], 2), ([0], 4))
    for by_ids in (False, True):
        report = run(requests, capacities=(5, "inf"), by_ids=by_ids)
        assert [r.meter.overall.requests for r in report.results] == [3, 3]


def test_a_real_trace_in_the_pool_equals_the_curve(traces: Path) -> None:
    trace = read_trace(traces / "mooncake/synthetic_trace.jsonl")
    curve = hit_rate_curve(trace)
    pools = (112, 882, 1763, 5002, 11277)
    report = replay(trace, capacities=pools, by_ids=True)
    assert [round(r.rate, 6) for r in report.results] == [
        round(curve.rate_at(blocks - 2), 6) for blocks in pools
    ]


@pytest.mark.parametrize(
    ("name", "pools"),
    [
        ("conversation", (112, 882, 5002, 11277, 45102)),
        ("synthetic", (112, 882, 1763, 5002, 11277)),
    ],
)
def test_all_of_a_real_trace_in_the_engine_equals_the_curve(
    traces: Path, name: str, pools: tuple[int, ...]
) -> None:
    # Every 512 tokens of the trace as 4, so that hashing takes no longer than a test may: the same
    # blocks, the same prompts that end on a block boundary, the same hits.
    scaled = []
    for request in read_trace(traces / f"mooncake/{name}_trace.jsonl"):
        full, rest = divmod(request.num_tokens, 512)
        scaled.append(TraceRequest(request.ids[:full], 4 * full + (rest > 0)))
    curve = hit_rate_curve(scaled, block_size=4)
    report = run(scaled, capacities=pools)
    assert {r.level for r in report.results} == {"engine"}
    differences = [abs(r.rate - curve.rate_at(r.capacity - 2)) for r in report.results]
    # A prompt that ends on a block boundary needs no tail block and may keep one block more.
    assert max(differences) < 5e-7


def test_a_synthetic_token_trace_in_the_engine_equals_the_curve() -> None:
    requests = list(synthesize("mixed", form="tokens", seed=3))[:150]
    hashed = list(HashedTrace(requests, 16))
    curve = hit_rate_curve(hashed, block_size=16)
    report = run(requests, 16, capacities=(1002, 2502), block_size=16)
    # A prompt that ends on a block boundary needs no tail block: then one more block is cached.
    for result in report.results:
        low, high = (curve.rate_at(result.capacity - k) for k in (2, 1))
        assert low <= result.rate <= high
