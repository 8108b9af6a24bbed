"""A second cache, written for clarity: keys are token prefixes, hits are found by brute force.

Every rule is stated by what it means (which tokens does the next token attend to?), not by how a
search would find it. The pool below it is the naive pool of tests/pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from prefixhash.cache import CacheGroup

from ..pool.naive import NaivePool


@dataclass
class NaiveRequest:
    tables: list[list[int]]
    computed: int
    generation: int
    steps: list[int] = field(default_factory=list)
    ends: set[int] = field(default_factory=set)
    decided: list[int] = field(default_factory=list)


def attended(group: CacheGroup, position: int) -> range:
    """The earlier tokens that the token at `position` needs of this group."""
    if group.kind == "sliding_window":
        # One token before, at least: a hit is known by its block.
        return range(max(position - max(group.window or 1, 2) + 1, 0), position)
    if group.kind == "chunked_local":
        return range(position // (group.chunk or 1) * (group.chunk or 1), position)
    if group.kind == "mamba":
        return range(max(position - 1, 0), position)
    return range(position)


def places(group: CacheGroup, position: int) -> list[int]:
    """The blocks of the group that hold what the token at `position` attends to."""
    return sorted({token // group.block_size for token in attended(group, position)})


# Kinds whose blocks depend on something else than the tokens, or that have none.
OTHERS = ("cross_attention", "encoder_only")


class NaiveCache:
    def __init__(self, groups: list[CacheGroup], num_blocks: int, limit: int | None = None) -> None:
        self.groups = groups
        self.reusable = [i for i, group in enumerate(groups) if group.kind not in OTHERS]
        sizes = [groups[i].block_size for i in self.reusable]
        self.unit = math.gcd(*sizes)
        self.alignment = math.lcm(*sizes)
        self.pool = NaivePool(num_blocks)
        self.running: dict[str, NaiveRequest] = {}
        self.preempted: set[str] = set()
        self.generation = 0
        self.limit = limit
        self.stats = [0, 0, 0, 0, 0, 0]

    # -- hits ------------------------------------------------------------------------------

    def needed(self, group: CacheGroup, length: int) -> list[int]:
        """Blocks that must be cached for a hit of this length."""
        needed = places(group, length)
        if group.kind == "full_attention":
            needed = list(range(length // group.block_size))
        if group.eagle and group.kind != "mamba":
            needed.append(length // group.block_size)
        return needed

    def cached(self, tokens: tuple[int, ...], index: int, place: int) -> int | None:
        end = (place + 1) * self.groups[index].block_size
        return self.pool.lookup(tokens[:end], index) if end <= len(tokens) else None

    def lookup(self, tokens: tuple[int, ...]) -> tuple[int, list[list[int]]]:
        usable = tokens[: len(tokens) // self.unit * self.unit]
        if len(self.reusable) == 1:
            usable = tokens[: max(len(tokens) - 1, 0) // self.unit * self.unit]
        longest = max(len(tokens) - 1, 0) // self.alignment * self.alignment
        for length in range(longest, 0, -self.alignment):
            if all(
                self.cached(usable, i, place) is not None
                for i in self.reusable
                for place in self.needed(self.groups[i], length)
            ):
                return length, list(self._hit_tables(tokens, length))
        return 0, [[] for _ in self.groups]

    def _hit_tables(self, tokens: tuple[int, ...], length: int) -> Iterator[list[int]]:
        for i, group in enumerate(self.groups):
            if i not in self.reusable:
                yield []
                continue
            wanted = places(group, length) if group.kind != "full_attention" else range(10**6)
            yield [
                (self.cached(tokens, i, place) or 0) if place in wanted else 0
                for place in range(length // group.block_size)
            ]

    def stale(self, tokens: tuple[int, ...], tables: list[list[int]]) -> bool:
        return any(
            block and (i, tokens[: (place + 1) * group.block_size]) not in self.pool.hashes(block)
            for i, (group, table) in enumerate(zip(self.groups, tables, strict=True))
            for place, block in enumerate(table)
        )

    # -- steps -----------------------------------------------------------------------------

    def _capped(self, tokens: int) -> int:
        return tokens if self.limit is None else min(tokens, self.limit)

    def _missing(
        self, tables: list[list[int]], slots: int, main: int, encoder: int, first: bool
    ) -> list[int]:
        """New blocks per group; of states one, and those for drafts with the first."""
        missing = []
        for group, table in zip(self.groups, tables, strict=True):
            tokens = {"mamba": main, "cross_attention": encoder, "encoder_only": 0}
            length = math.ceil(tokens.get(group.kind, slots) / group.block_size)
            blocks = max(length + group.speculative_blocks - len(table), 0)
            if group.kind == "mamba":
                blocks = min(blocks, 1 + group.speculative_blocks if first else 1)
            missing.append(blocks)
        return missing

    def _grow(
        self, tables: list[list[int]], missing: list[int], main: int, first: bool
    ) -> list[list[int]]:
        new = []
        for group, table, count in zip(self.groups, tables, missing, strict=True):
            taken = self.pool.allocate(count)
            new.append(taken)
            if group.kind == "mamba" and count:
                # The running state stands at the place of the step's last token, the states for
                # drafts behind it: those in its way move to the end.
                running = math.ceil(main / group.block_size) - 1
                drafts = 0 if first else group.speculative_blocks
                begin = len(table) - drafts
                stay = table[running:]
                moved = table[begin : len(table) - len(stay)]
                table[begin:] = [0] * (running - begin) + stay + moved
            table.extend(taken)
        return new

    def admit(
        self, name: str, tokens: tuple[int, ...], hit: list[list[int]], length: int, new: int,
        ahead: int, encoder: int = 0,
    ) -> list[list[int]] | None:  # fmt: skip
        tables = [list(table) for table in hit]
        main = length + new
        missing = self._missing(tables, self._capped(main + ahead), main, encoder, True)
        wanted = {block for table in tables for block in table if block}
        free_hits = sum(block in self.pool.order for block in wanted)
        if sum(missing) > len(self.pool.order) - free_hits:
            return None
        for table in tables:
            self.pool.touch([block for block in table if block])
        request = NaiveRequest(tables, length, self.generation, [new])
        request.decided = [len(table) for table in tables]
        self.running[name] = request
        first = 3 if name in self.preempted else 0
        self.preempted.discard(name)
        for i, value in enumerate((1, len(tokens), length)):
            self.stats[first + i] += value
        return self._grow(tables, missing, main, True)

    def extend(self, name: str, new: int, ahead: int, encoder: int = 0) -> list[list[int]] | None:
        request = self.running[name]
        main = request.computed + sum(request.steps) + new
        missing = self._missing(request.tables, self._capped(main + ahead), main, encoder, False)
        gone = self._unreachable(request)
        last_holds = sum(self.pool.refs[request.tables[i][place]] == 1 for i, place in gone)
        if sum(missing) > len(self.pool.order) + last_holds:
            return None
        self.trim(name)
        request.steps.append(new)
        return self._grow(request.tables, missing, main, False)

    def _unreachable(self, request: NaiveRequest) -> list[tuple[int, int]]:
        """Blocks that neither the next token nor a later one attends to, tail first."""
        found = []
        for i, (group, table) in enumerate(zip(self.groups, request.tables, strict=True)):
            needed = attended(group, request.computed)
            first = needed.start // group.block_size
            found += [(i, p) for p in range(min(first, len(table)) - 1, -1, -1) if table[p]]
        return found

    def trim(self, name: str) -> None:
        request = self.running[name]
        gone = self._unreachable(request)
        for i in range(len(self.groups)):
            self.pool.free([request.tables[i][place] for j, place in gone if i == j])
        for i, place in gone:
            request.tables[i][place] = 0

    def commit(self, name: str, tokens: tuple[int, ...], computed: int) -> None:
        request = self.running[name]
        position = request.computed
        while request.steps and position < computed:
            position += request.steps.pop(0)
            if position <= computed:
                request.ends.add(position)
        request.computed = computed
        if request.generation != self.generation:
            return
        known = min(computed, len(tokens) // self.unit * self.unit)
        for i in self.reusable:
            group = self.groups[i]
            end = self._findable(group, known) // group.block_size
            for place in range(request.decided[i], end):
                block = request.tables[i][place]
                length = (place + 1) * group.block_size
                exact = group.kind != "mamba" or length in request.ends
                if block and exact and self._useful(group, place):
                    self.pool.cache([block], [tokens[:length]], i)
            request.decided[i] = max(request.decided[i], end)

    def _findable(self, group: CacheGroup, known: int) -> int:
        if len(self.reusable) == 1:
            return known
        aligned = known // self.alignment * self.alignment
        return min(known, aligned + (group.block_size if group.eagle and aligned else 0))

    def _useful(self, group: CacheGroup, place: int) -> bool:
        """Whether a hit of some aligned length needs the block."""
        if group.kind != "sliding_window":
            return True
        end = (place + 1) * group.block_size
        lengths = range(self.alignment, end + self.alignment * 8, self.alignment)
        span = [n for n in lengths if place in self.needed(group, n)]
        return bool(span)

    # -- end -------------------------------------------------------------------------------

    def release(self, name: str, *, preempt: bool) -> None:
        request = self.running.pop(name, None)
        for table in request.tables if request else ():
            self.pool.free([block for block in reversed(table) if block])
        self.preempted.discard(name)
        if preempt:
            self.preempted.add(name)

    def reset(self, new_generation: bool) -> bool:
        done = self.pool.reset(force=new_generation)
        self.generation += new_generation
        return done
