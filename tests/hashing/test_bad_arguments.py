"""Whatever is given to the hashing room, only the package's own errors come out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prefixhash import (
    BlockHasher,
    CoarseBlockHashes,
    HashProfile,
    InvalidArgumentError,
    InvalidProfileError,
    InvalidRequestError,
    Request,
    media_identifier,
)
from tests.bad_values import raised

STRICT = HashProfile.strict()
HASHERS = [
    BlockHasher(4, STRICT),
    BlockHasher(4, HashProfile.vllm("0.25", seed="0")),
    BlockHasher(4, HashProfile.vllm("0.33", lookahead_tokens=2)),
]
by_hasher = pytest.mark.parametrize("hasher", HASHERS, ids=lambda h: h.profile.name)
Call = Callable[[Any], Any]


def coarse(value: Any) -> Any:
    return CoarseBlockHashes([b"a", b"b"], value)[:]


MAKERS: dict[str, Call] = {
    "strict algorithm": lambda v: HashProfile.strict(v),
    "strict namespace": lambda v: HashProfile.strict(namespace=v),
    "strict seed": lambda v: HashProfile.strict(seed=v),
    "strict root": lambda v: HashProfile.strict(root=v),
    "strict random_root": lambda v: HashProfile.strict(random_root=v),
    "vllm version": lambda v: HashProfile.vllm(v),
    "vllm algorithm": lambda v: HashProfile.vllm("0.33", v),
    "vllm seed": lambda v: HashProfile.vllm("0.33", seed=v),
    "vllm lookahead": lambda v: HashProfile.vllm("0.33", lookahead_tokens=v),
    "parse name": lambda v: HashProfile.parse(v),
    "parse algorithm": lambda v: HashProfile.parse("strict", v),
    "parse namespace": lambda v: HashProfile.parse("vllm:0.33", namespace=v),
    "profile algorithm": lambda v: HashProfile(v, STRICT.dialect, STRICT.root),
    "profile dialect": lambda v: HashProfile(STRICT.algorithm, v, STRICT.root),
    "profile root": lambda v: HashProfile(STRICT.algorithm, STRICT.dialect, v),
    "profile lasting": lambda v: HashProfile(STRICT.algorithm, STRICT.dialect, b"", 0, v),
    "hasher block_size": lambda v: BlockHasher(v).hash_tokens(range(9)),
    "hasher profile": lambda v: BlockHasher(4, v),
    "coarse factor": coarse,
    "media": media_identifier,
    "media item": lambda v: media_identifier([v]),
    "media value": lambda v: media_identifier({"key": v}),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore::prefixhash.CollisionRiskWarning")
def test_makers_raise_only_errors_of_the_package(name: str) -> None:
    assert not raised(MAKERS[name])


@by_hasher
def test_a_hasher_raises_only_errors_of_the_package(hasher: BlockHasher) -> None:
    request = Request("r", range(9))
    calls: list[Call] = [
        hasher,
        hasher.hash_tokens,
        lambda v: hasher.hash_tokens(range(9), v),
        lambda v: hasher.hash_tokens([v] * 9),
        lambda v: hasher.extra_keys(v, 0),
        lambda v: hasher.extra_keys(request, v),
        hasher.check_request,
        hasher.num_full_blocks,
    ]
    assert [raised(call) for call in calls] == [[]] * len(calls)


ATTRIBUTES = (
    "block_hashes",
    "num_tokens",
    "all_token_ids",
    "num_prompt_tokens",
    "lora_request",
    "mm_features",
    "mm_end",
    "prompt_embeds",
    "prompt_is_token_ids",
    "cache_salt",
    "_prompt_embeds_per_block_hashes",
)


def foreign(**fields: Any) -> Any:
    return SimpleNamespace(
        **{"block_hashes": [], "num_tokens": 12, "all_token_ids": list(range(12)), **fields}
    )


@pytest.mark.parametrize("attribute", ATTRIBUTES)
@by_hasher
def test_a_foreign_requests_odd_attributes_are_refused(hasher: BlockHasher, attribute: str) -> None:
    rows = np.ones((12, 2))
    for more in ({}, {"prompt_embeds": rows}):
        for call in (hasher, lambda r: hasher.extra_keys(r, 0), hasher.check_request):
            assert not raised(lambda v: call(foreign(**{**more, attribute: v})))  # noqa: B023


@by_hasher
def test_a_foreign_requests_odd_items_are_refused(hasher: BlockHasher) -> None:
    def item(**fields: Any) -> Any:
        position = {"offset": 0, "length": 5, **fields}
        place = fields.get("mm_position", SimpleNamespace(**position))
        named = {"identifier": "a", "modality": "image", **fields}
        return SimpleNamespace(**{**named, "mm_position": place})

    for field in ("offset", "length", "identifier", "modality", "mm_position"):
        assert not raised(lambda v: hasher(foreign(mm_features=[item(**{field: v})])))  # noqa: B023
    assert not raised(lambda v: hasher(foreign(mm_features=[v])))
    for field in ("lora_name", "lora_path", "revision"):
        lora = {"lora_name": "a", "lora_path": ""}
        assert not raised(
            lambda v: hasher(foreign(lora_request=SimpleNamespace(**{**lora, field: v})))  # noqa: B023
        )
    mixed = {"prompt_embeds": np.ones((12, 2))}
    assert not raised(lambda v: hasher(foreign(prompt_is_token_ids=[v] * 12, **mixed)))
    assert not raised(lambda v: hasher(foreign(block_hashes=[v])))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: BlockHasher(4)(None), "request=None: must be a Request"),
        (lambda: BlockHasher(4)(foreign(num_tokens=True)), "num_tokens=True"),
        (lambda: BlockHasher(4)(foreign(block_hashes=["x"])), r"block_hashes=\['x'\]"),
        (lambda: BlockHasher(4)(foreign(all_token_ids=5)), "all_token_ids=5"),
        (lambda: BlockHasher(4)(foreign(cache_salt=0)), "cache_salt=0"),
        (lambda: BlockHasher(4)(foreign(lora_request=5)), "lora_request.lora_name=None"),
        (
            lambda: BlockHasher(4)(foreign(prompt_embeds=np.ones((9, 2)), prompt_is_token_ids=[1])),
            r"prompt_is_token_ids\[0\]=1",
        ),
        (
            lambda: BlockHasher(4)(
                foreign(prompt_embeds=np.ones((9, 2)), prompt_is_token_ids=[True])
            ),
            "prompt_is_token_ids='1 entries': ends within the 9 rows",
        ),
    ],
)
def test_what_a_request_lacks_is_named(call: Callable[[], Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        call()


def test_a_version_and_a_switch_are_not_guessed_from_another_type() -> None:
    for bad in (0.33, 33, np.float64(0.33)):
        with pytest.raises(InvalidProfileError, match=r"version=.*0\.33"):
            HashProfile.vllm(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidProfileError, match="random_root='false'"):
        HashProfile.strict(random_root="false")  # type: ignore[arg-type]
    with pytest.raises(InvalidProfileError, match="algorithm=''"):
        HashProfile.parse("strict", "")


def test_text_and_numbers_of_other_types_count_by_value() -> None:
    assert HashProfile.vllm("0.33", seed=np.int64(7)) == HashProfile.vllm("0.33", seed="7")  # type: ignore[arg-type]
    assert HashProfile.vllm("0.33", seed=np.str_("7")) == HashProfile.vllm("0.33", seed="7")
    assert HashProfile.strict(namespace=np.str_("m")) == HashProfile.strict(namespace="m")
    assert media_identifier({np.str_("k"): np.str_("v")}) == media_identifier({"k": "v"})
    with pytest.raises(InvalidArgumentError, match="an integer of 16610 bits"):
        media_identifier(10**5000)
