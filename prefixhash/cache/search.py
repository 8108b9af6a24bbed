"""The longest prefix that every group of layers has in the cache."""

from __future__ import annotations

from collections.abc import Sequence

from prefixhash.cache.interface import CacheHit
from prefixhash.cache.managers import AttentionManager


class HitSearch:
    """Searches groups of different kinds and block sizes for one common length.

    Groups of one manager and shape are searched together. A kind that is downward closed is asked
    once; the others are asked again and again for the longest hit that is not longer than the
    shortest one found so far, until all agree. The length shrinks with every round, so this ends;
    and each answer is the longest one below its bound, so no common length is passed over.
    """

    def __init__(self, managers: Sequence[AttentionManager], hash_block_size: int) -> None:
        self.hash_block_size = hash_block_size
        self.num_groups = len(managers)
        self.no_hit = CacheHit.none(self.num_groups)
        kinds: dict[object, list[AttentionManager]] = {}
        for manager in managers:
            if manager.cacheable:
                kinds.setdefault((type(manager), manager.shape), []).append(manager)
        # Full attention first: one cheap scan from the left bounds the others.
        self.kinds = [
            (members[0], [manager.group for manager in members])
            for members in sorted(
                kinds.values(), key=lambda members: not members[0].downward_closed
            )
        ]
        self.num_open = sum(not manager.downward_closed for manager, _ in self.kinds)

    def find(self, block_hashes: Sequence[bytes], max_tokens: int) -> CacheHit:
        """The longest common hit of at most `max_tokens`. Costs the lookups of every round."""
        hashed = len(block_hashes) * self.hash_block_size
        if len(self.kinds) == 1:
            return self._find_alone(block_hashes, min(max_tokens, hashed))
        hashes = self._by_block_size(block_hashes)
        found: list[tuple[list[list[int]], int] | None] = [None] * len(self.kinds)
        length = min(max_tokens, hashed)
        longest = 0
        while length > 0:
            candidate = length
            for i, (manager, groups) in enumerate(self.kinds):
                known = found[i]
                if known is None or not manager.downward_closed:
                    # A drafter's block is matched beyond the common length, then dropped.
                    limit = candidate + manager.match_margin * manager.block_size
                    known = manager.find(hashes[manager.block_size], min(limit, hashed), groups)
                    found[i] = known
                candidate = min(candidate, known[1])
                longest = max(longest, candidate)
            converged = candidate == length or self.num_open <= 1
            length = candidate
            if converged:
                break
        return self._hit(found, max(length, 0), longest)

    def _find_alone(self, block_hashes: Sequence[bytes], max_tokens: int) -> CacheHit:
        """The same where one search answers for all groups."""
        manager, groups = self.kinds[0]
        hashes = coarse(block_hashes, manager.block_size // self.hash_block_size)
        found, num_tokens = manager.find(hashes, max_tokens, groups)
        if not num_tokens:
            return self.no_hit
        block_ids: list[Sequence[int]] = [()] * self.num_groups
        for group, ids in zip(groups, found, strict=True):
            block_ids[group] = ids
        return CacheHit(num_tokens, tuple(block_ids))

    def _by_block_size(self, block_hashes: Sequence[bytes]) -> dict[int, Sequence[bytes]]:
        views: dict[int, Sequence[bytes]] = {}
        for manager, _ in self.kinds:
            factor = manager.block_size // self.hash_block_size
            if manager.block_size not in views:
                views[manager.block_size] = coarse(block_hashes, factor)
        return views

    def _hit(
        self, found: list[tuple[list[list[int]], int] | None], length: int, longest: int
    ) -> CacheHit:
        if not length and not longest:
            return self.no_hit
        block_ids: list[Sequence[int]] = [()] * self.num_groups
        for (manager, groups), known in zip(self.kinds, found, strict=True):
            if known is not None and length:
                for group, ids in zip(groups, known[0], strict=True):
                    block_ids[group] = ids[: length // manager.block_size]
        return CacheHit(length, tuple(block_ids), longest if longest > length else 0)


def coarse(block_hashes: Sequence[bytes], factor: int) -> Sequence[bytes]:
    """The hashes of blocks `factor` times as large."""
    return block_hashes if factor == 1 else coarse_run(block_hashes, factor, 0, None)


def coarse_run(
    block_hashes: Sequence[bytes], factor: int, start: int, end: int | None
) -> Sequence[bytes]:
    """Those of the blocks start .. end - 1 only, as `CoarseBlockHashes` has them. O(result)."""
    stop = None if end is None else end * factor
    return block_hashes[(start + 1) * factor - 1 : stop : factor]
