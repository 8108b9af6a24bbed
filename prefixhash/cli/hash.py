"""`prefixhash hash`: requests as JSON lines in, their block hashes out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from io import TextIOWrapper
from typing import Any, TextIO

from prefixhash.errors import InvalidArgumentError, InvalidProfileError, PrefixHashError
from prefixhash.hashing import ALGORITHMS, BlockHasher, HashProfile
from prefixhash.request import LoRARequest, MultiModalFeature, PlaceholderRange, Request

_DESCRIPTION = """\
Reads one JSON object per line and writes {"request_id", "block_hashes"} per line, a hash per full
block. Fields of a request:
  token_ids     list of integers (required)
  lora          name, or {"name", "path", "revision"}
  mm_features   list of {"identifier", "offset", "length", "modality"}
  cache_salt    string
  request_id    string; without one, the number of the line
timestamp and output_length are passed over; any other field is an error, so that a misspelt
cache_salt cannot go unnoticed."""

_FIELDS = {"request_id", "token_ids", "lora", "mm_features", "cache_salt"}
_PASSED_OVER = {"timestamp", "output_length"}


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "hash",
        help="block hashes of requests given as JSON lines",
        description=_DESCRIPTION,
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
    source = "<stdin>" if args.file == "-" else args.file
    with _standard_input() if args.file == "-" else open(args.file, encoding="utf-8") as lines:
        for request in read_requests(lines, source, hasher):
            hashes = [shown(digest) for digest in request.block_hashes]
            print(json.dumps({"request_id": request.request_id, "block_hashes": hashes}))
    return 0


def _standard_input() -> AbstractContextManager[TextIO]:
    """Standard input as UTF-8, like a file, whatever the locale says."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    return nullcontext(sys.stdin)


def read_requests(lines: TextIO, source: str, hasher: BlockHasher) -> Iterator[Request]:
    """The requests of a JSON-lines file; blank lines are passed over.

    Raises `PrefixHashError` with `source:line: reason` for a line that is no request.
    """
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _request(json.loads(line), str(number), hasher)
    except UnicodeDecodeError as error:
        raise PrefixHashError(f"{source}:{number + 1}: not UTF-8 text: {error.reason}") from None
    except (ValueError, RecursionError) as error:
        raise PrefixHashError(f"{source}:{number}: {error}") from None


def _request(record: Any, default_id: str, hasher: BlockHasher) -> Request:
    _check_fields(record, "request", _FIELDS | _PASSED_OVER, {"token_ids"})
    _check_list(record["token_ids"], "token_ids", "integers")
    media = record.get("mm_features")
    media = [] if media is None else media
    _check_list(media, "mm_features", "objects")
    return Request(
        record.get("request_id", default_id),
        record["token_ids"],
        block_hasher=hasher,
        lora_request=_lora(record.get("lora")),
        mm_features=[_feature(item) for item in media],
        cache_salt=record.get("cache_salt"),
    )


def _lora(value: Any) -> LoRARequest | None:
    if value is None:
        return None
    if isinstance(value, str):
        return LoRARequest(value)
    _check_fields(value, "lora", {"name", "path", "revision"}, {"name"})
    return LoRARequest(value["name"], value.get("path", ""), value.get("revision", ""))


def _feature(value: Any) -> MultiModalFeature:
    needed = {"identifier", "offset", "length"}
    _check_fields(value, "mm_features", needed | {"modality"}, needed)
    position = PlaceholderRange(value["offset"], value["length"])
    return MultiModalFeature(value["identifier"], position, value.get("modality", "image"))


def _check_list(value: Any, name: str, of: str) -> None:
    if not isinstance(value, list):
        raise InvalidArgumentError(name, value, f"must be a list of {of}")


def _check_fields(value: Any, name: str, known: set[str], needed: set[str]) -> None:
    if not isinstance(value, dict):
        raise InvalidArgumentError(name, value, "must be a JSON object")
    for field in needed - value.keys():
        raise InvalidArgumentError(name, value, f"lacks the field {field!r}")
    for field in value.keys() - known:
        raise InvalidArgumentError(name, field, f"unknown field; known: {', '.join(sorted(known))}")


def _presentation(int64: str | None) -> Callable[[bytes], Any]:
    if int64 is None:
        return bytes.hex
    part = slice(-8, None) if int64 == "low" else slice(0, 8)
    return lambda digest: int.from_bytes(digest[part], "big")
