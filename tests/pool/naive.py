"""A second pool, written for clarity: lists are copied, every question is a scan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class Refused(Exception):
    """The call must raise and change nothing."""


class NaivePool:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = dict.fromkeys(range(1, num_blocks), 0)
        self.order = list(range(1, num_blocks))
        # One entry per (group, hash, block), in order of insertion.
        self.entries: list[tuple[int, Hashable, int]] = []

    def hashes(self, block: int) -> list[tuple[int, Hashable]]:
        return [(group, key) for group, key, owner in self.entries if owner == block]

    def lookup(self, key: Hashable, group: int) -> int | None:
        return next((b for g, k, b in self.entries if (g, k) == (group, key)), None)

    def keys(self) -> set[tuple[int, Hashable]]:
        return {(group, key) for group, key, _ in self.entries}

    def evict(self, blocks: list[int]) -> None:
        if any(block not in self.refs and block != 0 for block in blocks):
            raise Refused
        self.entries = [entry for entry in self.entries if entry[2] not in blocks]

    def allocate(self, n: int) -> list[int]:
        if not 0 <= n <= len(self.order):
            raise Refused
        taken, self.order = self.order[:n], self.order[n:]
        self.evict(taken)
        for block in taken:
            self.refs[block] = 1
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if block not in self.refs or (self.refs[block] == 0 and not self.hashes(block)):
                raise Refused
        for block in blocks:
            self.refs[block] += 1
        self.order = [block for block in self.order if block not in blocks]

    def free(self, blocks: list[int]) -> None:
        if any(self.refs.get(block, 0) < n for block, n in Counter(blocks).items()):
            raise Refused
        gone = []
        for block in blocks:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                gone.append(block)
        plain = [block for block in gone if not self.hashes(block)]
        cached = [block for block in gone if self.hashes(block)]
        self.order = plain + self.order + cached

    def cache(self, blocks: list[int], keys: list[Hashable], group: int) -> None:
        if len(blocks) != len(keys) or any(self.refs.get(block, 0) == 0 for block in blocks):
            raise Refused
        for block, key in zip(blocks, keys, strict=True):
            if (group, key, block) not in self.entries:
                self.entries.append((group, key, block))

    def reset(self, force: bool) -> bool:
        if any(self.refs.values()) and not force:
            return False
        self.entries = []
        return True
