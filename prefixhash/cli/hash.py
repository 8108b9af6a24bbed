"""`prefixhash hash`: requests as JSON lines in, their block hashes out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

from prefixhash._source import Source
from prefixhash.errors import InvalidArgumentError, InvalidProfileError, TraceFormatError
from prefixhash.hashing import ALGORITHMS, BlockHasher, HashProfile
from prefixhash.request import Request
from prefixhash.request.lines import KEYS, lines_of
from prefixhash.trace.formats.tokens import Tokens

_DESCRIPTION = f"""\
Reads one JSON object per line (what `synth --form {Tokens.name}` writes, too) and writes
{{"request_id", "block_hashes"}} per line, a hash per full block. A field that is none of these is
an error, so that a misspelt cache_salt cannot go unnoticed:
"""


def _fields() -> str:
    """The fields of a line, one a line, with their other names."""
    lines = []
    for key in KEYS:
        others = f" (or {', '.join(key.names[1:])})" if key.names[1:] else ""
        lines.append(f"  {key.names[0]:<14}{key.meaning}{others}\n")
    return "".join(lines)


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "hash",
        help="block hashes of requests given as JSON lines",
        description=_DESCRIPTION + _fields(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", default="-", help="JSON lines; - is standard input")
    parser.add_argument("--profile", default="strict", help="strict (default) or vllm:VERSION")
    parser.add_argument("--algorithm", choices=tuple(ALGORITHMS), help="default: the profile's")
    parser.add_argument("--seed", help="the engine's PYTHONHASHSEED")
    parser.add_argument("--namespace", default="", help="what all requests share (strict only)")
    parser.add_argument("--block-size", type=int, default=16, metavar="TOKENS")
    parser.add_argument(
        "--int64",
        choices=("low", "high"),
        help="64-bit unsigned numbers instead of hex: the last (as in vLLM's events) or first 8 "
        "bytes of each hash, big-endian",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Hashes every line; the first bad one is an error with its place."""
    profile = HashProfile.parse(args.profile, args.algorithm, args.seed, namespace=args.namespace)
    if not profile.is_reproducible:
        raise InvalidProfileError(
            "--seed", args.seed, f"{args.algorithm} needs one, or every run gives other hashes"
        )
    hasher = BlockHasher(args.block_size, profile)
    shown = _presentation(args.int64)
    for request in hashed_requests(args.file, hasher):
        hashes = [shown(digest) for digest in request.block_hashes]
        print(json.dumps({"request_id": request.request_id, "block_hashes": hashes}))
    return 0


def hashed_requests(path: str, hasher: BlockHasher) -> Iterator[Request]:
    """The requests of a file of request lines, hashed; without a name, by the number of the line.

    Raises `TraceFormatError` with file and line for one that is no request or cannot be hashed.
    """
    source = Source(path, once=True)
    for number, line in lines_of(source):
        try:
            request = line.request(str(number), hasher)
        except InvalidArgumentError as error:
            raise TraceFormatError(source.name, number, str(error)) from error
        yield request


def _presentation(int64: str | None) -> Callable[[bytes], Any]:
    if int64 is None:
        return bytes.hex
    part = slice(-8, None) if int64 == "low" else slice(0, 8)
    return lambda digest: int.from_bytes(digest[part], "big")
