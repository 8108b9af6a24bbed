"""vLLM's keys, byte for byte, of the releases 0.19 to 0.33.

The parts of a key stand in the engine's order: adapter, media, salt, embeddings; some releases are
known for faults in which media they look at, and those are theirs, too. Source: the released
packages, whose digests the tests compare.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

from prefixhash._arguments import integer
from prefixhash.errors import InvalidProfileError
from prefixhash.hashing import parts
from prefixhash.hashing.algorithms import Algorithm
from prefixhash.hashing.dialects.base import Dialect, Extras
from prefixhash.hashing.embeds import rows_digest
from prefixhash.hashing.parts import Keys

# What vLLM hashes to get its root when PYTHONHASHSEED is unset (0.29 and newer, SHA-256 only).
_DEFAULT_SEED = "vllm-none-hash"
_VERSION = re.compile(r"v?0\.([1-9]\d*)(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)*(?:\+[\w.]+)?")
Span = tuple[int, int, str]


@dataclass(frozen=True)
class _Generation:
    """What the keys of some releases hold.

    `tagged`: each part begins with its kind, an adapter has its path. `media_from_last`: a call for
    later blocks looks at the last media item only. `zero_embedding_ids`: of a mixed prompt,
    positions that hold an embedding count as token 0. `hashed_root`: the root is always a digest,
    and of a fixed text without a seed; before, random bytes were the root themselves, 32 of them
    even for XXH3-128. `lookahead`: tokens after a block can stand in its key.
    """

    tagged: bool
    media_from_last: bool
    zero_embedding_ids: bool
    hashed_root: bool
    lookahead: bool


# Minor release -> what holds from there on. Releases whose keys nobody compared are refused.
_SINCE = {
    19: _Generation(False, True, False, hashed_root=False, lookahead=False),
    29: _Generation(False, True, True, hashed_root=True, lookahead=False),
    31: _Generation(True, False, True, hashed_root=True, lookahead=False),
    33: _Generation(True, False, True, hashed_root=True, lookahead=True),
}
_LAST = 33
_GENERATIONS = {
    f"0.{minor}": _SINCE[max(since for since in _SINCE if since <= minor)]
    for minor in range(min(_SINCE), _LAST + 1)
}


@dataclass(frozen=True)
class Vllm(Dialect):
    """Of one minor release: its patch releases hash alike."""

    engine: ClassVar[str] = "vllm"
    releases: ClassVar[tuple[str, ...]] = tuple(_GENERATIONS)
    default_algorithm: ClassVar[str] = "sha256"

    @classmethod
    def of(cls, version: Any) -> Dialect:
        match = _VERSION.fullmatch(version) if isinstance(version, str) else None
        release = "" if match is None else f"0.{match[1]}"
        if release not in _GENERATIONS:
            problem = f"keys are known for vLLM {', '.join(_GENERATIONS)}"
            raise InvalidProfileError("version", version, problem)
        return cls(release)

    def root(
        self, algorithm: Algorithm, namespace: str, seed: str | None, random_root: bool
    ) -> tuple[bytes, bool]:
        if namespace:
            problem = "vLLM's keys have none: use strict"
            raise InvalidProfileError("namespace", namespace, problem)
        hashed = _GENERATIONS[self.release].hashed_root
        if random_root:
            drawn = os.urandom(32)
            return algorithm.hash(drawn.hex()) if hashed else drawn, False
        if seed is None and hashed and algorithm.collision_resistant:
            seed = _DEFAULT_SEED
        if seed is None:
            raise InvalidProfileError(
                "seed",
                None,
                f"vLLM {self.release} draws a random root for {algorithm.name}: start the engine "
                "with PYTHONHASHSEED set and give that value as seed, give the engine's NONE_HASH "
                "as root, or ask for random_root=True",
            )
        return algorithm.hash(seed), True

    def lookahead(self, tokens: Any) -> int:
        count = integer("lookahead_tokens", tokens, error=InvalidProfileError)
        if count and not _GENERATIONS[self.release].lookahead:
            since = min(minor for minor, keys in _SINCE.items() if keys.lookahead)
            problem = f"vLLM has them since 0.{since}: use 0"
            raise InvalidProfileError("lookahead_tokens", count, problem)
        return count

    def extras(
        self, request: Any, start: int, stop: int, block_size: int, ahead: int, resumed: bool
    ) -> Extras | None:
        generation = _GENERATIONS[self.release]
        tagged = generation.tagged
        spans = media_spans(parts.media(request), start)
        salt = salt_keys(request, start, tagged)
        has_embeds = parts.embeds(request) is not None
        adapter = lora_keys(request, tagged)
        if not (spans or has_embeds):
            if not (salt or adapter):
                return None
            # One tuple for all blocks but the first: kernels encode it once.
            rest = (stop - start) // block_size - 1
            return [(*adapter, *salt) or None, *[adapter or None] * rest]
        item = media_start(spans, start, generation.media_from_last) if resumed else 0
        extras: Extras = []
        for begin in range(start, stop, block_size):
            end = begin + block_size
            media, item = media_keys(spans, begin, end + ahead, item, tagged)
            if ahead:
                item = media_rewind(spans, end, item)
            embeds = embeds_keys(request, begin, end + ahead, tagged) if has_embeds else ()
            extras.append((*adapter, *media, *salt, *embeds) or None)
            salt = ()
        return extras

    def replaced_ids(self, request: Any, start: int, stop: int) -> Sequence[tuple[int, int]]:
        if not _GENERATIONS[self.release].zero_embedding_ids:
            return ()
        return parts.embeddings_as_zero(request, start, stop)


def lora_keys(request: Any, tagged: bool) -> Keys:
    """The adapter's name; tagged, with its path."""
    lora = getattr(request, "lora_request", None)
    if lora is None:
        return ()
    name = parts.adapter_name(lora)
    return (("lora", name, parts.adapter_text(lora, "lora_path")),) if tagged else (name,)


def salt_keys(request: Any, start: int, tagged: bool) -> Keys:
    """The salt, in the first block only."""
    salt = "" if start else parts.salt(request)
    if not salt:
        return ()
    return (("cache_salt", salt),) if tagged else (salt,)


def media_spans(features: Sequence[Any], start: int) -> list[Span]:
    """(offset, end, identifier) of the items in order; empty where the last one has ended.

    vLLM looks at no media from there on, even if an earlier item reaches further.
    """
    if not features or parts.span(features[-1])[1] <= start:
        return []
    return [(*parts.span(item), parts.identifier(item)) for item in features]


def media_start(spans: Sequence[Span], start: int, from_last: bool) -> int:
    """Number of the item at which vLLM begins its walk in a call for later blocks."""
    if from_last:
        return max(len(spans) - 1, 0)
    return bisect_right(spans, start, key=itemgetter(1))


def media_keys(
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


def media_rewind(spans: Sequence[Span], end: int, number: int) -> int:
    """With lookahead, `number` moved back over the items that reach past the block itself."""
    while number > 0 and spans[number - 1][1] > end:
        number -= 1
    return number


def embeds_keys(request: Any, start: int, end: int, tagged: bool) -> Keys:
    """Digest of the block's rows; behind the last row it is the digest of nothing."""
    if getattr(request, "prompt_embeds", None) is None:
        return ()
    digest = rows_digest(request, start, end)
    return (("prompt_embeds", digest),) if tagged else (digest,)
