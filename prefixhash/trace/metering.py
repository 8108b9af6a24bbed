"""Counting what a replay hit: in total, over time, by type and by turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.checks import instance_of
from prefixhash.trace.records import TraceRequest
from prefixhash.trace.series import RateOverTime

# Turns from the first of each group; conversations have a long tail.
_TURN_GROUPS = (1, 2, 3, 4, 5, 9, 17, 33)
_MOST_KINDS = 50
_OTHER = "(other)"
_LARGEST = 1e300


@dataclass(slots=True)
class Tally:
    """Hits of a group of requests, in the unit of the definition."""

    requests: int = 0
    hits: float = 0
    total: float = 0

    def __post_init__(self) -> None:
        self.requests = _arguments.integer("requests", self.requests)
        self.hits = _amount("hits", self.hits)
        self.total = _amount("total", self.total)

    @property
    def rate(self) -> float:
        return self.hits / self.total if self.total else 0.0

    def add(self, hits: float, total: float) -> None:
        """Counts a request; raises `InvalidArgumentError` before it counts anything."""
        hits, total = _amount("hits", hits), _amount("total", total)
        self.requests += 1
        self.hits += hits
        self.total += total


@dataclass(slots=True)
class Meter:
    """Counts one replay at one capacity; the first `warmup` requests are left out."""

    warmup: int = 0
    overall: Tally = field(default_factory=Tally)
    by_kind: dict[str, Tally] = field(default_factory=dict)
    by_turn: dict[int, Tally] = field(default_factory=dict)
    over_time: RateOverTime = field(default_factory=RateOverTime)

    def __post_init__(self) -> None:
        self.warmup = _arguments.integer("warmup", self.warmup)
        instance_of("overall", self.overall, Tally)
        instance_of("over_time", self.over_time, RateOverTime)
        for name in ("by_kind", "by_turn"):
            for key, tally in instance_of(name, getattr(self, name), dict).items():
                instance_of(f"{name}[{key!r}]", tally, Tally)

    def add(
        self, index: int, request: TraceRequest, turn: int | None, hits: float, total: float
    ) -> None:
        """Counts request `index` of the trace; raises `InvalidArgumentError` before it does."""
        index = _arguments.integer("index", index)
        instance_of("request", request, TraceRequest)
        turn = _arguments.optional_integer("turn", turn, None)
        hits, total = _amount("hits", hits), _amount("total", total)
        if index < self.warmup:
            return
        self.overall.add(hits, total)
        self.over_time.add(index, hits, total, request.timestamp)
        if request.kind is not None:
            kind = request.kind
            if kind not in self.by_kind and len(self.by_kind) >= _MOST_KINDS:
                kind = _OTHER
            self.by_kind.setdefault(kind, Tally()).add(hits, total)
        if turn is not None:
            self.by_turn.setdefault(turn_group(turn), Tally()).add(hits, total)


def _amount(name: str, value: float) -> float:
    """A number of tokens, blocks or requests that a sum can take."""
    if type(value) in (int, float) and 0 <= value < _LARGEST:
        return value
    return _arguments.number(name, value, below=_LARGEST)


def turn_group(turn: int) -> int:
    """The first turn of the group that `turn` belongs to."""
    turn = _arguments.integer("turn", turn, None)
    return max((first for first in _TURN_GROUPS if first <= turn), default=_TURN_GROUPS[0])


def turn_label(first: int) -> str:
    """`1`, `5-8`, `33+`: the turns of the group that begins with `first`."""
    if _arguments.integer("first", first) not in _TURN_GROUPS:
        raise InvalidArgumentError("first", first, f"must be one of {_TURN_GROUPS}")
    place = _TURN_GROUPS.index(first)
    if place == len(_TURN_GROUPS) - 1:
        return f"{first}+"
    last = _TURN_GROUPS[place + 1] - 1
    return str(first) if first == last else f"{first}-{last}"


class TurnCounter:
    """The turn of each request within its session: as recorded, or counted.

    Memory: one number for each session of a trace that records sessions but no turns.
    """

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def turn(self, request: TraceRequest) -> int | None:
        """The turn, from 1; None where no session was recorded."""
        if request.turn is not None or request.session is None:
            return request.turn
        turn = self._turns.get(request.session, 0) + 1
        self._turns[request.session] = turn
        return turn
