"""The write side: which computed blocks become findable, and what the events say of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from prefixhash.cache.groups import CacheGroup
from prefixhash.cache.interface import CachedRequest
from prefixhash.cache.managers import AttentionManager
from prefixhash.cache.options import CacheOptions, CacheUnits
from prefixhash.cache.scheduling import last_hit
from prefixhash.cache.search import coarse_run
from prefixhash.cache.tables import BlockTable, Held
from prefixhash.cache.verify import TokenVerifier
from prefixhash.events import StoredTokens
from prefixhash.pool.block_pool import BlockPool


class Retention(NamedTuple):
    """How densely groups that keep windows or states keep them.

    `interval` None keeps them at every aligned length, a positive number at its multiples; 0 keeps
    only those at the ends of prompts and where requests were seen to part. `drop` is how many
    matched tokens a drafter has computed again.
    """

    interval: int | None
    alignment: int
    drop: int

    def boundaries(self, request: CachedRequest, junction: int) -> list[int]:
        """The lengths at which requests with this prompt are expected to part.

        The same prompt again hits less than all of it, a longer one all of it; a drafter's drop
        comes off both. One unit less is kept, too: a request that parts inside the last unit ends
        there.
        """
        if self.interval is None:
            return []
        unit = self.alignment
        prompt = request.num_prompt_tokens
        ends = {last_hit(prompt, unit, self.drop), (prompt - self.drop) // unit * unit}
        ends |= {end - unit for end in ends}
        if junction:
            ends |= {junction, (junction - self.drop) // unit * unit}
        return [end for end in ends if end > 0]


class Run:
    """Consecutive blocks of one group that become findable together; `start` is their place."""

    __slots__ = ("hashes", "ids", "manager", "start")

    def __init__(
        self, manager: AttentionManager, start: int, ids: list[int], hashes: Sequence[bytes]
    ) -> None:
        self.manager = manager
        self.start = start
        self.ids = ids
        self.hashes = hashes


class Publisher:
    """Puts the blocks of committed tokens into the index, once each."""

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        managers: Sequence[AttentionManager],
        pool: BlockPool,
        units: CacheUnits,
        options: CacheOptions,
        verifier: TokenVerifier | None,
    ) -> None:
        self._groups = groups
        self._managers = [manager for manager in managers if manager.cacheable]
        self._pool = pool
        self._hash_block_size = units.hash_block_size
        self._alignment = units.alignment
        self._single = len(self._managers) == 1
        self.has_state = any(manager.keeps_states for manager in self._managers)
        self._retention = Retention(options.retention_interval, units.alignment, units.drop)
        self._hasher = options.block_hasher
        self._verifier = verifier

    def publish(self, held: Held, num_tokens: int, step_ends: Sequence[int]) -> None:
        """Make the full blocks of the first `num_tokens` tokens findable. O(new blocks).

        `step_ends` are positions at which steps ended, of which state groups keep the state.
        """
        exact = held.step_ends.union(step_ends) if self.has_state else held.step_ends
        known = max(num_tokens - held.lookahead, 0)
        hashed = min(known, len(held.request.block_hashes) * self._hash_block_size)
        runs: list[Run] = []
        for manager in self._managers:
            table = held.tables[manager.group]
            end = self._findable(hashed, manager) // manager.block_size
            if end > table.num_cached:
                self._collect(runs, held, manager, table, end, exact)
        # Everything that may fail (extra keys of media) comes before the first change.
        about = self._tell(held.request, runs) if self._pool.events_enabled else None
        if self._verifier is not None:
            self._verifier.record(held.request, held.records, hashed // self._hash_block_size)
        for i in range(len(runs)):
            run = runs[i]
            stored = None if about is None else about[i]
            self._pool.cache(run.ids, run.hashes, run.manager.group, stored)
            if self._verifier is not None:
                self._remember(self._verifier, held, run)
        for manager in self._managers:
            table = held.tables[manager.group]
            end = self._findable(hashed, manager) // manager.block_size
            if end > table.num_cached:
                table.num_cached = end
        if self.has_state:
            held.step_ends = {end for end in exact if end > hashed - hashed % self._alignment}

    def _findable(self, num_tokens: int, manager: AttentionManager) -> int:
        """Tokens of the longest hit that this prefix can serve, with the block for a drafter."""
        if self._single:
            return num_tokens
        aligned = num_tokens - num_tokens % self._alignment
        if manager.margin and aligned:
            return min(num_tokens, aligned + manager.block_size)
        return aligned

    def _collect(
        self,
        runs: list[Run],
        held: Held,
        manager: AttentionManager,
        table: BlockTable,
        end: int,
        exact: set[int],
    ) -> None:
        """Append the runs among the blocks up to `end` on which nothing was decided yet."""
        start = table.num_cached
        factor = manager.block_size // self._hash_block_size
        hashes = coarse_run(held.request.block_hashes, factor, start, end)
        if manager.downward_closed:
            runs.append(Run(manager, start, table.blocks[start:end], hashes))
            return
        boundaries = self._retention.boundaries(held.request, held.junction)
        mask = manager.keep_mask(start, end, self._retention.interval, boundaries)
        first = start
        for place in range(start, end + 1):
            if place == end or not self._wanted(exact, manager, table, mask, start, place):
                if place > first:
                    ids, keys = table.blocks[first:place], hashes[first - start : place - start]
                    runs.append(Run(manager, first, ids, keys))
                first = place + 1

    @staticmethod
    def _wanted(
        exact: set[int],
        manager: AttentionManager,
        table: BlockTable,
        mask: list[bool] | None,
        start: int,
        place: int,
    ) -> bool:
        if not table.blocks[place] or (mask is not None and not mask[place - start]):
            return False
        return manager.is_exact(place, exact)

    def _remember(self, verifier: TokenVerifier, held: Held, run: Run) -> None:
        factor = run.manager.block_size // self._hash_block_size
        for offset, block in enumerate(run.ids):
            record = held.records[(run.start + offset + 1) * factor - 1]
            verifier.published(block, run.manager.group, record)

    # -- events ----------------------------------------------------------------------------

    def describe_reuse(
        self, request: CachedRequest, block_ids: Sequence[Sequence[int]]
    ) -> list[tuple[Run, StoredTokens]]:
        """What `report_reuse` says of the blocks of a hit; nothing without events."""
        runs = []
        for manager in self._managers if self._pool.events_enabled else ():
            ids = block_ids[manager.group]
            first = next((place for place, block in enumerate(ids) if block), len(ids))
            factor = manager.block_size // self._hash_block_size
            hashes = coarse_run(request.block_hashes, factor, first, len(ids))
            if hashes:
                runs.append(Run(manager, first, list(ids[first:]), hashes))
        return list(zip(runs, self._tell(request, runs), strict=True))

    def report_reuse(self, described: Iterable[tuple[Run, StoredTokens]]) -> None:
        """Report the blocks of a hit once more, for consumers that missed them."""
        for run, about in described:
            self._pool.report_reuse(run.hashes, run.manager.group, about)

    def _tell(self, request: CachedRequest, runs: Sequence[Run]) -> list[StoredTokens]:
        about: list[StoredTokens] = []
        reported: set[bytes] = set()
        for run in runs:
            about.append(self._about(request, run, reported))
            reported.update(run.hashes)
        return about

    def _about(self, request: CachedRequest, run: Run, reported: set[bytes]) -> StoredTokens:
        manager = run.manager
        group = self._groups[manager.group]
        size = manager.block_size
        end = run.start + len(run.ids)
        lora = getattr(request, "lora_request", None)
        return StoredTokens(
            parent_block_hash=self._parent(request, run, reported),
            token_ids=list(request.all_token_ids[run.start * size : end * size]),
            block_size=size,
            extra_keys=[self._extra_keys(request, manager, i) for i in range(run.start, end)],
            lora_name=getattr(lora, "lora_name", None) or getattr(lora, "name", None),
            spec_kind=group.row.wire_name,
            sliding_window=group.window,
        )

    def _parent(self, request: CachedRequest, run: Run, reported: set[bytes]) -> bytes | None:
        """The hash before the run, if a consumer has heard of it."""
        if run.start == 0:
            return None
        factor = run.manager.block_size // self._hash_block_size
        parent = request.block_hashes[run.start * factor - 1]
        if run.manager.downward_closed or parent in reported:
            return parent  # stored or hit by this very request
        groups = (manager.group for manager in self._managers)
        known = any(self._pool.lookup(parent, group) is not None for group in groups)
        return parent if known else None

    def _extra_keys(
        self, request: CachedRequest, manager: AttentionManager, place: int
    ) -> tuple[Any, ...] | None:
        """What is in the hash beside tokens; per hash block where a block is several of them."""
        if self._hasher is None:
            return None
        factor = manager.block_size // self._hash_block_size
        first = place * factor
        parts = [self._hasher.extra_keys(request, first + i) for i in range(factor)]
        if factor == 1:
            return parts[0]  # type: ignore[no-any-return]
        return tuple(parts) if any(parts) else None
