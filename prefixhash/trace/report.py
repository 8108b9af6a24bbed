"""Results as plain data for `--json`: the same bytes for the same trace and options.

No clock, no machine, no path: times are left to the tables for people.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from prefixhash.trace.capacity import POOL_OVERHEAD_BLOCKS
from prefixhash.trace.checks import instance_of
from prefixhash.trace.hit_curve import HitRateCurve
from prefixhash.trace.metering import Meter, Tally, turn_label
from prefixhash.trace.reading import Trace
from prefixhash.trace.results import ReplayReport, ReplayResult
from prefixhash.trace.series import RateOverTime

Json = dict[str, Any]
KNEE_SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)


def number(value: float) -> float | int | None:
    """`value` for JSON: whole numbers as integers, others to nine digits, infinity as None."""
    if value == math.inf:
        return None
    if value == int(value):
        return int(value)
    return float(f"{value:.9g}")


def trace_data(trace: Trace) -> Json:
    """What was read."""
    return {
        "name": trace.name,
        "format": trace.format,
        "block_size": trace.block_size,
        "skipped_lines": trace.num_skipped,
    }


def replay_data(report: ReplayReport) -> Json:
    """A replay: the trace's sizes, where tokens are lost, one entry for each result."""
    instance_of("report", report, ReplayReport)
    survey = report.survey
    options = report.options
    return {
        "requests": survey.num_requests,
        "prompt_tokens": survey.prompt_tokens,
        "output_tokens": survey.output_tokens,
        "block_references": survey.num_references,
        "unique_blocks": survey.unique_blocks,
        "ids_are_prefix_hashes": survey.chained,
        "block_size": report.block_size,
        "order": options.order,
        "concurrency": "timed" if options.timed else options.concurrency,
        "warmup_requests": report.warmup,
        "output_committed": options.commit_output,
        "unbounded": {
            "prompt_tokens": report.losses.prompt,
            "shared_tokens": report.losses.shared,
            "lost_to_rounding_tokens": report.losses.rounding,
            "known_to_tokens": report.losses.grain,
        },
        "results": [_result_data(result) for result in report.results],
    }


def _result_data(result: ReplayResult) -> Json:
    meter = result.meter
    return {
        "capacity": result.label,
        "capacity_blocks": number(result.capacity),
        "policy": result.policy,
        "level": result.level,
        "count": result.count,
        "unit": result.unit,
        **_tally_data(meter.overall),
        "evictions": result.evictions,
        "oversize_requests": result.oversize,
        "ended_to_make_room": result.waits,
        "most_running": result.most_running,
        **_groups_data(meter),
        "over_time": _over_time_data(meter.over_time),
    }


def _tally_data(tally: Tally) -> Json:
    return {
        "hit_rate": number(tally.rate),
        "hits": number(tally.hits),
        "total": number(tally.total),
        "requests": tally.requests,
    }


def _groups_data(meter: Meter) -> Json:
    by_kind = [{"type": kind, **_tally_data(meter.by_kind[kind])} for kind in sorted(meter.by_kind)]
    by_turn = [
        {"turn": turn_label(first), **_tally_data(meter.by_turn[first])}
        for first in sorted(meter.by_turn)
    ]
    return {"by_type": by_kind, "by_turn": by_turn}


def _over_time_data(series: RateOverTime) -> list[Json]:
    return [
        {
            "first_request": item.first,
            "last_request": item.last,
            "start_s": None if item.start is None else number(item.start),
            "hit_rate": number(item.rate),
        }
        for item in series.bins
    ]


def curve_data(
    curve: HitRateCurve, capacities: Iterable[tuple[str, float]], bytes_per_block: int | None
) -> Json:
    """A curve: rates at `capacities` (label, blocks), its knees, and 200 points that draw it."""
    instance_of("curve", curve, HitRateCurve)
    return {
        "requests": curve.num_requests,
        "block_references": curve.num_references,
        "unique_blocks": curve.num_unique,
        "ids_are_prefix_hashes": curve.chained,
        "block_size": curve.block_size,
        "bytes_per_block": bytes_per_block,
        "count": curve.count,
        "order": curve.order,
        "total": number(curve.total),
        "ceiling": number(curve.ceiling),
        "exact": curve.standard_error is None,
        "sampled_blocks": curve.sampled_blocks,
        "pool_overhead_blocks": POOL_OVERHEAD_BLOCKS,
        "capacities": [_point_data(curve, label, blocks) for label, blocks in capacities],
        "share_of_ceiling": [
            {"share": share, "blocks": curve.capacity_for(share)} for share in KNEE_SHARES
        ],
        "curve": [[blocks, number(rate)] for blocks, rate in curve.points()],
        "reuse_distances": [
            {"from": low, "to": high, "hits": number(hits)}
            for low, high, hits in curve.reuse_distances()
        ],
        "unbounded": {
            **_groups_data(curve.unbounded),
            "over_time": _over_time_data(curve.unbounded.over_time),
        },
        "working_set": _working_set_data(curve),
    }


def _point_data(curve: HitRateCurve, label: str, blocks: float) -> Json:
    error = curve.error_at(blocks)
    return {
        "capacity": label,
        "blocks": number(blocks),
        "hit_rate": number(curve.rate_at(blocks)),
        "standard_error": None if error is None else number(error),
    }


def _working_set_data(curve: HitRateCurve) -> list[Json]:
    windows = curve.working_set.windows
    return [
        {
            "request": sample.request,
            "time_s": None if sample.timestamp is None else number(sample.timestamp),
            **{f"last_{window}": n for window, n in zip(windows, sample.recent, strict=True)},
            "distinct": sample.distinct,
        }
        for sample in curve.working_set.samples
    ]
