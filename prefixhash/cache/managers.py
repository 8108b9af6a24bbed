"""One manager per kind of attention: what a hit needs, what is out of reach, what must be kept.

Managers hold no state of requests; that lies in their `BlockTable`s. All lengths are tokens: of a
step that needs slots up to `tokens`, `main` leaves out the lookahead of a drafter, and `encoder` is
the length of the encoder's output, which cross attention alone stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from prefixhash.cache.options import CacheOptions, GroupShape
from prefixhash.cache.tables import UNBOUNDED, BlockTable
from prefixhash.pool.block_pool import BlockPool


def ceil_div(value: int, divisor: int) -> int:
    """Smallest integer that is not below value / divisor."""
    return -(-value // divisor)


class AttentionManager:
    """Full attention, and what the other kinds have in common with it.

    Class attributes say what sets a kind apart: `cacheable`, whether other requests can reuse its
    blocks; `downward_closed`, whether a hit implies every shorter one; `recycles`, whether blocks
    are given back while the request runs; `keeps_states`, whether a block holds the state after its
    last token, right only where a step ended; `hashes_suffice`, whether its KV depends on nothing
    but what is hashed; `serves_drafter`, whether its hits can leave a block to a drafter.

    Args:
        shape: block size and reach.
        group: index of the group in the cache, and in the pool's index.
        pool: where the blocks come from.
        alignment: hits are multiples of this many tokens, which the block size divides.
        options: those of the cache.
    """

    cacheable: ClassVar[bool] = True
    downward_closed: ClassVar[bool] = True
    recycles: ClassVar[bool] = False
    keeps_states: ClassVar[bool] = False
    hashes_suffice: ClassVar[bool] = True
    serves_drafter: ClassVar[bool] = True

    def __init__(
        self, shape: GroupShape, group: int, pool: BlockPool, alignment: int, options: CacheOptions
    ) -> None:
        self.shape = shape
        self.group = group
        self.pool = pool
        self.alignment = alignment
        self.block_size = shape.block_size
        # Blocks that a drafter needs beyond the end of a hit, and that a lookup matches there.
        self.margin = 1 if shape.eagle else 0
        self.match_margin = self.margin
        # Most blocks that a request holds at once, None if it holds all of its blocks.
        self.cap: int | None = None
        if options.max_batched_tokens is not None:
            self.cap = self.most_held(options.max_batched_tokens, options.max_model_len)

    def most_held(self, max_batched_tokens: int, max_model_len: int | None) -> int | None:
        """Most blocks that a request holds at once in a group that recycles; None elsewhere."""
        return None

    # -- lookup ----------------------------------------------------------------------------

    def find(
        self, hashes: Sequence[bytes], max_tokens: int, groups: Sequence[int]
    ) -> tuple[list[list[int]], int]:
        """The longest prefix of at most `max_tokens` that all `groups` have, and its blocks.

        `groups` share this manager's spec; `hashes` are those of its block size. For a drafter,
        `max_tokens` bounds what is matched: the hit is one block shorter.
        """
        blocks = max(max_tokens, 0) // self.block_size
        found = []
        for group in groups:
            ids = self.pool.longest_prefix(hashes, group, blocks)
            found.append(ids)
            blocks = len(ids)
        num_tokens = max(blocks - self.margin, 0) * self.block_size
        num_tokens -= num_tokens % self.alignment
        blocks = num_tokens // self.block_size
        return [ids[:blocks] for ids in found], num_tokens

    def lookup_all(self, block_hash: bytes, groups: Sequence[int]) -> list[int] | None:
        """The block of each group that carries the hash; None unless all have one."""
        found = []
        for group in groups:
            block = self.pool.lookup(block_hash, group)
            if block is None:
                return None
            found.append(block)
        return found

    # -- memory ----------------------------------------------------------------------------

    def skipped_tokens(self, num_computed: int) -> int:
        """Tokens from the start that the token at position `num_computed` does not attend to."""
        return 0

    def blocks_wanted(self, table: BlockTable, tokens: int, main: int, encoder: int) -> int:
        """New blocks for a request that holds blocks, so that all tokens have slots."""
        return max(ceil_div(tokens, self.block_size) - len(table.blocks), 0)

    def num_slots(self, table: BlockTable) -> int:
        """A step that ends at so many tokens, lookahead included, wants no new block."""
        return len(table.blocks) * self.block_size

    def next_release(self, num_computed: int) -> int:
        """The least number of computed tokens, above `num_computed`, that may free a block."""
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
        """New blocks for a request that holds none but takes the blocks of `hit`.

        `capped` asks for the whole life of the request, in which blocks are recycled.
        """
        required = ceil_div(tokens, self.block_size)
        first = max(self.skipped_tokens(num_computed) // self.block_size, len(hit))
        new = max(required - first, 0)
        if capped and self.cap is not None:
            new = min(new, max(self.cap - sum(map(bool, hit)), 0))
        return new

    def grow(self, table: BlockTable, main: int, new: list[int]) -> None:
        """Put as many new blocks as `blocks_wanted` or `blocks_to_admit` asked for in the table."""
        table.blocks.extend(new)

    def out_of_reach(self, table: BlockTable, num_computed: int) -> list[int]:
        """Places in the table whose blocks no later token attends to, tail first."""
        last = min(self.skipped_tokens(num_computed) // self.block_size, len(table.blocks))
        places: list[int] = []
        blocks = table.blocks
        for place in range(last - 1, -1, -1):
            if not blocks[place]:
                break  # everything before was given back earlier
            places.append(place)
        return places

    # -- write side ------------------------------------------------------------------------

    def keep_mask(
        self, start: int, end: int, interval: int | None, boundaries: Sequence[int]
    ) -> list[bool] | None:
        """Which of the blocks start .. end - 1 can serve a hit; None for all.

        Args:
            start, end: places in the table.
            interval: None keeps what a hit at any aligned length needs, a positive number what a
                hit at its multiples needs; 0 keeps nothing but the `boundaries`.
            boundaries: lengths at which requests with this prefix are expected to part.
        """
        return None

    def is_exact(self, place: int, step_ends: set[int]) -> bool:
        """Whether the block there holds what its hash says."""
        return True


class SlidingWindowManager(AttentionManager):
    """The last `window` tokens, the next one included; blocks before them are given back."""

    downward_closed = False
    recycles = True

    def __init__(self, shape: GroupShape, *arguments: Any) -> None:
        # A hit is known by the blocks that the next token attends to: with a window of one token
        # there were none, so the token before it stays in reach, too.
        self.window = max(shape.reach, 2)
        super().__init__(shape, *arguments)
        # Contiguous blocks that a hit needs before its end, for the next token's window.
        self.span = ceil_div(self.window - 1, self.block_size)

    def find(
        self, hashes: Sequence[bytes], max_tokens: int, groups: Sequence[int]
    ) -> tuple[list[list[int]], int]:
        """As for full attention; only the blocks of the window need to be there.

        From the right; the first block of each candidate's window is asked first, so that a
        missing prefix is passed over a window at a time: O(blocks / window) lookups.
        """
        unit = self.alignment // self.block_size
        end = max(max_tokens, 0) // self.block_size - self.margin
        end -= end % unit
        while end > 0:
            start = max(end - self.span, 0)
            missing = self._last_missing(hashes, start, end + self.margin, groups)
            if missing is None:
                break
            # No hit may need the missing block: the next one, margin included, ends before it.
            end = max(min(missing - self.margin, end - 1), 0)
            end -= end % unit
        end = max(end, 0)
        start = max(end - self.span, 0)
        found = [[0] * start for _ in groups]
        for block_hash in hashes[start:end]:
            for ids, block in zip(found, self.lookup_all(block_hash, groups) or (), strict=True):
                ids.append(block)
        return found, end * self.block_size

    def _last_missing(
        self, hashes: Sequence[bytes], start: int, end: int, groups: Sequence[int]
    ) -> int | None:
        if self.lookup_all(hashes[start], groups) is None:
            return start
        for place in range(end - 1, start, -1):
            if self.lookup_all(hashes[place], groups) is None:
                return place
        return None

    def most_held(self, max_batched_tokens: int, max_model_len: int | None) -> int | None:
        """The window and a step; one more, since a window need not begin at a block's edge."""
        return 1 + _blocks_of(self, self.window - 1 + max_batched_tokens, max_model_len)

    def skipped_tokens(self, num_computed: int) -> int:
        """Tokens before the window of the token at position `num_computed`."""
        return max(num_computed - self.window + 1, 0)

    def next_release(self, num_computed: int) -> int:
        """Where the window leaves the block that it begins in."""
        first = self.skipped_tokens(num_computed) // self.block_size
        return (first + 1) * self.block_size + self.window - 1

    def keep_mask(
        self, start: int, end: int, interval: int | None, boundaries: Sequence[int]
    ) -> list[bool] | None:
        """The span before each boundary, and the block after it for a drafter."""
        segment = self.alignment if interval is None else interval
        unit = segment // self.block_size
        needed = self.span + self.margin
        if segment and needed >= unit:
            return None
        mask = [False] * (end - start)
        if segment:
            for place in range(max(start, self.margin), end):
                mask[place - start] = (place - self.margin) % unit >= unit - needed
        if interval is not None:
            for boundary in boundaries:
                edge = boundary // self.alignment * self.alignment // self.block_size + self.margin
                for place in range(max(start, edge - needed), min(end, edge)):
                    mask[place - start] = True
        return mask


