"""What the cache has to know of a group of layers: kind of attention, block size, reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from prefixhash.errors import InvalidArgumentError

FULL = "full_attention"
SLIDING = "sliding_window"
CHUNKED = "chunked_local"
MAMBA = "mamba"
CROSS = "cross_attention"
ENCODER_ONLY = "encoder_only"

# Kinds that need the blocks of another kind: latent attention differs in what a block holds only.
_SAME_AS = {
    "mla": FULL,
    "mla_attention": FULL,
    "hidden_state": FULL,
    "sink_full_attention": FULL,
    "sliding_window_mla": SLIDING,
    "chunked_local_attention": CHUNKED,
    "encoder_only_attention": ENCODER_ONLY,
}
_KINDS = (FULL, SLIDING, CHUNKED, MAMBA, CROSS, ENCODER_ONLY)
# Attribute of a layer spec that holds the reach, by kind and by engine.
_REACH = {SLIDING: ("window", "sliding_window"), CHUNKED: ("chunk", "attention_chunk_size")}


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one block table.

    Args:
        kind: "full_attention" (also for latent attention), "sliding_window", "chunked_local",
            "mamba", "cross_attention", "encoder_only"; the kinds of layer specs are understood.
        block_size: tokens per block.
        window: sliding window: a token attends to itself and the `window - 1` tokens before it.
        chunk: chunked local attention: tokens per chunk.
        speculative_blocks: mamba: state blocks held beyond the running one, for drafts.
        eagle: the group serves a drafter that needs the hidden states of the last matched block,
            so a hit must leave one matched block to be computed again.

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
        kind = _SAME_AS.get(self.kind, self.kind) if isinstance(self.kind, str) else None
        object.__setattr__(self, "kind", kind or self.kind)
        if kind not in _KINDS:
            raise InvalidArgumentError("kind", self.kind, f"must be one of {', '.join(_KINDS)}")
        _positive("block_size", self.block_size)
        if self.kind == SLIDING:
            _positive("window", self.window)
        if self.kind == CHUNKED:
            _positive("chunk", self.chunk)
        if not isinstance(self.speculative_blocks, int) or self.speculative_blocks < 0:
            raise InvalidArgumentError(
                "speculative_blocks", self.speculative_blocks, "must be an integer of at least 0"
            )
        if self.eagle and self.kind == CHUNKED:
            raise InvalidArgumentError(
                "eagle", True, "a drafter on chunked local attention cannot share hits: use False"
            )

    @property
    def cacheable(self) -> bool:
        """Whether blocks of this kind can be reused by another request."""
        return self.kind not in (CROSS, ENCODER_ONLY)

    @property
    def downward_closed(self) -> bool:
        """Whether a hit of some length implies a hit of every shorter length."""
        return self.kind == FULL


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
    group = CacheGroup(_SAME_AS.get(kind, kind), block_size, window=1, chunk=1)
    reach = [getattr(spec, name, None) for name in _REACH.get(group.kind, ())]
    found = next((tokens for tokens in reach if tokens is not None), None)
    return replace(
        group,
        window=found if group.kind == SLIDING else None,
        chunk=found if group.kind == CHUNKED else None,
        speculative_blocks=getattr(spec, "speculative_blocks", 0) if group.kind == MAMBA else 0,
        eagle=bool(getattr(value, "eagle", False)),
    )


def as_groups(groups: Iterable[Any], *, eagle: bool = False) -> tuple[CacheGroup, ...]:
    """All groups of a cache; at least one.

    With `eagle`, the groups that are marked as a drafter's (`is_draft`, `is_eagle_group`) drop the
    last block of a hit; if none is marked, all that can be hit do.
    """
    if not isinstance(groups, Iterable):
        raise InvalidArgumentError("groups", groups, "must be a list of groups")
    given = list(groups)
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


def _positive(name: str, value: int | None) -> None:
    if not isinstance(value, int) or value < 1:
        raise InvalidArgumentError(name, value, "must be an integer of at least 1")
