"""The one-pass curve against naive replays, and the reference figures of the real traces."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import InvalidArgumentError
from prefixhash.trace._stack import BlockStack, RunStack, Timeline
from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.definitions import DEFINITIONS
from prefixhash.trace.hit_curve import HitRateCurve
from prefixhash.trace.interning import Interner
from prefixhash.trace.policies import ORDERS, make_policy
from prefixhash.trace.reading import read_trace
from prefixhash.trace.records import TraceRequest
from prefixhash.trace.replaying import replay
from tests.trace.oracles import lru_hits, traces

BLOCK = 4


def curve_of(requests: list[TraceRequest], count: str, order: str) -> HitRateCurve:
    return hit_rate_curve(requests, block_size=BLOCK, count=count, order=order)


@given(traces(), st.sampled_from(tuple(DEFINITIONS)), st.sampled_from(ORDERS))
def test_prefix_hashes_give_the_rate_of_a_replay_at_every_capacity(
    requests: list[TraceRequest], count: str, order: str
) -> None:
    curve = curve_of(requests, count, order)
    assert curve.chained
    for capacity in range(1, curve.num_unique + 2):
        hits, total = lru_hits(requests, capacity, count, order, BLOCK)
        assert curve.total == pytest.approx(total)
        assert curve.rate_at(capacity) == pytest.approx(hits / total if total else 0)


@given(traces(chained=False), st.sampled_from(tuple(DEFINITIONS)), st.sampled_from(ORDERS))
def test_any_ids_give_the_rate_of_a_replay_at_every_capacity(
    requests: list[TraceRequest], count: str, order: str
) -> None:
    curve = curve_of(requests, count, order)
    for capacity in range(1, curve.num_unique + 2):
        hits, total = lru_hits(requests, capacity, count, order, BLOCK)
        assert curve.rate_at(capacity) == pytest.approx(hits / total if total else 0)


@pytest.mark.parametrize("seed", range(3))
def test_twenty_random_capacities_of_a_long_random_trace(seed: int) -> None:
    # Long enough for the timeline to be squeezed and to grow several times.
    rng = random.Random(seed)
    sessions = [[rng.randrange(5)] for _ in range(40)]
    requests = []
    for _ in range(2500):
        session = rng.choice(sessions)
        session.extend(rng.choices(range(3), k=rng.randrange(3)))
        if len(session) > 30:
            del session[rng.randrange(1, 30) :]
        path = [tuple(session[: i + 1]) for i in range(len(session))]
        requests.append(TraceRequest([repr(p) for p in path], len(path) * BLOCK + 1))
    curve = curve_of(requests, "blocks", "tail-first")
    assert curve.chained
    for capacity in rng.sample(range(1, curve.num_unique), 20):
        policy, interner = make_policy("lru", capacity), Interner()
        hits = sum(policy.access(interner.intern(request.ids)) for request in requests)
        assert curve.rate_at(capacity) == hits / curve.total


@given(traces(), traces(chained=False), st.sampled_from(ORDERS))
def test_a_chain_that_breaks_midway_continues_block_by_block(
    first: list[TraceRequest], second: list[TraceRequest], order: str
) -> None:
    requests = first + second
    curve = curve_of(requests, "blocks", order)
    for capacity in range(1, curve.num_unique + 2):
        hits, total = lru_hits(requests, capacity, "blocks", order, BLOCK)
        assert curve.rate_at(capacity) == pytest.approx(hits / total if total else 0)


def test_the_two_stacks_agree_after_conversion() -> None:
    runs = RunStack(head_first=False)
    for now, ids in enumerate(([0, 1, 2], [0, 1, 3], [4])):
        runs.access(ids, 5, 3, 1, 0, now)
    blocks = BlockStack.from_runs(runs, [0, 1, 2, 2, 0])
    order = sorted(range(5), key=lambda block: -blocks.last[block])
    assert order == [4, 0, 1, 3, 2]


def test_timeline_sums_survive_growth_and_squeezing() -> None:
    timeline = Timeline()
    slots: dict[int, int] = {}
    for name in range(5000):
        renumbered = timeline.make_room()
        if renumbered is not None:
            slots = {key: renumbered[slot] for key, slot in slots.items()}
        slots[name] = timeline.append(name % 7 + 1, name)
        if name >= 50:
            timeline.add(slots[name - 50], -timeline.counts[slots[name - 50]])
            del slots[name - 50]
    assert timeline.size == 1024
    assert timeline.total == sum(name % 7 + 1 for name in slots)
    assert timeline.since(4990) == sum(name % 7 + 1 for name in range(4990, 5000))


def test_empty_trace_and_prompts_without_blocks_have_a_rate_of_zero() -> None:
    assert curve_of([], "tokens", "tail-first").ceiling == 0
    curve = curve_of([TraceRequest([], 3), TraceRequest([], 0)], "tokens", "tail-first")
    assert (curve.total, curve.ceiling, curve.max_capacity) == (3, 0, 0)
    assert curve.reuse_distances()[0][2] == 0


def test_capacity_for_is_the_smallest_that_reaches_the_share() -> None:
    requests = [TraceRequest([0, 1, 2], 12), TraceRequest([3], 4), TraceRequest([0, 1, 2], 12)]
    curve = curve_of(requests, "blocks", "tail-first")
    assert [curve.hits[c] for c in range(5)] == [0, 0, 1, 2, 3]
    assert curve.capacity_for(1) == 4
    assert curve.capacity_for(0.5) == 3
    with pytest.raises(InvalidArgumentError, match="share=0"):
        curve.capacity_for(0)


def test_warmup_requests_fill_the_cache_and_are_not_counted() -> None:
    requests = [TraceRequest([0, 1], 8), TraceRequest([0, 1], 8)]
    curve = hit_rate_curve(requests, block_size=BLOCK, count="blocks", warmup=1)
    assert (curve.total, curve.ceiling) == (2, 1.0)


def test_a_warmup_or_a_sample_that_leaves_nothing_is_an_error() -> None:
    requests = [TraceRequest([0, 1], 8)] * 3
    with pytest.raises(InvalidArgumentError, match="warmup=3: leaves out all 3 requests"):
        hit_rate_curve(requests, block_size=BLOCK, warmup=3)
    with pytest.raises(InvalidArgumentError, match="too few to tell its error"):
        hit_rate_curve(requests, block_size=BLOCK, sample=0.5)
    assert hit_rate_curve([], block_size=BLOCK, sample=0.5, warmup=3).ceiling == 0


def test_a_share_of_the_requests_is_left_out_as_in_a_replay() -> None:
    requests = [TraceRequest([i % 7, 10 + i % 7], 9) for i in range(30)]
    for warmup, number in (("10%", 3), ("0%", 0), ("33.4%", 10), ("7", 7)):
        curve = hit_rate_curve(requests, block_size=BLOCK, warmup=warmup)
        assert curve == hit_rate_curve(requests, block_size=BLOCK, warmup=number)
        report = replay(requests, trace_block_size=BLOCK, capacities=("inf",), warmup=warmup)
        assert report.warmup == number
        assert report.results[0].rate == curve.ceiling


@pytest.mark.parametrize("warmup", ["", "%", "-1", "1.5", "1e1", "100%", "-1%", "nan%", "9" * 41])
def test_what_is_no_warmup(warmup: str) -> None:
    with pytest.raises(InvalidArgumentError, match="warmup="):
        hit_rate_curve([], block_size=BLOCK, warmup=warmup)


@given(traces(), st.integers(1, 12), st.booleans())
def test_points_are_no_more_than_asked_for_and_lie_on_the_curve(
    requests: list[TraceRequest], most: int, large: bool
) -> None:
    curve = curve_of(requests, "blocks", "tail-first")
    points = curve.points(most * 10**30 if large else most)
    assert 1 <= len(points) <= (curve.num_unique + 1 if large else most)
    assert points == [(capacity, curve.rate_at(capacity)) for capacity, _ in points]
    assert points[-1] == (max(curve.max_capacity, 1), curve.ceiling)
    if large:
        assert [capacity for capacity, _ in points] == list(range(1, points[-1][0] + 1))


def test_capacities_that_a_rate_is_asked_for() -> None:
    curve = curve_of([TraceRequest([0, 1], 8)] * 2, "blocks", "tail-first")
    assert [curve.rate_at(c) for c in (0, 1.5, 2, 10**400, math.inf)] == [0, 0.25, 0.5, 0.5, 0.5]
    for capacity in (-1, -0.5, math.nan):
        with pytest.raises(InvalidArgumentError, match="capacity="):
            curve.rate_at(capacity)
    for most in (0, -3):
        with pytest.raises(InvalidArgumentError, match=f"most={most}: must be an integer"):
            curve.points(most)


def test_reuse_distances_add_up_to_all_hits() -> None:
    requests = [TraceRequest([b], 4) for b in (0, 1, 2, 3, 0, 1, 1, 3)]
    curve = curve_of(requests, "blocks", "tail-first")
    assert math.isclose(sum(hits for _, _, hits in curve.reuse_distances()), curve.hits[-1])
    assert curve.reuse_distances() == [(1, 1, 1), (2, 3, 1), (4, 7, 2)]


def test_working_set_counts_distinct_blocks_of_the_last_requests() -> None:
    requests = [TraceRequest([b % 150], 4) for b in range(400)]
    samples = curve_of(requests, "blocks", "tail-first").working_set.samples
    assert samples[-1].recent == (100, 150)
    assert samples[-1].distinct == 150
    assert len(samples) < 128


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("count", "hits"),
        ("order", "sideways"),
        ("block_size", 0),
        ("warmup", -1),
        ("sample", 0),
        ("sample", 1.5),
    ],
)
def test_bad_arguments_are_named(argument: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{argument}="):
        hit_rate_curve([], **{"block_size": BLOCK, argument: value})  # type: ignore[arg-type]


# Reference figures: (file, count, order) -> {capacity: rate}; "1%" is of the unique blocks.
CONVERSATION, SYNTHETIC = "mooncake/conversation_trace.jsonl", "mooncake/synthetic_trace.jsonl"
WEKA = "weka-coding-agents/weka_cc_512tok_sample.jsonl"
BLOCKS_AT = {
    CONVERSATION: (1827, 9139, 18279, 45697, 91395),
    SYNTHETIC: (439, 2196, 4392, 10981, 21962),
}
TOKENS_AT = (110, 880, 1761, 5000, 11275, 45100)
WEKA_AT = (500, 1000, 2000, 5859, 10000, 20000)
REFERENCE = [
    (CONVERSATION, "blocks", "head-first", BLOCKS_AT[CONVERSATION], 5,
     (0.05227, 0.19543, 0.27842, 0.35348, 0.36312, 0.36641)),
    (CONVERSATION, "blocks", "tail-first", BLOCKS_AT[CONVERSATION], 5,
     (0.05246, 0.19577, 0.27891, 0.35348, 0.36312, 0.36641)),
    (SYNTHETIC, "blocks", "head-first", BLOCKS_AT[SYNTHETIC], 5,
     (0.03433, 0.15475, 0.25984, 0.44343, 0.58881, 0.63960)),
    (SYNTHETIC, "blocks", "tail-first", BLOCKS_AT[SYNTHETIC], 5,
     (0.03810, 0.15661, 0.26234, 0.44408, 0.58881, 0.63960)),
    (CONVERSATION, "tokens", "tail-first", TOKENS_AT, 6,
     (0.042709, 0.044950, 0.053550, 0.120909, 0.233504, 0.360307, 0.373380)),
    (SYNTHETIC, "tokens", "tail-first", TOKENS_AT, 6,
     (0.008216, 0.080421, 0.136688, 0.289523, 0.470194, 0.650431, 0.650431)),
    (WEKA, "full-blocks", "tail-first", WEKA_AT, 4,
     (0.2611, 0.5096, 0.7751, 0.9501, 0.9597, 0.9645, 0.9645)),
    (WEKA, "full-blocks", "head-first", WEKA_AT, 4,
     (0.1817, 0.4187, 0.7480, 0.9497, 0.9590, 0.9645, 0.9645)),
]  # fmt: skip


@pytest.mark.parametrize(("file", "count", "order", "capacities", "digits", "rates"), REFERENCE)
def test_reference_figures_of_the_real_traces(
    traces: Path,
    file: str,
    count: str,
    order: str,
    capacities: tuple[int, ...],
    digits: int,
    rates: tuple[float, ...],
) -> None:
    trace = read_trace(traces / file)
    curve = hit_rate_curve(trace, block_size=trace.block_size, count=count, order=order)
    found = tuple(round(curve.rate_at(c), digits) for c in (*capacities, math.inf))
    assert found == rates
    assert curve.chained


@pytest.mark.parametrize(
    ("file", "requests", "references", "unique"),
    [(CONVERSATION, 12_031, 288_500, 182_790), (SYNTHETIC, 3_993, 121_877, 43_924)],
)
def test_reference_counts_of_the_real_traces(
    traces: Path, file: str, requests: int, references: int, unique: int
) -> None:
    curve = hit_rate_curve(read_trace(traces / file), block_size=512, count="blocks")
    assert (curve.num_requests, curve.num_references, curve.num_unique) == (
        requests,
        references,
        unique,
    )


def random_sessions(sessions: int, name: str = "") -> list[TraceRequest]:
    """Requests of sessions that grow; `name` gives the same trace other ids."""
    rng = random.Random(7)
    requests = []
    for session in range(sessions):
        path: list[tuple[int, ...]] = [(rng.randrange(20),)]
        for _ in range(rng.randrange(1, 4)):
            path.extend([(session, len(path) + i) for i in range(rng.randrange(1, 8))])
            requests.append(TraceRequest([f"{name}{p}" for p in path], len(path) * BLOCK))
    rng.shuffle(requests)
    return requests


def test_the_stated_error_of_a_sample_is_the_size_of_its_errors() -> None:
    exact = curve_of(random_sessions(150), "blocks", "tail-first")
    in_errors = []
    for draw in range(30):
        requests = random_sessions(150, f"{draw} ")
        sampled = hit_rate_curve(requests, block_size=BLOCK, count="blocks", sample=0.4)
        error = sampled.error_at(200)
        assert error
        in_errors.append((sampled.rate_at(200) - exact.rate_at(200)) / error)
    assert 0.7 < math.sqrt(sum(z * z for z in in_errors) / len(in_errors)) < 1.6


def test_a_sampled_curve_rises_and_leaves_out_the_warmup() -> None:
    requests = random_sessions(300)
    exact = hit_rate_curve(requests, block_size=BLOCK, count="blocks", warmup=400)
    sampled = hit_rate_curve(requests, block_size=BLOCK, count="blocks", warmup=400, sample=0.5)
    assert sampled.total == exact.total
    assert abs(sampled.ceiling - exact.ceiling) < 4 * (sampled.error_at(math.inf) or 0)
    assert sampled.hits == sorted(sampled.hits)


def test_a_sampled_curve_lies_within_its_stated_error() -> None:
    requests = random_sessions(1500)
    exact = curve_of(requests, "blocks", "tail-first")
    sampled = hit_rate_curve(requests, block_size=BLOCK, count="blocks", sample=0.3)
    assert sampled.total == exact.total
    for capacity in (100, 1000, 3000, 8000):
        error = sampled.error_at(capacity)
        assert error is not None
        assert 0 < error < 0.05
        assert abs(sampled.rate_at(capacity) - exact.rate_at(capacity)) < 4 * error
    assert exact.error_at(100) is None
