"""Opaque block ids as dense integers, and whether they are prefix hashes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from prefixhash.trace.records import BlockId


class Interner:
    """Numbers block ids in order of first appearance, from 0.

    `chained` stays true while every id always follows the same id (or always stands first): then
    an id names a whole prefix. Memory: one entry for each distinct id.
    """

    def __init__(self) -> None:
        # A default factory that counts numbers a whole request in one call of map.
        self._numbers: defaultdict[BlockId, int] = defaultdict(itertools.count().__next__)
        self._parents: list[int] = []
        self.chained = True

    def __len__(self) -> int:
        return len(self._numbers)

    def intern(self, ids: Sequence[BlockId]) -> list[int]:
        """The numbers of `ids`. O(len(ids))."""
        known = len(self._numbers)
        numbers = list(map(self._numbers.__getitem__, ids))
        if self.chained:
            self._check_chain(numbers, known)
        return numbers

    def depths(self) -> list[int]:
        """The place of each id in its prefix, from 0; only while `chained` held."""
        depths: list[int] = []
        for parent in self._parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    def _check_chain(self, numbers: list[int], known: int) -> None:
        """Keeps `chained` true only while each id has one predecessor; takes in the new ids'."""
        parents = self._parents
        fresh = len(self._numbers) - known
        old = numbers
        if fresh:
            # In a chain whatever follows a new id is new. New ids are numbered as they appear, so
            # if the first stands where the last `fresh` places begin, these hold all of them.
            old = numbers[:-fresh]
            if numbers[-fresh] != known:
                self.chained = False
                return
            parents.append(old[-1] if old else -1)
            parents.extend(range(known, known + fresh - 1))
        if old and (old[0] >= known or list(map(parents.__getitem__, old)) != [-1, *old[:-1]]):
            del parents[known:]
            self.chained = False
