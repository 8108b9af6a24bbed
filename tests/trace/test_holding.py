"""Requests that hold their blocks: N at a time, or by the clock; and their output."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixhash.trace.caches import OVERSIZE
from prefixhash.trace.holding import Speed
from prefixhash.trace.records import TraceRequest
from tests.trace.oracles import prompts, run
from tests.trace.oracles import traces as random_traces


@settings(max_examples=40)
@given(
    random_traces(),
    st.integers(3, 9),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(OVERSIZE),
    st.sampled_from([1e-3, 0.5]),
)
def test_held_blocks_and_outputs_give_the_same_in_engine_and_pool(
    requests: list[TraceRequest],
    num_blocks: int,
    concurrency: int,
    commit_output: bool,
    oversize: str,
    pause: float,
) -> None:
    # Some end on a block boundary, some are empty, some outgrow the pool with their output only.
    requests = [
        TraceRequest(r.ids, r.num_tokens, i % 7 * 3, i * pause) for i, r in enumerate(requests)
    ]
    options = {
        "capacities": (num_blocks, num_blocks + 5),
        "concurrency": concurrency,
        "commit_output": commit_output,
        "oversize": oversize,
    }
    for timed in (False, True):
        engine = run(requests, timed=timed, **options)
        pool = run(requests, timed=timed, by_ids=True, **options)
        for one, other in zip(engine.results, pool.results, strict=True):
            assert one.meter == other.meter
            assert (one.evictions, one.oversize, one.waits) == (
                other.evictions,
                other.oversize,
                other.waits,
            )


def test_requests_that_run_together_take_each_others_room() -> None:
    # Two prompts of 3 blocks in turn: both stay in 7 blocks at rest, but not while one is held.
    turns = prompts(*[([10 * i, 10 * i + 1], 9) for i in range(2)] * 4)
    alone, together = (
        run(turns, capacities=(8,), concurrency=n, by_ids=True).results[0] for n in (1, 2)
    )
    assert alone.rate == together.rate
    assert together.most_running == 2
    tight = run(turns, capacities=(5,), concurrency=2).results[0]
    assert tight.waits > 0
    assert tight.most_running == 1


@pytest.mark.parametrize("by_ids", [False, True])
def test_a_prompt_can_be_hit_once_its_prefill_is_done(by_ids: bool) -> None:
    # Nine tokens at 4.5 a second: computed after two seconds, or one where eight were hit at 1 / s.
    at = (0.0, 1.0, 2.5)
    requests = [TraceRequest([0, 1], 9, 1000, time) for time in at]
    rates = {}
    for prefill in (4.5, 1e9, math.inf):
        (result,) = run(
            requests, capacities=(20,), timed=True, by_ids=by_ids, speed=Speed(prefill, 1)
        ).results
        rates[prefill] = result.meter.overall.hits
        assert (result.most_running, result.waits) == (3, 0)
    assert rates == {4.5: 8, 1e9: 16, math.inf: 16}


def test_hit_tokens_need_no_prefill_and_a_recorded_duration_bounds_it() -> None:
    speed = Speed(prefill=10, decode=2)
    assert speed.times(TraceRequest([], 100, 6), 0) == (10, 13)
    assert speed.times(TraceRequest([], 100, 6), 80) == (2, 5)
    assert speed.times(TraceRequest([], 100, 6, duration=4), 0) == (4, 4)
    assert speed.times(TraceRequest([], 100, 6, duration=40), 80) == (2, 40)


def test_times_before_zero_are_times() -> None:
    requests = [TraceRequest([i], 5, 0, i - 100.0, duration=1.5) for i in range(4)]
    (result,) = run(requests, capacities=(20,), timed=True).results
    assert result.most_running == 2


def test_timed_requests_end_by_the_clock() -> None:
    requests = [TraceRequest([i], 5, 0, float(i), duration=2.5) for i in range(6)]
    (result,) = run(requests, capacities=(20,), timed=True).results
    assert (result.most_running, result.waits) == (3, 0)
    (squeezed,) = run(requests, capacities=(3,), timed=True).results
    assert (squeezed.most_running, squeezed.waits) == (1, 5)


def test_committed_output_takes_room_from_prompts() -> None:
    requests = [TraceRequest([2 * i, 2 * i + 1], 9, 40) for i in range(3)]
    requests.append(TraceRequest([0, 1], 9))
    for by_ids in (False, True):
        without = run(requests, capacities=(16,), by_ids=by_ids).results[0]
        committed = run(requests, capacities=(16,), by_ids=by_ids, commit_output=True).results[0]
        assert (without.meter.overall.hits, committed.meter.overall.hits) == (8, 0)
        assert committed.evictions > without.evictions


@pytest.mark.parametrize("by_ids", [False, True])
def test_a_request_that_waits_starts_when_another_ends(by_ids: bool) -> None:
    # Each fills the pool for 10 seconds; the second starts at 10, so the third has to wait for it.
    requests = [TraceRequest([i], 5, 0, time, duration=10) for i, time in enumerate((0, 1, 15, 31))]
    (result,) = run(requests, capacities=(3,), timed=True, by_ids=by_ids).results
    assert (result.most_running, result.waits) == (1, 2)
