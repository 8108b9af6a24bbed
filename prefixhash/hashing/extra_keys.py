"""The parts of a block's key beside its tokens: adapter, media, salt, prompt embeddings.

Each part is a small function from a request and a block [start, end) to a tuple of keys; the order
is vLLM's: adapter, media, salt, embeddings. Sources of the vLLM forms: the released packages,
0.19 to 0.33, whose golden digests the tests compare.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import index
from typing import Any

from prefixhash.errors import InvalidRequestError
from prefixhash.hashing.embeds import embeds_key, rows_digest
from prefixhash.hashing.profile import KeySchema

Keys = tuple[Any, ...]


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


def vllm_media_start(features: Sequence[Any], start: int, schema: KeySchema) -> int:
    """Index at which vLLM begins its walk over the media for the first block of a call."""
    if start == 0 or not features:
        return 0
    if schema.media_from_last:
        return len(features) - 1
    if _end(features[-1]) <= start:
        return 0
    return bisect_right(features, start, key=_end)


def vllm_media_keys(
    features: Sequence[Any], start: int, end: int, first: int, tagged: bool
) -> tuple[Keys, int]:
    """(identifier, offset in the block) of the items from number `first` on; and where to go on.

    The walk stops at the first item that reaches past the block, so that vLLM misses items nested
    in it, and it stops for good where the last item in order has ended.
    """
    keys: list[Any] = []
    if not features or _end(features[-1]) <= start:
        return (), first
    number = first
    while number < len(features):
        feature = features[number]
        offset, item_end = _offset(feature), _end(feature)
        if offset >= end:
            break
        if item_end > start:
            key = (own(feature.identifier, "mm_features.identifier"), offset - start)
            keys.append(("mm", *key) if tagged else key)
            if item_end > end:
                break
        number += 1
    return tuple(keys), number


def vllm_media_rewind(features: Sequence[Any], end: int, number: int) -> int:
    """With lookahead, `number` moved back over the items that reach past the block itself."""
    while number > 0 and _end(features[number - 1]) > end:
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


def strict_media_key(feature: Any, start: int) -> tuple[Any, ...]:
    """One item of a block: the offset is relative to the block, negative if it began earlier."""
    modality = own(getattr(feature, "modality", ""), "mm_features.modality")
    identifier = own(feature.identifier, "mm_features.identifier")
    offset = _offset(feature)
    return ("mm", modality, identifier, offset - start, _end(feature) - offset)


def strict_embeds_keys(request: Any, start: int, end: int) -> Keys:
    """The rows that the block's positions use, and which positions those are if not all."""
    key = embeds_key(request, start, end)
    return () if key is None else (key,)


class MediaSweep:
    """The media items over ascending blocks: O(items + blocks + overlaps) for a whole request."""

    def __init__(self, features: Sequence[Any]) -> None:
        held = (f for f in features if _end(f) > _offset(f))
        self._features = sorted(held, key=_offset)  # a foreign request's may be in any order
        self._next = 0
        self._open: list[Any] = []

    def overlapping(self, start: int, end: int) -> list[Any]:
        """Items with a position in [start, end), by offset, length, modality and identifier."""
        features = self._features
        i = self._next
        while i < len(features) and _offset(features[i]) < end:
            self._open.append(features[i])
            i += 1
        self._next = i
        self._open = [feature for feature in self._open if _end(feature) > start]
        return sorted(self._open, key=_sort_key)


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
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise InvalidRequestError("mm_position", number, "must hold integers")
    return index(number)


def _adapter_text(lora: Any, field: str) -> str:
    return own(getattr(lora, field, ""), f"lora_request.{field}")


def _sort_key(feature: Any) -> tuple[Any, ...]:
    modality = getattr(feature, "modality", "")
    return _offset(feature), _end(feature), modality, feature.identifier
