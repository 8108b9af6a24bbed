"""Seeded synthetic traces: chats, agents with tool calls, shared prompts and documents, tenants.

A session is a growing list of segments (system prompt, document, message, answer, tool result,
image); each of its requests sends all segments so far. Sessions arrive at random times and
interleave. The same parameters give the same trace on every machine.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.formats.tokens import Tokens
from prefixhash.trace.records import TraceRequest
from prefixhash.trace.synth_forms import FORMS, BlockNamer, Draft, Segment, with_tokens

_DECODE_RATE = 50.0
# The most of a length, whose tokens are made, and of anything else: more is a slip of the pen.
_MOST_TOKENS = 10**8
_MOST_OF_EACH = 10**7


@dataclass(frozen=True)
class Workload:
    """What to synthesise. Lengths are means, in tokens; shares lie in 0..1.

    sessions, turns: conversations, and user messages in each (mean).
    tool_calls: calls of tools for each user message (mean), each of which sends the prompt again.
    system_tokens, system_prompts: length and number of the system prompts.
    documents, document_tokens, document_share: shared documents, and how many sessions carry one.
    tenants: each has a cache salt of its own; 1: no salt.
    adapters: LoRA adapters besides the base model.
    image_share, image_tokens: messages with an image, and the tokens it takes.
    message_tokens, output_tokens, tool_tokens: of a message, an answer, a tool's result.
    zipf: exponent of the popularity of prompts, documents, tenants, adapters and images.
    session_rate, think_seconds: new sessions a second; pause between messages (mean).
    """

    sessions: int = 200
    turns: float = 4.0
    tool_calls: float = 0.0
    system_tokens: int = 600
    system_prompts: int = 4
    documents: int = 0
    document_tokens: int = 4000
    document_share: float = 0.5
    tenants: int = 1
    adapters: int = 0
    image_share: float = 0.0
    image_tokens: int = 576
    message_tokens: float = 120.0
    output_tokens: float = 250.0
    tool_tokens: float = 400.0
    zipf: float = 1.0
    session_rate: float = 1.0
    think_seconds: float = 20.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            least = _LEAST.get(item.name, 0)
            if item.type == "int":
                checked: float = _arguments.integer(item.name, value, int(least))
            else:
                checked = _arguments.number(item.name, value, least)
            if item.name.endswith("_share") and checked > 1:
                raise InvalidArgumentError(item.name, value, "is a share of at most 1")
            object.__setattr__(self, item.name, checked)


_LEAST: dict[str, float] = {
    "sessions": 1,
    "turns": 1,
    "system_prompts": 1,
    "tenants": 1,
    "image_tokens": 1,
    "document_tokens": 1,
    "message_tokens": 1,
    "output_tokens": 1,
    "tool_tokens": 1,
    "session_rate": 1e-9,
}

WORKLOADS: dict[str, Workload] = {
    "chat": Workload(),
    "agents": Workload(
        sessions=40, turns=3, tool_calls=8, system_tokens=6000, system_prompts=2, output_tokens=120
    ),
    "documents": Workload(sessions=200, turns=2, documents=40, document_share=1.0),
    "mixed": Workload(
        sessions=120,
        turns=3,
        tool_calls=1.5,
        documents=12,
        document_tokens=2000,
        document_share=0.3,
        tenants=3,
        adapters=2,
        image_share=0.1,
    ),
}


def make_workload(name: str = "chat", **changes: Any) -> Workload:
    """The workload `name` with some parameters changed."""
    return replace(WORKLOADS[_arguments.choice("workload", name, WORKLOADS)], **changes)


def synthesize(
    workload: str | Workload = "chat",
    *,
    form: str = FORMS[0],
    block_size: int = 512,
    seed: int = 0,
) -> Iterator[TraceRequest]:
    """Requests of a synthetic trace in the order of their times.

    `workload`: a name (chat, agents, documents, mixed) or a `Workload`; `form`: `mooncake` (ids of
    `block_size` tokens, a partial last one included) or `tokens` (token ids with LoRA, salt and
    images). Memory: the sessions that run at one time, and for ids the distinct blocks.
    """
    plan = workload if isinstance(workload, Workload) else make_workload(workload)
    _arguments.choice("form", form, FORMS)
    size = _arguments.integer("block_size", block_size, 1)
    drafts = _Generator(plan, _arguments.integer("seed", seed, None)).drafts()
    write = with_tokens if form == Tokens.name else BlockNamer(size).name
    return (write(draft) for draft in drafts)


def _check_sizes(plan: Workload) -> None:
    """Refuses what no machine can write, before anything is made."""
    for name in (item.name for item in fields(plan)):
        most = _MOST_TOKENS if name.endswith("_tokens") else _MOST_OF_EACH
        if getattr(plan, name) > most:
            raise InvalidArgumentError(name, getattr(plan, name), f"must be at most {most:,}")


class _Generator:
    """Draws sessions and merges their requests by time."""

    def __init__(self, plan: Workload, seed: int) -> None:
        _check_sizes(plan)
        self._plan = plan
        self._rng = random.Random(seed)
        self._keys = itertools.count(1)
        self._systems = [
            Segment(next(self._keys), self._length(plan.system_tokens))
            for _ in range(plan.system_prompts if plan.system_tokens else 0)
        ]
        self._documents = [
            Segment(next(self._keys), self._length(plan.document_tokens))
            for _ in range(plan.documents)
        ]
        images = max(4, round(plan.sessions * plan.image_share))
        self._images = [Segment(next(self._keys), plan.image_tokens, True) for _ in range(images)]

    def drafts(self) -> Iterator[Draft]:
        waiting: list[tuple[float, int, Draft, Iterator[Draft]]] = []
        start = 0.0
        for number in range(self._plan.sessions):
            start += self._exponential(1 / self._plan.session_rate)
            while waiting and waiting[0][0] <= start:
                yield self._next(waiting)
            session = self._session(number, start)
            first = next(session)
            heapq.heappush(waiting, (first.time, number, first, session))
        while waiting:
            yield self._next(waiting)

    @staticmethod
    def _next(waiting: list[tuple[float, int, Draft, Iterator[Draft]]]) -> Draft:
        _, number, draft, session = waiting[0]
        following = next(session, None)
        if following is None:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (following.time, number, following, session))
        return draft

    def _session(self, number: int, start: float) -> Iterator[Draft]:
        plan, rng = self._plan, self._rng
        tenant, adapter = self._zipf(plan.tenants), self._zipf(plan.adapters + 1)
        segments = [self._systems[self._zipf(len(self._systems))]] if self._systems else []
        kind = "agent" if plan.tool_calls and rng.random() < 0.5 else "chat"
        if self._documents and rng.random() < plan.document_share:
            segments.append(self._documents[self._zipf(len(self._documents))])
            kind = f"{kind}+document"
        now = start
        for turn in range(1, 1 + self._geometric(plan.turns)):
            segments.append(self._fresh(plan.message_tokens))
            if rng.random() < plan.image_share:
                segments.append(self._images[self._zipf(len(self._images))])
            calls = self._geometric(1 + 2 * plan.tool_calls) - 1 if "agent" in kind else 0
            for step in range(calls + 1):
                answer = self._fresh(plan.output_tokens)
                yield Draft(
                    now, number, turn, kind, answer.length, tenant, adapter, tuple(segments)
                )
                segments.append(answer)
                now += answer.length / _DECODE_RATE
                if step < calls:
                    segments.append(self._fresh(plan.tool_tokens))
                    now += self._exponential(1.0)
            now += self._exponential(plan.think_seconds)

    def _fresh(self, mean: float) -> Segment:
        return Segment(next(self._keys), self._length(mean))

    def _length(self, mean: float) -> int:
        """A length with a long tail, never below a tenth of the mean."""
        return max(1, round(mean * (0.1 + 0.9 * self._exponential(1.0))))

    def _exponential(self, mean: float) -> float:
        return -mean * math.log(1.0 - self._rng.random())

    def _geometric(self, mean: float) -> int:
        """1, 2, 3, ... with this mean."""
        if mean <= 1:
            return 1
        return 1 + int(math.log(1.0 - self._rng.random()) / math.log(1.0 - 1.0 / mean))

    def _zipf(self, number: int) -> int:
        """One of `number` items; item k with weight 1 / (k + 1) ** zipf."""
        if number <= 1:
            return 0
        weights = [(k + 1) ** -self._plan.zipf for k in range(number)]
        place = self._rng.random() * math.fsum(weights)
        for k, weight in enumerate(weights):
            place -= weight
            if place < 0:
                return k
        return number - 1
