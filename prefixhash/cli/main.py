"""Entry point of the `prefixhash` command: picks the subcommand, turns errors into one clear line.

Exit status: 0 fine, 1 error, 2 findings (or a usage error, by argparse's convention).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from prefixhash import __version__
from prefixhash.errors import PrefixHashError

# In the order of the help text. Each module has `add_parser(subparsers)`, which sets the default
# `run` to a function from the parsed arguments to the exit status.
SUBCOMMANDS: tuple[str, ...] = ("replay", "curve", "synth", "check_events", "hash", "plan", "info")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixhash",
        description="Prefix-cache block hashing for LLM serving: hash, plan, replay.",
    )
    parser.add_argument("--version", action="version", version=f"prefixhash {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in SUBCOMMANDS:
        importlib.import_module(f"prefixhash.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: the process's arguments); returns the exit status."""
    args = build_parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing more to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PrefixHashError as error:
        return _fail(args.command, str(error))
    except OSError as error:
        named = error.filename is not None
        return _fail(args.command, f"{error.filename}: {error.strerror}" if named else str(error))
    return status


def _fail(command: str, message: str) -> int:
    print(f"prefixhash {command}: {message}", file=sys.stderr)
    return 1


def _show_warning(message: Warning | str, *_where: object, **_options: object) -> None:
    print(f"prefixhash: warning: {message}", file=sys.stderr)
