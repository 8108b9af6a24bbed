"""The parts of a key beside the tokens: what is in it, what is not, and what each part costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cbor2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import (
    BlockHasher,
    HashProfile,
    InvalidRequestError,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)
from prefixhash.hashing import _cbor, embeds
from prefixhash.hashing.dialects.strict import MediaSweep, is_request_local

STRICT = HashProfile.strict()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


def feature(identifier: str, offset: int, length: int, modality: str = "image") -> Any:
    return MultiModalFeature(identifier, PlaceholderRange(offset, length), modality)


def strict_keys(request: Any, block: int, block_size: int = 16) -> Any:
    return BlockHasher(block_size, STRICT).extra_keys(request, block)


@st.composite
def features(draw: st.DrawFn, prompt: int) -> list[Any]:
    items = []
    for _ in range(draw(st.integers(0, 8))):
        offset = draw(st.integers(0, prompt))
        length = draw(st.integers(0, prompt - offset))
        items.append(feature(draw(TEXT), offset, length, draw(st.sampled_from(("image", "audio")))))
    return items


@given(st.data(), st.integers(1, 9))
def test_a_strict_key_decodes_back_to_its_parts(data: Any, block_size: int) -> None:
    prompt = 3 * block_size
    items = data.draw(features(prompt))
    lora = data.draw(st.none() | st.builds(LoRARequest, TEXT, TEXT, TEXT))
    salt = data.draw(st.none() | TEXT)
    request = Request("r", range(prompt), lora_request=lora, mm_features=items, cache_salt=salt)
    if any(is_request_local(item.identifier) for item in items):
        return
    for block in range(3):
        start, end = block * block_size, (block + 1) * block_size
        parts = cbor2.loads(_cbor.encode(strict_keys(request, block, block_size))) or []
        named: dict[str, list[Any]] = {}
        for kind, *rest in parts:
            named.setdefault(kind, []).append(rest)
        adapter = [[lora.lora_name, lora.lora_path, lora.revision]] if lora else []
        assert named.pop("lora", []) == (adapter if block == 0 else [])
        assert named.pop("salt", []) == ([[salt]] if salt and block == 0 else [])
        decoded = [
            feature(name, start + offset, length, modality)
            for modality, name, offset, length in named.pop("mm", [])
        ]
        assert sorted(decoded, key=str) == sorted(overlapping(items, start, end), key=str)
        assert not named


def overlapping(items: list[Any], start: int, end: int) -> list[Any]:
    """The rule, spelt out position by position."""
    return [
        item
        for item in items
        if set(range(item.mm_position.offset, item.mm_position.end)) & set(range(start, end))
    ]


@given(st.data(), st.integers(1, 9))
def test_the_sweep_finds_what_a_scan_of_all_items_finds(data: Any, block_size: int) -> None:
    items = data.draw(features(60))
    first = data.draw(st.integers(0, 60 // block_size - 1))
    sweep = MediaSweep(items)
    for start in range(first * block_size, 60 - block_size + 1, block_size):
        expected = sorted(
            (item.mm_position.offset, item.mm_position.length, item.modality, item.identifier)
            for item in overlapping(items, start, start + block_size)
        )
        assert sweep.keys(start, start + block_size) == [
            ("mm", modality, identifier, offset - start, length)
            for offset, length, modality, identifier in expected
        ]


@given(st.data(), st.integers(1, 9))
def test_the_order_of_media_in_the_request_does_not_matter(data: Any, block_size: int) -> None:
    items = data.draw(features(40))
    hasher = BlockHasher(block_size, HashProfile.strict(random_root=True))
    one = Request("a", range(40), mm_features=items, block_hasher=hasher)
    other = Request("b", range(40), mm_features=data.draw(st.permutations(items)))
    assert hasher(other) == one.block_hashes


@given(st.data(), st.sampled_from(["strict", "vllm:0.25", "vllm:0.33"]))
def test_extra_keys_are_those_that_the_hash_holds(data: Any, name: str) -> None:
    profile = HashProfile.parse(name, "sha256_cbor", "0")
    hasher = BlockHasher(4, profile)
    items = [item for item in data.draw(features(24)) if not is_request_local(item.identifier)]
    request = Request(
        "r",
        range(24),
        block_hasher=hasher,
        mm_features=items,
        lora_request=data.draw(st.none() | st.just(LoRARequest("a", "/a"))),
        cache_salt=data.draw(st.none() | st.just("s")),
        prompt_embeds=data.draw(st.none() | st.just(torch.ones(24, 2))),
    )
    parent = profile.root
    for block, digest in enumerate(request.block_hashes):
        tokens = tuple(range(4 * block, 4 * block + 4))
        key = (parent, tokens, hasher.extra_keys(request, block))
        parent = profile.algorithm.hash(key)
        assert digest == parent


def test_keys_in_the_forms_of_the_releases() -> None:
    request = Request(
        "r",
        [9] * 48,
        lora_request=LoRARequest("sql", "/sql", "7"),
        mm_features=[feature("img", 10, 20)],
        cache_salt="t",
        prompt_embeds=torch.zeros(48, 2),
    )
    digest = embeds.rows_digest(request, 0, 16)

    def keys(profile: HashProfile, block: int) -> Any:
        return BlockHasher(16, profile).extra_keys(request, block)

    old, new = HashProfile.vllm("0.25", seed="0"), HashProfile.vllm("0.33")
    assert keys(old, 0) == ("sql", ("img", 10), "t", digest)
    assert keys(old, 1) == ("sql", ("img", -6), digest)
    assert keys(new, 0) == (
        ("lora", "sql", "/sql"),
        ("mm", "img", 10),
        ("cache_salt", "t"),
        ("prompt_embeds", digest),
    )
    assert keys(new, 2) == (("lora", "sql", "/sql"), ("prompt_embeds", digest))
    rows = ("embeds", "float32", (16, 2), digest, None)
    image = ("mm", "image", "img", 10, 20)
    assert keys(STRICT, 0) == (("lora", "sql", "/sql", "7"), ("salt", "t"), image, rows)
    assert keys(STRICT, 2) == (rows,)


def test_nothing_extra_is_none_in_every_profile() -> None:
    for profile in (STRICT, HashProfile.vllm("0.25", seed="0"), HashProfile.vllm("0.33")):
        assert BlockHasher(4, profile).extra_keys(Request("r", range(8)), 1) is None


# --- prompt embeddings ----------------------------------------------------------------------------


class Counting:
    """Embeddings that count how often their rows are read."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.shape, self.dtype, self.reads = rows, rows.shape, rows.dtype, 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return self.rows[key]


