"""Replays equal vLLM 0.33.0's own pool; skipped unless PREFIXHASH_VLLM_PYTHON names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.reading import read_trace
from prefixhash.trace.replaying import replay
from prefixhash.trace.results import ReplayOptions
from tests.vllm import run_with_vllm

SCRIPT = Path(__file__).with_name("vllm_trace_replay.py")


@pytest.mark.parametrize(
    ("name", "capacities"),
    [
        ("conversation", (110, 880, 1761, 5000, 11275, 45100)),
        ("synthetic", (110, 880, 1761, 5000, 11275, 45100)),
    ],
)
def test_vllms_pool_gives_the_same_hits(
    traces: Path, name: str, capacities: tuple[int, ...]
) -> None:
    path = traces / f"mooncake/{name}_trace.jsonl"
    pools = tuple(capacity + 2 for capacity in capacities)
    theirs = run_with_vllm(SCRIPT, str(path), *map(str, pools))
    trace = read_trace(path)
    options = ReplayOptions(capacities=pools, by_ids=True)
    ours = replay(trace, trace_block_size=512, options=options)
    # Ours to the token; the curve, which has no tail blocks, to the digits that are published.
    assert [r.meter.overall.hits for r in ours.results] == theirs["hits"]
    curve = hit_rate_curve(trace, block_size=512)
    assert [round(100 * curve.rate_at(capacity), 4) for capacity in capacities] == [
        round(100 * hits / theirs["total"], 4) for hits in theirs["hits"]
    ]
