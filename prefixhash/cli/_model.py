"""Bytes of one KV block of a model: what turns GiB into blocks."""

from __future__ import annotations

import argparse

from prefixhash.cli._traces import clear_errors, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that name the model."""
    group = parser.add_argument_group("model", "what a block weighs, for sizes in GiB")
    group.add_argument(
        "--model", metavar="CONFIG", help="a Hugging Face config.json, or its folder"
    )
    group.add_argument("--tp", type=positive, default=1, metavar="N", help="tensor-parallel ranks")
    group.add_argument(
        "--kv-dtype", default="auto", metavar="TYPE", help="auto, fp8, bfloat16, ..."
    )


def bytes_per_block(args: argparse.Namespace, block_size: int) -> int | None:
    """Bytes of the KV of `block_size` tokens over all layers of a rank; None without `--model`.

    Raises the errors of the model reader.
    """
    if args.model is None:
        return None
    from prefixhash import layout

    with clear_errors(args.model):
        return layout.bytes_per_block(
            args.model, block_size, tensor_parallel=args.tp, kv_dtype=args.kv_dtype
        )
