"""What the cache has to know of a group of layers: kind of attention, block size, reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from prefixhash._arguments import flag, integer, sequence
from prefixhash.cache.kinds import KVKind, find_kind
from prefixhash.cache.options import MOST_TOKENS, GroupShape
from prefixhash.errors import InvalidArgumentError


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one block table.

    Args:
        kind: "full_attention", "mla", "sliding_window", "sliding_window_mla", "chunked_local",
            "mamba", "cross_attention", "encoder_only", or another name in
            `prefixhash.cache.kinds.KINDS`; the kinds of layer specs are understood.
        block_size: tokens per block.
        window: sliding window: a token attends to itself and the `window - 1` tokens before it.
        chunk: chunked local attention: tokens per chunk.
        speculative_blocks: mamba: state blocks held beyond the running one, for drafts.
        eagle: the group serves a drafter that needs the hidden states of the last matched block,
            so a hit must leave one matched block to be computed again.

    A window or chunk that the kind does not have is left out.

    Raises:
        InvalidArgumentError: an unknown kind, a size below 1, a reach that is lacking.
    """

    kind: str
    block_size: int
    window: int | None = None
    chunk: int | None = None
    speculative_blocks: int = 0
    eagle: bool = False

    def __post_init__(self) -> None:
        row = find_kind(self.kind)
        self._set("kind", row.names[0])
        self._set("block_size", integer("block_size", self.block_size, 1, MOST_TOKENS))
        for name in ("window", "chunk"):
            wanted = name in row.reach
            reach = integer(name, getattr(self, name), 1, MOST_TOKENS) if wanted else None
            self._set(name, reach)
        spare = integer("speculative_blocks", self.speculative_blocks, 0, MOST_TOKENS)
        self._set("speculative_blocks", spare)
        self._set("eagle", flag("eagle", self.eagle))
        if self.eagle and not row.manager.serves_drafter:
            raise InvalidArgumentError(
                "eagle", True, f"a drafter on {self.kind} layers cannot share hits: use False"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def row(self) -> KVKind:
        """What is known of the kind."""
        return find_kind(self.kind)

    @property
    def cacheable(self) -> bool:
        """Whether blocks of this kind can be reused by another request."""
        return self.row.manager.cacheable

    @property
    def downward_closed(self) -> bool:
        """Whether a hit of some length implies a hit of every shorter length."""
        return self.row.manager.downward_closed

    @property
    def shape(self) -> GroupShape:
        """What decides which blocks the group needs."""
        reach = self.window or self.chunk or 0
        return GroupShape(self.block_size, reach, self.speculative_blocks, self.eagle)


def as_group(value: Any) -> CacheGroup:
    """A `CacheGroup` from one, from a layer spec, or from a planned group of layers.

    Of a layer spec are read `kind`, `block_size` and, by kind, `window` or `sliding_window`,
    `chunk` or `attention_chunk_size`, `speculative_blocks`; a planned group is anything with such
    a `spec`. Either may say `eagle`.
    """
    if isinstance(value, CacheGroup):
        return value
    spec = getattr(value, "spec", None) or getattr(value, "kv_cache_spec", value)
    kind = getattr(spec, "kind", None)
    block_size = getattr(spec, "block_size", None)
    if kind is None or block_size is None:
        raise InvalidArgumentError(
            "groups", value, "must be CacheGroups, layer specs or planned groups"
        )
    row = find_kind(kind)
    reach = [getattr(spec, name, None) for name in row.reach]
    found = next((tokens for tokens in reach if tokens is not None), None)
    spare = getattr(spec, "speculative_blocks", 0) if row.manager.keeps_states else 0
    eagle = bool(getattr(value, "eagle", False))
    return CacheGroup(kind, block_size, found, found, speculative_blocks=spare, eagle=eagle)


def as_groups(groups: Iterable[Any], *, eagle: bool = False) -> tuple[CacheGroup, ...]:
    """All groups of a cache; at least one.

    With `eagle`, the groups that are marked as a drafter's (`is_draft`, `is_eagle_group`) drop the
    last block of a hit; if none is marked, all that can be hit do.
    """
    given = sequence("groups", groups, "a list of groups")
    found = [as_group(value) for value in given]
    if not found:
        raise InvalidArgumentError("groups", given, "at least one group is needed")
    if eagle and not any(group.eagle for group in found):
        drafts = [
            bool(getattr(value, "is_draft", False) or getattr(value, "is_eagle_group", False))
            for value in given
        ]
        marked = drafts if any(drafts) else [group.cacheable for group in found]
        found = [replace(group, eagle=mark) for group, mark in zip(found, marked, strict=True)]
    return tuple(found)
