"""From the groups and options of a cache to its parts, with the checks of what must go together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prefixhash.cache.groups import CacheGroup
from prefixhash.cache.managers import AttentionManager
from prefixhash.cache.options import MOST_TOKENS, CacheOptions, CacheUnits
from prefixhash.cache.publish import Publisher
from prefixhash.cache.search import HitSearch
from prefixhash.cache.verify import TokenVerifier
from prefixhash.errors import InvalidArgumentError
from prefixhash.pool import BlockPool


@dataclass(frozen=True)
class CacheParts:
    """What a cache is made of."""

    pool: BlockPool
    managers: tuple[AttentionManager, ...]
    search: HitSearch
    publisher: Publisher
    verifier: TokenVerifier | None
    units: CacheUnits

    @classmethod
    def build(
        cls, groups: Sequence[CacheGroup], num_blocks: int, options: CacheOptions
    ) -> CacheParts:
        """Check the options against each other and the groups; make the parts."""
        cacheable = [group for group in groups if group.cacheable] or groups
        unit = _hash_block_size(cacheable, options)
        alignment = math.lcm(*(group.block_size for group in cacheable))
        if alignment > MOST_TOKENS:
            raise InvalidArgumentError(
                "groups", groups, f"block sizes have no common multiple up to {MOST_TOKENS} tokens"
            )
        _check_retention(options.retention_interval, alignment)
        pool = BlockPool(
            num_blocks,
            enable_caching=_caching(groups, options),
            events=options.events,
            residency=options.residency,
        )
        managers = tuple(
            group.row.manager(group.shape, i, pool, alignment, options)
            for i, group in enumerate(groups)
        )
        drop = max(m.match_margin * m.block_size if m.cacheable else 0 for m in managers)
        units = CacheUnits(unit, alignment, drop)
        verifier = TokenVerifier(options.block_hasher, unit) if options.verify_tokens else None
        publisher = Publisher(groups, managers, pool, units, options, verifier)
        return cls(pool, managers, HitSearch(managers, unit), publisher, verifier, units)


def _caching(groups: Sequence[CacheGroup], options: CacheOptions) -> bool:
    caching = options.enable_caching
    if caching is None:
        caching = all(group.row.manager.hashes_suffice for group in groups)
    return caching and any(group.cacheable for group in groups)


def _hash_block_size(groups: Sequence[CacheGroup], options: CacheOptions) -> int:
    """As given, or the greatest common divisor of the block sizes."""
    sizes = [group.block_size for group in groups]
    unit = options.hash_block_size or math.gcd(*sizes)
    wrong = [size for size in sizes if size % unit]
    if wrong:
        raise InvalidArgumentError(
            "hash_block_size", unit, f"must divide every block size, but not {wrong[0]}"
        )
    hashed = getattr(options.block_hasher, "block_size", unit)
    if hashed != unit:
        raise InvalidArgumentError(
            "block_hasher", options.block_hasher, f"hashes blocks of {hashed} tokens, not {unit}"
        )
    return unit


def _check_retention(interval: int | None, alignment: int) -> None:
    """Only multiples of the alignment are lengths of hits."""
    if interval is not None and interval % alignment:
        raise InvalidArgumentError(
            "retention_interval", interval, f"must be None, 0 or a multiple of {alignment}"
        )
