"""Replacement policies: reference figures, naive oracles, and the order between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import InvalidArgumentError
from prefixhash.trace.future import Future
from prefixhash.trace.policies import ORDERS, POLICIES, make_policy
from prefixhash.trace.reading import read_trace
from prefixhash.trace.records import TraceRequest
from tests.trace.oracles import lru_hits, run, traces


def block_hits(requests: Sequence[Sequence[int]], name: str, capacity: float, order: str) -> int:
    future = Future((ids, len(ids)) for ids in requests)
    policy = make_policy(name, capacity, order, future)
    hits = 0
    for ids in requests:
        hits += policy.access(ids)
        assert len(policy) <= capacity
    return hits


def naive_fifo(requests: Sequence[Sequence[int]], capacity: int, order: str) -> int:
    cache: list[int] = []
    hits = 0
    for ids in requests:
        leading = 0
        while leading < len(ids) and ids[leading] in cache:
            leading += 1
        hits += leading
        for block in ids if order == "head-first" else ids[::-1]:
            if block not in cache:
                cache = [*cache, block][-capacity:]
    return hits


def naive_lfu(requests: Sequence[Sequence[int]], capacity: int, order: str) -> int:
    uses: dict[int, tuple[int, int]] = {}
    hits = clock = 0
    for ids in requests:
        leading = 0
        while leading < len(ids) and ids[leading] in uses:
            leading += 1
        hits += leading
        for block in ids if order == "head-first" else ids[::-1]:
            clock += 1
            if block not in uses and len(uses) == capacity:
                del uses[min(uses, key=lambda b: uses[b])]
            uses[block] = (uses.get(block, (0, 0))[0] + 1, clock)
    return hits


def naive_s3fifo(requests: Sequence[Sequence[int]], capacity: int, order: str) -> int:
    small: list[int] = []
    main: list[int] = []
    ghosts: list[int] = []
    uses: dict[int, int] = {}
    small_capacity = max(1, capacity // 10)
    hits = 0
    for ids in requests:
        leading = 0
        while leading < len(ids) and ids[leading] in uses:
            leading += 1
        hits += leading
        for block in ids if order == "head-first" else ids[::-1]:
            if block in uses:
                uses[block] = min(uses[block] + 1, 3)
                continue
            while len(uses) == capacity:
                queue = small if small and (len(small) >= small_capacity or not main) else main
                oldest = queue.pop(0)
                if uses[oldest]:
                    uses[oldest] = 0 if queue is small else uses[oldest] - 1
                    main.append(oldest)
                    continue
                del uses[oldest]
                if queue is small:
                    ghosts = [*ghosts, oldest][
                        max(len(ghosts) + 1 - capacity + small_capacity, 0) :
                    ]
            uses[block] = 0
            (main if block in ghosts else small).append(block)
            ghosts = [ghost for ghost in ghosts if ghost != block]
    return hits


def ids_of(requests: list[TraceRequest]) -> list[list[int]]:
    return [list(request.ids) for request in requests]  # type: ignore[arg-type]


some_capacity = st.integers(1, 12)
some_order = st.sampled_from(ORDERS)


@given(traces(), some_capacity, some_order)
def test_lru_equals_the_oracle(requests: list[TraceRequest], capacity: int, order: str) -> None:
    expected, _ = lru_hits(requests, capacity, "blocks", order, 4)
    assert block_hits(ids_of(requests), "lru", capacity, order) == expected


@given(traces(chained=False), some_capacity, some_order)
def test_fifo_and_lfu_equal_their_oracles(
    requests: list[TraceRequest], capacity: int, order: str
) -> None:
    ids = ids_of(requests)
    assert block_hits(ids, "fifo", capacity, order) == naive_fifo(ids, capacity, order)
    assert block_hits(ids, "lfu", capacity, order) == naive_lfu(ids, capacity, order)


scans = st.lists(st.lists(st.integers(0, 30), max_size=6, unique=True), max_size=40)


@given(scans, st.integers(1, 25), some_order)
def test_s3fifo_equals_its_oracle(ids: list[list[int]], capacity: int, order: str) -> None:
    assert block_hits(ids, "s3fifo", capacity, order) == naive_s3fifo(ids, capacity, order)


def test_the_optimal_policy_keeps_what_can_count() -> None:
    # The block of a prompt of four tokens is always computed: its next use is worth nothing.
    requests = [TraceRequest([0], 5), *[TraceRequest([1], 4)] * 2, TraceRequest([0], 5)]
    (result,) = run(requests, capacities=(1,), policies=("optimal",)).results
    assert result.meter.overall.hits == 4


@given(traces(), some_capacity, some_order)
def test_no_policy_beats_the_optimal_one(
    requests: list[TraceRequest], capacity: int, order: str
) -> None:
    ids = ids_of(requests)
    best = block_hits(ids, "optimal", capacity, order)
    for name in POLICIES:
        assert block_hits(ids, name, capacity, order) <= best


@given(traces(), st.sampled_from(tuple(POLICIES)))
def test_without_a_bound_all_policies_reach_the_ceiling(
    requests: list[TraceRequest], name: str
) -> None:
    ids = ids_of(requests)
    assert block_hits(ids, name, math.inf, "tail-first") == block_hits(
        ids, "lru", 10_000, "tail-first"
    )


def test_s3fifo_keeps_what_was_used_again_through_a_scan() -> None:
    requests = [[0], [0], *([block] for block in range(1, 30)), [0]]
    assert block_hits(requests, "s3fifo", 10, "tail-first") == 2
    assert block_hits(requests, "fifo", 10, "tail-first") == 1


def test_s3fifo_lets_a_ghost_straight_into_the_main_queue() -> None:
    policy = make_policy("s3fifo", 10)
    for block in range(11):
        policy.access([block])
    assert policy.access([0]) == 0  # evicted, but remembered
    for block in range(11, 20):
        policy.access([block])
    assert policy.access([0]) == 1


def test_evictions_are_counted() -> None:
    policy = make_policy("lru", 2)
    for block in range(5):
        policy.access([block])
    assert policy.evictions == 3


@pytest.mark.parametrize(
    ("name", "capacity", "order"),
    [("mru", 1, "tail-first"), ("lru", 0, "tail-first"), ("lru", 1, "x")],
)
def test_bad_arguments_are_named(name: str, capacity: int, order: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"policy=|capacity=|order="):
        make_policy(name, capacity, order)
    with pytest.raises(InvalidArgumentError, match="future="):
        make_policy("optimal", 1)


@pytest.mark.parametrize(
    ("file", "policy", "rate"),
    [
        ("conversation", "fifo", 0.1815),
        ("conversation", "lfu", 0.1318),
        ("conversation", "optimal", 0.3664),
        ("synthetic", "fifo", 0.3989),
        ("synthetic", "lfu", 0.3578),
        ("synthetic", "optimal", 0.6180),
    ],
)
def test_reference_figures_of_the_real_traces(
    traces: Path, file: str, policy: str, rate: float
) -> None:
    requests = [r.ids for r in read_trace(traces / f"mooncake/{file}_trace.jsonl")]
    hits = block_hits(requests, policy, 10_000, "head-first")  # type: ignore[arg-type]
    assert round(hits / sum(map(len, requests)), 4) == rate
