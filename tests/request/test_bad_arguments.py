"""Whatever a request is made or changed with, only the package's own errors come out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prefixhash import (
    BlockHasher,
    InvalidRequestError,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    PrefixHashError,
    Request,
)
from prefixhash.request import TokenIds
from tests.bad_values import BAD_VALUES, raised

PLACE = PlaceholderRange(0, 4)
HASHER = BlockHasher(4)
ROWS = np.ones((9, 2), np.float32)


def request(**fields: Any) -> Request:
    return Request(**{"request_id": "r", "token_ids": range(9), "block_hasher": HASHER, **fields})


MAKERS: dict[str, Callable[[Any], Any]] = {
    "offset": lambda v: PlaceholderRange(v, 1),
    "length": lambda v: PlaceholderRange(1, v),
    "identifier": lambda v: MultiModalFeature(v, PLACE),
    "mm_position": lambda v: MultiModalFeature("a", v),
    "modality": lambda v: MultiModalFeature("a", PLACE, v),
    "lora_name": lambda v: LoRARequest(v),
    "lora_path": lambda v: LoRARequest("a", v),
    "revision": lambda v: LoRARequest("a", "", v),
    "request_id": lambda v: request(request_id=v),
    "token_ids": lambda v: request(token_ids=v),
    "token": lambda v: request(token_ids=[v]),
    "lora_request": lambda v: request(lora_request=v),
    "lora field": lambda v: request(lora_request=SimpleNamespace(lora_name="a", lora_path=v)),
    "mm_features": lambda v: request(mm_features=v),
    "mm_feature": lambda v: request(mm_features=[v]),
    "prompt_embeds": lambda v: request(prompt_embeds=v),
    "embeds alone": lambda v: request(token_ids=None, prompt_embeds=v),
    "mask": lambda v: request(prompt_embeds=ROWS, prompt_is_token_ids=v),
    "mask entry": lambda v: request(prompt_embeds=ROWS, prompt_is_token_ids=[v] * 9),
    "cache_salt": lambda v: request(cache_salt=v),
    "TokenIds": lambda v: list(TokenIds(v)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_makers_raise_only_errors_of_the_package(name: str) -> None:
    assert not raised(MAKERS[name])


@pytest.mark.parametrize("method", ["append_token_ids", "truncate", "lowest_cut_since"])
def test_a_refused_change_leaves_the_request_as_it_was(method: str) -> None:
    refused = 0
    for value in BAD_VALUES:
        changed = request()
        before = (list(changed.all_token_ids), list(changed.block_hashes), changed.num_truncations)
        try:
            getattr(changed, method)(value)
        except PrefixHashError:
            refused += 1
            after = (changed.all_token_ids, changed.block_hashes, changed.num_truncations)
            assert (list(after[0]), after[1], after[2]) == before
    assert refused > len(BAD_VALUES) // 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"token_ids": range(10**30)}, "token_ids=.*sequence or buffer"),
        ({"mm_features": np.array(5)}, "mm_features=.*list of MultiModalFeature"),
        ({"prompt_embeds": SimpleNamespace(shape=(9, 2), dtype="f")}, "prompt_embeds=.*numpy"),
        ({"prompt_embeds": ROWS, "prompt_is_token_ids": 5}, "prompt_is_token_ids=5"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        request(**fields)


def test_a_request_of_tokens_alone_says_so() -> None:
    assert request().is_plain
    assert request(mm_features=[], cache_salt="").is_plain
    for more in (
        {"cache_salt": "s"},
        {"lora_request": LoRARequest("a")},
        {"mm_features": [MultiModalFeature("a", PLACE)]},
        {"prompt_embeds": ROWS},
    ):
        assert not request(**more).is_plain


def test_lists_of_numpy_integers_are_read_as_fast_as_they_look() -> None:
    mixed = [np.int64(1), 2, np.uint8(3)]
    assert request(token_ids=mixed).all_token_ids == [1, 2, 3]
    for bad in (np.uint64(2**63), np.int64(-1), np.bool_(True), np.float64(1)):
        with pytest.raises(InvalidRequestError, match=r"token_ids\[1\]"):
            request(token_ids=[np.int64(1), bad])
