"""The forms of a synthetic trace: token ids, or named blocks; and its records as JSON."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from prefixhash.errors import InvalidArgumentError
from prefixhash.request import LoRARequest, MultiModalFeature, PlaceholderRange
from prefixhash.trace.formats.mooncake import Mooncake
from prefixhash.trace.formats.tokens import Tokens
from prefixhash.trace.records import TokenPrompt, TraceRequest

# The first is the default.
FORMS = (Mooncake.name, Tokens.name)
_VOCABULARY = 128_000
_IMAGE_TOKEN = 128_000


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` tokens that nobody else writes; `key` names the content."""

    key: int
    length: int
    is_image: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A request before it is written in one of the forms."""

    time: float
    session: int
    turn: int
    kind: str
    output_tokens: int
    tenant: int
    adapter: int
    segments: tuple[Segment, ...]


def with_tokens(draft: Draft) -> TraceRequest:
    tokens = array("q")
    media = []
    for segment in draft.segments:
        if segment.is_image:
            place = PlaceholderRange(len(tokens), segment.length)
            media.append(MultiModalFeature(f"image-{segment.key}", place))
            tokens.extend([_IMAGE_TOKEN] * segment.length)
        else:
            tokens.extend(_segment_tokens(segment))
    prompt = TokenPrompt(
        tokens,
        LoRARequest(f"adapter-{draft.adapter}") if draft.adapter else None,
        f"tenant-{draft.tenant}" if draft.tenant else None,
        tuple(media),
    )
    return _request(draft, (), len(tokens), prompt)


def _segment_tokens(segment: Segment) -> array[int]:
    """Tokens that look like text: a walk over the vocabulary that starts elsewhere for each key."""
    start = segment.key * 7919
    step = 2 * (segment.key % 1009) + 1
    return array("q", [(start + step * i) % _VOCABULARY for i in range(segment.length)])


def _request(
    draft: Draft, ids: tuple[int, ...] | list[int], num_tokens: int, prompt: TokenPrompt | None
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


class BlockNamer:
    """Names each distinct prefix block by a number."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._names: dict[tuple[object, ...], int] = {}

    def name(self, draft: Draft) -> TraceRequest:
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
    """A synthetic request as a record of its form, ready for `json.dumps`.

    Raises `InvalidArgumentError` for a field that the form cannot say.
    """
    if not isinstance(request, TraceRequest):
        raise InvalidArgumentError("request", request, "must be a TraceRequest")
    if request.prompt is None:
        return Mooncake.written(request)
    if not isinstance(request.prompt, TokenPrompt):
        raise InvalidArgumentError("prompt", request.prompt, "must be a TokenPrompt, or None")
    return Tokens.written(request, request.prompt)
