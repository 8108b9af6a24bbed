"""Figures over the course of a trace whose length nobody knows in advance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from prefixhash import _arguments
from prefixhash.trace.checks import items_of

_MOST_BINS = 128


@dataclass(slots=True)
class Bin:
    """What happened between the requests `first` and `last` (numbers from 0)."""

    first: int
    last: int
    hits: float
    total: float
    start: float | None
    end: float | None

    @property
    def rate(self) -> float:
        return self.hits / self.total if self.total else 0.0


@dataclass(slots=True)
class RateOverTime:
    """Hits and totals in at most 128 bins of equally many requests.

    When the bins are full, neighbours merge and the width doubles: memory stays constant.
    """

    width: int = 1
    bins: list[Bin] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.width = _arguments.integer("width", self.width, 1)

    def add(self, request: int, hits: float, total: float, timestamp: float | None) -> None:
        if not self.bins or request >= self.bins[-1].first + self.width:
            if len(self.bins) == _MOST_BINS:
                self._halve()
                self.add(request, hits, total, timestamp)
                return
            first = request - request % self.width
            self.bins.append(Bin(first, request, 0, 0, timestamp, timestamp))
        current = self.bins[-1]
        current.hits += hits
        current.total += total
        current.last = request
        current.end = timestamp

    def merged(self, most: int) -> list[Bin]:
        """At most `most` bins, one or more, of equally many requests; these stay as they are."""
        most = _arguments.integer("most", most, 1)
        copy = RateOverTime(self.width, [replace(item) for item in self.bins])
        while len(copy.bins) > most:
            copy._halve()
        return copy.bins

    def _halve(self) -> None:
        self.width *= 2
        merged: list[Bin] = []
        for item in self.bins:
            if merged and item.first < merged[-1].first + self.width:
                into = merged[-1]
                into.hits += item.hits
                into.total += item.total
                into.last, into.end = item.last, item.end
            else:
                item.first -= item.first % self.width
                merged.append(item)
        self.bins = merged


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Distinct blocks in use at one moment: among the last N requests, and since the start."""

    request: int
    timestamp: float | None
    recent: tuple[int, ...]
    distinct: int


@dataclass(slots=True)
class WorkingSetSamples:
    """At most 128 equally spaced samples; `windows` are numbers of requests."""

    windows: tuple[int, ...] = (100, 1000)
    stride: int = 1
    samples: list[WorkingSet] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.windows = tuple(
            _arguments.integer("windows", window, 1)
            for window in items_of("windows", self.windows, "numbers of requests")
        )
        self.stride = _arguments.integer("stride", self.stride, 1)

    def wants(self, request: int) -> bool:
        return (request + 1) % self.stride == 0

    def add(self, sample: WorkingSet) -> None:
        self.samples.append(sample)
        if len(self.samples) == _MOST_BINS:
            self.stride *= 2
            self.samples = self.samples[1::2]
