"""What a trace consists of: one `TraceRequest` per prompt, whatever format it was read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Opaque: integers of any size, strings, or (conversation, id) pairs where ids are local to one.
BlockId = int | str | bytes | tuple[int, int | str]


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """An image, clip or document inside a prompt: `length` tokens from position `offset`."""

    identifier: str
    offset: int
    length: int
    modality: str = "image"


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that was recorded with its tokens, and with all else that its KV depends on."""

    token_ids: Sequence[int]
    lora: str | None = None
    cache_salt: str | None = None
    media: tuple[MediaSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    `ids` names the blocks of the prompt in order, one for each `block_size` tokens of the trace; a
    last, partial block may or may not have been recorded. Times are in seconds from the trace's own
    zero. What a format does not record is None (`output_tokens`: 0). `hashed` is the hashed
    `Request` of a prompt with tokens, once somebody has made it.
    """

    ids: Sequence[BlockId]
    num_tokens: int
    output_tokens: int = 0
    timestamp: float | None = None
    duration: float | None = None
    session: str | None = None
    turn: int | None = None
    kind: str | None = None
    prompt: TokenPrompt | None = None
    hashed: Any = None
