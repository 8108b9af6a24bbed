"""What the trace commands share: their arguments, opening traces, writing reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from prefixhash._units import parse_share
from prefixhash.cli._outputs import check_writable
from prefixhash.cli._tables import count
from prefixhash.errors import InvalidArgumentError, TraceFormatError
from prefixhash.trace.detection import AUTO, describe_formats, format_choices
from prefixhash.trace.page import PageTable, html_page
from prefixhash.trace.plots import Picture, check_matplotlib, check_picture_name, save_plot
from prefixhash.trace.reading import Trace, read_trace

CAPACITY_HELP = (
    "comma-separated: blocks, N%% of the unique blocks, 2Mtok, 40GiB or 80GB (with --model), inf"
)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what to read."""
    group = parser.add_argument_group("trace", f"Formats and their fields: {describe_formats()}.")
    group.add_argument(
        "trace", nargs="?", metavar="TRACE", help="file or folder, plain or gzip; - for stdin"
    )
    group.add_argument(
        "--format", choices=format_choices(), default=AUTO, help="default: from the first record"
    )
    group.add_argument(
        "--trace-block-size",
        type=positive,
        metavar="N",
        help="tokens of one block id, where the format's usual size does not hold",
    )
    group.add_argument(
        "--interleave",
        action="store_true",
        help="run the files of a folder side by side, by their times (default: in turn)",
    )
    group.add_argument(
        "--skip-bad", action="store_true", help="count lines that cannot be used and go on"
    )


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say where the results go."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="the same bytes for the same input")
    group.add_argument("--output", default="-", metavar="FILE", help="default: standard output")
    group.add_argument("--plot", metavar="FILE", help="a picture: .png, .svg or .pdf")
    group.add_argument("--html", metavar="FILE", help="one self-contained page")


def add_warmup_argument(parser: argparse._ActionsContainer) -> None:
    """Which requests fill the cache only."""
    parser.add_argument(
        "--warmup", default="0", metavar="N", help="leave out the first N requests, or N%% of them"
    )


def positive(text: str) -> int:
    """An argument that is a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def share(text: str) -> float:
    """An argument that is a part of a whole: `0.01` or `1%`."""
    if "%" not in text:
        return float(text)
    try:
        return float(parse_share("share", text))
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def listed(text: str) -> list[str]:
    """A comma-separated argument that names something."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise argparse.ArgumentTypeError("names nothing")
    return parts


@contextmanager
def opened_trace(args: argparse.Namespace) -> Iterator[Trace]:
    """The trace that the arguments name; errors of the file system become one clear line."""
    if args.trace is None:
        raise InvalidArgumentError("TRACE", None, "is missing: name a file, a folder, or - (stdin)")
    with clear_errors(args.trace):
        trace = read_trace(
            args.trace,
            args.format,
            block_size=args.trace_block_size,
            skip_bad=args.skip_bad,
            interleave=args.interleave,
        )
    try:
        with clear_errors(args.trace):
            yield trace
    finally:
        trace.close()


@contextmanager
def clear_errors(name: str) -> Iterator[None]:
    """Shows an `OSError` as `file: reason`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        file = str(error.filename or name)
        raise TraceFormatError(file, None, (error.strerror or str(error)).lower()) from error


def report_skipped(trace: Trace) -> None:
    """Says on standard error which lines were left out."""
    if not trace.num_skipped:
        return
    for item in trace.skipped:
        print(f"skipped {TraceFormatError(item.file, item.line, item.reason)}", file=sys.stderr)
    shown = len(trace.skipped)
    more = f" ({count(trace.num_skipped - shown)} more)" if trace.num_skipped > shown else ""
    print(f"skipped {count(trace.num_skipped)} bad lines{more}", file=sys.stderr)


@contextmanager
def report_output(args: argparse.Namespace) -> Iterator[TextIO]:
    """Where the report goes: standard output or `--output FILE`."""
    if args.output == "-":
        yield sys.stdout
        return
    with clear_errors(args.output), open(args.output, "w", encoding="utf-8") as file:
        yield file


def write_json(data: dict[str, Any], out: TextIO) -> None:
    out.write(json.dumps(data, indent=1, allow_nan=False) + "\n")


def check_output(path: str) -> None:
    """Refuses a file that cannot be written before the work is done, not after."""
    with clear_errors(path):
        check_writable(path)


def check_outputs(args: argparse.Namespace) -> None:
    """As `check_output`, for all that `add_output_arguments` names."""
    if args.plot is not None:
        check_picture_name("--plot", args.plot)
    if args.plot is not None or args.html is not None:
        check_matplotlib()
    for path in (args.plot, args.html, args.output):
        if path is not None:
            check_output(path)


def write_pictures(args: argparse.Namespace, picture: Picture, tables: Sequence[PageTable]) -> None:
    """`--plot FILE` and `--html FILE`, where they are asked for."""
    if args.plot is not None:
        with clear_errors(args.plot):
            save_plot(picture, args.plot)
    if args.html is not None:
        with clear_errors(args.html):
            Path(args.html).write_text(html_page(picture, tables), encoding="utf-8")
