"""Requests of other engines: whatever they hold, it is hashed by value or refused by name."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from prefixhash import (
    BlockHasher,
    HashProfile,
    InvalidRequestError,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)

PROFILES = [
    HashProfile.parse(name, algorithm, "0")
    for name in ("strict", "vllm:0.25", "vllm:0.33")
    for algorithm in ("sha256_cbor", "sha256")
]
by_profile = pytest.mark.parametrize(
    "profile", PROFILES, ids=lambda p: f"{p.name} {p.algorithm.name}"
)


def foreign(**fields: Any) -> Any:
    ids = fields.pop("all_token_ids", list(range(8)))
    return SimpleNamespace(
        **{"block_hashes": [], "num_tokens": len(ids), "all_token_ids": ids, **fields}
    )


def item(identifier: Any, offset: Any, length: Any, modality: Any = "image") -> Any:
    position = SimpleNamespace(offset=offset, length=length)
    return SimpleNamespace(identifier=identifier, modality=modality, mm_position=position)


@by_profile
def test_numpy_integers_hash_like_ints(profile: HashProfile) -> None:
    hasher = BlockHasher(4, profile)
    plain = hasher(foreign(mm_features=[item("a", 1, 3)]))
    for kind in (np.int64, np.int32, np.uint8):
        media = [item("a", kind(1), kind(3))]
        request = foreign(mm_features=media, num_tokens=kind(8), all_token_ids=np.arange(8))
        assert hasher(request) == plain
        assert Request("r", range(8), mm_features=media, block_hasher=hasher).block_hashes == plain


def test_media_in_any_order_are_found() -> None:
    hasher = BlockHasher(4)
    media = [item("b", 5, 2), item("a", 0, 2), item("c", 0, 8)]
    ours = Request("r", range(8), mm_features=media, block_hasher=hasher)
    assert hasher(foreign(mm_features=media)) == ours.block_hashes
    assert hasher(foreign(mm_features=media[::-1])) == ours.block_hashes


def test_an_engines_items_are_copied_into_our_request() -> None:
    feature = item("a", 1, 3)
    request = Request("r", range(8), mm_features=[feature])
    feature.identifier, feature.mm_position.offset = "b", 0
    assert request.mm_features == (MultiModalFeature("a", PlaceholderRange(1, 3)),)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mm_features": [item("a", 1.0, 3)]}, "mm_position=1.0"),
        ({"mm_features": [item("a", "1", 3)]}, "mm_position='1'"),
        ({"mm_features": [item("a", 1, True)]}, "mm_position=True"),
        ({"mm_features": [item(5, 1, 3)]}, "mm_features.identifier=5"),
        ({"mm_features": [item("\ud800", 1, 3)]}, "mm_features.identifier="),
        ({"cache_salt": 5}, "cache_salt=5"),
        ({"lora_request": SimpleNamespace(lora_name=5, lora_path="")}, "lora_request.lora_name=5"),
        ({"num_tokens": 12}, r"num_tokens=12: all_token_ids holds only 8"),
        ({"all_token_ids": [1, -1, 2, 3]}, r"all_token_ids\[1\]=-1"),
        ({"prompt_embeds": np.full((8, 2), object(), object)}, "prompt_embeds=.*must hold numbers"),
        ({"prompt_embeds": torch.ones(8, 2, device="meta")}, "prompt_embeds=.*with data"),
        ({"prompt_embeds": torch.eye(8).to_sparse()}, "prompt_embeds=.*dense"),
    ],
    ids=str,
)
@by_profile
def test_what_cannot_be_hashed_is_named(
    profile: HashProfile, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        BlockHasher(4, profile)(foreign(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"mm_features": 5},
        {"mm_features": [SimpleNamespace(identifier="a")]},
        {"mm_features": [item("a", 1.5, 3)]},
        {"mm_features": [item("a", 1, 3, None)]},
        {"lora_request": SimpleNamespace(lora_name="a", lora_path=None)},
        {"lora_request": SimpleNamespace(lora_name="a", revision=3)},
        {"prompt_embeds": np.array([[object()]] * 8)},
        {"prompt_embeds": np.zeros((8, 1), [("x", "f4")])},
        {"prompt_embeds": torch.ones(8, 2), "prompt_is_token_ids": 5},
        {"block_hasher": 5},
    ],
    ids=str,
)
def test_our_request_refuses_an_engines_odd_parts(fields: dict[str, Any]) -> None:
    (name,) = (name for name in fields if name != "prompt_embeds" or len(fields) == 1)
    with pytest.raises(InvalidRequestError) as caught:
        Request("r", range(8), **fields)
    assert caught.value.argument.startswith(name)


def test_no_media_may_be_said_as_none() -> None:
    assert Request("r", range(8), mm_features=None).mm_features == ()


def test_a_mask_of_numpy_bools_is_one() -> None:
    mask = [np.True_, np.False_]
    request = Request("r", [1, 2], prompt_embeds=torch.ones(2, 2), prompt_is_token_ids=mask)
    assert request.prompt_is_token_ids == (True, False)


def test_lazy_negation_and_conjugation_are_values() -> None:
    values = torch.tensor([[1 + 2j, 3 - 4j]])
    lazy = [values.conj(), values.conj().imag]
    eager = [torch.tensor([[1 - 2j, 3 + 4j]]), torch.tensor([[-2.0, 4.0]])]
    hasher = BlockHasher(1)
    for one, other in zip(lazy, eager, strict=True):
        hashed = [Request("r", None, prompt_embeds=v, block_hasher=hasher) for v in (one, other)]
        assert hashed[0].block_hashes == hashed[1].block_hashes


def test_the_media_behind_a_decoded_block_are_not_looked_at() -> None:
    class Watched(tuple[Any, ...]):
        reads = 0

        def __iter__(self) -> Any:
            Watched.reads += 1
            return super().__iter__()

    request = foreign(mm_features=Watched([item("a", 0, 3)]), mm_end=3)
    hasher = BlockHasher(4)
    request.block_hashes = hasher(request)
    before = Watched.reads
    request.all_token_ids = list(range(12))
    request.num_tokens = 12
    assert len(hasher(request)) == 1
    assert Watched.reads == before


def test_an_identifier_of_one_process_is_refused_before_the_first_block_is_full() -> None:
    media = [item("renderer0-mm-1-image-0", 0, 2)]
    with pytest.raises(InvalidRequestError, match="local to one process"):
        Request("r", range(3), mm_features=media, block_hasher=BlockHasher(16))


def test_a_cut_that_a_plain_function_refuses_leaves_no_trace() -> None:
    def hasher(request: Request) -> list[bytes]:
        if request.num_tokens == 4:
            raise RuntimeError("no")
        return [b"h"] * (request.num_tokens // 2 - len(request.block_hashes))

    request = Request("r", range(8), block_hasher=hasher)
    with pytest.raises(RuntimeError):
        request.truncate(4)
    assert (request.num_tokens, len(request.block_hashes)) == (8, 4)


def test_a_block_larger_than_memory_is_just_not_full() -> None:
    for profile, size in product(PROFILES, (2**40, 10**30)):
        assert BlockHasher(size, profile).hash_tokens([1, 2]) == []
