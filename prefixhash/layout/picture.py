"""Which layers own which bytes of one block: what the pictures of a plan are drawn from.

A block belongs to one group at a time, so that every group has its own row over the same bytes.
Where each slot is a buffer of its own, the block's pages are shown side by side, in slot order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from prefixhash.layout.groups import KVCacheGroup
from prefixhash.layout.plan import KVCachePlan

_NUMBER = re.compile(r"\d+")


class Segment(NamedTuple):
    """Bytes `start` ... `end` of a block: the page of `layer`, or unused (None).

    `used`: bytes of them that hold data; the rest pads the page.
    """

    start: int
    end: int
    layer: str | None
    used: int


class Run(NamedTuple):
    """Neighbouring pages that repeat one pattern, or bytes that nothing uses (no `layers`).

    The pattern is `parts` (last names of its layers) with pages of `page_sizes` bytes, of which
    `used` hold data; `layers` holds all repetitions.
    """

    start: int
    end: int
    layers: tuple[str, ...]
    parts: tuple[str, ...] = ()
    page_sizes: tuple[int, ...] = ()
    used: tuple[int, ...] = ()

    @property
    def repeats(self) -> int:
        """How often the pattern occurs."""
        return len(self.layers) // max(len(self.parts), 1)

    @property
    def label(self) -> str:
        """`9 x attn`, `61 x attn+indexer`, or `unused`."""
        return f"{self.repeats} x {'+'.join(self.parts)}" if self.layers else "unused"


# Most layers in a pattern that repeats within a group.
_LONGEST_PATTERN = 4


def block_segments(plan: KVCachePlan) -> tuple[tuple[Segment, ...], ...]:
    """For each group, its segments in order; together they cover the block without overlap."""
    starts = _slot_starts(plan)
    return tuple(_segments(plan, group, starts) for group in plan.groups)


def block_runs(segments: Sequence[Segment]) -> tuple[Run, ...]:
    """Segments joined where one pattern of pages repeats, such as equal pages of like layers."""
    keys = [(segment.layer and layer_part(segment.layer), _size(segment)) for segment in segments]
    runs: list[Run] = []
    position = 0
    while position < len(segments):
        pattern, repeats = _pattern(keys, position)
        joined = segments[position : position + pattern * repeats]
        runs.append(_joined(joined, pattern))
        position += len(joined)
    return tuple(runs)


def _joined(segments: Sequence[Segment], pattern: int) -> Run:
    start, end = segments[0].start, segments[-1].end
    layers = tuple(segment.layer for segment in segments if segment.layer is not None)
    if not layers:
        return Run(start, end, ())
    parts = tuple(map(layer_part, layers[:pattern]))
    first = segments[:pattern]
    return Run(start, end, layers, parts, tuple(map(_size, first)), tuple(s.used for s in first))


def _pattern(keys: Sequence[tuple[str | None, int]], start: int) -> tuple[int, int]:
    """Length and repetitions of the pattern at `start` that covers most; unused: alone."""
    best = (1, 1)
    for length in range(1, _LONGEST_PATTERN + 1):
        pattern = keys[start : start + length]
        if len(pattern) < length or any(layer is None for layer, _ in pattern):
            break
        repeats = 1
        while keys[start + length * repeats : start + length * (repeats + 1)] == pattern:
            repeats += 1
        if repeats > 1 and length * repeats > best[0] * best[1]:
            best = (length, repeats)
    return best


def _size(segment: Segment) -> int:
    return segment.end - segment.start


def layer_number(name: str) -> str:
    """`layers.17.attn` is layer `17`; a name without a number is its own label."""
    found = _NUMBER.search(name)
    return found[0] if found else name


def layer_part(name: str) -> str:
    """Last part of a layer's name: `attn`, `state`, `indexer`; or the name."""
    return name.rsplit(".", 1)[-1]


def number_ranges(names: Sequence[str]) -> str:
    """Layer numbers in their order, `0-2, 7, 9 ... 21` (even steps); other names as they are."""
    labels = [layer_number(name) for name in names]
    pieces: list[str] = []
    position = 0
    while position < len(labels):
        length, step = _progression(labels[position:])
        last = labels[position + length - 1]
        if step == 1 and length > 1:
            pieces.append(f"{labels[position]}-{last}")
        elif length > 3:
            pieces.append(f"{labels[position]}, {labels[position + 1]} ... {last}")
        else:
            length = 1
            pieces.append(labels[position])
        position += length
    return ", ".join(pieces)


def _progression(labels: Sequence[str]) -> tuple[int, int]:
    """Length and step of the run of numbers in even steps that begins here."""
    if len(labels) < 2 or not (labels[0].isdigit() and labels[1].isdigit()):
        return 1, 0
    step = int(labels[1]) - int(labels[0])
    length = 1
    while (
        length < len(labels)
        and labels[length].isdigit()
        and int(labels[length]) - int(labels[length - 1]) == step
    ):
        length += 1
    return length, step


def _slot_starts(plan: KVCachePlan) -> tuple[int, ...]:
    slots = plan.layout.slots
    if plan.layout.packed:
        return tuple(slot.offset for slot in slots)
    starts, position = [], 0
    for slot in slots:
        starts.append(position)
        position += slot.page_size
    return tuple(starts)


def _segments(plan: KVCachePlan, group: KVCacheGroup, starts: Sequence[int]) -> tuple[Segment, ...]:
    slots = plan.layout.slots
    owned = sorted(
        (starts[index], starts[index] + slots[index].page_size, name, spec.content_size_bytes)
        for name, spec in zip(group.layer_names, group.specs, strict=True)
        for index in (plan.layout.slot_of[name],)
    )
    segments: list[Segment] = []
    position = 0
    for start, end, name, used in owned:
        if start > position:
            segments.append(Segment(position, start, None, 0))
        segments.append(Segment(start, end, name, used))
        position = end
    if position < plan.bytes_per_block:
        segments.append(Segment(position, plan.bytes_per_block, None, 0))
    return tuple(segments)
