"""Questions about steps and tables that need no change of state."""

from __future__ import annotations

from collections.abc import Sequence


def chunk_end(start: int, end: int, prompt: int, junction: int, alignment: int) -> int:
    """Where a step from `start` that may reach `end` should stop for a state to be worth keeping.

    At the first of: where other requests were seen to part (`junction`), the last place where the
    same prompt can be hit, the last multiple of the alignment; `end` if none lies on the way.
    """
    last = (prompt - 1) // alignment * alignment
    for stop in sorted((junction, last)):
        if start < stop < end:
            return stop
    aligned = end // alignment * alignment
    return aligned if start < aligned and end < prompt else end


def common_blocks(tables: Sequence[Sequence[int]]) -> int:
    """How many blocks at the start are the same, and needed, in all tables."""
    count = 0
    for blocks in zip(*tables, strict=False):
        if blocks[0] == 0 or len(set(blocks)) != 1:
            break
        count += 1
    return count
