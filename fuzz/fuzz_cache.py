"""Fuzz target: any sequence of cache operations keeps every invariant and serves no foreign block.

python fuzz/fuzz_cache.py fuzz/corpus/cache        # with atheris installed

A shadow of the content says from which tokens each block was computed: those that the request had
when the step was allocated, whatever became of them until it was committed. Every hit is held
against it, the events are replayed, and `check()` walks the invariants after each operation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from prefixhash import BlockHasher, CacheGroup, CacheHit, PrefixCache, PrefixHashError, Request
from prefixhash.events import EventIndex

BLOCKS = 16
GROUPS = (
    (CacheGroup("full_attention", 4),),
    (CacheGroup("full_attention", 4, eagle=True),),
    (CacheGroup("sliding_window", 2, window=5),),
    (CacheGroup("full_attention", 4), CacheGroup("sliding_window", 2, window=3, eagle=True)),
    (CacheGroup("full_attention", 2), CacheGroup("chunked_local", 4, chunk=6)),
    (CacheGroup("full_attention", 4), CacheGroup("mamba", 4)),
    (CacheGroup("sliding_window", 4, window=6), CacheGroup("mamba", 4, speculative_blocks=1)),
)


class _Run:
    """One cache, its requests, and what was written where."""

    def __init__(self, groups: tuple[CacheGroup, ...], retention: int | None) -> None:
        self.hasher = BlockHasher(PrefixCache(groups, 2).hash_block_size)
        self.cache = PrefixCache(
            groups,
            BLOCKS,
            max_model_len=64,
            retention_interval=retention,
            events=True,
            block_hasher=self.hasher,
            verify_tokens=True,
        )
        self.index = EventIndex()
        self.requests: list[Request] = []
        self.hits: dict[str, CacheHit] = {}
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}
        # Steps that were not committed yet: size, tokens of the request when it was allocated.
        self.open: dict[str, list[tuple[int, list[int]]]] = {}
        self.computed: dict[str, list[int | None]] = {}  # None: not known yet
        self.ends: dict[str, set[int]] = {}
        self.count = 0

    def new(self, family: int, length: int) -> None:
        self.count += 1
        tokens = [*range(family * 50, family * 50 + length % 40), family]
        self.requests.append(Request(f"{self.count}", tokens, block_hasher=self.hasher))
        del self.requests[:-6]

    def lookup(self, request: Request) -> None:
        hit = self.cache.lookup(request)
        self.hits[request.request_id] = hit
        if hit.num_tokens and hit.num_tokens >= request.num_tokens:
            raise AssertionError("a hit covers the whole request")
        for group, ids in enumerate(hit.block_ids):
            size = self.cache.groups[group].block_size
            for place, block in enumerate(ids):
                prefix = tuple(request.all_token_ids[: (place + 1) * size])
                if block and self.written.get((group, block)) != prefix:
                    raise AssertionError(f"block {block} of group {group} holds another prefix")

    def allocate(self, request: Request, new: int) -> None:
        hit = self.hits.pop(request.request_id, None)
        if self.cache.num_computed_tokens(request):
            hit = None
        waits = self.cache.num_running
        blocks = self.cache.allocate(request, new, hit, new % 3)
        if blocks is None:
            return
        name = request.request_id
        if self.cache.num_running > waits:
            self.open[name], self.ends[name] = [], set()
            self.computed[name] = list(request.all_token_ids[: hit.num_tokens if hit else 0])
        self.open[name].append((new, list(request.all_token_ids)))
        for group, ids in enumerate(blocks):
            for block in ids:
                self.written.pop((group, block), None)

    def commit(self, request: Request, computed: int) -> None:
        position = self.cache.num_computed_tokens(request)
        self.cache.commit(request, computed)
        self.compute(request, position, computed)
        done = self.computed[request.request_id]
        for group, spec in enumerate(self.cache.groups):
            table = self.cache.block_table(request, group)
            for place in range(min(computed // spec.block_size, len(table))):
                end = (place + 1) * spec.block_size
                tokens = tuple(token for token in done[:end] if token is not None)
                exact = spec.kind != "mamba" or end in self.ends[request.request_id]
                if table[place] and exact and len(tokens) == end:
                    self.written.setdefault((group, table[place]), tokens)

    def compute(self, request: Request, position: int, computed: int) -> None:
        """What the engine did in the steps that this commit closes."""
        done, steps = self.computed[request.request_id], self.open[request.request_id]
        now = request.all_token_ids
        while steps and position < computed:
            new, then = steps.pop(0)
            end = min(position + new, computed)
            for place in range(position, end):
                tokens = then if place < len(then) else now
                done.append(tokens[place] if place < len(tokens) else None)
            if end == position + new:
                self.ends[request.request_id].add(end)
            position = end
        for place, token in enumerate(done):
            if token is None and place < len(now):
                done[place] = now[place]  # sampled in a step, told after its commit

    def operate(self, code: int, request: Request, value: int) -> None:
        if code == 0:
            self.lookup(request)
        elif code in (1, 2):
            self.allocate(request, value % 24)
        elif code in (3, 4):
            done = self.cache.num_computed_tokens(request)
            self.commit(request, done + value % 24)
        elif code == 5:
            request.append_token_ids([value % 3])
        elif code == 6:
            self.cache.free(request)
        elif code == 7:
            self.cache.preempt(request)
        elif code == 8:
            self.cache.reset(new_generation=value % 4 == 0)
        elif code == 9:
            self.cache.pool.evict([value % (BLOCKS + 1)])
        elif code == 10:
            self.cache.trim(request)
        else:
            length = request.num_tokens
            request.truncate(value % (length + 1))
            if value % 2:  # and grows again before the cache looks
                request.append_token_ids([value % 3] * (length - request.num_tokens))
            self.hits.pop(request.request_id, None)

    def check(self) -> None:
        self.cache.check()
        self.index.apply(self.cache.take_events())
        if self.index.keys() != self.cache.pool.cached_hashes():
            raise AssertionError("the events do not give the index")


def TestOneInput(data: bytes) -> None:
    """Bytes are read as a layout and then as operations of two bytes each."""
    if len(data) < 2:
        return
    run = _Run(GROUPS[data[0] % len(GROUPS)], (None, 0, 8)[data[1] % 3])
    for code, value in _pairs(data[2:200]):
        if code % 14 > 11 or not run.requests:
            run.new(code // 14 % 2, value)
            continue
        request = run.requests[code // 14 % len(run.requests)]
        held = [run.cache.pool.ref_count(block) for block in range(BLOCKS)]
        try:
            run.operate(code % 14, request, value)
        except PrefixHashError:
            if held != [run.cache.pool.ref_count(block) for block in range(BLOCKS)]:
                raise AssertionError("a refused call changed what is held") from None
        run.check()


def _pairs(data: bytes) -> Iterator[tuple[int, int]]:
    return zip(data[::2], data[1::2], strict=False)


def main() -> None:
    import atheris

    atheris.Setup(sys.argv, TestOneInput)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
