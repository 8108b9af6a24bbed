"""Blocks for a step: how many are needed, taking them, giving back what is out of reach.

Everything is counted before the first change, so a step that does not fit leaves no trace. A step
of a decode mostly needs no block and leaves no window: `Held.is_quiet` knows that from two numbers
that are worked out here whenever blocks were taken, and nothing of this is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefixhash.cache.interface import CachedRequest, CacheHit
from prefixhash.cache.managers import AttentionManager, ceil_div
from prefixhash.cache.options import CacheOptions
from prefixhash.cache.tables import UNBOUNDED, BlockTable, Held
from prefixhash.pool.block_pool import BlockPool

NewBlocks = tuple[Sequence[int], ...]


class Allocator:
    """Moves blocks between a pool and the tables of requests.

    Lengths are tokens: `new` of a step, `lookahead` behind it for a drafter, `encoder` of the
    encoder's output.
    """

    def __init__(
        self, managers: Sequence[AttentionManager], pool: BlockPool, options: CacheOptions
    ) -> None:
        self._managers = tuple(managers)
        self._pool = pool
        self._longest = UNBOUNDED if options.max_model_len is None else options.max_model_len
        self._watermark_blocks = int(options.watermark * pool.num_blocks)
        self._recycles = any(manager.recycles for manager in managers)
        self._nothing_new: NewBlocks = ((),) * len(self._managers)

    # -- admission -------------------------------------------------------------------------

    def fits_wholly(
        self, request: CachedRequest, hit: CacheHit, new: int, encoder: int, others: bool
    ) -> bool:
        """Whether all tokens that the request has so far could be computed now."""
        tokens = min(request.num_tokens, self._longest)
        needs = self._admission_needs(hit, tokens, tokens, encoder, True)
        states = self._states_beside(hit, hit.num_tokens + new, tokens)
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

    def admit(
        self, held: Held, hit: CacheHit, new: int, lookahead: int, encoder: int, others: bool
    ) -> NewBlocks | None:
        """Hold the blocks of the hit and new ones behind them; None if they are lacking.

        `others`: whether other requests run, for which the watermark is kept free.
        """
        main = hit.num_tokens + new
        tokens = min(main + lookahead, self._longest)
        needs = self._admission_needs(hit, tokens, main, encoder, False)
        if sum(needs) > self._free_for_admission(hit, others):
            return None
        tables = []
        for ids in hit.block_ids:
            real = real_blocks(ids)
            if real:
                self._pool.touch(real)
            tables.append(BlockTable(list(ids), len(ids), len(ids) - len(real)))
        held.tables, held.num_computed = tables, hit.num_tokens
        held.junction = hit.shared_prefix_tokens
        return self._grow(held, needs, new, main)

    def _admission_needs(
        self, hit: CacheHit, tokens: int, main: int, encoder: int, capped: bool
    ) -> list[int]:
        """New blocks per group for a request that holds none yet."""
        needs = []
        for manager in self._managers:
            ids = hit.block_ids[manager.group]
            need = manager.blocks_to_admit(ids, hit.num_tokens, tokens, main, encoder, capped)
            needs.append(need)
        return needs

    def _free_for_admission(self, hit: CacheHit, others: bool) -> int:
        """Blocks left once the hits are held (a free block that is hit is free no more)."""
        free = self._pool.num_free_blocks
        for ids in hit.block_ids:
            if ids:
                free -= self._pool.count_free(real_blocks(ids))
        return free - self._watermark_blocks if others else free

    # -- further steps ---------------------------------------------------------------------

    def extend(self, held: Held, new: int, lookahead: int, encoder: int) -> NewBlocks | None:
        """Slots behind all tokens that are computed or in flight; None if blocks are lacking."""
        main = held.num_scheduled + new
        if not encoder and held.is_quiet(main + lookahead):
            held.open_step(new, main)
            return self._nothing_new
        tokens = min(main + lookahead, self._longest)
        needs = []
        total = 0
        for manager in self._managers:
            need = manager.blocks_wanted(held.tables[manager.group], tokens, main, encoder)
            needs.append(need)
            total += need
        places = self._out_of_reach(held) if self._recycles else []
        if total:
            free = self._pool.num_free_blocks
            if total > free and total > free + self._freed_by(places):
                return None
        if places:
            self._give_back(places)
        return self._grow(held, needs, new, main)

    def _grow(self, held: Held, needs: list[int], new_tokens: int, main: int) -> NewBlocks:
        """Take the blocks, open the step, and work out which further steps will be quiet."""
        held.open_step(new_tokens, main)
        total = sum(needs)
        taken = self._pool.allocate(total) if total else []
        new: list[Sequence[int]] = []
        start = 0
        num_slots = next_release = UNBOUNDED
        for manager in self._managers:
            table = held.tables[manager.group]
            need = needs[manager.group]
            if need:
                ids = taken[start : start + need] if need < total else taken
                start += need
                manager.grow(table, main, ids)
                new.append(ids)
            else:
                new.append(())
            num_slots = min(num_slots, manager.num_slots(table))
            next_release = min(next_release, manager.next_release(held.num_computed))
        held.num_slots = num_slots
        held.next_release = next_release
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
        count = 0
        for table, places in out_of_reach:
            for place in places:
                count += refs(table.blocks[place]) == 1
        return count

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
            blocks = real_blocks(table.blocks[::-1])
            if blocks:
                self._pool.free(blocks)


def real_blocks(ids: Sequence[int]) -> Sequence[int]:
    """The ids without the null block, which fills places that need no memory; mostly all."""
    for block in ids:
        if not block:
            return [block for block in ids if block]
    return ids
