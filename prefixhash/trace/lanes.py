"""The caches of a replay side by side: each request is prepared once and served to all of them."""

from __future__ import annotations

from typing import Any

from prefixhash.trace.caches import Admission, Cache, Prepared
from prefixhash.trace.definitions import Definition
from prefixhash.trace.engine import RequestHasher
from prefixhash.trace.holding import Holding
from prefixhash.trace.interning import Interner
from prefixhash.trace.records import TraceRequest
from prefixhash.trace.results import ReplayResult


class Lane:
    """One cache with its counts and the requests that run in it."""

    def __init__(self, cache: Cache, holding: Holding[Any], result: ReplayResult) -> None:
        self._cache = cache
        self._holding = holding
        self.result = result

    def serve(self, prepared: Prepared, turn: int | None) -> None:
        source = prepared.source
        self._holding.before(source, self._cache)
        admission = self._admit(prepared)
        if admission.handle is not None:
            self._holding.started(admission.handle, source, admission.saved, self._cache)
        self.result.oversize += admission.oversize
        self.result.meter.add(prepared.index, source, turn, admission.value, prepared.weights.total)

    def _admit(self, prepared: Prepared) -> Admission:
        while True:
            admission = self._cache.start(prepared)
            if admission is not None:
                return admission
            if not self._holding.make_room(self._cache):
                # Nothing runs and it does not fit: it never will.
                return Admission(0.0, None, True)

    def close(self) -> ReplayResult:
        result = self.result
        result.evictions = self._cache.evictions
        result.seconds = self._cache.seconds
        result.waits = self._holding.waits
        result.most_running = self._holding.most
        return result


class Unbounded:
    """What a cache that never evicts gives at any block size, from the prefixes seen so far."""

    def __init__(self, block_size: int) -> None:
        self.evictions = 0
        self.seconds = 0.0
        self._block_size = block_size
        self._shared: dict[int, int] = {}

    def set_shared(self, index: int, tokens: int) -> None:
        self._shared = {index: tokens}

    def start(self, prepared: Prepared) -> Admission:
        shared = self._shared[prepared.index]
        return Admission(shared // self._block_size * self._block_size)

    def computed(self, handle: Any) -> None:
        pass

    def end(self, handle: Any) -> None:
        pass


class LaneGroup:
    """The caches that count by one definition: a request is prepared once for all of them."""

    def __init__(self, definition: Definition, trace_block_size: int) -> None:
        self.lanes: list[Lane] = []
        self.unbounded: list[Unbounded] = []
        self.hasher: RequestHasher | None = None
        self._definition = definition
        self._size = trace_block_size
        self._interner = Interner()

    def serve(self, index: int, source: TraceRequest, turn: int | None, shared: int) -> None:
        weights = self._definition.weigh(source.num_tokens, len(source.ids), self._size)
        prepared = Prepared(index, source, self._interner.intern(source.ids), weights)
        if self.hasher is not None:
            prepared.request = self.hasher.request(prepared)
        for cache in self.unbounded:
            cache.set_shared(index, shared)
        for lane in self.lanes:
            lane.serve(prepared, turn)
