"""`prefixhash replay`: what prefix reuse buys on a trace."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from prefixhash.cli import _model, _tables
from prefixhash.cli._progress import Watched
from prefixhash.cli._replay_tables import compared_results, notes_of, sizes_of, tables_of
from prefixhash.cli._tables import count
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
    write_json,
    write_pictures,
)
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.caches import CLIP, OVERSIZE
from prefixhash.trace.capacity import POOL_OVERHEAD_BLOCKS
from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.definitions import DEFINITIONS, HEADLINE
from prefixhash.trace.demo import DEMO_CAPACITIES, DEMO_NAME, demo_trace
from prefixhash.trace.formats.tokens import Tokens
from prefixhash.trace.holding import Speed
from prefixhash.trace.plots import Mark, Picture
from prefixhash.trace.policies import (
    DEFAULT_POLICY,
    ORDERS,
    POLICIES,
    TAIL_FIRST,
    find_policy,
)
from prefixhash.trace.reading import Trace
from prefixhash.trace.records import TraceRequest
from prefixhash.trace.replaying import replay
from prefixhash.trace.report import replay_data, trace_data
from prefixhash.trace.results import (
    DEFAULT_CAPACITIES,
    ReplayOptions,
    ReplayReport,
    ReplayResult,
)

_DESCRIPTION = """\
Replays a trace and prints the hit rate at each capacity, the tokens it saves, and where the rest
goes. By default each request runs through the engine: tokens are made from the trace's ids, hashed,
looked up, allocated, committed and freed. With --ids, other policies, orders or definitions the ids
themselves are the hashes."""


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "replay", help="what prefix reuse buys on a trace", description=_DESCRIPTION
    )
    add_trace_arguments(parser)
    parser.add_argument("--demo", action="store_true", help="replay a built-in synthetic trace")
    _add_cache_arguments(parser)
    _add_run_arguments(parser)
    _model.add_arguments(parser)
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def _add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cache")
    engines = " or ".join(policy.name for policy in POLICIES.values() if policy.in_pool)
    defaults = ",".join(DEFAULT_CAPACITIES).replace("%", "%%")
    group.add_argument(
        "--capacity",
        type=listed,
        metavar="SIZES",
        help=f"{CAPACITY_HELP}; for {engines} the size of the pool, which holds "
        f"{POOL_OVERHEAD_BLOCKS} blocks fewer (default {defaults})",
    )
    group.add_argument(
        "--policy",
        type=listed,
        default=[DEFAULT_POLICY],
        metavar="NAMES",
        help=f"comma-separated: {', '.join(POLICIES)}; {engines} is the engine's own",
    )
    group.add_argument("--order", choices=ORDERS, default=TAIL_FIRST)
    group.add_argument("--block-size", type=positive, metavar="N", help="of the pool, in tokens")
    group.add_argument("--ids", action="store_true", help="take the trace's ids for hashes")
    group.add_argument(
        "--oversize", choices=OVERSIZE, default=CLIP, help="prompts larger than the pool"
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument(
        "--count",
        type=listed,
        default=[HEADLINE],
        metavar="NAMES",
        help=f"definitions of the hit rate: {', '.join(DEFINITIONS)}, or all",
    )
    group.add_argument(
        "--concurrency", type=positive, default=1, metavar="N", help="N requests hold their blocks"
    )
    group.add_argument(
        "--timed",
        action="store_true",
        help="hold blocks by the trace's times and durations; a prompt can be hit once its prefill "
        "is done",
    )
    group.add_argument(
        "--prefill-rate",
        type=float,
        default=Speed.prefill,
        metavar="TOKENS/S",
        help="of one request, for --timed (%(default)g)",
    )
    group.add_argument(
        "--decode-rate",
        type=float,
        default=Speed.decode,
        metavar="TOKENS/S",
        help="of one request, where the trace has no durations (%(default)g)",
    )
    add_warmup_argument(group)
    group.add_argument(
        "--commit-output", action="store_true", help="output tokens take blocks and can be found"
    )


def run(args: argparse.Namespace) -> int:
    """Replays the trace and prints the results."""
    check_outputs(args)
    if args.demo:
        if args.trace is not None:
            raise InvalidArgumentError("--demo", args.trace, "replays its own trace: name no other")
        requests = demo_trace()
        size = args.block_size or 16
        heading = {"name": DEMO_NAME, "format": Tokens.name, "block_size": size, "skipped_lines": 0}
        return _replay(args, Watched(requests, "survey", "replay"), lambda: heading, size, "")
    with opened_trace(args) as trace:
        watched = Watched(trace, "survey", *_passes(args), "replay")
        size = _ids_block_size(args, trace)
        detected = " (found from the first record)" if trace.detected else ""
        status = _replay(args, watched, lambda: trace_data(trace), size, detected)
        report_skipped(trace)
    return status


def _passes(args: argparse.Namespace) -> list[str]:
    needed = any(find_policy(name).needs_future for name in args.policy)
    return ["future"] * len(_counts(args)) if needed else []


def _counts(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(DEFINITIONS) if args.count == ["all"] else tuple(args.count)


def _ids_block_size(args: argparse.Namespace, trace: Trace) -> int:
    # The blocks of a token trace are made here, at the size of the pool.
    if trace.records_tokens and args.block_size is not None:
        return int(args.block_size)
    return trace.block_size


def _replay(
    args: argparse.Namespace,
    source: Iterable[TraceRequest],
    describe: Callable[[], dict[str, Any]],
    ids_block_size: int,
    detected: str,
) -> int:
    block_size = args.block_size or ids_block_size
    bytes_per_block = _model.bytes_per_block(args, block_size)
    options = ReplayOptions(
        capacities=tuple(args.capacity or (DEMO_CAPACITIES if args.demo else DEFAULT_CAPACITIES)),
        policies=tuple(args.policy),
        counts=_counts(args),
        order=args.order,
        by_ids=args.ids,
        block_size=args.block_size,
        concurrency=args.concurrency,
        timed=args.timed,
        speed=Speed(args.prefill_rate, args.decode_rate),
        warmup=args.warmup,
        commit_output=args.commit_output,
        oversize=args.oversize,
        bytes_per_block=bytes_per_block,
    )
    report = replay(source, trace_block_size=ids_block_size, options=options)
    # Only now is it known which lines were skipped.
    heading = describe()
    with report_output(args) as out:
        if args.json:
            write_json({"trace": heading, **replay_data(report)}, out)
        else:
            out.write(f"{heading['name']}: format {heading['format']}{detected}\n")
            out.write(sizes_of(report) + "\n")
            _print(report, bytes_per_block, out)
    if args.plot is not None or args.html is not None:
        _draw(args, source, heading["name"], report, bytes_per_block)
    return 0


def _print(report: ReplayReport, bytes_per_block: int | None, out: TextIO) -> None:
    for table in tables_of(report, bytes_per_block, timings=True):
        _tables.print_table(table.title, table.columns, table.rows, out=out)
    for note in notes_of(report, timings=True):
        out.write(note + "\n")


def _draw(
    args: argparse.Namespace,
    source: Iterable[TraceRequest],
    name: str,
    report: ReplayReport,
    bytes_per_block: int | None,
) -> None:
    options = report.options
    # What a plain LRU would do at every capacity: the line that the marks are read against.
    curve = hit_rate_curve(
        source,
        block_size=report.trace_block_size,
        count=options.counts[0],
        order=options.order,
        warmup=report.warmup,
    )
    results = [r for r in report.results if r.count == options.counts[0]]
    picture = Picture(
        f"{name}: prefix reuse",
        curve,
        [Mark(r.label, r.capacity, r.rate, f"{r.policy} ({r.level})") for r in results],
        [(_line_label(r), r.meter.over_time) for r in compared_results(report)],
        report.trace_block_size / report.block_size,
        bytes_per_block,
        (sizes_of(report), *notes_of(report, timings=False)),
    )
    write_pictures(args, picture, tables_of(report, bytes_per_block, timings=False))


def _line_label(result: ReplayResult) -> str:
    blocks = f"{count(result.capacity)} blocks" if math.isfinite(result.capacity) else "unbounded"
    return f"{result.policy}, {blocks}"
