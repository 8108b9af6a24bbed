"""The keys of this package: injective by construction, equal only for what has equal KV.

Each part is a tagged tuple of all that the KV depends on. What holds for the whole request stands
in block 0, and the chain carries it on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from prefixhash.errors import InvalidRequestError
from prefixhash.hashing import _cbor, parts
from prefixhash.hashing.algorithms import Algorithm
from prefixhash.hashing.dialects.base import Dialect, Extras
from prefixhash.hashing.embeds import embeds_key

_ROOT_TAG = "prefixhash/1"


@dataclass(frozen=True)
class Strict(Dialect):
    """Any algorithm; without a seed, one that is not collision resistant gets a random root."""

    engine: ClassVar[str] = "strict"
    default_algorithm: ClassVar[str] = "sha256_cbor"

    def root(
        self, algorithm: Algorithm, namespace: str, seed: str | None, random_root: bool
    ) -> tuple[bytes, bool]:
        # Collisions of the fast algorithms can be made offline by whoever knows the root.
        drawn = random_root or (seed is None and not algorithm.collision_resistant)
        nonce = os.urandom(32) if drawn else None
        # CBOR for every algorithm: no pickle, whose bytes could tell equal strings apart.
        return algorithm.digest(_cbor.encode((_ROOT_TAG, namespace, seed, nonce))), not drawn

    def extras(
        self, request: Any, start: int, stop: int, block_size: int, ahead: int, resumed: bool
    ) -> Extras | None:
        features = parts.media(request)
        if features and parts.media_end(request, features) <= start:
            features = ()
        embeds = parts.embeds(request)
        has_embeds = embeds is not None and start < embeds.shape[0]
        first = () if start else request_keys(request)
        if not (features or has_embeds):
            return [first, *[None] * ((stop - start) // block_size - 1)] if first else None
        sweep = MediaSweep(features)
        extras: Extras = []
        for begin in range(start, stop, block_size):
            end = begin + block_size
            rows = embeds_key(request, begin, end) if has_embeds else None
            keys = (*first, *sweep.keys(begin, end), *(() if rows is None else (rows,)))
            extras.append(keys or None)
            first = ()
        return extras

    def replaced_ids(self, request: Any, start: int, stop: int) -> Sequence[tuple[int, int]]:
        return parts.embeddings_as_zero(request, start, stop)

    def check_lasting(self, request: Any) -> None:
        """Refuses identifiers that name an item of this process only, such as vLLM gives out when
        its media caches are off (`renderer0-mm-1-image-0`): after a restart they name others."""
        for i, feature in enumerate(parts.media(request)):
            name = parts.identifier(feature)
            if is_request_local(name):
                raise InvalidRequestError(
                    f"mm_features[{i}].identifier",
                    name,
                    "is local to one process and would name another item after a restart: "
                    "use media_identifier(content), or a profile with a random root",
                )


def request_keys(request: Any) -> parts.Keys:
    """Adapter and salt."""
    keys: list[Any] = []
    lora = getattr(request, "lora_request", None)
    if lora is not None:
        path, revision = parts.adapter_text(lora, "lora_path"), parts.adapter_text(lora, "revision")
        keys.append(("lora", parts.adapter_name(lora), path, revision))
    salt = parts.salt(request)
    if salt:
        keys.append(("salt", salt))
    return tuple(keys)


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
    offset, end = parts.span(feature)
    modality = parts.own(getattr(feature, "modality", ""), "mm_features.modality")
    return offset, end - offset, modality, parts.identifier(feature)


def is_request_local(identifier: str) -> bool:
    """Whether vLLM made up the identifier for one request (`renderer<rank>-mm-<count>-...`)."""
    head, separator, tail = identifier.partition("-mm-")
    rank = head.removeprefix("renderer")
    return bool(separator) and head != rank and rank.isdecimal() and tail[:1].isdecimal()
