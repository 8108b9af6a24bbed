"""The pool against the naive one, `check()` and a replay of the events after every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixhash import PrefixHashError
from prefixhash.events import AllBlocksCleared, BlockRemoved, BlockStored
from prefixhash.pool import BlockPool

from .naive import NaivePool, Refused

BLOCKS = 9
ids = st.lists(st.integers(-1, BLOCKS), max_size=5)
held = st.lists(st.integers(0, 20), max_size=5)
keys = st.integers(0, 6)
groups = st.integers(0, 1)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, events=True)
        self.naive = NaivePool(BLOCKS)
        self.reported: set[Any] = set()

    def both(self, real: Callable[[], Any], naive: Callable[[], Any]) -> Any:
        try:
            expected = naive()
        except Refused:
            with pytest.raises(PrefixHashError):
                real()
            return None
        assert real() == expected
        return expected

    def pick(self, choice: list[int]) -> list[int]:
        """Ids of blocks in use, so that most calls are good ones."""
        used = [block for block, count in self.naive.refs.items() if count]
        return [used[i % len(used)] for i in choice] if used else []

    @rule(n=st.integers(-1, BLOCKS))
    def allocate(self, n: int) -> None:
        self.both(lambda: self.pool.allocate(n), lambda: self.naive.allocate(n))

    @rule(blocks=ids)
    def touch_any(self, blocks: list[int]) -> None:
        self.both(lambda: self.pool.touch(blocks), lambda: self.naive.touch(blocks))

    @rule(key=keys, group=groups)
    def touch_hit(self, key: int, group: int) -> None:
        block = self.naive.lookup(key, group)
        if block is not None:
            self.both(lambda: self.pool.touch([block]), lambda: self.naive.touch([block]))

    @rule(blocks=ids)
    def free_any(self, blocks: list[int]) -> None:
        self.both(lambda: self.pool.free(blocks), lambda: self.naive.free(blocks))

    @rule(choice=held)
    def free_held(self, choice: list[int]) -> None:
        blocks = self.pick(choice)
        self.both(lambda: self.pool.free(iter(blocks)), lambda: self.naive.free(blocks))

    @rule(choice=held, hashes=st.lists(keys, max_size=5), group=groups)
    def cache(self, choice: list[int], hashes: list[int], group: int) -> None:
        blocks = self.pick(choice)[: len(hashes) or 1]
        self.both(
            lambda: self.pool.cache(blocks, hashes, group),
            lambda: self.naive.cache(blocks, hashes, group),
        )

    @rule(blocks=ids, hashes=st.lists(keys, max_size=5), group=groups)
    def cache_any(self, blocks: list[int], hashes: list[int], group: int) -> None:
        self.both(
            lambda: self.pool.cache(blocks, hashes, group),
            lambda: self.naive.cache(blocks, hashes, group),
        )

    @rule(blocks=ids)
    def evict(self, blocks: list[int]) -> None:
        self.both(lambda: self.pool.evict(blocks), lambda: self.naive.evict(blocks))

    @rule(force=st.booleans())
    def reset(self, force: bool) -> None:
        self.both(lambda: self.pool.reset(force=force), lambda: self.naive.reset(force))

    @invariant()
    def same(self) -> None:
        self.pool.check()
        pool, naive = self.pool, self.naive
        assert pool.free_block_ids() == naive.order
        assert {b: pool.ref_count(b) for b in naive.refs} == naive.refs
        for group in (0, 1, 2):
            for key in range(7):
                assert pool.lookup(key, group) == naive.lookup(key, group)
        assert all(set(pool.block_hashes(b)) == set(naive.hashes(b)) for b in naive.refs)
        assert pool.num_cached_blocks == len({b for _, _, b in naive.entries})
        assert pool.num_cached_hashes == len(naive.keys())
        assert pool.usage == pytest.approx(1 - len(naive.order) / (BLOCKS - 1))

    @invariant()
    def events_give_the_index(self) -> None:
        for event in self.pool.take_events():
            if isinstance(event, BlockStored):
                new = {(event.group_idx, key) for key in event.block_hashes}
                assert not new & self.reported
                self.reported |= new
            elif isinstance(event, BlockRemoved):
                gone = {(event.group_idx, key) for key in event.block_hashes}
                assert gone <= self.reported
                self.reported -= gone
            else:
                assert isinstance(event, AllBlocksCleared)
                self.reported = set()
        assert self.reported == self.naive.keys() == self.pool.cached_hashes()


PoolMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestPool = PoolMachine.TestCase
