"""Bytes of one KV block of a model: what turns GiB into blocks."""

from __future__ import annotations

import argparse

from prefixhash.errors import PrefixHashError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that name the model."""
    parser.add_argument(
        "--model", metavar="CONFIG", help="a Hugging Face config.json: sizes in GiB, too"
    )


def bytes_per_block(args: argparse.Namespace, block_size: int) -> int | None:
    """Bytes of the KV of `block_size` tokens over all layers; None without `--model`."""
    if args.model is None:
        return None
    raise PrefixHashError("--model is not supported yet")
