"""The parts of a block's key beside its tokens: adapter, media, salt, prompt embeddings.

Each part is a small function from a request and a block [start, end) to a tuple of keys; the order
is vLLM's: adapter, media, salt, embeddings. Sources of the vLLM forms: the released packages,
0.19 to 0.33, whose golden digests the tests compare.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from prefixhash.errors import InvalidRequestError
from prefixhash.hashing.embeds import embeds_key, rows_digest
from prefixhash.hashing.profile import KeySchema

Keys = tuple[Any, ...]


def own(text: str) -> str:
    """An equal string that is an object of its own.

    Pickle writes a back reference for an object that occurs twice. vLLM's engine core decodes each
    string of a request anew, so there no two values share an object; only the tags do, and strings
    of at most one Latin-1 character, which are single objects in CPython.
    """
    return text.encode().decode()


# --- keys of vLLM ---------------------------------------------------------------------------------


def vllm_lora_keys(request: Any, tagged: bool) -> Keys:
    """The adapter's name; since 0.31 tagged, with its path."""
    lora = getattr(request, "lora_request", None)
    if not lora:
        return ()
    if not tagged:
        return (own(lora.lora_name),)
    return (("lora", own(lora.lora_name), own(getattr(lora, "lora_path", ""))),)


def vllm_salt_keys(request: Any, start: int, tagged: bool) -> Keys:
    """The salt, in the first block only."""
    salt = getattr(request, "cache_salt", None)
    if not salt or start:
        return ()
    return (("cache_salt", own(salt)),) if tagged else (own(salt),)


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
    features: Sequence[Any], start: int, end: int, index: int, tagged: bool
) -> tuple[Keys, int]:
    """(identifier, offset in the block) of the items from `index` on; and where to go on.

    The walk stops at the first item that reaches past the block, so that vLLM misses items nested
    in it, and it stops for good where the last item in order has ended.
    """
    keys: list[Any] = []
    if not features or _end(features[-1]) <= start:
        return (), index
    while index < len(features):
        feature = features[index]
        offset = feature.mm_position.offset
        if offset >= end:
            break
        if _end(feature) > start:
            key = (own(feature.identifier), offset - start)
            keys.append(("mm", *key) if tagged else key)
            if _end(feature) > end:
                break
        index += 1
    return tuple(keys), index


def vllm_media_rewind(features: Sequence[Any], end: int, index: int) -> int:
    """With lookahead, `index` moved back over the items that reach past the block itself."""
    while index > 0 and _end(features[index - 1]) > end:
        index -= 1
    return index


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
        path = getattr(lora, "lora_path", "")
        revision = getattr(lora, "revision", "")
        keys.append(("lora", own(lora.lora_name), own(path), own(revision)))
    salt = getattr(request, "cache_salt", None)
    if salt:
        keys.append(("salt", own(salt)))
    return tuple(keys)


def strict_media_key(feature: Any, start: int) -> tuple[Any, ...]:
    """One item of a block: the offset is relative to the block, negative if it began earlier."""
    position = feature.mm_position
    modality = own(getattr(feature, "modality", ""))
    offset = position.offset - start
    return ("mm", modality, own(feature.identifier), offset, position.length)


def strict_embeds_keys(request: Any, start: int, end: int) -> Keys:
    """The rows that the block's positions use, and which positions those are if not all."""
    key = embeds_key(request, start, end)
    return () if key is None else (key,)


class MediaSweep:
    """The media items over ascending blocks: O(items + blocks + overlaps) for a whole request."""

    def __init__(self, features: Sequence[Any]) -> None:
        self._features = [f for f in features if f.mm_position.length > 0]
        self._next = 0
        self._open: list[Any] = []

    def overlapping(self, start: int, end: int) -> list[Any]:
        """Items with a position in [start, end), by offset, length, modality and identifier."""
        features = self._features
        i = self._next
        while i < len(features) and features[i].mm_position.offset < end:
            self._open.append(features[i])
            i += 1
        self._next = i
        self._open = [feature for feature in self._open if _end(feature) > start]
        return sorted(self._open, key=_sort_key)


def check_identifiers(request: Any) -> None:
    """Refuses identifiers that name an item of this process only, such as vLLM gives out when its
    media caches are off (`renderer0-mm-1-image-0`): after a restart they name other media."""
    for i, feature in enumerate(getattr(request, "mm_features", None) or ()):
        if is_request_local(feature.identifier):
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


def _end(feature: Any) -> int:
    position = feature.mm_position
    end: int = position.offset + position.length
    return end


_position_key = attrgetter("mm_position.offset", "mm_position.length")


def _sort_key(feature: Any) -> tuple[Any, ...]:
    return (*_position_key(feature), getattr(feature, "modality", ""), feature.identifier)
