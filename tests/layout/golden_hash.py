"""The hash keys among the golden cases, answered by the functions that hash vLLM's requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy

from prefixhash import InvalidArgumentError, MultiModalFeature, PlaceholderRange
from prefixhash.hashing.dialects.vllm import (
    embeds_keys,
    lora_keys,
    media_keys,
    media_spans,
    salt_keys,
)

Data = dict[str, Any]


def block_hash_extra_keys(data: Data) -> Data:
    """Keys of the tokens start ... end of a request, and the media index of the next block."""
    start, end = data["start"], data["end"]
    request = _request(data["request"])
    media, index = _media(request.mm_features, start, end, data["mm_index"])
    lora = lora_keys(request, tagged=False)
    embeds = embeds_keys(request, start, end, tagged=False)
    keys = (*lora, *media, *salt_keys(request, start, tagged=False), *embeds)
    return {
        "extra_keys": _plain(keys) or None,
        "next_mm_index": index,
        "mm_keys": _plain(media),
        "lora_keys": _plain(lora),
        "prompt_embed_keys": _plain(embeds),
    }


def _request(data: Data) -> Any:
    embeds, lora = data.get("prompt_embeds"), data.get("lora")
    features = [
        MultiModalFeature(identifier, PlaceholderRange(offset, length))
        for identifier, offset, length in data.get("mm", [])
    ]
    return SimpleNamespace(
        mm_features=sorted(features, key=lambda feature: feature.mm_position.offset),
        lora_request=None if lora is None else SimpleNamespace(lora_name=lora, lora_path=""),
        cache_salt=data.get("salt"),
        prompt_embeds=None if embeds is None else numpy.array(embeds, dtype=numpy.float32),
    )


def _media(features: list[Any], start: int, end: int, index: int) -> tuple[Any, int]:
    """A negative index counts from the end; where nothing is left it comes back unchanged."""
    first = index + len(features) if index < 0 else index
    if first < 0:
        raise InvalidArgumentError("mm_index", index, f"there are {len(features)} items")
    keys, following = media_keys(media_spans(features, start), start, end, first, tagged=False)
    return keys, index if following == first else following


def _plain(keys: Any) -> list[Any]:
    return [_plain_key(key) for key in keys]


def _plain_key(key: Any) -> Any:
    if isinstance(key, bytes):
        return {"hex": key.hex()}
    return list(key) if isinstance(key, tuple) else key
