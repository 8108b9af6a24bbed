"""Faults of other engines' block hashing, one test per fault; the id is that of
`tests/data/known_faults.jsonl`. Unless a fault is about them, keys are strict.

Not here: PC-037 (hash granularity of groups) and PC-126 (chained lookup) belong to the cache,
PC-039 (an indexer fed by events) to the events.
"""

from __future__ import annotations

import subprocess
import sys
from array import array
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from prefixhash import (
    BlockHasher,
    CoarseBlockHashes,
    HashProfile,
    InvalidRequestError,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
    media_identifier,
)
from prefixhash.hashing import ALGORITHMS


def hashes(
    token_ids: Any, *media: tuple[str, int, int], block_size: int = 16, **fields: Any
) -> list[bytes]:
    """Block hashes of a request with media given as (identifier, offset, length)."""
    items = [MultiModalFeature(name, PlaceholderRange(offset, n)) for name, offset, n in media]
    hasher = BlockHasher(block_size)
    return Request("r", token_ids, block_hasher=hasher, mm_features=items, **fields).block_hashes


def extras(token_ids: Any, block: int, *media: tuple[str, int, int], block_size: int = 16) -> Any:
    items = [MultiModalFeature(name, PlaceholderRange(offset, n)) for name, offset, n in media]
    return BlockHasher(block_size).extra_keys(Request("r", token_ids, mm_features=items), block)


def all_differ(rows: list[list[bytes]]) -> bool:
    """Whether no two requests share the hash of any block."""
    return all(not set(one) & set(other) for one, other in combinations(rows, 2))


def test_pc_001_lora_salt_and_media_of_one_name_do_not_collide() -> None:
    ids = range(32)
    assert all_differ(
        [
            hashes(ids),
            hashes(ids, lora_request=LoRARequest("X", "/a")),
            hashes(ids, cache_salt="X"),
            hashes(ids, ("X", 0, 16)),
            hashes(ids, lora_request=LoRARequest("A", "/a"), cache_salt="B"),
            hashes(ids, lora_request=LoRARequest("B", "/a"), cache_salt="A"),
        ]
    )


def test_pc_003_a_reloaded_adapter_has_keys_of_its_own() -> None:
    rows = [hashes(range(32), lora_request=LoRARequest("A", "/a", revision)) for revision in "12"]
    assert all_differ(rows)
    assert all_differ([hashes(range(32), lora_request=LoRARequest("A", p)) for p in ("/a", "/b")])


def test_pc_004_pc_006_fast_algorithms_have_no_public_root() -> None:
    for name, algorithm in ALGORITHMS.items():
        first, second = HashProfile.strict(name), HashProfile.strict(name)
        assert (first.root == second.root) is algorithm.collision_resistant
        assert len(BlockHasher(16, first).hash_tokens(range(16))[0]) >= 16


def test_pc_009_every_form_of_wide_ids_gives_the_same_digest_or_the_same_error() -> None:
    hasher = BlockHasher(16)
    for value in (2**31, 2**31 - 1, 2**32, 2**32 + 5):
        forms = [[value] * 16, np.array([value] * 16, np.int64), array("Q", [value] * 16)]
        if value < 2**32:
            forms.append(array("I", [value] * 16))
        assert len({tuple(hasher.hash_tokens(form)) for form in forms}) == 1
    assert hasher.hash_tokens([2**32 + 5] * 16) != hasher.hash_tokens([5] * 16)
    for negative in ([-1] * 16, np.array([-1] * 16), array("i", [-1] * 16)):
        with pytest.raises(InvalidRequestError, match=r"token_ids\[0\]=-1"):
            hasher.hash_tokens(negative)


def test_pc_010_media_of_earlier_blocks_are_chained() -> None:
    one = hashes(range(6), ("h1", 0, 3), ("h2", 3, 3), block_size=3)
    other = hashes(range(6), ("h3", 0, 3), ("h2", 3, 3), block_size=3)
    assert all_differ([one, other])


def test_pc_012_the_place_of_a_media_item_in_its_block_counts() -> None:
    assert all_differ([hashes([9] * 32, ("a", 4, 8)), hashes([9] * 32, ("a", 6, 8))])


