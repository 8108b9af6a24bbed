"""`prefixhash check-events`: is a recording of KV events consistent, and what does it leave?"""

from __future__ import annotations

import argparse
from typing import Any, TextIO

from prefixhash.cli._tables import count, print_table
from prefixhash.cli._traces import check_output, clear_errors, report_output, write_json
from prefixhash.events.checks import EventReport, check_events
from prefixhash.events.recordings import read_messages

_DESCRIPTION = """\
Reads a recording of KV events (BlockStored, BlockRemoved, AllBlocksCleared): one message a line as
JSON, or MessagePack messages one after the other. Prints what is resident at the end and what in it
contradicts itself. Exit status 2 where something does."""
_FINDINGS = 2


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "check-events", help="check a recording of KV events", description=_DESCRIPTION
    )
    parser.add_argument("recording", metavar="RECORDING", help="plain or gzip; - for stdin")
    parser.add_argument("--json", action="store_true", help="the same bytes for the same input")
    parser.add_argument("--output", default="-", metavar="FILE", help="default: standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks the recording."""
    check_output(args.output)
    with clear_errors(args.recording):
        report = check_events(read_messages(args.recording))
    with report_output(args) as out:
        if args.json:
            write_json(_data(report), out)
        else:
            _print(report, out)
    return _FINDINGS if report.findings else 0


def _data(report: EventReport) -> dict[str, Any]:
    return {
        "messages": report.messages,
        "events": dict(sorted(report.events.items())),
        "blocks_stored": report.stored,
        "blocks_stored_again": report.repeated,
        "blocks_removed": report.removed,
        "most_resident": report.most_resident,
        "groups": [
            {"group": group, "resident": n, "orphans": report.orphans[group]}
            for group, n in report.resident.items()
        ],
        "findings": [
            {"kind": f.kind, "meaning": f.meaning, "count": f.count, "examples": f.examples}
            for f in report.findings
        ],
    }


def _print(report: EventReport, out: TextIO) -> None:
    rows = [["messages", count(report.messages)]]
    rows += [[name, count(number)] for name, number in sorted(report.events.items())]
    rows += [
        ["blocks stored", count(report.stored)],
        ["blocks stored again", count(report.repeated)],
        ["blocks removed", count(report.removed)],
        ["most blocks resident", count(report.most_resident)],
    ]
    print_table("Events", ["", "number"], rows, left=1, out=out)
    groups = [
        [str(group), count(n), count(report.orphans[group])] for group, n in report.resident.items()
    ]
    print_table("Resident at the end", ["group", "blocks", "without parent"], groups, out=out)
    for finding in report.findings:
        out.write(f"{count(finding.count)} {finding.meaning}\n")
        for example in finding.examples:
            out.write(f"  at {example}\n")
    if not report.findings:
        out.write("no contradiction found\n")
