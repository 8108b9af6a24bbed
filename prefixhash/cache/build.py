"""From the options of a cache to its parts, with every check of values that must go together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefixhash.cache.groups import CHUNKED, CROSS, ENCODER_ONLY, FULL, MAMBA, SLIDING, CacheGroup
from prefixhash.cache.managers import (
    AttentionManager,
    ChunkedLocalManager,
    SlidingWindowManager,
    ceil_div,
)
from prefixhash.cache.publish import Publisher
from prefixhash.cache.search import HitSearch
from prefixhash.cache.state_managers import CrossAttentionManager, EncoderOnlyManager, MambaManager
from prefixhash.cache.verify import TokenVerifier
from prefixhash.errors import InvalidArgumentError
from prefixhash.pool import BlockPool, ResidencySampler


def _manager_class(kind: str) -> type[AttentionManager]:
    return {
        FULL: AttentionManager,
        SLIDING: SlidingWindowManager,
        CHUNKED: ChunkedLocalManager,
        MAMBA: MambaManager,
        CROSS: CrossAttentionManager,
        ENCODER_ONLY: EncoderOnlyManager,
    }[kind]


@dataclass(frozen=True)
class CacheOptions:
    """The options of `PrefixCache` that its parts are built from; meanings as there."""

    hash_block_size: int | None = None
    max_model_len: int | None = None
    max_batched_tokens: int | None = None
    enable_caching: bool | None = None
    watermark: float = 0.0
    retention_interval: int | None = None
    events: bool = False
    block_hasher: Any = None
    verify_tokens: bool = False

    def __post_init__(self) -> None:
        for name in ("hash_block_size", "max_model_len", "max_batched_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidArgumentError(name, value, "must be an integer of at least 1, or None")
        if not isinstance(self.watermark, (int, float)) or not 0 <= self.watermark < 1:
            raise InvalidArgumentError("watermark", self.watermark, "must lie in [0, 1)")
        if self.verify_tokens and self.block_hasher is None:
            raise InvalidArgumentError(
                "verify_tokens", True, "needs block_hasher, to compare what else is in a hash"
            )

    def unit(self, groups: Sequence[CacheGroup]) -> int:
        """The hash block size: as given, or the greatest common divisor of the block sizes."""
        sizes = [group.block_size for group in groups]
        unit = self.hash_block_size or math.gcd(*sizes)
        wrong = [size for size in sizes if size % unit]
        if wrong:
            raise InvalidArgumentError(
                "hash_block_size", unit, f"must divide every block size, but not {wrong[0]}"
            )
        hashed = getattr(self.block_hasher, "block_size", unit)
        if hashed != unit:
            raise InvalidArgumentError(
                "block_hasher", self.block_hasher, f"hashes blocks of {hashed} tokens, not {unit}"
            )
        return unit

    def check_retention(self, alignment: int) -> None:
        """Only multiples of the alignment are lengths of hits."""
        interval = self.retention_interval
        if interval is None:
            return
        if not isinstance(interval, int) or interval < 0 or interval % alignment:
            raise InvalidArgumentError(
                "retention_interval", interval, f"must be None, 0 or a multiple of {alignment}"
            )


@dataclass(frozen=True)
class CacheParts:
    """What a cache is made of."""

    pool: BlockPool
    managers: tuple[AttentionManager, ...]
    search: HitSearch
    publisher: Publisher
    verifier: TokenVerifier | None
    hash_block_size: int
    alignment: int
    drop: int

    @classmethod
    def build(
        cls,
        groups: Sequence[CacheGroup],
        num_blocks: int,
        options: CacheOptions,
        residency: ResidencySampler | None,
    ) -> CacheParts:
        """Check the options against each other and the groups; make the parts."""
        cacheable = [group for group in groups if group.cacheable]
        caching = options.enable_caching
        if caching is None:
            caching = all(group.kind != CROSS for group in groups)
        caching = caching and bool(cacheable)
        unit = options.unit(cacheable or groups)
        alignment = math.lcm(*(group.block_size for group in cacheable or groups))
        options.check_retention(alignment)
        pool = BlockPool(
            num_blocks, enable_caching=caching, events=options.events, residency=residency
        )
        managers = tuple(
            _manager_class(group.kind)(group, i, pool, alignment, _cap(group, options))
            for i, group in enumerate(groups)
        )
        verifier = TokenVerifier(options.block_hasher, unit) if options.verify_tokens else None
        # A drafter has no state layers.
        eagle = (group for group in cacheable if group.eagle and group.kind != MAMBA)
        drop = max((group.block_size for group in eagle), default=0)
        publisher = Publisher(
            managers,
            pool,
            unit,
            alignment,
            options.retention_interval,
            drop,
            options.block_hasher,
            verifier,
        )
        search = HitSearch(managers, unit)
        return cls(pool, managers, search, publisher, verifier, unit, alignment, drop)


def _cap(group: CacheGroup, options: CacheOptions) -> int | None:
    """Most blocks that one request holds in a group that recycles them.

    The reach behind the step plus the step itself; a window need not begin at a block's edge.
    """
    if options.max_batched_tokens is None or group.kind not in (SLIDING, CHUNKED):
        return None
    reach = (group.window or 1) - 1 if group.kind == SLIDING else group.chunk or 0
    tokens = reach + options.max_batched_tokens
    if options.max_model_len is not None:
        tokens = min(tokens, options.max_model_len)
    return ceil_div(tokens, group.block_size) + (group.kind == SLIDING)
