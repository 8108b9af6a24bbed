"""Bytes of one KV block of a model: what turns GiB into blocks."""

from __future__ import annotations

import argparse
import sys

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

    serving = {"block_size": block_size, "tensor_parallel": args.tp, "kv_dtype": args.kv_dtype}
    with clear_errors(args.model):
        model = layout.read_model_config(args.model, **serving)
        _note_other_layers({type(spec).__name__ for spec in model.specs.values()})
        return layout.bytes_per_block(args.model, **serving)


def _note_other_layers(kinds: set[str]) -> None:
    others = sorted(kinds - {"FullAttentionSpec", "MLAAttentionSpec"})
    if others:
        names = ", ".join(name.removesuffix("Spec") for name in others)
        print(
            f"note: the model has {names} layers, too; GiB count all its layers, "
            "hits are those of full attention",
            file=sys.stderr,
        )
