"""Blocks for a step: how many are needed, taking them, giving back what is out of reach.

Everything is counted before the first change, so a step that does not fit leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from prefixhash._arguments import integer
from prefixhash.cache.managers import AttentionManager, Slots, ceil_div
from prefixhash.cache.options import CacheOptions
from prefixhash.cache.tables import BlockTable, CachedRequest, CacheHit, Held
from prefixhash.pool import BlockPool

NewBlocks = tuple[list[int], ...]


class Step(NamedTuple):
    """What a step asks for, in tokens."""

    new: int
    lookahead: int
    encoder: int

    @classmethod
    def of(cls, new: Any, lookahead: Any, encoder: Any) -> Step:
        """Refuse a step without tokens, and negative numbers."""
        integers = type(new) is type(lookahead) is type(encoder) is int
        if integers and new > 0 and lookahead >= 0 and encoder >= 0:
            return cls(new, lookahead, encoder)  # the checks below cost more than the whole step
        return cls(
            integer("num_new_tokens", new, 1),
            integer("num_lookahead_tokens", lookahead),
            integer("num_encoder_tokens", encoder),
        )


class Allocator:
    """Moves blocks between a pool and the tables of requests."""

    def __init__(
        self, managers: Sequence[AttentionManager], pool: BlockPool, options: CacheOptions
    ) -> None:
        self._managers = managers
        self._pool = pool
        self._max_model_len = options.max_model_len
        self._watermark_blocks = int(options.watermark * pool.num_blocks)
        self._recycles = any(manager.recycles for manager in managers)

    def _slots(self, main: int, step: Step) -> Slots:
        """Slots for `main` tokens and the lookahead of the step, within the longest request."""
        tokens = main + step.lookahead
        if self._max_model_len is not None:
            tokens = min(tokens, self._max_model_len)
        return Slots(tokens, main, step.encoder)

    # -- admission -------------------------------------------------------------------------

    def fits_wholly(self, request: CachedRequest, hit: CacheHit, step: Step, others: bool) -> bool:
        """Whether all tokens that the request has so far could be computed now."""
        tokens = request.num_tokens
        if self._max_model_len is not None:
            tokens = min(tokens, self._max_model_len)
        needs = self._admission_needs(hit, Slots(tokens, tokens, step.encoder), True)
        states = self._states_beside(hit, hit.num_tokens + step.new, tokens)
        return sum(needs) + states <= self._free_for_admission(hit, others)

    def _states_beside(self, hit: CacheHit, step_end: int, num_tokens: int) -> int:
        """States that are held beside the running one when the last step of the tokens begins.

        A step that goes on in another block reads the state before it while it writes its own. If
        the first step reaches that block, there is none; a hit of nobody else is given back then.
        (Steps to come are not known: counted with all blocks of the tokens, never too few.)
        """
        count = 0
        for manager in self._managers:
            size = manager.block_size
            if manager.keeps_states and ceil_div(step_end, size) < ceil_div(num_tokens, size):
                hit_state = hit.block_ids[manager.group][-1:]
                count += not any(hit_state) or self._pool.count_free(hit_state) == 0
        return count

    def admit(self, held: Held, hit: CacheHit, step: Step, others: bool) -> NewBlocks | None:
        """Hold the blocks of the hit and new ones behind them; None if they are lacking.

        `others`: whether other requests run, for which the watermark is kept free.
        """
        slots = self._slots(hit.num_tokens + step.new, step)
        needs = self._admission_needs(hit, slots, False)
        if sum(needs) > self._free_for_admission(hit, others):
            return None
        tables = []
        for ids in hit.block_ids:
            real = [block for block in ids if block]
            if real:
                self._pool.touch(real)
            tables.append(BlockTable(list(ids), num_cached=len(ids), retired=len(ids) - len(real)))
        held.tables, held.num_computed = tables, hit.num_tokens
        held.junction = hit.shared_prefix_tokens
        return self._grow(held, needs, slots, step.new)

    def _admission_needs(self, hit: CacheHit, slots: Slots, capped: bool) -> list[int]:
        """New blocks per group for a request that holds none yet."""
        return [
            manager.blocks_to_admit(hit.block_ids[manager.group], hit.num_tokens, slots, capped)
            for manager in self._managers
        ]

    def _free_for_admission(self, hit: CacheHit, others: bool) -> int:
        """Blocks left once the hits are held (a free block that is hit is free no more)."""
        revived = sum(self._pool.count_free(filter(None, ids)) for ids in hit.block_ids)
        watermark = self._watermark_blocks if others else 0
        return self._pool.num_free_blocks - revived - watermark

    # -- further steps ---------------------------------------------------------------------

    def extend(self, held: Held, step: Step) -> NewBlocks | None:
        """Slots behind all tokens that are computed or in flight; None if blocks are lacking."""
        slots = self._slots(held.num_scheduled + step.new, step)
        needs = [
            manager.blocks_wanted(table, slots)
            for manager, table in zip(self._managers, held.tables, strict=True)
        ]
        total = sum(needs)
        places = self._out_of_reach(held) if self._recycles else ()
        if total:
            free = self._pool.num_free_blocks
            if total > free and total > free + self._freed_by(places):
                return None
        if places:
            self._give_back(places)
        return self._grow(held, needs, slots, step.new)

    def _grow(self, held: Held, needs: Sequence[int], slots: Slots, new_tokens: int) -> NewBlocks:
        held.open_step(new_tokens, slots.main)
        total = sum(needs)
        if not total:
            return tuple([[] for _ in needs])  # most steps of a decode
        taken = self._pool.allocate(total)
        new = []
        start = 0
        for manager, table, need in zip(self._managers, held.tables, needs, strict=True):
            ids = taken[start : start + need]
            start += need
            if need:
                manager.grow(table, slots, ids)
            new.append(ids)
        return tuple(new)

    # -- giving back -----------------------------------------------------------------------

    def _out_of_reach(self, held: Held) -> list[tuple[BlockTable, list[int]]]:
        """The places of each table whose blocks no token that is still to come attends to."""
        found = []
        for manager, table in zip(self._managers, held.tables, strict=True):
            places = manager.out_of_reach(table, held.num_computed)
            if places:
                found.append((table, places))
        return found

    def _freed_by(self, out_of_reach: Sequence[tuple[BlockTable, list[int]]]) -> int:
        refs = self._pool.ref_count
        return sum(
            refs(table.blocks[place]) == 1 for table, places in out_of_reach for place in places
        )

    def _give_back(self, out_of_reach: Sequence[tuple[BlockTable, list[int]]]) -> None:
        for table, places in out_of_reach:
            self._pool.free([table.blocks[place] for place in places])
            for place in places:
                table.blocks[place] = 0
            table.retired = max(table.retired, places[0] + 1)

    def trim(self, held: Held) -> None:
        """Give back what is out of reach."""
        self._give_back(self._out_of_reach(held))

    def release(self, held: Held) -> None:
        """Give back everything, group by group and tail first."""
        for table in held.tables:
            blocks = [block for block in reversed(table.blocks) if block]
            if blocks:
                self._pool.free(blocks)
