"""`BlockHasher`: incremental, by value, on any request object; `CoarseBlockHashes`."""

from __future__ import annotations

import pickle
import sys
from array import array
from types import SimpleNamespace
from typing import Any, ClassVar

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import (
    BlockHasher,
    CoarseBlockHashes,
    HashProfile,
    InvalidArgumentError,
    InvalidRequestError,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)
from prefixhash.hashing import ALGORITHMS, _chain_py, _encode_py

IDS = st.lists(st.integers(0, 2**63 - 1), max_size=80)
ALL_PROFILES = [
    HashProfile.parse(name, algorithm, "0")
    for name in ("strict", "vllm:0.25", "vllm:0.30", "vllm:0.33")
    for algorithm in ALGORITHMS
]


def feature(identifier: str, offset: int, length: int, modality: str = "image") -> Any:
    return MultiModalFeature(identifier, PlaceholderRange(offset, length), modality)


@pytest.mark.parametrize("profile", ALL_PROFILES, ids=lambda p: f"{p.name} {p.algorithm.name}")
@given(ids=IDS, block_size=st.integers(1, 20))
def test_the_chain_is_the_published_rule(
    profile: HashProfile, ids: list[int], block_size: int
) -> None:
    dumps = {"cbor": lambda key: cbor2.dumps(key, canonical=True), "pickle": reference_pickle}
    parent, expected = profile.root, []
    for start in range(0, len(ids) - block_size + 1, block_size):
        key = (parent, tuple(ids[start : start + block_size]), None)
        parent = profile.algorithm.digest(dumps[profile.algorithm.serialisation](key))
        expected.append(parent)
    hasher = BlockHasher(block_size, profile)
    assert hasher.hash_tokens(ids) == expected
    assert Request("r", ids, block_hasher=hasher).block_hashes == expected


def reference_pickle(key: Any) -> bytes:
    return pickle.dumps(key, protocol=5)


@given(IDS, st.integers(1, 9), st.data())
def test_hash_tokens_goes_on_from_a_parent(ids: list[int], block_size: int, data: Any) -> None:
    hasher = BlockHasher(block_size)
    whole = hasher.hash_tokens(ids)
    if not whole:
        return
    cut = data.draw(st.integers(1, len(whole)))
    assert hasher.hash_tokens(ids[cut * block_size :], parent=whole[cut - 1]) == whole[cut:]


@pytest.mark.parametrize("profile", ALL_PROFILES, ids=lambda p: f"{p.name} {p.algorithm.name}")
def test_a_long_block_hashes_as_the_reference_does(profile: HashProfile) -> None:
    # Over 64 KiB of key: pickle writes more than one frame.
    ids = list(range(2**40, 2**40 + 30_000))
    (digest,) = BlockHasher(30_000, profile).hash_tokens(ids)
    key = (profile.root, tuple(ids), None)
    data = (
        reference_pickle(key)
        if profile.algorithm.serialisation == "pickle"
        else cbor2.dumps(key, canonical=True)
    )
    assert digest == profile.algorithm.digest(data)


def test_only_new_blocks_are_hashed_and_nothing_without_one() -> None:
    class Tokens(list[int]):
        slices: ClassVar[list[slice]] = []

        def __getitem__(self, key: Any) -> Any:
            self.slices.append(key)
            return super().__getitem__(key)

    tokens = Tokens(range(10))
    request = SimpleNamespace(block_hashes=[], num_tokens=10, all_token_ids=tokens)
    hasher = BlockHasher(4)
    request.block_hashes += hasher(request)
    assert hasher(request) == []
    tokens.extend((10, 11))
    request.num_tokens = 12
    request.block_hashes += hasher(request)
    assert Tokens.slices == [slice(0, 8), slice(8, 12)]
    assert request.block_hashes == hasher.hash_tokens(range(12))


def test_a_foreign_requests_tokens_are_checked() -> None:
    # -1 is what engines put where a token is not known yet: it must never enter a hash.
    request = SimpleNamespace(block_hashes=[], num_tokens=4, all_token_ids=[1, -1, 2, 3])
    with pytest.raises(InvalidRequestError, match=r"all_token_ids\[1\]=-1"):
        BlockHasher(4)(request)


@pytest.mark.parametrize("profile", ALL_PROFILES, ids=lambda p: f"{p.name} {p.algorithm.name}")
def test_equal_requests_hash_equally_whichever_objects_they_share(profile: HashProfile) -> None:
    def request(copy: Any) -> Request:
        return Request(
            "r",
            [9] * 32,
            block_hasher=BlockHasher(16, profile),
            lora_request=LoRARequest(copy("same text"), copy("same text"), copy("same text")),
            mm_features=[
                feature(copy("same text"), 0, 4, copy("same text")),
                feature(copy("same text"), 4, 4, copy("same text")),
                feature(copy("x"), 20, 4, copy("x")),
                feature(copy("mm"), 26, 2, copy("mm")),
            ],
            cache_salt=copy("same text"),
        )

    shared = "".join(("same", " ", "text"))
    one = request(lambda text: shared if text == shared else text)
    distinct = request(lambda text: text.encode().decode())
    assert one.block_hashes == distinct.block_hashes
    assert len(set(one.block_hashes)) == 2


def test_a_hasher_serves_many_requests() -> None:
    hasher = BlockHasher(4)
    a = Request("a", range(8), block_hasher=hasher)
    Request("b", range(100, 108), block_hasher=hasher, cache_salt="s")
    assert hasher(SimpleNamespace(block_hashes=[], num_tokens=8, all_token_ids=range(8))) == (
        a.block_hashes
    )


