"""State-space layers, whose states are aligned with blocks; and layers of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixhash.cache.managers import AttentionManager, ceil_div
from prefixhash.cache.options import GroupShape
from prefixhash.cache.tables import UNBOUNDED, BlockTable


class MambaManager(AttentionManager):
    """A block holds the state after the last token of its step; only the last state is needed.

    A step that ends at a block boundary leaves a state that can be hit there. The table has the
    running state in its last place (before the speculative blocks) and 0 in most others.
    """

    downward_closed = False
    recycles = True
    keeps_states = True

    def __init__(self, shape: GroupShape, *arguments: Any) -> None:
        super().__init__(shape, *arguments)
        self.match_margin = 0  # a drafter has no state layers; the other groups drop for it

    def find(
        self, hashes: Sequence[bytes], max_tokens: int, groups: Sequence[int]
    ) -> tuple[list[list[int]], int]:
        """The longest aligned prefix at whose very end all groups have a state.

        No margin for a drafter: drafters have no state layers, the other groups drop for it.
        """
        unit = self.alignment // self.block_size
        end = max(max_tokens, 0) // self.block_size
        for place in range(end - end % unit, 0, -unit):
            states = self.lookup_all(hashes[place - 1], groups)
            if states is not None:
                return [[0] * (place - 1) + [block] for block in states], place * self.block_size
        return [[] for _ in groups], 0

    def skipped_tokens(self, num_computed: int) -> int:
        """All tokens but the last: the state after it is the only one that is read."""
        return max(num_computed - 1, 0)

    def next_release(self, num_computed: int) -> int:
        """Where another block holds the state that is read."""
        return (self.skipped_tokens(num_computed) // self.block_size + 1) * self.block_size + 1

    def num_slots(self, table: BlockTable) -> int:
        """Up to the end of the running state's block."""
        return (len(table.blocks) - self.shape.speculative_blocks) * self.block_size

    def blocks_wanted(self, table: BlockTable, tokens: int, main: int, encoder: int) -> int:
        """One block for the new state, and the speculative ones at first.

        Lookahead tokens get no slots: drafters have no state layers.
        """
        spare = self.shape.speculative_blocks
        missing = ceil_div(main, self.block_size) + spare - len(table.blocks)
        return max(min(missing, 1 if table.started else 1 + spare), 0)

    def blocks_to_admit(
        self,
        hit: Sequence[int],
        num_computed: int,
        tokens: int,
        main: int,
        encoder: int,
        capped: bool,
    ) -> int:
        """As `blocks_wanted`, behind the blocks of the hit."""
        return self.blocks_wanted(BlockTable(list(hit)), tokens, main, encoder)

    def grow(self, table: BlockTable, main: int, new: list[int]) -> None:
        """Move the running state to a new block; speculative blocks move along with it."""
        blocks = table.blocks
        spare = self.shape.speculative_blocks
        running = ceil_div(main, self.block_size) - 1  # place of the new running state
        length = len(blocks)
        if running + 1 + spare > length:
            blocks.extend([0] * (running - length))
            if table.started:
                for place in range(length - spare, min(length, running)):
                    blocks.append(blocks[place])
                    blocks[place] = 0
        blocks.extend(new)
        table.started = True

    def out_of_reach(self, table: BlockTable, num_computed: int) -> list[int]:
        """States before the one that is read next; gaps between them are skipped."""
        blocks = table.blocks
        last = min(self.skipped_tokens(num_computed) // self.block_size, len(blocks))
        places = [place for place in range(last - 1, table.retired - 1, -1) if blocks[place]]
        if not places:
            table.retired = max(table.retired, last)  # a long gap is walked over once
        return places

    def keep_mask(
        self, start: int, end: int, interval: int | None, boundaries: Sequence[int]
    ) -> list[bool] | None:
        """The state at each boundary."""
        if interval is None or 0 < interval <= self.block_size:
            return None
        mask = [False] * (end - start)
        if interval:
            unit = interval // self.block_size
            for place in range(start, end):
                mask[place - start] = (place + 1) % unit == 0
        for boundary in boundaries:
            place = boundary // self.alignment * self.alignment // self.block_size - 1
            if start <= place < end:
                mask[place - start] = True
        return mask

    def is_exact(self, place: int, step_ends: set[int]) -> bool:
        """A state is what its hash says only if a step ended at that very token."""
        return (place + 1) * self.block_size in step_ends


class UncachedManager(AttentionManager):
    """What no hash of tokens stands for: nothing is found, nothing is published.

    No token of the decoder wants a block.
    """

    cacheable = False
    downward_closed = False

    def num_slots(self, table: BlockTable) -> int:
        """No step of the decoder wants a block."""
        return UNBOUNDED

    def blocks_to_admit(
        self,
        hit: Sequence[int],
        num_computed: int,
        tokens: int,
        main: int,
        encoder: int,
        capped: bool,
    ) -> int:
        """As `blocks_wanted` of an empty table."""
        return self.blocks_wanted(BlockTable([]), tokens, main, encoder)


class CrossAttentionManager(UncachedManager):
    """Keys and values of the encoder's output: allocated once, never grown, never cached."""

    hashes_suffice = False

    def blocks_wanted(self, table: BlockTable, tokens: int, main: int, encoder: int) -> int:
        """Blocks for the encoder's tokens."""
        return max(ceil_div(encoder, self.block_size) - len(table.blocks), 0)


class EncoderOnlyManager(UncachedManager):
    """Keeps nothing between steps."""

    def blocks_wanted(self, table: BlockTable, tokens: int, main: int, encoder: int) -> int:
        """None."""
        return 0
