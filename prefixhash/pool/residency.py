"""How long cached blocks live, how long they lie idle before eviction, how soon they are reused."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prefixhash._arguments import number, optional_integer
from prefixhash.errors import InvalidArgumentError

_GAPS_KEPT = 4  # accesses remembered per block: bounds the memory of a block that is always hot


class Residency(NamedTuple):
    """One sampled block at its eviction, in the unit of the sampler's clock (seconds).

    `lifetime` runs from its allocation, `idle` from its last access (allocation or hit);
    `reuse_gaps` are the times between its last hits, oldest first.
    """

    lifetime: float
    idle: float
    reuse_gaps: tuple[float, ...]


@dataclass(slots=True)
class _Watched:
    born: float
    accessed: float
    accesses: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS_KEPT))


class ResidencySampler:
    """Watches a share of the blocks that a pool hands out.

    Costs one random number per allocated block, and nothing for a pool without a sampler.

    Args:
        sample_rate: share of the allocated blocks to watch, in (0, 1].
        seed: makes the choice reproducible.
        clock: gives the time; seconds from any origin.
    """

    def __init__(
        self,
        sample_rate: float = 0.01,
        *,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sample_rate = number("sample_rate", sample_rate)
        if not 0 < self.sample_rate <= 1:
            raise InvalidArgumentError("sample_rate", sample_rate, "must lie in (0, 1]")
        if not callable(clock):
            raise InvalidArgumentError("clock", clock, "must be a function without arguments")
        self._clock = clock
        self._random = random.Random(optional_integer("seed", seed, least=None))
        self._watched: dict[int, _Watched] = {}
        self._ended: list[Residency] = []

    def take(self) -> list[Residency]:
        """The residencies that ended in an eviction since the last call."""
        ended = self._ended
        self._ended = []
        return ended

    def allocated(self, blocks: Sequence[int]) -> None:
        """Blocks were handed out, after `evicted` was told which of them were cached."""
        now = self._clock()
        draw = self._random.random
        for block in blocks:
            if draw() < self.sample_rate:
                self._watched[block] = _Watched(now, now)
            else:
                self._watched.pop(block, None)

    def touched(self, blocks: Sequence[int]) -> None:
        """Blocks were hit."""
        now = self._clock()
        for block in blocks:
            watched = self._watched.get(block)
            if watched is not None:
                watched.accessed = now
                watched.accesses.append(now)

    def evicted(self, blocks: Sequence[int]) -> None:
        """Cached blocks lost their hashes."""
        now = self._clock()
        for block in blocks:
            watched = self._watched.pop(block, None)
            if watched is not None:
                times = list(watched.accesses)
                gaps = tuple(later - sooner for sooner, later in itertools.pairwise(times))
                self._ended.append(Residency(now - watched.born, now - watched.accessed, gaps))

    def cleared(self) -> None:
        """The index was dropped: no eviction of single blocks, so nothing is recorded."""
        self._watched.clear()
