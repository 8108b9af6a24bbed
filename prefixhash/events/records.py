"""Records of what became findable in a pool and what ceased to be.

A consumer (router, KV indexer, another tier) that applies the records in order knows exactly the
keys of the pool's index: a hash is stored once, however many blocks carry it, and removed with its
last copy. The records hold values only; `prefixhash.events.codec` gives them vLLM's wire format.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from prefixhash._arguments import optional_integer, sequence
from prefixhash.errors import InvalidArgumentError

MEDIUM_GPU = "GPU"
MEDIUM_CPU = "CPU"
MEDIUM_STORAGE = "STORAGE"


class StoredTokens(NamedTuple):
    """What `BlockPool.cache` has to know of the blocks it is given in order to report them.

    `token_ids` are the tokens of all blocks of the call, `block_size` each; `extra_keys` holds one
    entry per block or is empty. `parent_block_hash` is the hash of the block before the first one,
    None at the start of a chain (or where no block before it was ever reported, as happens in
    groups that keep only windows or states).
    """

    parent_block_hash: Hashable | None
    token_ids: Sequence[int]
    block_size: int
    extra_keys: Sequence[tuple[Any, ...] | None] = ()
    lora_name: str | None = None
    spec_kind: str | None = None
    sliding_window: int | None = None


class BlockStored(NamedTuple):
    """A run of consecutive blocks became findable.

    `block_hashes[i]` covers `token_ids[i * block_size : (i + 1) * block_size]`; its parent is
    `block_hashes[i - 1]`, and `parent_block_hash` for i = 0. `extra_keys` has one entry per block:
    what else than tokens and parent went into the hash. Where nobody told the pool about the
    tokens (replay of bare ids), `token_ids` is empty and `block_size` 0. The last four fields are
    for events of other engines and tiers; a pool leaves them None.
    """

    block_hashes: tuple[Hashable, ...]
    parent_block_hash: Hashable | None = None
    token_ids: tuple[int, ...] = ()
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = MEDIUM_GPU
    lora_name: str | None = None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: tuple[tuple[int, ...], ...] | None = None

    def parents(self) -> tuple[Hashable | None, ...]:
        """The parent of each block of the run, in order."""
        return (self.parent_block_hash, *self.block_hashes[:-1])


class BlockRemoved(NamedTuple):
    """The last copies of these hashes are gone; nothing can hit them any more."""

    block_hashes: tuple[Hashable, ...]
    medium: str | None = MEDIUM_GPU
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(NamedTuple):
    """The whole index was dropped, in every group."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


def checked_events(events: Iterable[Event]) -> list[Event]:
    """The events as a list.

    Raises:
        InvalidArgumentError: they are not iterable, or one is no event or has what is no key.
    """
    found = list(sequence("events", events, "a list of events"))
    for i, event in enumerate(found):
        if isinstance(event, AllBlocksCleared):
            continue
        if not isinstance(event, (BlockStored, BlockRemoved)):
            raise InvalidArgumentError(f"events[{i}]", event, "must be one of the event records")
        try:
            hash((tuple(event.block_hashes), getattr(event, "parent_block_hash", None)))
        except TypeError as error:
            raise InvalidArgumentError(f"events[{i}]", event, str(error)) from None
        optional_integer(f"events[{i}].group_idx", event.group_idx)
    return found