@pytest.mark.parametrize("name", ["strict", "vllm:0.25", "vllm:0.33"])
def test_each_blocks_rows_are_read_once(name: str) -> None:
    counting = Counting(np.ones((32, 4), np.float32))
    hasher = BlockHasher(8, HashProfile.parse(name, seed="0"))
    request = Request("r", None, prompt_embeds=counting, block_hasher=hasher)
    assert counting.reads == 4
    other = BlockHasher(8, HashProfile.parse(name, seed="1"))
    for _ in range(2):
        other(SimpleNamespace(**attributes(request), block_hashes=[]))
    assert counting.reads == 4
    request.append_token_ids(range(100))
    assert counting.reads == 4
    assert len(request._prompt_embeds_per_block_hashes) == 4


def attributes(request: Request) -> dict[str, Any]:
    names = ("num_tokens", "all_token_ids", "prompt_embeds", "_prompt_embeds_per_block_hashes")
    return {name: getattr(request, name) for name in names}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "float8_e4m3fn"])
def test_layout_does_not_matter_and_torch_equals_numpy(dtype: str) -> None:
    wide = torch.arange(33 * 16).reshape(33, 16).to(getattr(torch, dtype))
    strided, transposed = wide[:, ::2], wide[:, ::2].T.contiguous().T
    hasher = BlockHasher(16)
    hashes = [
        Request("r", None, prompt_embeds=rows, block_hasher=hasher).block_hashes
        for rows in (strided, strided.contiguous(), transposed, strided.requires_grad_(False))
    ]
    assert all(one == hashes[0] for one in hashes)
    if hasattr(np, dtype):
        array = strided.numpy()
        for rows in (array, array.astype(array.dtype.newbyteorder(">")), np.asfortranarray(array)):
            request = Request("r", None, prompt_embeds=rows, block_hasher=hasher)
            assert request.block_hashes == hashes[0]


def test_embeddings_that_require_gradients_can_be_hashed() -> None:
    rows = torch.ones(4, 2, requires_grad=True)
    assert (
        len(Request("r", None, prompt_embeds=rows, block_hasher=BlockHasher(4)).block_hashes) == 1
    )