def test_pc_013_items_touch_the_blocks_they_have_tokens_in() -> None:
    ids = [9] * 32
    assert extras(ids, 1, ("a", 0, 16)) is None
    assert extras(ids, 0, ("a", 16, 16)) is None
    assert extras(ids, 0, ("a", 15, 2)) == (("mm", "image", "a", 15, 2),)
    assert extras(ids, 1, ("a", 15, 2)) == (("mm", "image", "a", -1, 2),)


def test_pc_015_a_replaced_token_takes_its_hash_along() -> None:
    request = Request("r", [10] * 15, block_hasher=BlockHasher(16))
    request.append_token_ids(28)
    old = list(request.block_hashes)
    request.truncate(15)
    assert request.block_hashes == []
    request.append_token_ids(11)
    assert request.block_hashes == hashes([10] * 15 + [11])
    assert request.block_hashes != old == hashes([10] * 15 + [28])


def test_pc_016_the_source_of_each_position_counts() -> None:
    rows = torch.ones(33, 8)
    embedded, mixed = [False] * 33, [True] * 32 + [False]
    by_embedding = hashes([0] * 33, prompt_embeds=rows, prompt_is_token_ids=embedded)
    by_token = hashes([0] * 33, prompt_embeds=rows, prompt_is_token_ids=mixed)
    assert all_differ([by_embedding, by_token])
    assert hashes(None, prompt_embeds=rows) == by_embedding


