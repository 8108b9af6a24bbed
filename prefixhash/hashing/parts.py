"""The parts of a request beside its tokens, read off any request object: checked, and by value.

A `Request` has checked its own parts; another engine's request is looked at here, and what cannot
be hashed is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixhash._arguments import integer, text
from prefixhash.errors import InvalidRequestError
from prefixhash.request import PlaceholderRange, Request
from prefixhash.request.fields import checked_mask
from prefixhash.request.tokens import MAX_TOKEN_ID

Keys = tuple[Any, ...]
_PARTS = ("lora_request", "mm_features", "cache_salt", "prompt_embeds", "prompt_is_token_ids")


def is_plain(request: Any) -> bool:
    """Whether there are tokens alone, so that no dialect has anything to add or to replace."""
    if isinstance(request, Request):
        return request.is_plain
    for part in _PARTS:
        value = getattr(request, part, None)
        if value is not None and not (type(value) in (list, tuple) and not value):
            return False
    return True


def own(value: Any, argument: str) -> str:
    """An equal string that is an object of its own; refuses what is no string.

    Pickle writes a back reference for an object that occurs twice. vLLM's engine core decodes each
    string of a request anew, so there no two values share an object; only the tags do, and strings
    of at most one Latin-1 character, which are single objects in CPython.
    """
    try:
        if isinstance(value, str):
            return value.encode().decode()
    except UnicodeEncodeError:
        pass
    return text(argument, value, error=InvalidRequestError)


def adapter_name(lora: Any) -> str:
    """The name of an adapter, which every adapter has."""
    return own(getattr(lora, "lora_name", None), "lora_request.lora_name")


def adapter_text(lora: Any, field: str) -> str:
    """Another field of an adapter; an engine's may lack it."""
    return own(getattr(lora, field, ""), f"lora_request.{field}")


def salt(request: Any) -> str:
    """The salt; empty without one."""
    value = getattr(request, "cache_salt", None)
    return "" if value is None else own(value, "cache_salt")


def media(request: Any) -> Sequence[Any]:
    """The media items as they stand in the request."""
    features = getattr(request, "mm_features", None)
    if features is None:
        return ()
    if not isinstance(features, (list, tuple, Sequence)):
        raise InvalidRequestError("mm_features", features, "must be a list of items, or None")
    return features


def media_end(request: Any, features: Sequence[Any]) -> int:
    """The first position behind all media items; O(1) for a `Request`."""
    end = getattr(request, "mm_end", None)
    return end if type(end) is int else max((span(item)[1] for item in features), default=0)


def span(feature: Any) -> tuple[int, int]:
    """[offset, end) of a media item."""
    try:
        position = feature.mm_position
        offset, length = position.offset, position.length
    except AttributeError:
        problem = "an item must have an identifier and an mm_position of offset and length"
        raise InvalidRequestError("mm_features", feature, problem) from None
    if type(position) is not PlaceholderRange:
        offset, length = _tokens(offset), _tokens(length)
    return offset, offset + length


def identifier(feature: Any) -> str:
    """The content identity of a media item."""
    return own(getattr(feature, "identifier", None), "mm_features.identifier")


def embeds(request: Any) -> Any:
    """The prompt embeddings, which have a number of rows; None without any."""
    values = getattr(request, "prompt_embeds", None)
    if values is None:
        return None
    if not (getattr(values, "shape", None) and hasattr(values, "dtype")):
        problem = "must be a torch tensor or a numpy array of rows, or None"
        raise InvalidRequestError("prompt_embeds", values, problem)
    return values


def token_mask(request: Any, start: int, stop: int) -> Sequence[bool] | None:
    """Of the positions in [start, stop) of a mixed prompt, which hold a token; shorter where the
    prompt ends, None for a prompt that is not mixed."""
    mask = getattr(request, "prompt_is_token_ids", None)
    if mask is None:
        return None
    if isinstance(request, Request):
        mine: tuple[bool, ...] = mask[start:stop]
        return mine
    return checked_mask(_part(mask, start, stop), "prompt_is_token_ids", start)


def embeddings_as_zero(request: Any, start: int, stop: int) -> Sequence[tuple[int, int]]:
    """(position, 0) of the positions in [start, stop) of a mixed prompt that hold an embedding."""
    mask = token_mask(request, start, stop)
    if mask is None:
        return ()
    return [(i, 0) for i, is_token in enumerate(mask, start) if not is_token]


def _part(mask: Any, start: int, stop: int) -> Any:
    try:
        return mask[start:stop]
    except (LookupError, TypeError):
        problem = "must be a sequence of bools, or None"
        raise InvalidRequestError("prompt_is_token_ids", mask, problem) from None


def _tokens(number: Any) -> int:
    # An engine's items may hold numpy integers; they hash like ints, and floats do not pass.
    return integer("mm_position", number, 0, MAX_TOKEN_ID, error=InvalidRequestError)