@given(st.lists(st.booleans(), min_size=24, max_size=24), st.integers(1, 8))
def test_rows_that_no_position_uses_are_not_in_a_strict_key(mask: list[bool], size: int) -> None:
    hasher = BlockHasher(size)
    used = torch.tensor([not token for token in mask])
    hashes = []
    for filler in (0.0, 5.0):
        rows = torch.arange(48.0).reshape(24, 2) + 1
        rows[~used] = filler
        ids = [i if token else 7_000 + int(filler) for i, token in enumerate(mask)]
        request = Request(
            "r", ids, prompt_embeds=rows, prompt_is_token_ids=mask, block_hasher=hasher
        )
        hashes.append(request.block_hashes)
        for start, end, *_ in request._prompt_embeds_per_block_hashes:
            assert not all(mask[start:end])
    assert hashes[0] == hashes[1]


@given(
    st.lists(st.booleans(), min_size=8, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8)
)
def test_different_masks_give_different_strict_keys(one: list[bool], other: list[bool]) -> None:
    rows = torch.ones(8, 2)
    first, second = (
        Request(
            "r", [0] * 8, prompt_embeds=rows, prompt_is_token_ids=mask, block_hasher=BlockHasher(8)
        )
        for mask in (one, other)
    )
    assert (first.block_hashes == second.block_hashes) == (one == other)


# --- identifiers of one process -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identifier", "local"),
    [
        ("renderer0-mm-1-image-0", True),
        ("renderer12-mm-345-video-1", True),
        ("renderer-mm-1-image-0", False),
        ("renderer0-mm-x", False),
        ("my-renderer0-mm-1-image-0", False),
        ("a3f5", False),
    ],
)
def test_identifiers_of_one_process_are_recognised(identifier: str, local: bool) -> None:
    assert is_request_local(identifier) is local


def test_persistent_keys_are_not_made_of_identifiers_of_one_process() -> None:
    item = feature("renderer0-mm-1-image-0", 0, 4)
    with pytest.raises(
        InvalidRequestError, match=r"mm_features\[0\].identifier=.*media_identifier"
    ):
        Request("r", range(4), mm_features=[item], block_hasher=BlockHasher(4))
    in_process = BlockHasher(4, HashProfile.strict(random_root=True))
    assert (
        len(Request("r", range(4), mm_features=[item], block_hasher=in_process).block_hashes) == 1
    )


def test_one_request_hashed_by_two_profiles_keeps_their_digests_apart() -> None:
    # vLLM's digest covers all rows of a block, the strict one those that positions use.
    rows, mask = torch.arange(16.0).reshape(8, 2), [True, False, True, True] * 2
    profiles = [STRICT, HashProfile.vllm("0.33"), STRICT]
    request = Request("r", range(8), prompt_embeds=rows, prompt_is_token_ids=mask)
    together = [BlockHasher(4, profile)(request) for profile in profiles]
    apart = [
        BlockHasher(4, profile)(
            Request("r", range(8), prompt_embeds=rows, prompt_is_token_ids=mask)
        )
        for profile in profiles
    ]
    assert together == apart


@pytest.mark.parametrize(("version", "expected"), [("0.25", (("b", -2),)), ("0.33", None)])
def test_extra_keys_of_decoded_blocks_follow_the_releases_walk(version: str, expected: Any) -> None:
    # Up to 0.30 a call for decoded tokens looks at the last item alone.
    hasher = BlockHasher(4, HashProfile.vllm(version, "sha256_cbor", "0"))
    items = [feature("a", 0, 6), feature("b", 2, 4)]
    request = Request("r", range(6), mm_features=items, block_hasher=hasher)
    request.append_token_ids([6, 7])
    keys = hasher.extra_keys(request, 1)
    assert keys == (expected or (("mm", "a", -4), ("mm", "b", -2)))
    parent, tokens = request.block_hashes[0], (4, 5, 6, 7)
    assert request.block_hashes[1] == hasher.profile.algorithm.hash((parent, tokens, keys))


def test_identifiers_of_one_process_are_refused_in_foreign_requests() -> None:
    item = feature("renderer0-mm-1-image-0", 0, 4)
    foreign = SimpleNamespace(
        block_hashes=[], num_tokens=4, all_token_ids=[1, 2, 3, 4], mm_features=[item]
    )
    with pytest.raises(InvalidRequestError, match="local to one process"):
        BlockHasher(4)(foreign)
    assert len(BlockHasher(4, HashProfile.vllm("0.33"))(foreign)) == 1
