"""Changing any one thing that KV depends on changes the hash of its block and of every later block,
and of no earlier one; two requests share a hash only if they agree on all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import (
    BlockHasher,
    HashProfile,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)

BLOCK_SIZE, BLOCKS = 4, 6
LENGTH = BLOCK_SIZE * BLOCKS
STRICT = HashProfile.strict()


def base_fields() -> dict[str, Any]:
    """A mixed prompt with everything: two media items, embeddings at every third position."""
    return {
        "token_ids": list(range(LENGTH)),
        "lora_request": LoRARequest("sql", "/sql", "1"),
        "mm_features": [
            MultiModalFeature("a", PlaceholderRange(5, 6)),
            MultiModalFeature("b", PlaceholderRange(13, 3), "audio"),
        ],
        "prompt_embeds": torch.arange(LENGTH * 2.0).reshape(LENGTH, 2),
        "prompt_is_token_ids": [position % 3 != 2 for position in range(LENGTH)],
        "cache_salt": "tenant",
    }


def hashes(fields: dict[str, Any], profile: HashProfile = STRICT) -> list[bytes]:
    return Request("r", **fields, block_hasher=BlockHasher(BLOCK_SIZE, profile)).block_hashes


def first_difference(one: list[bytes], other: list[bytes]) -> int | None:
    """The first block with another hash; fails if a later block has the same again."""
    equal = [a == b for a, b in zip(one, other, strict=True)]
    first = equal.index(False) if False in equal else None
    assert first is None or not any(equal[first:])
    return first


def change_token(fields: dict[str, Any], position: int) -> int | None:
    fields["token_ids"][position] += 1_000
    return position if fields["prompt_is_token_ids"][position] else None


def change_embedding(fields: dict[str, Any], position: int) -> int | None:
    fields["prompt_embeds"] = fields["prompt_embeds"].clone()
    fields["prompt_embeds"][position, 1] += 1
    return None if fields["prompt_is_token_ids"][position] else position


def change_mask(fields: dict[str, Any], position: int) -> int | None:
    fields["prompt_is_token_ids"][position] ^= True
    return position


@pytest.mark.parametrize("change", [change_token, change_embedding, change_mask])
@pytest.mark.parametrize("position", range(LENGTH))
def test_a_change_at_a_position_shows_from_its_block_on(
    change: Callable[[dict[str, Any], int], int | None], position: int
) -> None:
    fields = base_fields()
    changed = change(fields, position)
    # A token under an embedding, or an embedding under a token, is not what KV is computed from.
    expected = None if changed is None else changed // BLOCK_SIZE
    assert first_difference(hashes(base_fields()), hashes(fields)) == expected


def with_media(number: int, *media: Any) -> dict[str, Any]:
    items = base_fields()["mm_features"]
    return {"mm_features": [*items[:number], *media, *items[number + 1 :]]}


CHANGES: dict[str, tuple[dict[str, Any], int]] = {
    "adapter": ({"lora_request": LoRARequest("SQL", "/sql", "1")}, 0),
    "path of the adapter": ({"lora_request": LoRARequest("sql", "/b", "1")}, 0),
    "revision of the adapter": ({"lora_request": LoRARequest("sql", "/sql", "2")}, 0),
    "no adapter": ({"lora_request": None}, 0),
    "salt": ({"cache_salt": "other"}, 0),
    "no salt": ({"cache_salt": None}, 0),
    "identifier": (with_media(0, MultiModalFeature("c", PlaceholderRange(5, 6))), 1),
    "identifier of the second": (with_media(1, MultiModalFeature("c", PlaceholderRange(13, 3))), 3),
    "modality": (with_media(1, MultiModalFeature("b", PlaceholderRange(13, 3))), 3),
    "offset": (with_media(0, MultiModalFeature("a", PlaceholderRange(6, 6))), 1),
    "offset in another block": (with_media(0, MultiModalFeature("a", PlaceholderRange(4, 6))), 1),
    "length": (with_media(0, MultiModalFeature("a", PlaceholderRange(5, 5))), 1),
    "without the first item": (with_media(0), 1),
    "without the second item": (with_media(1), 3),
    "one item more": (with_media(2, MultiModalFeature("d", PlaceholderRange(20, 1))), 5),
    "dtype of the embeddings": ({"prompt_embeds": base_fields()["prompt_embeds"].double()}, 0),
    "width of the embeddings": ({"prompt_embeds": torch.zeros(LENGTH, 4)}, 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_field_shows_from_its_block_on(name: str) -> None:
    fields, block = CHANGES[name]
    changed = hashes({**base_fields(), **fields})
    assert first_difference(hashes(base_fields()), changed) == block


def test_namespace_seed_and_root_show_from_the_start() -> None:
    for profile in (
        HashProfile.strict(namespace="m"),
        HashProfile.strict(seed="s"),
        HashProfile.strict(random_root=True),
        HashProfile.strict("xxhash_cbor", seed="s"),
    ):
        assert first_difference(hashes(base_fields()), hashes(base_fields(), profile)) == 0


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_a_value_that_looks_like_a_tag_is_none(algorithm: str) -> None:
    profile = HashProfile.strict(algorithm)

    def first(text: str) -> bytes:
        # The literal is the very object that the tags are; the other is equal only.
        item = MultiModalFeature(text, PlaceholderRange(0, 4), text)
        fields = {"lora_request": LoRARequest(text, text, text), "cache_salt": text}
        return hashes({"token_ids": [1] * 4, "mm_features": [item], **fields}, profile)[0]

    for tag in ("lora", "salt", "mm", "embeds"):
        assert first(tag) == first("".join(list(tag)))


ITEMS = st.builds(
    lambda name, offset, length, modality: MultiModalFeature(
        name, PlaceholderRange(offset, min(length, 8 - offset)), modality
    ),
    st.sampled_from("ab"),
    st.integers(0, 7),
    st.integers(0, 8),
    st.sampled_from(["image", "audio"]),
)
REQUESTS = st.fixed_dictionaries(
    {
        "token_ids": st.lists(st.sampled_from([1, 2]), min_size=8, max_size=8),
        "mm_features": st.lists(ITEMS, max_size=3),
        "lora_request": st.sampled_from([None, LoRARequest("a"), LoRARequest("a", "b")]),
        "cache_salt": st.sampled_from([None, "", "a", "b"]),
    }
)


def what_kv_depends_on(fields: dict[str, Any], end: int) -> Any:
    """The rule, spelt out: all that the KV of positions before `end` is computed from."""
    media = sorted(
        (item.mm_position.offset, item.mm_position.length, item.modality, item.identifier)
        for item in fields["mm_features"]
        if item.mm_position.length and item.mm_position.offset < end
    )
    return fields["token_ids"][:end], media, fields["lora_request"], fields["cache_salt"] or None


@given(REQUESTS, REQUESTS)
def test_hashes_are_equal_exactly_where_kv_is(one: dict[str, Any], other: dict[str, Any]) -> None:
    for index, (a, b) in enumerate(zip(hashes(one), hashes(other), strict=True)):
        end = (index + 1) * BLOCK_SIZE
        assert (a == b) == (what_kv_depends_on(one, end) == what_kv_depends_on(other, end))
