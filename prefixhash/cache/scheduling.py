"""Questions about steps and tables that need no change of state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def last_hit(num_tokens: int, alignment: int, drop: int) -> int:
    """The longest hit of a prompt of `num_tokens` that was computed before; may be below 0.

    Its last token is computed in any case; a drafter drops the last `drop` tokens that match.
    """
    return (num_tokens - max(drop, 1)) // alignment * alignment


def chunk_end(start: int, end: int, prompt: int, stops: Iterable[int], alignment: int) -> int:
    """Where a step from `start` that may reach `end` should stop for a state to be worth keeping.

    At the first of the `stops`; within the prompt, else, at the last multiple of the alignment;
    `end` if none lies on the way.
    """
    for stop in sorted(stops):
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
