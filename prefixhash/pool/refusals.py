"""Refusals of the pool: each names the block or the value, and the way out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NoReturn

from prefixhash.errors import InvalidArgumentError, InvalidBlockError
from prefixhash.events.records import StoredTokens


def as_ids(block_ids: Iterable[int]) -> Sequence[int]:
    """The ids as a sequence of plain integers, without a copy if they are one already."""
    if isinstance(block_ids, (list, tuple)):
        return block_ids
    if not isinstance(block_ids, Iterable):
        raise InvalidArgumentError("block_ids", block_ids, "must be a list of block ids")
    tolist = getattr(block_ids, "tolist", None)  # arrays: plain integers, not their scalars
    return list(block_ids) if tolist is None else list(tolist())


def check_count(name: str, value: int, least: int, what: str = "") -> None:
    """Refuse what is no integer of at least `least`."""
    if not isinstance(value, int) or value < least:
        raise InvalidArgumentError(name, value, f"must be an integer of at least {least}{what}")


def check_lengths(block_ids: Sequence[int], block_hashes: Sequence[Hashable]) -> None:
    """Refuse ids and hashes that do not go together."""
    if not isinstance(block_hashes, Sequence) or isinstance(block_hashes, (str, bytes)):
        raise InvalidArgumentError("block_hashes", block_hashes, "must be a list, one per block")
    if len(block_ids) != len(block_hashes):
        raise InvalidArgumentError(
            "block_hashes", len(block_hashes), f"one per block: {len(block_ids)} needed"
        )


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
    check_count("about.block_size", about.block_size, 1)
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
    if not isinstance(block, int) or not 0 <= block < num_blocks:
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
