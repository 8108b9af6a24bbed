"""Refusals of the pool: each names the block or the value, and the way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from operator import index
from typing import NoReturn

from prefixhash._arguments import integer, is_integer, sequence
from prefixhash.errors import InvalidArgumentError, InvalidBlockError
from prefixhash.events.records import StoredTokens


def as_ids(block_ids: Iterable[int]) -> Sequence[int]:
    """The ids as a sequence of plain integers, without a copy if they are one already.

    What else stands in a list is refused by the call that reads it, item by item; a list whose
    first item is numpy's is taken to be full of them.
    """
    if isinstance(block_ids, (list, tuple)):
        if not block_ids or type(block_ids[0]) is int:
            return block_ids
        return [index(item) if is_integer(item) else item for item in block_ids]
    try:
        tolist = getattr(block_ids, "tolist", None)  # arrays: plain integers, not their scalars
        items = block_ids if tolist is None else tolist()
    except RuntimeError:  # a tensor without data
        items = None
    return list(sequence("block_ids", items, "a list of block ids"))


def check_lengths(block_ids: Sequence[int], block_hashes: Sequence[Hashable]) -> None:
    """Refuse ids and hashes that do not go together."""
    check_sequence(block_hashes)
    if len(block_ids) != len(block_hashes):
        raise InvalidArgumentError(
            "block_hashes", len(block_hashes), f"one per block: {len(block_ids)} needed"
        )


def check_sequence(block_hashes: Sequence[Hashable]) -> None:
    """Refuse what is no list of hashes; one hash is none."""
    if type(block_hashes) is list:  # almost always, and the question below is slow
        return
    good = isinstance(block_hashes, Sequence)
    good = good and not isinstance(block_hashes, (str, bytes, bytearray, memoryview))
    if good:
        try:
            len(block_hashes)
        except OverflowError:  # a range beyond any list
            good = False
    if not good:
        raise InvalidArgumentError("block_hashes", block_hashes, "must be a list, one per block")


def check_hashes(block_hashes: Sequence[Hashable]) -> None:
    """Refuse None and what cannot be a key of a dictionary."""
    if None in block_hashes:
        raise InvalidArgumentError("block_hashes", None, "None is no hash")
    try:
        hash(tuple(block_hashes))
    except TypeError as error:
        raise InvalidArgumentError("block_hashes", block_hashes, str(error)) from None


def check_about(about: StoredTokens, num_blocks: int) -> None:
    """Refuse tokens and extra keys that are not those of this many blocks."""
    if not isinstance(about, StoredTokens):
        raise InvalidArgumentError("about", about, "must be StoredTokens, or None")
    integer("about.block_size", about.block_size, 1)
    for name in ("token_ids", "extra_keys"):
        value = getattr(about, name)
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise InvalidArgumentError(f"about.{name}", value, "must be a list")
    if len(about.token_ids) != num_blocks * about.block_size:
        problem = f"{num_blocks} blocks hold {num_blocks * about.block_size} tokens"
        raise InvalidArgumentError("about.token_ids", about.token_ids, problem)
    if len(about.extra_keys) not in (0, num_blocks):
        raise InvalidArgumentError("about.extra_keys", about.extra_keys, "one per block, or none")


def refuse_unhashable(block_hash: object, error: TypeError) -> NoReturn:
    """The hash, or the group, is no key."""
    raise InvalidArgumentError("block_hash", block_hash, f"no hash of a block: {error}") from None


def refuse_foreign(block_id: object, num_blocks: int) -> NoReturn:
    """The id names no block."""
    raise InvalidBlockError(
        "block_ids", block_id, f"no block of this pool: ids run from 0 to {num_blocks - 1}"
    )


def refuse(ids: Sequence[int], position: int, call: str, num_blocks: int) -> NoReturn:
    """Say why `call` cannot be given `ids[position]`."""
    block = ids[position]
    if not is_integer(block) or not 0 <= block < num_blocks:
        refuse_foreign(block, num_blocks)
    if block == 0:
        problem = f"the null block cannot be given to {call}(): leave it out"
    elif call == "free" and block in ids[:position]:
        problem = "is in the list more often than it is held (double free)"
    elif call == "free":
        problem = "is free already (double free)"
    else:
        problem = f"is free and holds nobody's data: allocate it before {call}()"
    raise InvalidBlockError("block_ids", block, problem)


def refuse_overflow(ids: Sequence[int], refs: Sequence[int], most: int) -> None:
    """Refuse one hold more on a block than can be counted; other bad ids are for others to name."""
    for block, times in Counter(ids).items():
        if is_integer(block) and 0 <= block < len(refs) and refs[block] + times > most:
            problem = f"is held {refs[block]} times, {most} can be counted: free it first"
            raise InvalidBlockError("block_ids", block, problem)