@pytest.mark.parametrize("block_size", [0, -1, 1.5, True, "16", None])
def test_a_bad_block_size_is_named(block_size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="block_size="):
        BlockHasher(block_size)


def test_other_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="profile="):
        BlockHasher(16, "vllm:0.33")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="parent="):
        BlockHasher(1).hash_tokens([1], parent="00")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="block_index=-1"):
        BlockHasher(1).extra_keys(Request("r", [1]), -1)


def test_numpy_block_sizes_work() -> None:
    assert BlockHasher(np.int64(2)).hash_tokens([1, 2]) == BlockHasher(2).hash_tokens([1, 2])


def test_an_empty_request_has_no_hashes() -> None:
    for profile in ALL_PROFILES:
        assert Request("r", [], block_hasher=BlockHasher(1, profile)).block_hashes == []
        assert BlockHasher(1, profile).hash_tokens([]) == []


@pytest.mark.parametrize("lookahead", [1, 3])
def test_lookahead_tokens_stand_in_the_key_and_delay_it(lookahead: int) -> None:
    profile = HashProfile.vllm("0.33", "sha256_cbor", lookahead_tokens=lookahead)
    hasher = BlockHasher(4, profile)
    request = Request("r", range(4 + lookahead - 1), block_hasher=hasher)
    assert request.block_hashes == []
    request.append_token_ids(99)
    tokens = [*range(4 + lookahead - 1), 99]
    key = (profile.root, (0, 1, 2, 3), (None, *tokens[4:]))
    assert request.block_hashes == [profile.algorithm.hash(key)] == hasher.hash_tokens(tokens)


# --- CoarseBlockHashes ----------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=4, max_size=4), max_size=30), st.integers(1, 7))
def test_a_coarse_view_is_every_factorth_hash(hashes: list[bytes], factor: int) -> None:
    view = CoarseBlockHashes(hashes, factor)
    expected = hashes[factor - 1 :: factor]
    assert list(view) == expected == view[:]
    assert len(view) == len(expected)
    assert view == expected
    for i in range(-len(expected), len(expected)):
        assert view[i] == expected[i]
    for i in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            view[i]


@given(st.integers(0, 20), st.integers(1, 4), st.slices(20))
def test_slices_of_a_coarse_view_are_those_of_its_list(n: int, factor: int, key: slice) -> None:
    hashes = [bytes([i]) for i in range(n)]
    assert CoarseBlockHashes(hashes, factor)[key] == hashes[factor - 1 :: factor][key]


def test_a_coarse_view_follows_its_list() -> None:
    request = Request("r", range(6), block_hasher=BlockHasher(2))
    view = CoarseBlockHashes(request.block_hashes, 2)
    assert len(view) == 1
    request.append_token_ids([6, 7])
    assert view[-1] == request.block_hashes[3]
    request.truncate(7)
    assert len(view) == 1


@pytest.mark.parametrize("factor", [0, -2, 1.5, True, None])
def test_a_bad_factor_is_named(factor: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="factor="):
        CoarseBlockHashes([], factor)


def test_coarse_hashes_say_nothing_of_the_hashes_of_their_own_size() -> None:
    # A chain of 32-token blocks differs from the 32-token view of a 16-token chain: both engines
    # must take their hashes at the same granularity.
    ids = array("q", range(64))
    assert CoarseBlockHashes(BlockHasher(16).hash_tokens(ids), 2) != BlockHasher(32).hash_tokens(
        ids
    )


@given(st.lists(st.lists(st.integers(0, 40), min_size=4, max_size=12), max_size=8))
def test_a_full_memo_of_ids_changes_no_hash(prompts: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_encode_py, "MEMO_LIMIT", 10)
        chain = _chain_py.HashChain(ALGORITHMS["sha256_cbor"])
        profile = HashProfile.strict()
        for ids in prompts:
            ours = chain.hash_tokens(profile.root, ids, 4)
            assert ours == reference_chain(profile, ids)


def reference_chain(profile: HashProfile, ids: list[int]) -> list[bytes]:
    digests = [profile.root]
    for start in range(0, len(ids) - 3, 4):
        key = (digests[-1], tuple(ids[start : start + 4]), None)
        digests.append(profile.algorithm.hash(key))
    return digests[1:]


BORDERS = st.sampled_from([0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1])


@given(
    st.lists(BORDERS | st.integers(0, 2**18), min_size=1, max_size=60),
    st.integers(1, 70),
    st.booleans(),
)
def test_long_prompts_are_encoded_as_short_ones_are(
    pattern: list[int], block_size: int, wide: bool
) -> None:
    ids = [i for i in pattern if wide or i < 2**32] or [1]
    ids = (ids * _encode_py.VECTORISE_FROM)[: 10 * _encode_py.VECTORISE_FROM]
    ids = ids[: len(ids) // block_size * block_size]
    encoder = _encode_py.IdEncoder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_encode_py, "VECTORISE_FROM", len(ids) + 1)
        one_by_one = list(encoder.blocks(ids, block_size))
    assert list(encoder.blocks(array("q", ids), block_size)) == one_by_one
    head = cbor2.dumps([0] * block_size)[:-block_size]
    first = cbor2.dumps(ids[:block_size])
    assert head + one_by_one[0] == first


def test_without_numpy_long_prompts_hash_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(0, 300_000, 7))
    chain = _chain_py.HashChain(ALGORITHMS["sha256_cbor"])
    with_numpy = chain.hash_tokens(bytes(32), ids, 16)
    monkeypatch.setitem(sys.modules, "numpy", None)  # an ImportError from now on
    assert _chain_py.HashChain(ALGORITHMS["sha256_cbor"]).hash_tokens(bytes(32), ids, 16) == (
        with_numpy
    )
