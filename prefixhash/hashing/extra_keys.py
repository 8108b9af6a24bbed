"""The parts of a block's key beside its tokens: adapter, media, salt, prompt embeddings.

Each part is a small function from a request and a block [start, end) to a tuple of keys; the order
is vLLM's: adapter, media, salt, embeddings. Sources of the vLLM forms: the released packages,
0.19 to 0.33, whose golden digests the tests compare.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from operator import index, itemgetter
from typing import Any

from prefixhash.errors import InvalidRequestError
from prefixhash.hashing.embeds import embeds_key, rows_digest
from prefixhash.hashing.profile import KeySchema
from prefixhash.request.tokens import is_integer

Keys = tuple[Any, ...]
Span = tuple[int, int, str]


def own(text: Any, argument: str) -> str:
    """An equal string that is an object of its own; refuses what is no string.

    Pickle writes a back reference for an object that occurs twice. vLLM's engine core decodes each
    string of a request anew, so there no two values share an object; only the tags do, and strings
    of at most one Latin-1 character, which are single objects in CPython.
    """
    try:
        if isinstance(text, str):
            return text.encode().decode()
    except UnicodeEncodeError:
        pass
    raise InvalidRequestError(argument, text, "must be a string that UTF-8 can encode")


# --- keys of vLLM ---------------------------------------------------------------------------------


def vllm_lora_keys(request: Any, tagged: bool) -> Keys:
    """The adapter's name; since 0.31 tagged, with its path."""
    lora = getattr(request, "lora_request", None)
    if not lora:
        return ()
    name = own(lora.lora_name, "lora_request.lora_name")
    return (("lora", name, _adapter_text(lora, "lora_path")),) if tagged else (name,)


def vllm_salt_keys(request: Any, start: int, tagged: bool) -> Keys:
    """The salt, in the first block only."""
    salt = getattr(request, "cache_salt", None)
    if not salt or start:
        return ()
    text = own(salt, "cache_salt")
    return (("cache_salt", text),) if tagged else (text,)


def vllm_media_spans(features: Sequence[Any], start: int) -> list[Span]:
    """(offset, end, identifier) of the items in order; empty where the last one has ended.

    vLLM looks at no media from there on, even if an earlier item reaches further.
    """
    if not features or _end(features[-1]) <= start:
        return []
    named = "mm_features.identifier"
    return [(_offset(item), _end(item), own(item.identifier, named)) for item in features]


def vllm_media_start(spans: Sequence[Span], start: int, schema: KeySchema) -> int:
    """Number of the item at which vLLM begins its walk in a call for later blocks."""
    if schema.media_from_last:
        return max(len(spans) - 1, 0)
    return bisect_right(spans, start, key=itemgetter(1))


def vllm_media_keys(
    spans: Sequence[Span], start: int, end: int, first: int, tagged: bool
) -> tuple[Keys, int]:
    """(identifier, offset in the block) of the items from number `first` on; and where to go on.

    The walk stops at the first item that reaches past the block, so that vLLM misses items nested
    in it.
    """
    keys: list[Any] = []
    if not spans or spans[-1][1] <= start:
        return (), first
    number = first
    while number < len(spans):
        offset, item_end, identifier = spans[number]
        if offset >= end:
            break
        if item_end > start:
            key = (identifier, offset - start)
            keys.append(("mm", *key) if tagged else key)
            if item_end > end:
                break
        number += 1
    return tuple(keys), number


def vllm_media_rewind(spans: Sequence[Span], end: int, number: int) -> int:
    """With lookahead, `number` moved back over the items that reach past the block itself."""
    while number > 0 and spans[number - 1][1] > end:
        number -= 1
    return number


def vllm_embeds_keys(request: Any, start: int, end: int, tagged: bool) -> Keys:
    """Digest of the block's rows; behind the last row it is the digest of nothing."""
    if getattr(request, "prompt_embeds", None) is None:
        return ()
    digest = rows_digest(request, start, end)
    return (("prompt_embeds", digest),) if tagged else (digest,)


# --- keys of the strict profile -------------------------------------------------------------------


