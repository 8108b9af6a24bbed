"""Naive second implementations, written for clarity alone; and what the tests of replays share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from prefixhash.trace.definitions import find_definition
from prefixhash.trace.records import TraceRequest
from prefixhash.trace.replaying import replay
from prefixhash.trace.results import ReplayOptions, ReplayReport

BLOCK = 4


def lru_hits(
    requests: Sequence[TraceRequest], capacity: int, count: str, order: str, block_size: int
) -> tuple[float, float]:
    """(hits, total) of an LRU cache kept as a plain list, oldest first."""
    definition = find_definition(count)
    cache: list[object] = []
    hits = total = 0.0
    for request in requests:
        weights = definition.weigh(request.num_tokens, len(request.ids), block_size)
        ids = list(request.ids[: weights.cached])
        leading = 0
        while leading < len(ids) and ids[leading] in cache:
            leading += 1
        hits += weights.value(leading)
        total += weights.total
        for block in ids if order == "head-first" else ids[::-1]:
            if block in cache:
                cache.remove(block)
            cache.append(block)
        cache = cache[max(len(cache) - capacity, 0) :]
    return hits, total


@st.composite
def traces(draw: st.DrawFn, block_size: int = 4, chained: bool = True) -> list[TraceRequest]:
    """Random short traces; `chained`: ids are prefix hashes, otherwise any ids."""
    prompts = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 3), max_size=6),
                st.integers(0, block_size - 1),
                st.booleans(),
            ),
            min_size=1,
            max_size=25,
        )
    )
    names: dict[tuple[object, ...], int] = {}
    requests = []
    for path, tail, recorded in prompts:
        keys: list[tuple[object, ...]] = [tuple(path[: i + 1]) for i in range(len(path))]
        if tail and recorded:
            keys.append((*path, "tail", tail))
        if chained:
            ids = [names.setdefault(key, len(names)) for key in keys]
        else:
            ids = [*path, 9] if tail and recorded else list(path)
        requests.append(TraceRequest(ids, len(path) * block_size + tail))
    return requests


def run(requests: Any, ids_block: int = BLOCK, **options: Any) -> ReplayReport:
    return replay(requests, trace_block_size=ids_block, options=ReplayOptions(**options))


def prompts(*sizes: tuple[list[int], int]) -> list[TraceRequest]:
    return [TraceRequest(ids, tokens) for ids, tokens in sizes]