class ChunkedLocalManager(AttentionManager):
    """The tokens of the current chunk; blocks of earlier chunks are given back."""

    downward_closed = False
    recycles = True
    serves_drafter = False

    def __init__(self, shape: GroupShape, *arguments: Any) -> None:
        self.chunk = shape.reach
        super().__init__(shape, *arguments)

    def find(
        self, hashes: Sequence[bytes], max_tokens: int, groups: Sequence[int]
    ) -> tuple[list[list[int]], int]:
        """As for full attention; only blocks of the chunk in which the hit ends are needed."""
        unit = self.alignment // self.block_size
        end = max(max_tokens, 0) // self.block_size
        end -= end % unit
        while end > 0:
            start = self.skipped_tokens(end * self.block_size) // self.block_size
            run = [self.lookup_all(key, groups) for key in hashes[start:end]]
            if None not in run:
                break
            end = start + run.index(None)
            end -= end % unit
        end = max(end, 0)
        start = self.skipped_tokens(end * self.block_size) // self.block_size
        found = [[0] * start for _ in groups]
        for block_hash in hashes[start:end]:
            for ids, block in zip(found, self.lookup_all(block_hash, groups) or (), strict=True):
                ids.append(block)
        return found, end * self.block_size

    def most_held(self, max_batched_tokens: int, max_model_len: int | None) -> int | None:
        """The chunk and a step."""
        return _blocks_of(self, self.chunk + max_batched_tokens, max_model_len)

    def skipped_tokens(self, num_computed: int) -> int:
        """Tokens before the chunk of the token at position `num_computed`."""
        return num_computed // self.chunk * self.chunk

    def next_release(self, num_computed: int) -> int:
        """The end of the chunk."""
        return self.skipped_tokens(num_computed) + self.chunk


def _blocks_of(manager: AttentionManager, num_tokens: int, max_model_len: int | None) -> int:
    """Blocks of so many tokens, or of the longest request if that is shorter."""
    if max_model_len is not None:
        num_tokens = min(num_tokens, max_model_len)
    return ceil_div(num_tokens, manager.block_size)
