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
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.records import MediaSpan, TokenPrompt, TraceRequest

_VOCABULARY = 128_000
_IMAGE_TOKEN = 128_000
_DECODE_RATE = 50.0


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
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
                raise InvalidArgumentError(item.name, value, f"must be at least {least}")
            if not math.isfinite(value):
                raise InvalidArgumentError(item.name, value, "must be finite")
            if item.name.endswith("_share") and value > 1:
                raise InvalidArgumentError(item.name, value, "is a share of at most 1")
            if item.type == "int" and not isinstance(value, int):
                raise InvalidArgumentError(item.name, value, "must be a whole number")


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
    if name not in WORKLOADS:
        raise InvalidArgumentError("workload", name, f"is not one of {', '.join(WORKLOADS)}")
    return replace(WORKLOADS[name], **changes)


@dataclass(frozen=True, slots=True)
class _Segment:
    """`length` tokens that nobody else writes; `key` names the content."""

    key: int
    length: int
    is_image: bool = False


@dataclass(frozen=True, slots=True)
class _Draft:
    """A request before it is written in one of the forms."""

    time: float
    session: int
    turn: int
    kind: str
    output_tokens: int
    tenant: int
    adapter: int
    segments: tuple[_Segment, ...]


def synthesize(
    workload: str | Workload = "chat",
    *,
    form: str = "mooncake",
    block_size: int = 512,
    seed: int = 0,
) -> Iterator[TraceRequest]:
    """Requests of a synthetic trace in the order of their times.

    `workload`: a name (chat, agents, documents, mixed) or a `Workload`; `form`: `mooncake` (ids of
    `block_size` tokens, a partial last one included) or `tokens` (token ids with LoRA, salt and
    images). Memory: the sessions that run at one time, and for ids the distinct blocks.
    """
    plan = make_workload(workload) if isinstance(workload, str) else workload
    if form not in ("mooncake", "tokens"):
        raise InvalidArgumentError("form", form, "is neither mooncake nor tokens")
    if block_size < 1:
        raise InvalidArgumentError("block_size", block_size, "must be at least 1")
    drafts = _Generator(plan, seed).drafts()
    if form == "tokens":
        return (_with_tokens(draft) for draft in drafts)
    namer = _BlockNamer(block_size)
    return (namer.name(draft) for draft in drafts)


class _Generator:
    """Draws sessions and merges their requests by time."""

    def __init__(self, plan: Workload, seed: int) -> None:
        self._plan = plan
        self._rng = random.Random(seed)
        self._keys = itertools.count(1)
        self._systems = [
            _Segment(next(self._keys), self._length(plan.system_tokens))
            for _ in range(plan.system_prompts if plan.system_tokens else 0)
        ]
        self._documents = [
            _Segment(next(self._keys), self._length(plan.document_tokens))
            for _ in range(plan.documents)
        ]
        images = max(4, round(plan.sessions * plan.image_share))
        self._images = [_Segment(next(self._keys), plan.image_tokens, True) for _ in range(images)]

    def drafts(self) -> Iterator[_Draft]:
        waiting: list[tuple[float, int, _Draft, Iterator[_Draft]]] = []
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
    def _next(waiting: list[tuple[float, int, _Draft, Iterator[_Draft]]]) -> _Draft:
        _, number, draft, session = waiting[0]
        following = next(session, None)
        if following is None:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (following.time, number, following, session))
        return draft

    def _session(self, number: int, start: float) -> Iterator[_Draft]:
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
                yield _Draft(
                    now, number, turn, kind, answer.length, tenant, adapter, tuple(segments)
                )
                segments.append(answer)
                now += answer.length / _DECODE_RATE
                if step < calls:
                    segments.append(self._fresh(plan.tool_tokens))
                    now += self._exponential(1.0)
            now += self._exponential(plan.think_seconds)

    def _fresh(self, mean: float) -> _Segment:
        return _Segment(next(self._keys), self._length(mean))

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


def _with_tokens(draft: _Draft) -> TraceRequest:
    tokens = array("q")
    media = []
    for segment in draft.segments:
        if segment.is_image:
            media.append(MediaSpan(f"image-{segment.key}", len(tokens), segment.length))
            tokens.extend([_IMAGE_TOKEN] * segment.length)
        else:
            tokens.extend(_segment_tokens(segment))
    prompt = TokenPrompt(
        tokens,
        f"adapter-{draft.adapter}" if draft.adapter else None,
        f"tenant-{draft.tenant}" if draft.tenant else None,
        tuple(media),
    )
    return _request(draft, (), len(tokens), prompt)


def _segment_tokens(segment: _Segment) -> array[int]:
    """Tokens that look like text: a walk over the vocabulary that starts elsewhere for each key."""
    start = segment.key * 7919
    step = 2 * (segment.key % 1009) + 1
    return array("q", [(start + step * i) % _VOCABULARY for i in range(segment.length)])


def _request(
    draft: _Draft, ids: tuple[int, ...] | list[int], num_tokens: int, prompt: TokenPrompt | None
) -> TraceRequest:
    return TraceRequest(
        ids,
        num_tokens,
        draft.output_tokens,
        round(draft.time, 3),
        session=f"s{draft.session}",
        turn=draft.turn,
        kind=draft.kind,
        prompt=prompt,
    )


class _BlockNamer:
    """Names each distinct prefix block by a number."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._names: dict[tuple[object, ...], int] = {}

    def name(self, draft: _Draft) -> TraceRequest:
        ids: list[int] = []
        # Whatever separates the KV of equal tokens separates the chain from its first block on.
        parent: object = ("root", draft.tenant, draft.adapter)
        pieces: list[tuple[int, int, int]] = []
        room = self._size
        total = 0
        for segment in draft.segments:
            total += segment.length
            offset = 0
            while offset < segment.length:
                length = min(room, segment.length - offset)
                pieces.append((segment.key, offset, length))
                offset += length
                room -= length
                if room == 0:
                    parent = self._close(ids, parent, pieces)
                    room = self._size
        if pieces:
            self._close(ids, parent, pieces)
        return _request(draft, ids, total, None)

    def _close(self, ids: list[int], parent: object, pieces: list[tuple[int, int, int]]) -> int:
        name = self._names.setdefault((parent, *pieces), len(self._names))
        ids.append(name)
        pieces.clear()
        return name


def record_of(request: TraceRequest) -> dict[str, Any]:
    """A synthetic request as a record of its form, ready for `json.dumps`."""
    common = {"output_length": request.output_tokens, "session_id": request.session}
    common["type"] = request.kind
    time = request.timestamp or 0.0
    prompt = request.prompt
    if prompt is None:
        return {
            "timestamp": round(1000 * time),
            "input_length": request.num_tokens,
            **common,
            "hash_ids": list(request.ids),
        }
    record: dict[str, Any] = {"timestamp": time, **common}
    if prompt.lora is not None:
        record["lora"] = prompt.lora
    if prompt.cache_salt is not None:
        record["cache_salt"] = prompt.cache_salt
    if prompt.media:
        record["mm_features"] = [
            {
                "identifier": span.identifier,
                "modality": span.modality,
                "mm_position": {"offset": span.offset, "length": span.length},
            }
            for span in prompt.media
        ]
    record["token_ids"] = list(prompt.token_ids)
    return record
