"""`prefixhash curve`: the LRU hit rate at every capacity, in one pass."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, TextIO

from prefixhash.cli import _model, _tables
from prefixhash.cli._progress import Watched
from prefixhash.cli._tables import count, percent, size
from prefixhash.cli._traces import (
    CAPACITY_HELP,
    add_output_arguments,
    add_trace_arguments,
    add_warmup_argument,
    check_outputs,
    listed,
    opened_trace,
    positive,
    report_output,
    report_skipped,
    share,
    write_json,
    write_pictures,
)
from prefixhash.trace.capacity import POOL_OVERHEAD_BLOCKS, Capacity, parse_capacity
from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.definitions import DEFINITIONS, HEADLINE, find_definition
from prefixhash.trace.hit_curve import HitRateCurve
from prefixhash.trace.page import PageTable
from prefixhash.trace.plots import Mark, Picture
from prefixhash.trace.policies import ORDERS, TAIL_FIRST
from prefixhash.trace.report import KNEE_SHARES, curve_data, trace_data
from prefixhash.trace.warmup import parse_warmup

_DESCRIPTION = """\
Prints the hit rate of an LRU cache at every capacity, from one pass over the trace, and the
capacity at which the gain ends. An engine's pool of N blocks gives the rate at N - 2."""
_DEFAULT_CAPACITIES = ("1%", "5%", "10%", "25%", "50%", "100%")


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "curve",
        help="LRU hit rate of a trace at every capacity, in one pass",
        description=_DESCRIPTION,
    )
    add_trace_arguments(parser)
    parser.add_argument(
        "--capacity",
        type=listed,
        default=list(_DEFAULT_CAPACITIES),
        metavar="SIZES",
        help=CAPACITY_HELP,
    )
    parser.add_argument("--count", choices=tuple(DEFINITIONS), default=HEADLINE)
    parser.add_argument("--order", choices=ORDERS, default=TAIL_FIRST)
    add_warmup_argument(parser)
    parser.add_argument(
        "--sample",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="follow this share of the blocks only (0.01 or 1%%): for traces larger than memory",
    )
    parser.add_argument(
        "--block-size", type=positive, metavar="N", help="of a token-id trace (default 16)"
    )
    _model.add_arguments(parser)
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Reads the trace once and prints the curve."""
    check_outputs(args)
    capacities = [parse_capacity(text) for text in args.capacity]
    passes = ["reading"] if parse_warmup(args.warmup).share is None else ["counting", "reading"]
    if args.block_size is not None and args.trace_block_size is None:
        args.trace_block_size = args.block_size
    with opened_trace(args) as trace:
        source = Watched(trace, *passes)
        curve = hit_rate_curve(
            source,
            block_size=trace.block_size,
            count=args.count,
            order=args.order,
            warmup=args.warmup,
            sample=args.sample,
        )
        report_skipped(trace)
        heading = trace_data(trace)
        title = trace.name
        detected = " (found from the first record)" if trace.detected else ""
    bytes_per_block = _model.bytes_per_block(args, curve.block_size)
    points = [(item.text, _blocks(item, curve, bytes_per_block)) for item in capacities]
    picture = _picture(title, curve, points, bytes_per_block)
    with report_output(args) as out:
        if args.json:
            data = {"trace": heading, **curve_data(curve, points, bytes_per_block)}
            write_json(data, out)
        else:
            out.write(f"{title}: format {heading['format']}{detected}\n{_sizes(curve)}\n")
            _print(curve, points, bytes_per_block, out)
    # Distances and working set are drawn there.
    tables = [_capacity_table(curve, points, bytes_per_block), _group_table(curve)]
    write_pictures(args, picture, [table for table in tables if table is not None])
    return 0


def _blocks(capacity: Capacity, curve: HitRateCurve, bytes_per_block: int | None) -> float:
    return capacity.blocks(
        block_size=curve.block_size,
        unique_blocks=curve.num_unique,
        bytes_per_block=bytes_per_block,
    )


def _sizes(curve: HitRateCurve) -> str:
    distinct = f"{count(curve.num_unique)} distinct"
    if curve.sampled_blocks is not None:
        distinct = f"about {distinct}, of which {count(curve.sampled_blocks)} were followed"
    else:
        distinct += " (prefix hashes)" if curve.chained else " (not prefix hashes)"
    return (
        f"{count(curve.num_requests)} requests, {count(curve.num_references)} blocks of "
        f"{curve.block_size} tokens, {distinct}"
    )


def _print(
    curve: HitRateCurve,
    points: Sequence[tuple[str, float]],
    bytes_per_block: int | None,
    out: TextIO,
) -> None:
    for table in _tables_of(curve, points, bytes_per_block):
        _tables.print_table(table.title, table.columns, table.rows, out=out)
    out.write(_knee(curve, bytes_per_block) + "\n")
    definition = find_definition(curve.count)
    out.write(f"{definition.name}: {definition.meaning} ({definition.used_by})\n")


def _knee(curve: HitRateCurve, bytes_per_block: int | None) -> str:
    blocks = curve.capacity_for(0.99)
    memory = f" = {size(blocks * bytes_per_block)}" if bytes_per_block is not None else ""
    return (
        f"99 % of the ceiling ({percent(curve.ceiling)}) at {count(blocks)} blocks{memory}, "
        f"a pool of {count(blocks + POOL_OVERHEAD_BLOCKS)}"
    )


def _tables_of(
    curve: HitRateCurve, points: Sequence[tuple[str, float]], bytes_per_block: int | None
) -> list[PageTable]:
    tables = [
        _capacity_table(curve, points, bytes_per_block),
        _distance_table(curve),
    ]
    tables.extend(filter(None, (_group_table(curve), _working_set_table(curve))))
    return tables


def _capacity_table(
    curve: HitRateCurve, points: Sequence[tuple[str, float]], bytes_per_block: int | None
) -> PageTable:
    rows = [(label, blocks) for label, blocks in points]
    rows += [
        (f"{share:.0%} of the ceiling", float(curve.capacity_for(share))) for share in KNEE_SHARES
    ]
    columns = ["capacity", "blocks", "tokens", f"hit rate ({curve.count})", "of the ceiling"]
    if bytes_per_block is not None:
        columns.insert(3, "KV cache")
    if curve.standard_error is not None:
        columns.append("std. error")
    cells = [_capacity_row(curve, label, blocks, bytes_per_block) for label, blocks in rows]
    return PageTable(f"LRU hit rate by capacity, {curve.order}", columns, cells)


def _capacity_row(
    curve: HitRateCurve, label: str, blocks: float, bytes_per_block: int | None
) -> list[str]:
    rate = curve.rate_at(blocks)
    share = percent(rate / curve.ceiling) if curve.ceiling else "-"
    row = [label, count(blocks), _tables.short(blocks * curve.block_size), percent(rate), share]
    if bytes_per_block is not None:
        row.insert(3, size(blocks * bytes_per_block) if blocks < float("inf") else "unbounded")
    error = curve.error_at(blocks)
    if error is not None:
        row.append(percent(error))
    return row


def _distance_table(curve: HitRateCurve) -> PageTable:
    bins = curve.reuse_distances()
    most = max((hits for _, _, hits in bins), default=0) or 1
    rows = [
        [f"{count(low)} - {count(high)}", count(hits), _tables.bar(hits / most)]
        for low, high, hits in bins
    ]
    unit = find_definition(curve.count).unit
    return PageTable("Reuse distance: blocks that a hit needs", ["blocks", unit, ""], rows)


def _group_table(curve: HitRateCurve) -> PageTable | None:
    kinds = curve.unbounded.by_kind
    if not kinds:
        return None
    rows = [
        [kind, count(kinds[kind].requests), count(kinds[kind].total), percent(kinds[kind].rate)]
        for kind in sorted(kinds)
    ]
    unit = find_definition(curve.count).unit
    return PageTable("By type, unbounded cache", ["type", "requests", unit, "hit rate"], rows)


def _working_set_table(curve: HitRateCurve) -> PageTable | None:
    samples = curve.working_set.samples
    if not samples:
        return None
    picked = [samples[(len(samples) - 1) * step // 4] for step in range(5)]
    rows = [
        [count(s.request + 1), *(count(n) for n in s.recent), count(s.distinct)]
        for s in dict.fromkeys(picked)
    ]
    columns = ["after request", *(f"last {count(w)}" for w in curve.working_set.windows), "all"]
    return PageTable("Working set: distinct blocks", columns, rows)


def _picture(
    title: str,
    curve: HitRateCurve,
    points: Sequence[tuple[str, float]],
    bytes_per_block: int | None,
) -> Picture:
    marks = [
        Mark(label, blocks, curve.rate_at(blocks))
        for label, blocks in points
        if blocks < float("inf")
    ]
    return Picture(
        f"{title}: LRU hit rate",
        curve,
        marks,
        bytes_per_block=bytes_per_block,
        notes=(_sizes(curve), _knee(curve, bytes_per_block)),
    )
