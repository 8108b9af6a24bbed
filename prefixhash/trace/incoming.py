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
from prefixhash.trace.records import BlockId, TokenPrompt, TraceRequest

_ID_TYPES = frozenset({int, str, bytes})
_OPTIONAL_INT = (int, type(None))
_OPTIONAL_TEXT = (str, type(None))
_MOST_TOKENS = (1 << 63) - 1


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
        if isinstance(request, TraceRequest) and _is_plain(request):
            checked = request
        else:
            checked = _made_plain(f"trace[{index}]", request)
        tokens, number = checked.num_tokens, len(checked.ids)
        if number and (number - 1) * block_size >= tokens:
            problem = f"are {number} blocks of {block_size}, more than {tokens} tokens begin"
            raise InvalidArgumentError(f"trace[{index}].ids", checked.ids, problem)
        yield checked


def _is_plain(request: TraceRequest) -> bool:
    """Whether all is as the readers of traces give it: by types, in one go, for traces are long."""
    return (
        type(request.ids) in (tuple, list)
        and (_ID_TYPES.issuperset(map(type, request.ids)) or _are_pairs(request.ids))
        and type(request.num_tokens) is type(request.output_tokens) is int
        and 0 <= request.num_tokens <= _MOST_TOKENS
        and 0 <= request.output_tokens <= _MOST_TOKENS
        and (type(request.timestamp) is float or request.timestamp is None)
        and -math.inf < (request.timestamp or 0.0) < math.inf
        and (type(request.duration) is float or request.duration is None)
        and 0 <= (request.duration or 0.0) < math.inf
        and type(request.turn) in _OPTIONAL_INT
        and type(request.session) in _OPTIONAL_TEXT
        and type(request.kind) in _OPTIONAL_TEXT
        and request.prompt is request.hashed is None
    )


def _made_plain(name: str, given: Any) -> TraceRequest:
    """The request with each field checked."""
    request = instance_of(name, given, TraceRequest)
    for field in ("session", "kind"):
        if getattr(request, field) is not None:
            _arguments.text(f"{name}.{field}", getattr(request, field))
    if request.prompt is not None:
        _check_prompt(f"{name}.prompt", request.prompt)
    if request.hashed is not None:
        instance_of(f"{name}.hashed", request.hashed, Request)
    return replace(
        request,
        ids=_ids(f"{name}.ids", request.ids),
        num_tokens=_tokens(f"{name}.num_tokens", request.num_tokens),
        output_tokens=_tokens(f"{name}.output_tokens", request.output_tokens),
        timestamp=_seconds(f"{name}.timestamp", request.timestamp, -math.inf),
        duration=_seconds(f"{name}.duration", request.duration, 0.0),
        turn=_arguments.optional_integer(f"{name}.turn", request.turn, None),
    )


def _tokens(name: str, value: Any) -> int:
    return _arguments.integer(name, value, 0, _MOST_TOKENS)


def _seconds(name: str, value: Any, least: float) -> float | None:
    if value is None:
        return None
    found = _arguments.number(name, value, least)
    if math.isinf(found):
        raise InvalidArgumentError(name, value, "must be finite")
    return found


def _ids(name: str, ids: Any) -> list[BlockId]:
    """Block ids: integers, strings, bytes, or pairs of a conversation's number and an id."""
    found = items_of(name, ids, "block ids")
    return [_id(f"{name}[{place}]", block) for place, block in enumerate(found)]


def _are_pairs(ids: Sequence[Any]) -> bool:
    """Whether all are (integer, id)."""
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
    """What hashing the prompt does not check: it takes any tokens that can be counted through."""
    instance_of(name, prompt, TokenPrompt)
    if not hasattr(prompt.token_ids, "__getitem__"):
        raise InvalidArgumentError(f"{name}.token_ids", prompt.token_ids, "must be a sequence")
    if not isinstance(prompt.media, (tuple, list)):
        raise InvalidArgumentError(f"{name}.media", prompt.media, "must be a tuple")
