"""`prefixhash synth`: seeded synthetic traces."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import Any

from prefixhash.cli._traces import positive, report_output
from prefixhash.trace.synth import WORKLOADS, Workload, make_workload, synthesize
from prefixhash.trace.synth_forms import FORMS, record_of

_DESCRIPTION = f"""\
Writes a synthetic trace as JSON lines, the same for the same seed: sessions that arrive at random
and interleave, with shared system prompts and documents, tool calls, tenants (cache salts), LoRA
adapters and images. Form `{FORMS[0]}` has block ids, form `{FORMS[1]}` the tokens themselves."""
_HELP = {
    "sessions": "conversations",
    "turns": "user messages of a session (mean)",
    "tool_calls": "tool calls for each message of an agent session (mean)",
    "system_tokens": "length of a system prompt (mean)",
    "system_prompts": "different system prompts",
    "documents": "different shared documents",
    "document_tokens": "length of a document (mean)",
    "document_share": "sessions that carry a document",
    "tenants": "tenants, each with its own cache salt",
    "adapters": "LoRA adapters besides the base model",
    "image_share": "messages with an image",
    "image_tokens": "tokens of an image",
    "message_tokens": "length of a message (mean)",
    "output_tokens": "length of an answer (mean)",
    "tool_tokens": "length of a tool's result (mean)",
    "zipf": "exponent of the popularity of whatever is shared",
    "session_rate": "new sessions a second",
    "think_seconds": "pause between messages (mean)",
}


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "synth", help="write a seeded synthetic trace", description=_DESCRIPTION
    )
    parser.add_argument("workload", nargs="?", choices=tuple(WORKLOADS), default="chat")
    parser.add_argument("--form", choices=FORMS, default=FORMS[0])
    parser.add_argument("--block-size", type=positive, default=512, help="of the ids (512)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="-", metavar="FILE", help="default: standard output")
    add_workload_arguments(parser)
    parser.set_defaults(run=run)


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """One argument for each parameter of a workload."""
    group = parser.add_argument_group("workload", "defaults depend on the workload")
    for item in fields(Workload):
        kind = int if item.type == "int" else float
        name = "--" + item.name.replace("_", "-")
        group.add_argument(name, type=kind, metavar="N", help=_HELP[item.name])


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload that the arguments describe."""
    given = {item.name: getattr(args, item.name) for item in fields(Workload)}
    changes = {name: value for name, value in given.items() if value is not None}
    return make_workload(args.workload, **changes)


def run(args: argparse.Namespace) -> int:
    """Writes one line for each request."""
    requests = synthesize(
        workload_of(args), form=args.form, block_size=args.block_size, seed=args.seed
    )
    with report_output(args) as out:
        for request in requests:
            out.write(json.dumps(record_of(request)) + "\n")
    return 0
