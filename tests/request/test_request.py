"""`Request`: what it takes, what it refuses, appending and cutting."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import (
    BlockHasher,
    InvalidRequestError,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)
from prefixhash.hashing import HashProfile

IDS = [0, 1, 255, 65536, 2**31, 2**32 + 5, 2**63 - 1]
SMALL = [0, 1, 100, 127]


def feature(identifier: str, offset: int, length: int, modality: str = "image") -> Any:
    return MultiModalFeature(identifier, PlaceholderRange(offset, length), modality)


def same_ids() -> dict[str, Any]:
    """The same token ids in every form that is taken."""
    return {
        "list": IDS,
        "tuple": tuple(IDS),
        "array q": array("q", IDS),
        "array Q": array("Q", IDS),
        "numpy int64": np.array(IDS, dtype=np.int64),
        "numpy uint64": np.array(IDS, dtype=np.uint64),
        "numpy big-endian": np.array(IDS, dtype=">i8"),
        "numpy strided": np.array([[i, 7] for i in IDS], dtype=np.int64)[:, 0],
        "numpy scalars": [np.int64(i) for i in IDS],
        "memoryview": memoryview(array("q", IDS)),
        "torch": torch.tensor(IDS),
        "view of another request": Request("other", IDS).all_token_ids,
    }


@pytest.mark.parametrize("form", same_ids())
def test_token_ids_in_any_form_are_the_same(form: str) -> None:
    hasher = BlockHasher(2)
    given_ids = same_ids()[form]
    request = Request("r", given_ids, block_hasher=hasher)
    assert request.all_token_ids == IDS
    assert request.block_hashes == hasher.hash_tokens(IDS) == hasher.hash_tokens(given_ids)
    assert len(request.block_hashes) == 3


@pytest.mark.parametrize("code", "bBhHiIlLqQ")
def test_token_ids_of_any_integer_width(code: str) -> None:
    assert Request("r", array(code, SMALL)).all_token_ids == SMALL
    assert Request("r", memoryview(array(code, SMALL))).all_token_ids == SMALL


@pytest.mark.parametrize(
    ("token_ids", "position"),
    [
        ([1, -1], 1),
        ([2**63], 0),
        ([1, 2, 2**64 + 5], 2),
        ([1, True], 1),
        ([1.0], 0),
        ([1, None], 1),
        (["1"], 0),
        (array("q", [5, -1]), 1),
        (array("Q", [2**63]), 0),
        (array("d", [1.0]), 0),
        (np.array([1, -1]), 1),
        (np.array([1.5]), 0),
        (np.array([True]), 0),
        (torch.tensor([1.0]), 0),
        (torch.tensor([1, -(2**63)]), 1),
        ([np.bool_(True)], 0),
    ],
    ids=str,
)
def test_a_bad_token_id_is_named(token_ids: Any, position: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"token_ids\[{position}\]=.*\[0, 2\*\*63\)"):
        Request("r", token_ids)
    with pytest.raises(InvalidRequestError, match=rf"token_ids\[{position}\]="):
        BlockHasher(1).hash_tokens(token_ids)


@pytest.mark.parametrize(
    "token_ids",
    [None, 5, "123", b"123", {1, 2}, {1: 2}, np.zeros((2, 2), int), torch.tensor(3), iter([1])],
    ids=str,
)
def test_what_is_no_sequence_of_ids_is_refused(token_ids: Any) -> None:
    with pytest.raises(InvalidRequestError, match="token_ids="):
        Request("r", token_ids)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("request_id", {"request_id": 5}),
        ("cache_salt", {"cache_salt": 5}),
        ("cache_salt", {"cache_salt": "\ud800"}),
        ("lora_request", {"lora_request": "adapter"}),
        ("mm_features[0]", {"mm_features": ["a"]}),
        ("mm_features[1].mm_position", {"mm_features": [feature("a", 0, 4), feature("b", 3, 2)]}),
        ("prompt_embeds", {"prompt_embeds": [[1.0]]}),
        ("prompt_embeds", {"prompt_embeds": torch.zeros(4)}),
        ("prompt_embeds", {"prompt_embeds": torch.zeros(3, 2)}),
        ("prompt_is_token_ids", {"prompt_is_token_ids": [True] * 4}),
        (
            "prompt_is_token_ids",
            {"prompt_embeds": torch.zeros(4, 2), "prompt_is_token_ids": [True] * 3},
        ),
        (
            "prompt_is_token_ids[2]",
            {"prompt_embeds": torch.zeros(4, 2), "prompt_is_token_ids": [True, False, 1, True]},
        ),
    ],
    ids=str,
)
def test_a_bad_field_is_named(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Request(**{"request_id": "r", "token_ids": [1, 2, 3, 4], **arguments})
    assert caught.value.argument == field
    assert str(caught.value).startswith(f"{field}=")


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: PlaceholderRange(-1, 2), "offset"),
        (lambda: PlaceholderRange(1, -2), "length"),
        (lambda: PlaceholderRange(1.5, 2), "offset"),  # type: ignore[arg-type]
        (lambda: PlaceholderRange(True, 2), "offset"),
        (lambda: MultiModalFeature("", PlaceholderRange(0, 1)), "identifier"),
        (lambda: MultiModalFeature(3, PlaceholderRange(0, 1)), "identifier"),  # type: ignore[arg-type]
        (lambda: MultiModalFeature("a", (0, 1)), "mm_position"),  # type: ignore[arg-type]
        (lambda: LoRARequest(""), "lora_name"),
        (lambda: LoRARequest("a", None), "lora_path"),  # type: ignore[arg-type]
        (lambda: LoRARequest("a", "b", 2), "revision"),  # type: ignore[arg-type]
    ],
)
def test_bad_parts_are_named(build: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build()
    assert caught.value.argument == field
    assert isinstance(caught.value, ValueError)


def test_media_are_sorted_and_equal_ones_kept() -> None:
    items = [feature("b", 8, 2), feature("a", 0, 8), feature("a", 0, 8), feature("c", 0, 2)]
    request = Request("r", range(16), mm_features=iter(items))
    assert request.mm_features == (items[1], items[2], items[3], items[0])


def test_identity_cannot_be_changed_after_hashing() -> None:
    request = Request("r", [1, 2], cache_salt="a")
    for name in ("cache_salt", "lora_request", "mm_features", "prompt_embeds", "all_token_ids"):
        with pytest.raises(AttributeError):
            setattr(request, name, None)
    with pytest.raises(TypeError):
        request.all_token_ids[0] = 5  # type: ignore[index]


def test_the_callers_tokens_are_not_shared() -> None:
    ids = array("q", [1, 2, 3])
    request = Request("r", ids)
    ids[0] = 9
    request.append_token_ids(4)
    assert request.all_token_ids == [1, 2, 3, 4]
    assert ids == array("q", [9, 2, 3])


def test_append_takes_one_id_or_many() -> None:
    request = Request("r", [1])
    request.append_token_ids(2)
    request.append_token_ids(np.int32(3))
    request.append_token_ids([4, 5])
    request.append_token_ids(torch.tensor([6]))
    request.append_token_ids([])
    assert request.all_token_ids == [1, 2, 3, 4, 5, 6]
    assert (request.num_tokens, request.num_prompt_tokens) == (6, 1)


@pytest.mark.parametrize("bad", [-1, True, 1.5, None, [3, -1], [2**63], "4"], ids=str)
def test_a_bad_append_changes_nothing(bad: Any) -> None:
    request = Request("r", [1, 2, 3], block_hasher=BlockHasher(2))
    hashes = list(request.block_hashes)
    with pytest.raises(InvalidRequestError):
        request.append_token_ids(bad)
    assert request.all_token_ids == [1, 2, 3]
    assert request.block_hashes == hashes


def test_an_append_whose_hashing_fails_changes_nothing() -> None:
    calls = []

    def hasher(request: Request) -> list[bytes]:
        calls.append(request.num_tokens)
        if request.num_tokens > 3:
            raise RuntimeError("no")
        return []

    request = Request("r", [1, 2, 3], block_hasher=hasher)
    with pytest.raises(RuntimeError):
        request.append_token_ids([4, 5])
    assert request.all_token_ids == [1, 2, 3]
    assert calls == [3, 5]


@pytest.mark.parametrize("cut", [-1, 6, 1.0, True, None], ids=str)
def test_truncate_refuses_what_is_no_length(cut: Any) -> None:
    request = Request("r", [1, 2, 3, 4, 5], block_hasher=BlockHasher(2))
    with pytest.raises(InvalidRequestError, match="num_tokens="):
        request.truncate(cut)
    assert request.num_tokens == 5
    assert len(request.block_hashes) == 2


def test_truncate_refuses_to_cut_a_media_item() -> None:
    request = Request("r", range(32), mm_features=[feature("a", 4, 8), feature("b", 20, 4)])
    for cut in (5, 11, 21, 23):
        with pytest.raises(InvalidRequestError, match="cuts the media item"):
            request.truncate(cut)
    request.truncate(12)
    assert request.mm_features == (feature("a", 4, 8),)
    request.truncate(4)
    assert request.mm_features == ()


def test_truncate_into_embeddings_drops_their_digests_and_mask() -> None:
    embeds = torch.arange(12.0).reshape(6, 2)
    mask = [False, False, True, False, True, False]
    request = Request(
        "r",
        range(6),
        block_hasher=BlockHasher(2),
        prompt_embeds=embeds,
        prompt_is_token_ids=mask,
    )
    kept = request._prompt_embeds_per_block_hashes
    assert {key[:2] for key in kept} == {(0, 2), (2, 4), (4, 6)}
    request.truncate(3)
    assert {key[:2] for key in kept} == {(0, 2)}
    assert request.prompt_embeds.shape == (3, 2)
    assert request.prompt_is_token_ids == (False, False, True)
    assert request.num_prompt_tokens == 3


def test_truncate_is_told_of_afterwards() -> None:
    request = Request("r", range(50))
    assert (request.num_truncations, request.lowest_cut_since(0)) == (0, None)
    request.truncate(50)  # nothing is dropped
    assert request.num_truncations == 0
    for cut in (40, 20, 30):
        request.truncate(cut)
        request.append_token_ids(range(50 - cut))
    assert request.num_truncations == 3
    assert [request.lowest_cut_since(seen) for seen in range(4)] == [20, 20, 30, None]
    for _ in range(32):
        request.truncate(45)
        request.append_token_ids(range(5))
    assert request.lowest_cut_since(3) == 45
    assert request.lowest_cut_since(2) == 0  # too long ago to be known


def test_truncate_refused_is_no_truncation() -> None:
    feature = MultiModalFeature("a", PlaceholderRange(4, 8))
    request = Request("r", range(50), mm_features=[feature])
    with pytest.raises(InvalidRequestError):
        request.truncate(6)
    assert (request.num_truncations, request.lowest_cut_since(0)) == (0, None)


def test_truncate_with_any_callable_as_hasher() -> None:
    def hasher(request: Request) -> list[bytes]:
        return [bytes([i]) for i in range(len(request.block_hashes), request.num_tokens // 2)]

    for function in (hasher, lambda request: tuple(hasher(request))):
        request = Request("r", range(7), block_hasher=function)
        request.truncate(4)
        assert request.block_hashes == [b"\0", b"\1"]


@given(
    st.lists(st.integers(0, 2**63 - 1), max_size=40),
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.lists(st.integers(0, 2**63 - 1), max_size=9)),
            st.tuples(st.just("truncate"), st.floats(0, 1)),
        ),
        max_size=8,
    ),
    st.integers(1, 7),
    st.integers(0, 2),
)
def test_any_history_gives_the_hashes_of_the_tokens_at_its_end(
    ids: list[int], steps: list[Any], block_size: int, lookahead: int
) -> None:
    profile = HashProfile.vllm("0.33", lookahead_tokens=lookahead)
    hasher = BlockHasher(block_size, profile)
    request = Request("r", ids, block_hasher=hasher, cache_salt="s")
    for action, value in steps:
        if action == "append":
            request.append_token_ids(value)
            ids = ids + value
        else:
            cut = int(value * len(ids))
            request.truncate(cut)
            ids = ids[:cut]
        assert request.all_token_ids == ids
        assert (
            request.block_hashes
            == Request("new", ids, block_hasher=hasher, cache_salt="s").block_hashes
        )


def test_the_view_of_the_tokens_reads_like_a_list() -> None:
    view = Request("r", [5, 6, 7]).all_token_ids
    assert (len(view), view[0], view[-1], list(view)) == (3, 5, 7, [5, 6, 7])
    assert view[1:] == array("q", [6, 7])
    assert view == (5, 6, 7)
    assert view != [5, 6]
    assert view != "567"
    assert 6 in view
    assert repr(view) == "TokenIds([5, 6, 7])"


def test_repr_says_what_matters() -> None:
    request = Request("r-1", range(5), block_hasher=BlockHasher(2))
    assert repr(request) == "<Request 'r-1': 5 tokens, 2 block hashes>"
