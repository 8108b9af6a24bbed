"""PrefixCache against the naive cache: same hits, blocks, order of reuse; `check()` at every step.

Failures are injected: no blocks, stale hits, bad numbers, unknown requests. A failed call must
leave everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefixhash import BlockHasher, PrefixHashError, Request, StaleHitError
from prefixhash.cache import CacheGroup, CacheHit, PrefixCache
from prefixhash.events import EventIndex

from .naive import NaiveCache

small = st.integers(0, 30)
encoders = st.sampled_from([0, 0, 0, 5, 9])


# A rule that finds no request to work on would do nothing, and most of a short history with it.
requests_there = precondition(lambda machine: bool(machine.requests))
some_run = precondition(lambda machine: bool(machine.naive.running))
some_wait = precondition(lambda machine: len(machine.requests) > len(machine.naive.running))


class CacheMachine(RuleBasedStateMachine):
    groups: tuple[CacheGroup, ...] = ()
    blocks = 14
    longest = 60

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(
            self.groups,
            self.blocks,
            max_model_len=self.longest,
            events=True,
            enable_caching=True,
        )
        self.naive = NaiveCache(list(self.groups), self.blocks, self.longest)
        self.index = EventIndex()
        self.hasher = BlockHasher(self.cache.hash_block_size)
        self.requests: list[Request] = []
        self.hits: dict[str, CacheHit] = {}
        self.pins: list[int] = []
        self.counter = 0

    # -- helpers ---------------------------------------------------------------------------

    def state(self) -> Any:
        cache = self.cache
        running = [r for r in self.requests if r.request_id in self.naive.running]
        return (
            cache.pool.free_block_ids(),
            [cache.pool.ref_count(b) for b in range(self.blocks)],
            cache.pool.cached_hashes(),
            cache.stats,
            [[cache.block_table(r, g) for g in range(len(self.groups))] for r in running],
            [cache.num_computed_tokens(r) for r in running],
        )

    def refused(self, call: Callable[[], Any], error: type[Exception] = PrefixHashError) -> None:
        before = self.state()
        with pytest.raises(error):
            call()
        assert self.state() == before

    def pick(self, i: int, *, running: bool) -> Request | None:
        found = [r for r in self.requests if (r.request_id in self.naive.running) == running]
        return found[i % len(found)] if found else None

    @staticmethod
    def tokens(request: Request) -> tuple[int, ...]:
        return tuple(request.all_token_ids)

    # -- requests --------------------------------------------------------------------------

    @precondition(lambda self: len(self.requests) < 6)
    @rule(
        family=st.sampled_from([0, 0, 0, 1]),
        shared=st.integers(0, 34),
        own=st.lists(st.integers(0, 2), max_size=4),
        serve=st.booleans(),
        leave=st.booleans(),
    )
    def new(self, family: int, shared: int, own: list[int], serve: bool, leave: bool) -> None:
        """A request; mostly served to the end of its prompt at once, so that there are hits."""
        tokens = [*range(family * 100, family * 100 + shared), *own]
        self.counter += 1
        request = Request(f"r{self.counter}", tokens, block_hasher=self.hasher)
        self.requests.append(request)
        if serve and tokens:
            self.serve(request, 60)
        if serve and leave and request.request_id in self.naive.running:
            self.release(request, preempt=False)

    @some_wait
    @rule(i=small, chunk=st.sampled_from([4, 5, 7, 8, 60]))
    def serve_waiting(self, i: int, chunk: int) -> None:
        request = self.pick(i, running=False)
        if request is not None and request.num_tokens:
            self.serve(request, chunk)

    def serve(self, request: Request, chunk: int) -> None:
        self.check_lookup(request)
        hit = self.hits[request.request_id]
        new = min(request.num_tokens - hit.num_tokens, chunk)
        self.try_admit(request, hit, new, 0)
        while request.request_id in self.naive.running:
            held = self.naive.running[request.request_id]
            self.do_commit(request, held.computed + sum(held.steps))
            left = request.num_tokens - held.computed
            if not left or not self.try_extend(request, min(left, chunk), 0):
                return

    @some_wait
    @rule(i=small)
    def lookup(self, i: int) -> None:
        request = self.pick(i, running=False)
        if request is not None:
            self.check_lookup(request)

    def check_lookup(self, request: Request) -> None:
        hit = self.cache.lookup(request)
        found = list(map(list, hit.block_ids))
        assert (hit.num_tokens, found) == self.naive.lookup(self.tokens(request))
        self.hits[request.request_id] = hit

    @some_wait
    @rule(i=small, new=st.integers(1, 20), ahead=st.integers(0, 3), encoder=encoders)
    def admit(self, i: int, new: int, ahead: int, encoder: int) -> None:
        """With an earlier lookup, which may be stale, or none."""
        request = self.pick(i, running=False)
        if request is not None:
            self.try_admit(request, self.hits.get(request.request_id), new, ahead, encoder)

    def try_admit(
        self, request: Request, hit: CacheHit | None, new: int, ahead: int, encoder: int = 0
    ) -> None:
        tables = list(map(list, hit.block_ids)) if hit else [[] for _ in self.groups]
        tokens = self.tokens(request)
        if self.naive.stale(tokens, tables):
            self.refused(lambda: self.cache.allocate(request, new, hit, ahead), StaleHitError)
            return
        length = hit.num_tokens if hit else 0
        before = self.state()
        name = request.request_id
        expected = self.naive.admit(name, tokens, tables, length, new, ahead, encoder)
        real = self.cache.allocate(request, new, hit, ahead, num_encoder_tokens=encoder)
        self.compare(real, expected, before)

    def compare(self, real: Any, expected: Any, before: Any) -> None:
        if expected is None:
            assert real is None
            assert self.state() == before
        else:
            assert list(map(list, real)) == expected

    @some_run
    @rule(i=small, new=st.integers(1, 12), ahead=st.integers(0, 3), encoder=encoders)
    def extend(self, i: int, new: int, ahead: int, encoder: int) -> None:
        request = self.pick(i, running=True)
        if request is not None:
            self.try_extend(request, new, ahead, encoder)

    def try_extend(self, request: Request, new: int, ahead: int, encoder: int = 0) -> bool:
        before = self.state()
        expected = self.naive.extend(request.request_id, new, ahead, encoder)
        real = self.cache.allocate(
            request, new, num_lookahead_tokens=ahead, num_encoder_tokens=encoder
        )
        self.compare(real, expected, before)
        return real is not None

    @some_run
    @rule(i=small, count=st.integers(1, 12), ahead=st.sampled_from([0, 0, 2]))
    def decode(self, i: int, count: int, ahead: int) -> None:
        """Token by token: most of these steps need no block and give none back."""
        request = self.pick(i, running=True)
        if request is None:
            return
        held = self.naive.running[request.request_id]
        for _ in range(count):
            end = held.computed + sum(held.steps) + 1
            if end > self.longest or not self.try_extend(request, 1, ahead):
                return
            if request.num_tokens < end:
                request.append_token_ids(end % 3)
            self.do_commit(request, end)
            self.same()

    @some_run
    @rule(i=small, news=st.lists(st.integers(1, 9), max_size=4), ahead=st.integers(0, 3))
    def extend_batch(self, i: int, news: list[int], ahead: int) -> None:
        """As single calls in this order: the ones behind a refused one go on all the same."""
        batch = self.pick_batch(i, len(news))
        news = news[: len(batch)]
        expected = [
            self.naive.extend(request.request_id, new, ahead)
            for request, new in zip(batch, news, strict=True)
        ]
        one = len(set(news)) == 1
        real = self.cache.allocate_batch(batch, news[0] if one else news, ahead)
        assert [found and list(map(list, found)) for found in real] == expected

    def pick_batch(self, i: int, count: int) -> list[Request]:
        running = [r for r in self.requests if r.request_id in self.naive.running]
        first = i % len(running) if running else 0
        return (running[first:] + running[:first])[:count]

    @some_run
    @rule(i=small, rejected=st.lists(st.sampled_from([0, 0, 0, 1, 3]), max_size=4))
    def commit_batch(self, i: int, rejected: list[int]) -> None:
        batch = self.pick_batch(i, len(rejected))
        numbers = [self.step_end(r, less) for r, less in zip(batch, rejected, strict=False)]
        self.cache.commit_batch(batch, numbers)
        for request, number in zip(batch, numbers, strict=True):
            self.naive.commit(request.request_id, self.tokens(request), number)

    @some_run
    @rule(i=small, count=st.integers(0, 4))
    def commit_all_steps(self, i: int, count: int) -> None:
        batch = self.pick_batch(i, count)
        helds = [self.naive.running[request.request_id] for request in batch]
        ends = [held.computed + sum(held.steps) for held in helds]
        if max(ends, default=0) > self.longest:
            self.refused(lambda: self.cache.commit_batch(batch))
            return
        self.cache.commit_batch(batch)
        for request, end in zip(batch, ends, strict=True):
            self.naive.commit(request.request_id, self.tokens(request), end)

    @some_run
    @rule(i=small, rejected=st.sampled_from([0, 0, 1, 3]))
    def commit(self, i: int, rejected: int) -> None:
        request = self.pick(i, running=True)
        if request is not None:
            self.do_commit(request, self.step_end(request, rejected))

    def step_end(self, request: Request, rejected: int) -> int:
        """Where the oldest open step ends, as far as there are slots, without rejected tokens."""
        held = self.naive.running[request.request_id]
        step = held.steps[0] if held.steps else 0
        return min(held.computed + max(step - rejected, 0), self.longest)

    def do_commit(self, request: Request, computed: int) -> None:
        self.cache.commit(request, computed)
        self.naive.commit(request.request_id, self.tokens(request), computed)

    @requests_there
    @rule(i=small, running=st.booleans(), ids=st.lists(small, max_size=9))
    def append(self, i: int, running: bool, ids: list[int]) -> None:
        request = self.pick(i, running=running)
        if request is not None and request.num_tokens + len(ids) <= self.longest:
            request.append_token_ids(ids)
            self.hits.pop(request.request_id, None)

    @some_run
    @rule(i=small, preempt=st.booleans())
    def leave(self, i: int, preempt: bool) -> None:
        request = self.pick(i, running=True)
        if request is not None:
            self.release(request, preempt=preempt)

    def release(self, request: Request, *, preempt: bool) -> None:
        if preempt:
            self.cache.preempt(request)
        else:
            self.cache.free(request)
            self.requests.remove(request)
        self.naive.release(request.request_id, preempt=preempt)

    @some_wait
    @rule(i=small)
    def abort(self, i: int) -> None:
        request = self.pick(i, running=False)
        if request is not None:
            self.cache.free(request)
            self.naive.release(request.request_id, preempt=False)
            self.requests.remove(request)

    @some_run
    @rule(i=small)
    def trim(self, i: int) -> None:
        request = self.pick(i, running=True)
        if request is not None:
            self.cache.trim(request)
            self.naive.trim(request.request_id)

    # -- the pool --------------------------------------------------------------------------

    @requests_there
    @rule(new_generation=st.sampled_from([False, False, False, False, True]))
    def reset(self, new_generation: bool) -> None:
        done = self.cache.reset(new_generation=new_generation)
        assert done == self.naive.reset(new_generation)

    @requests_there
    @rule(block=st.integers(1, 13))
    def evict(self, block: int) -> None:
        self.cache.pool.evict([block])
        self.naive.pool.evict([block])

    @requests_there
    @rule(block=st.integers(1, 13))
    def pin(self, block: int) -> None:
        if self.naive.pool.hashes(block) and len(self.pins) < 3:
            self.cache.pool.touch([block])
            self.naive.pool.touch([block])
            self.pins.append(block)

    @requests_there
    @rule()
    def unpin(self) -> None:
        if self.pins:
            block = self.pins.pop()
            self.cache.pool.free([block])
            self.naive.pool.free([block])

    # -- calls that must be refused --------------------------------------------------------

    @requests_there
    @rule(i=small, new=st.sampled_from([0, -1, None, 1.5]), ahead=st.sampled_from([-1, None]))
    def bad_calls(self, i: int, new: Any, ahead: Any) -> None:
        self.bad_numbers(i, new, ahead)
        self.bad_commit(i)
        self.bad_batches(i)
        self.unknown_requests(i)

    def bad_numbers(self, i: int, new: Any, ahead: Any) -> None:
        for running in (False, True):
            request = self.pick(i, running=running)
            if request is not None:
                self.refused(lambda r=request: self.cache.allocate(r, new))  # type: ignore[misc]
                self.refused(lambda r=request: self.cache.allocate(r, 1, None, ahead))  # type: ignore[misc]

    def bad_commit(self, i: int) -> None:
        request = self.pick(i, running=True)
        if request is None:
            return
        held = self.naive.running[request.request_id]
        for computed in (held.computed - 1, held.computed + sum(held.steps) + 1, None):
            self.refused(lambda n=computed: self.cache.commit(request, n))  # type: ignore[misc]

    def bad_batches(self, i: int) -> None:
        """The last of the batch is wrong: nothing is done for those before it."""
        batch = self.pick_batch(i, 4)
        waiting = self.pick(i, running=False)
        numbers = [self.step_end(request, 0) for request in batch]
        for bad in ([*batch, batch[0]] if batch else None, waiting and [*batch, waiting]):
            if bad:
                self.refused(lambda b=bad: self.cache.allocate_batch(b))  # type: ignore[misc]
                self.refused(lambda b=bad: self.cache.commit_batch(b))  # type: ignore[misc]
        self.refused(lambda: self.cache.allocate_batch(batch, [1] * (len(batch) + 1)))
        self.refused(lambda: self.cache.commit_batch(batch, [*numbers, 1]))
        if batch:
            self.refused(lambda: self.cache.allocate_batch(batch, [1] * (len(batch) - 1) + [0]))
            beyond = [*numbers[:-1], self.longest + 1]
            self.refused(lambda: self.cache.commit_batch(batch, beyond))

    def unknown_requests(self, i: int) -> None:
        request = self.pick(i, running=False)
        if request is not None:
            for call in (self.cache.preempt, self.cache.trim, self.cache.block_table):
                self.refused(lambda c=call: c(request))  # type: ignore[misc]
            self.refused(lambda: self.cache.commit(request, 0))
        request = self.pick(i, running=True)
        if request is not None:
            twin = Request(request.request_id, [1, 2, 3], block_hasher=self.hasher)
            self.refused(lambda: self.cache.allocate(twin, 1))
            self.refused(lambda: self.cache.free(twin))
            empty = CacheHit(0, tuple([] for _ in self.groups))
            self.refused(lambda: self.cache.allocate(request, 1, empty))

    @some_wait
    @rule(i=small, place=st.integers(0, 3), block=st.integers(-2, 15))
    def forged_hit(self, i: int, place: int, block: int) -> None:
        request = self.pick(i, running=False)
        if request is None:
            return
        hit = self.cache.lookup(request)
        tables = [list(ids) for ids in hit.block_ids]
        if not hit.num_tokens or tables[0][place % len(tables[0])] == block:
            return
        tables[0][place % len(tables[0])] = block
        carried = self.naive.pool.hashes(block) if 0 < block < self.blocks else []
        size = self.groups[0].block_size
        end = (place % len(tables[0]) + 1) * size
        if (0, self.tokens(request)[:end]) in carried:
            return  # another copy of the same block
        forged = CacheHit(hit.num_tokens, tuple(tables))
        self.refused(lambda: self.cache.allocate(request, 1, forged))

    # -- equality --------------------------------------------------------------------------

    @invariant()
    def same(self) -> None:
        cache, naive = self.cache, self.naive
        cache.check(pinned=self.pins)
        assert cache.pool.free_block_ids() == naive.pool.order
        for request in self.requests:
            held = naive.running.get(request.request_id)
            if held is not None:
                tables = [cache.block_table(request, g) for g in range(len(self.groups))]
                assert tables == held.tables
                assert cache.num_computed_tokens(request) == held.computed
        stats = cache.stats
        counts = [stats.requests, stats.queries, stats.hits, stats.preempted_requests,
                  stats.preempted_queries, stats.preempted_hits]  # fmt: skip
        assert counts == naive.stats
        assert cache.num_running == len(naive.running)
        assert cache.pool.num_cached_hashes == len(naive.pool.keys())

    @invariant()
    def events(self) -> None:
        self.index.apply(self.cache.take_events())
        assert self.index.keys() == self.cache.pool.cached_hashes()


def full(size: int, eagle: bool = False) -> CacheGroup:
    return CacheGroup("full_attention", size, eagle=eagle)


def sliding(size: int, window: int, eagle: bool = False) -> CacheGroup:
    return CacheGroup("sliding_window", size, window=window, eagle=eagle)


LAYOUTS = {
    "Full": (full(4),),
    "FullEagle": (full(4, True),),
    "Sliding": (sliding(4, 6),),
    "SlidingEagle": (sliding(2, 4, True),),
    "Chunked": (CacheGroup("chunked_local", 4, chunk=8),),
    "Mamba": (CacheGroup("mamba", 4),),
    "FullSliding": (full(4), sliding(4, 6)),
    "FullSlidingSizes": (full(4), sliding(2, 3), sliding(2, 5)),
    "SlidingFullSizesEagle": (sliding(2, 5, True), full(4, True)),
    "FullSlidingLarge": (full(2), sliding(4, 6, True)),
    "FullChunked": (full(4), CacheGroup("chunked_local", 4, chunk=6)),
    "FullMambaSliding": (full(4), CacheGroup("mamba", 4), sliding(4, 6)),
    "SlidingMamba": (sliding(4, 6), CacheGroup("mamba", 4)),
    "SlidingSmall": (sliding(4, 2),),
    "SlidingOne": (sliding(4, 1), full(2)),
    "ChunkedSmall": (CacheGroup("chunked_local", 4, chunk=3), full(2)),
    "MambaDrafts": (CacheGroup("mamba", 4, speculative_blocks=2),),
    "FullMambaDrafts": (full(2), CacheGroup("mamba", 2, speculative_blocks=3)),
    "FullCross": (full(4), CacheGroup("cross_attention", 2)),
    "SlidingCrossEncoder": (
        sliding(2, 3),
        CacheGroup("cross_attention", 4),
        CacheGroup("encoder_only", 8),
    ),
}


def _case(name: str, groups: tuple[CacheGroup, ...]) -> Any:
    machine = type(f"{name}Machine", (CacheMachine,), {"groups": groups})
    machine.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
    return machine.TestCase


for _name, _groups in LAYOUTS.items():
    globals()[f"Test{_name}"] = _case(_name, _groups)
