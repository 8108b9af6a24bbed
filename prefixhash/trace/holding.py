"""How long replayed requests hold their blocks: not at all, N at a time, or by the clock.

A cache hands out a handle when it admits a request, is told when the prompt is computed (only then
can others find its blocks), and takes the handle back when the request ends. When it has no room,
the next running request has to end first; so whatever runs, a replay takes at most two steps for
each request.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.checks import instance_of
from prefixhash.trace.records import TraceRequest

H = TypeVar("H")
H_contra = TypeVar("H_contra", contravariant=True)


class Running(Protocol[H_contra]):
    """A cache, as far as the requests that run in it go."""

    def computed(self, handle: H_contra) -> None:
        """The prompt is computed: others may find its blocks."""
        ...

    def end(self, handle: H_contra) -> None:
        """Gives back what the request held."""
        ...


@dataclass(frozen=True)
class Speed:
    """Tokens a second: how long a prompt takes, and a request whose duration is not recorded."""

    prefill: float = 10_000.0
    decode: float = 50.0

    def __post_init__(self) -> None:
        for name in ("prefill", "decode"):
            value = getattr(self, name)
            if isinstance(value, float) and value == math.inf:
                continue
            if _arguments.number(f"{name} rate", value) == 0:
                raise InvalidArgumentError(f"{name} rate", value, "must be above 0 tokens/s")

    def times(self, request: TraceRequest, saved: int) -> tuple[float, float]:
        """Seconds from the start until the prompt is computed, and until the request ends.

        `saved`: tokens of the prompt that were hit and need no computing. A recorded duration holds
        for the whole request.
        """
        instance_of("request", request, TraceRequest)
        saved = _arguments.integer("saved", saved, 0, request.num_tokens)
        prefill = (request.num_tokens - saved) / self.prefill
        if request.duration is not None:
            return min(prefill, request.duration), request.duration
        return prefill, prefill + request.output_tokens / self.decode


class Holding(Protocol[H]):
    """Which requests run, and which of them ends next."""

    most: int
    waits: int

    def before(self, request: TraceRequest, cache: Running[H]) -> None:
        """Ends what has to end before `request` can start."""
        ...

    def started(self, handle: H, request: TraceRequest, saved: int, cache: Running[H]) -> None:
        """`request` has been admitted; `saved` tokens of its prompt were hit."""
        ...

    def make_room(self, cache: Running[H]) -> bool:
        """Ends the next running request; False where none runs."""
        ...


class OneAtATime(Generic[H]):
    """A request ends before the next one starts."""

    def __init__(self) -> None:
        self.most = 1
        self.waits = 0

    def before(self, request: TraceRequest, cache: Running[H]) -> None:
        pass

    def started(self, handle: H, request: TraceRequest, saved: int, cache: Running[H]) -> None:
        cache.computed(handle)
        cache.end(handle)

    def make_room(self, cache: Running[H]) -> bool:
        return False


class Concurrent(Generic[H]):
    """Up to `limit` requests run; the one that started first ends first.

    Without a clock a prompt counts as computed before the next request starts.
    """

    def __init__(self, limit: int) -> None:
        self._limit = _arguments.integer("concurrency", limit, 1)
        self._running: deque[H] = deque()
        self.most = 0
        self.waits = 0

    def before(self, request: TraceRequest, cache: Running[H]) -> None:
        while len(self._running) >= self._limit:
            cache.end(self._running.popleft())

    def started(self, handle: H, request: TraceRequest, saved: int, cache: Running[H]) -> None:
        cache.computed(handle)
        self._running.append(handle)
        self.most = max(self.most, len(self._running))

    def make_room(self, cache: Running[H]) -> bool:
        if not self._running:
            return False
        self.waits += 1
        cache.end(self._running.popleft())
        return True


class Timed(Generic[H]):
    """Requests start at their timestamps and run for their durations, later where blocks lack.

    The blocks of a prompt can be hit once its prefill is done, not from the request's start: two
    requests with one prompt that run side by side both compute it.
    """

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        # What happens next: (time, order, handle); even orders: computed, odd ones: ended.
        self._events: list[tuple[float, int, H]] = []
        self._now = -math.inf
        self._order = 0
        self._running = 0
        self.most = 0
        self.waits = 0

    def before(self, request: TraceRequest, cache: Running[H]) -> None:
        # Requests start in the order of the trace: one cannot overtake another that waits.
        if request.timestamp is not None:
            self._now = max(self._now, request.timestamp)
        while self._events and self._events[0][0] <= self._now:
            self._step(cache)

    def started(self, handle: H, request: TraceRequest, saved: int, cache: Running[H]) -> None:
        start = self._now if math.isfinite(self._now) else 0.0
        computed, ended = self._speed.times(request, saved)
        heapq.heappush(self._events, (start + computed, self._order, handle))
        heapq.heappush(self._events, (start + ended, self._order + 1, handle))
        self._order += 2
        self._running += 1
        self.most = max(self.most, self._running)

    def make_room(self, cache: Running[H]) -> bool:
        if not self._running:
            return False
        self.waits += 1
        running = self._running
        while self._running == running:
            self._now = max(self._now, self._step(cache))
        return True

    def _step(self, cache: Running[H]) -> float:
        """Does what happens next; returns when."""
        when, order, handle = heapq.heappop(self._events)
        if order % 2:
            cache.end(handle)
            self._running -= 1
        else:
            cache.computed(handle)
        return when