def strict_request_keys(request: Any) -> Keys:
    """What holds for the whole request: it stands in block 0, and the chain carries it on."""
    keys: list[Any] = []
    lora = getattr(request, "lora_request", None)
    if lora:
        name = own(lora.lora_name, "lora_request.lora_name")
        path, revision = _adapter_text(lora, "lora_path"), _adapter_text(lora, "revision")
        keys.append(("lora", name, path, revision))
    salt = getattr(request, "cache_salt", None)
    if salt:
        keys.append(("salt", own(salt, "cache_salt")))
    return tuple(keys)


def strict_embeds_keys(request: Any, start: int, end: int) -> Keys:
    """The rows that the block's positions use, and which positions those are if not all."""
    key = embeds_key(request, start, end)
    return () if key is None else (key,)


class MediaSweep:
    """The media keys of ascending blocks: O(items + blocks + overlaps) for a whole request."""

    def __init__(self, features: Sequence[Any]) -> None:
        items = map(_media_item, features)
        # A foreign request's may be in any order. Items without length are as if absent.
        self._items = sorted(item for item in items if item[1])
        self._next = 0
        self._open: list[_Item] = []
        self._first_end = _NEVER

    def keys(self, start: int, end: int) -> list[tuple[Any, ...]]:
        """Keys of the items with a position in [start, end), in the order of `_Item`.

        The offset in a key is relative to the block, negative if the item began earlier.
        """
        if self._first_end <= start:
            self._open = [item for item in self._open if item[0] + item[1] > start]
            self._first_end = min((item[0] + item[1] for item in self._open), default=_NEVER)
        items, number = self._items, self._next
        while number < len(items) and items[number][0] < end:
            item = items[number]
            number += 1
            if item[0] + item[1] > start:
                self._open.append(item)
                self._first_end = min(self._first_end, item[0] + item[1])
        self._next = number
        return [
            ("mm", modality, identifier, offset - start, length)
            for offset, length, modality, identifier in self._open
        ]


_Item = tuple[int, int, str, str]
_NEVER = sys.maxsize


def _media_item(feature: Any) -> _Item:
    """Offset, length, modality and identifier: the parts of a key, in the order of keys."""
    offset = _offset(feature)
    modality = own(getattr(feature, "modality", ""), "mm_features.modality")
    identifier = own(feature.identifier, "mm_features.identifier")
    return offset, _end(feature) - offset, modality, identifier


def check_identifiers(request: Any) -> None:
    """Refuses identifiers that name an item of this process only, such as vLLM gives out when its
    media caches are off (`renderer0-mm-1-image-0`): after a restart they name other media."""
    for i, feature in enumerate(getattr(request, "mm_features", None) or ()):
        if is_request_local(str(feature.identifier)):
            raise InvalidRequestError(
                f"mm_features[{i}].identifier",
                feature.identifier,
                "is local to one process and would name another item after a restart: "
                "use media_identifier(content), or a profile with a random root",
            )


def is_request_local(identifier: str) -> bool:
    """Whether vLLM made up the identifier for one request (`renderer<rank>-mm-<count>-...`)."""
    head, separator, tail = identifier.partition("-mm-")
    rank = head.removeprefix("renderer")
    return bool(separator) and head != rank and rank.isdecimal() and tail[:1].isdecimal()


def media_end(request: Any, features: Sequence[Any]) -> int:
    """The first position behind all media items; O(1) for a `Request`."""
    end: int | None = getattr(request, "mm_end", None)
    return max(map(_end, features), default=0) if end is None else end


def _offset(feature: Any) -> int:
    return _tokens(feature.mm_position.offset)


def _end(feature: Any) -> int:
    position = feature.mm_position
    return _tokens(position.offset) + _tokens(position.length)


def _tokens(number: Any) -> int:
    # An engine's items may hold numpy integers; they hash like ints, and floats do not pass.
    if type(number) is int:
        return number
    if not is_integer(number):
        raise InvalidRequestError("mm_position", number, "must hold integers")
    return index(number)


def _adapter_text(lora: Any, field: str) -> str:
    return own(getattr(lora, field, ""), f"lora_request.{field}")
