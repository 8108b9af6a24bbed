"""The door of replay, curve and survey: whatever they are given as a trace is checked here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.request import Request
from prefixhash.trace.checks import instance_of, items_of
from prefixhash.trace.records import BlockId, MediaSpan, TokenPrompt, TraceRequest

_ID_TYPES = frozenset({int, str, bytes})
_MOST_TOKENS = (1 << 63) - 1


def ids_block_size(trace: object, given: int | None) -> int:
    """Tokens of a block id: as given, else what the trace says of itself.

    Raises `InvalidArgumentError` where neither does, or for less than one token.
    """
    size = given if given is not None else getattr(trace, "block_size", None)
    if size is None:
        raise InvalidArgumentError(
            "block_size", None, "is needed: a list of requests does not tell the size of its blocks"
        )
    return _arguments.integer("block_size", size, 1)


def check_repeatable(trace: object, reason: str) -> None:
    """Raises `InvalidArgumentError` for an iterator, where `reason` needs more than one pass."""
    if isinstance(trace, Iterator):
        problem = f"is an iterator, which gives its requests once, but {reason} needs another pass"
        raise InvalidArgumentError("trace", trace, f"{problem}: give a list")


def checked_requests(trace: Iterable[TraceRequest], block_size: int) -> Iterator[TraceRequest]:
    """The requests of `trace`, with numbers as Python's own.

    Raises `InvalidArgumentError`, which names the request and its field.
    """
    for index, request in enumerate(items_of("trace", trace, "requests")):
        name = f"trace[{index}]"
        checked = _with_plain_fields(name, instance_of(name, request, TraceRequest))
        tokens, number = checked.num_tokens, len(checked.ids)
        if number and (number - 1) * block_size >= tokens:
            problem = f"are {number} blocks of {block_size}, more than {tokens} tokens begin"
            raise InvalidArgumentError(f"{name}.ids", checked.ids, problem)
        yield checked


def _with_plain_fields(name: str, request: TraceRequest) -> TraceRequest:
    """The request as it is, where its fields are what they should be, or with them made so."""
    ids = _ids(f"{name}.ids", request.ids)
    changes: dict[str, Any] = {} if ids is request.ids else {"ids": ids}
    for field in ("num_tokens", "output_tokens"):
        value = getattr(request, field)
        if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
            changes[field] = _arguments.integer(f"{name}.{field}", value, 0, _MOST_TOKENS)
    for field, least in (("timestamp", -math.inf), ("duration", 0.0)):
        value = getattr(request, field)
        if value is not None and not (type(value) is float and least <= value < math.inf):
            changes[field] = _seconds(f"{name}.{field}", value, least)
    if request.turn is not None and type(request.turn) is not int:
        changes["turn"] = _arguments.integer(f"{name}.turn", request.turn, None)
    for field in ("session", "kind"):
        value = getattr(request, field)
        if value is not None and type(value) is not str:
            _arguments.text(f"{name}.{field}", value)
    if request.prompt is not None:
        _check_prompt(f"{name}.prompt", request.prompt)
    if request.hashed is not None:
        instance_of(f"{name}.hashed", request.hashed, Request)
    return replace(request, **changes) if changes else request


def _seconds(name: str, value: Any, least: float) -> float:
    found = _arguments.number(name, value, least)
    if math.isinf(found):
        raise InvalidArgumentError(name, value, "must be finite")
    return found


def _ids(name: str, ids: Any) -> Sequence[BlockId]:
    """Block ids: integers, strings, bytes, or pairs of a conversation's number and an id."""
    if type(ids) in (tuple, list) and (_ID_TYPES.issuperset(map(type, ids)) or _are_pairs(ids)):
        known: Sequence[BlockId] = ids
        return known
    found = items_of(name, ids, "block ids")
    return [_id(f"{name}[{place}]", block) for place, block in enumerate(found)]


def _are_pairs(ids: Sequence[Any]) -> bool:
    """Whether all are (integer, id), by whole lists: a loop would cost more than counting hits."""
    if set(map(type, ids)) != {tuple} or set(map(len, ids)) != {2}:
        return False
    conversations, names = zip(*ids, strict=True)
    return {int}.issuperset(map(type, conversations)) and {int, str}.issuperset(map(type, names))


def _id(name: str, block: Any) -> BlockId:
    if type(block) in (int, str, bytes):
        plain: BlockId = block
        return plain
    if type(block) is tuple and len(block) == 2:
        first, second = block
        if type(first) is int and type(second) in (int, str):
            return first, second
    return _arguments.integer(name, block, None, meaning=", text, bytes, or (integer, id)")


def _check_prompt(name: str, prompt: Any) -> None:
    """What hashing the prompt does not check."""
    instance_of(name, prompt, TokenPrompt)
    if not hasattr(prompt.token_ids, "__getitem__"):
        raise InvalidArgumentError(f"{name}.token_ids", prompt.token_ids, "must be a sequence")
    for place, span in enumerate(items_of(f"{name}.media", prompt.media, "media spans")):
        instance_of(f"{name}.media[{place}]", span, MediaSpan)
