"""What a trace consists of: one `TraceRequest` per prompt, whatever format it was read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError

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


def ids_block_size(trace: object, given: int | None) -> int:
    """Tokens of a block id: as given, else what the trace says of itself.

    Raises `InvalidArgumentError` where neither does, or for what is no number of tokens.
    """
    size = given if given is not None else getattr(trace, "block_size", None)
    if size is None:
        raise InvalidArgumentError(
            "block_size", None, "is needed: a list of requests does not tell the size of its blocks"
        )
    return _arguments.integer("block_size", size, 1)
