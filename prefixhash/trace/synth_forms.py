"""The forms of a synthetic trace: token ids, or named blocks; and its records as JSON."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from prefixhash.trace.records import MediaSpan, TokenPrompt, TraceRequest

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
