"""How long replayed requests hold their blocks: not at all, N at a time, or by the clock.

A cache hands out a handle when it admits a request and takes it back when the request ends. When
it has no room, the next running request has to end first; so whatever runs, a replay takes at most
two steps for each request.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.records import TraceRequest

H = TypeVar("H")


@dataclass(frozen=True)
class Speed:
    """Tokens a second, for traces that do not record how long a request took."""

    prefill: float = 10_000.0
    decode: float = 50.0

    def __post_init__(self) -> None:
        for name, value in (("prefill", self.prefill), ("decode", self.decode)):
            if not value > 0:
                raise InvalidArgumentError(f"{name} rate", value, "must be above 0 tokens/s")

    def duration(self, request: TraceRequest) -> float:
        """Seconds that a request runs: as recorded, else its tokens at these rates."""
        if request.duration is not None:
            return request.duration
        return request.num_tokens / self.prefill + request.output_tokens / self.decode


class Holding(Protocol[H]):
    """Which requests run, and which of them ends next."""

    most: int
    waits: int

    def before(self, request: TraceRequest, end: Callable[[H], None]) -> None:
        """Ends what has to end before `request` can start."""
        ...

    def started(self, handle: H, request: TraceRequest, end: Callable[[H], None]) -> None:
        """`request` has been admitted."""
        ...

    def make_room(self, end: Callable[[H], None]) -> bool:
        """Ends the next running request; False where none runs."""
        ...


class OneAtATime(Generic[H]):
    """A request ends before the next one starts."""

    def __init__(self) -> None:
        self.most = 1
        self.waits = 0

    def before(self, request: TraceRequest, end: Callable[[H], None]) -> None:
        pass

    def started(self, handle: H, request: TraceRequest, end: Callable[[H], None]) -> None:
        end(handle)

    def make_room(self, end: Callable[[H], None]) -> bool:
        return False


class Concurrent(Generic[H]):
    """Up to `limit` requests run; the one that started first ends first."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise InvalidArgumentError("concurrency", limit, "must be at least 1")
        self._limit = limit
        self._running: deque[H] = deque()
        self.most = 0
        self.waits = 0

    def before(self, request: TraceRequest, end: Callable[[H], None]) -> None:
        while len(self._running) >= self._limit:
            end(self._running.popleft())

    def started(self, handle: H, request: TraceRequest, end: Callable[[H], None]) -> None:
        self._running.append(handle)
        self.most = max(self.most, len(self._running))

    def make_room(self, end: Callable[[H], None]) -> bool:
        if not self._running:
            return False
        self.waits += 1
        end(self._running.popleft())
        return True


class Timed(Generic[H]):
    """Requests start at their timestamps and run for their durations, later where blocks lack."""

    def __init__(self, speed: Speed) -> None:
        self._speed = speed
        self._running: list[tuple[float, int, H]] = []
        self._now = 0.0
        self._started = 0
        self.most = 0
        self.waits = 0

    def before(self, request: TraceRequest, end: Callable[[H], None]) -> None:
        # Requests start in the order of the trace: one cannot overtake another that waits.
        self._now = max(self._now, request.timestamp or 0.0)
        while self._running and self._running[0][0] <= self._now:
            end(heapq.heappop(self._running)[2])

    def started(self, handle: H, request: TraceRequest, end: Callable[[H], None]) -> None:
        finish = self._now + self._speed.duration(request)
        heapq.heappush(self._running, (finish, self._started, handle))
        self._started += 1
        self.most = max(self.most, len(self._running))

    def make_room(self, end: Callable[[H], None]) -> bool:
        if not self._running:
            return False
        self.waits += 1
        finish, _, handle = heapq.heappop(self._running)
        self._now = max(self._now, finish)
        end(handle)
        return True
