"""`prefixhash info`: what this installation is and can do."""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata
from typing import Any

from prefixhash import __version__
from prefixhash._compiled import KERNEL, kernel_features
from prefixhash.hashing import ALGORITHMS, known_profiles

_OPTIONAL = ("numpy", "torch", "rich", "matplotlib", "msgspec")


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "info", help="versions, kernel, algorithms and known profiles", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the facts, as lines or as JSON."""
    facts = {
        "prefixhash": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "kernel": KERNEL,
        "features": kernel_features(),
        "algorithms": list(ALGORITHMS),
        "profiles": list(known_profiles()),
        "xxhash": _version("xxhash"),
        "optional": {name: _version(name) for name in _OPTIONAL},
    }
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    for name, value in facts.items():
        print(f"{name:<12}{_text(value)}")
    return 0


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text or '-'}" for name, text in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