def test_pc_018_bfloat16_and_strides_are_no_obstacle() -> None:
    wide = torch.randn(32, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    strided = wide[:, ::2]
    assert hashes(None, prompt_embeds=strided) == hashes(None, prompt_embeds=strided.contiguous())


def test_pc_019_pc_021_identity_covers_shape_dtype_palette_and_borders() -> None:
    palettes = []
    for colours in ([0] * 6, [9] * 6):
        image = Image.new("P", (4, 4))
        image.putpalette(colours)
        palettes.append(image)
    values = [
        Image.new("RGB", (30, 150)),
        Image.new("RGB", (150, 30)),
        *palettes,
        np.arange(24).reshape(6, 4),
        np.arange(24).reshape(4, 6),
        [[1, 2], [3, 4, 5]],
        [[1, 2, 3], [4, 5]],
        np.zeros(4, np.float32),
        np.zeros(4, np.int32),
    ]
    assert len({media_identifier(value) for value in values}) == len(values)


def test_pc_022_identifiers_count_whole() -> None:
    one = hashes([9] * 64, ("aaaa0001", 0, 64), block_size=64)
    assert all_differ([one, hashes([9] * 64, ("bbbb0001", 0, 64), block_size=64)])
    keys = {hashes([9] * 64, (f"{i:064x}", 0, 64), block_size=64)[0] for i in range(5000)}
    assert len(keys) == 5000


def test_pc_024_another_length_under_one_identifier_is_another_item() -> None:
    assert all_differ([hashes([9] * 48, ("u1", 0, 20)), hashes([9] * 48, ("u1", 0, 40))])


def test_pc_025_identifiers_of_one_process_make_no_persistent_keys() -> None:
    with pytest.raises(InvalidRequestError, match="local to one process"):
        hashes([9] * 16, ("renderer0-mm-1-image-0", 0, 16))


def test_pc_027_a_video_in_several_runs_tags_the_blocks_of_its_runs() -> None:
    def video(name: str) -> list[tuple[str, int, int]]:
        return [(name, 10, 10), (name, 28, 10)]

    tagged = [extras(range(48), block, *video("v"), block_size=8) for block in range(6)]
    assert [keys is not None for keys in tagged] == [False, True, True, True, True, False]
    apart = [extras(range(48), b, ("v", 4, 4), ("v", 28, 4), block_size=8) for b in range(4)]
    assert [keys is not None for keys in apart] == [True, False, False, True]
    one = hashes(range(48), *video("v"), block_size=8)
    other = hashes(range(48), *video("w"), block_size=8)
    assert one[0] == other[0]
    assert all_differ([one[1:], other[1:]])


def test_pc_028_keys_belong_to_their_block() -> None:
    keys = [extras(range(12), block, ("a", 5, 2), block_size=4) for block in range(3)]
    assert keys == [None, (("mm", "image", "a", 1, 2),), None]


def test_pc_030_parts_are_framed() -> None:
    def namespace(text: str, **fields: Any) -> list[bytes]:
        profile = HashProfile.strict(namespace=text)
        return Request("r", range(16), block_hasher=BlockHasher(16, profile), **fields).block_hashes

    adapter = LoRARequest("id")
    assert all_differ(
        [
            namespace("c", cache_salt="ab"),
            namespace("bc", cache_salt="a"),
            namespace("id"),
            namespace("", cache_salt="id"),
            namespace("", lora_request=adapter),
            namespace("abc"),
            namespace("", cache_salt="abc"),
        ]
    )
    assert all_differ(
        [
            hashes(range(16), lora_request=LoRARequest(*parts))
            for parts in (("ab", "c"), ("a", "bc"))
        ]
    )


def test_pc_031_two_adapters_with_one_salt_share_nothing() -> None:
    rows = [
        hashes(range(256), cache_salt="s", lora_request=name and LoRARequest(name))
        for name in ("x", "y", None)
    ]
    assert all_differ(rows)


def test_pc_033_adapters_are_keyed_by_name_not_by_load_order() -> None:
    loaded = [[LoRARequest("A"), LoRARequest("B")], [LoRARequest("B"), LoRARequest("A")]]
    chosen = [next(lora for lora in order if lora.lora_name == "A") for order in loaded]
    assert hashes(range(16), lora_request=chosen[0]) == hashes(range(16), lora_request=chosen[1])


def test_pc_034_default_hashes_outlive_the_process() -> None:
    code = "from prefixhash import *; print(BlockHasher(16).hash_tokens(range(64))[-1].hex())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == hashes(range(64))[-1].hex()
    assert HashProfile.strict().is_reproducible
    assert not HashProfile.strict(random_root=True).is_reproducible


def test_pc_036_a_coarse_block_is_filed_under_its_last_fine_hash() -> None:
    shared, length, step, block = 6144, 15360, 128, 1536
    prompts = [[*range(shared), *[tail] * (length - shared)] for tail in (1, 2)]
    stored, asked = (
        CoarseBlockHashes(hashes(ids, block_size=step), block // step) for ids in prompts
    )
    equal = [a == b for a, b in zip(stored, asked, strict=True)]
    assert equal == [True] * (shared // block) + [False] * ((length - shared) // block)


def test_px_002_nested_items_are_in_the_hash() -> None:
    one = hashes([9] * 64, ("v", 0, 40), ("a1", 8, 4))
    assert all_differ([one, hashes([9] * 64, ("v", 0, 40), ("a2", 8, 4))])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["strict", "vllm:0.25", "vllm:0.33"])
def test_px_004_shared_objects_change_nothing(name: str, algorithm: str) -> None:
    one = "".join(("so", "me"))
    other = "".join(("so", "me"))
    assert one is not other
    hasher = BlockHasher(16, HashProfile.parse(name, algorithm, "0"))

    def request(second: str) -> list[bytes]:
        items = [
            MultiModalFeature(one, PlaceholderRange(0, 4)),
            MultiModalFeature(second, PlaceholderRange(4, 4)),
        ]
        lora = LoRARequest(one, second)
        return Request(
            "r", range(32), block_hasher=hasher, mm_features=items, lora_request=lora
        ).block_hashes

    assert request(one) == request(other)


def test_px_005_equal_bytes_in_two_dtypes_are_two_things() -> None:
    bits = torch.arange(128, dtype=torch.int16).reshape(16, 8)
    rows = [bits.view(dtype) for dtype in (torch.float16, torch.bfloat16, torch.int16)]
    assert all_differ([hashes(None, prompt_embeds=row) for row in rows])


def test_px_007_items_without_length_are_absent_everywhere() -> None:
    plain = hashes(range(32))
    for offset in (0, 4, 16, 32):
        assert hashes(range(32), ("z", offset, 0)) == plain


def test_px_009_a_coarse_view_has_no_incomplete_tail() -> None:
    view = CoarseBlockHashes([b"a", b"b", b"c"], 2)
    assert (len(view), view[-1]) == (1, b"b")
    for index in (1, -2):
        with pytest.raises(IndexError):
            view[index]
