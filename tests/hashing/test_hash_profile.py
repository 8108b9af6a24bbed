"""`HashProfile`: roots, versions, and the errors that say how to make hashes reproducible."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import warnings
from typing import Any

import pytest

from prefixhash import (
    BlockHasher,
    CollisionRiskWarning,
    HashProfile,
    InvalidArgumentError,
    InvalidProfileError,
)
from prefixhash.hashing import ALGORITHMS, known_profiles

CRYPTOGRAPHIC = ("sha256_cbor", "sha256")
FAST = ("xxhash_cbor", "xxhash")


@pytest.mark.parametrize(
    "version", ["0.18", "0.18.3", "0.34", "1.0", "", "abc", "0.33.x", "0.033", None, 33]
)
def test_an_unknown_version_lists_the_known_ones(version: Any) -> None:
    with pytest.raises(InvalidProfileError, match=r"version=.*0\.19, .*0\.33"):
        HashProfile.vllm(version)


@pytest.mark.parametrize(
    "version", ["0.33", "0.33.0", "0.33.1", "v0.33.0", "0.33.0rc1", "0.33.0.post1"]
)
def test_patch_releases_hash_like_their_minor_release(version: str) -> None:
    assert HashProfile.vllm(version) == HashProfile.vllm("0.33")


def test_unknown_algorithms_list_the_known_ones() -> None:
    for build in (HashProfile.strict, lambda name: HashProfile.vllm("0.33", name)):
        for name in ("md5", "builtin", None, []):
            with pytest.raises(
                InvalidProfileError, match="sha256_cbor, sha256, xxhash_cbor, xxhash"
            ):
                build(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("minor", range(19, 34))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_missing_seed_is_an_error_where_the_engine_draws_one(minor: int, algorithm: str) -> None:
    version = f"0.{minor}"
    if minor >= 29 and algorithm in CRYPTOGRAPHIC:
        assert HashProfile.vllm(version, algorithm).is_reproducible
        return
    with pytest.raises(InvalidProfileError, match="PYTHONHASHSEED"):
        HashProfile.vllm(version, algorithm)
    drawn = [HashProfile.vllm(version, algorithm, random_root=True) for _ in range(2)]
    assert drawn[0].root != drawn[1].root
    assert not drawn[0].is_reproducible
    # Before 0.29 the engine uses 32 random bytes as they are, whatever the digest size.
    assert len(drawn[0].root) == (32 if minor < 29 else ALGORITHMS[algorithm].digest_size)


def test_the_seed_is_the_environment_variables_text() -> None:
    assert HashProfile.vllm("0.25", seed=0) == HashProfile.vllm("0.25", seed="0")
    assert HashProfile.vllm("0.25", seed="00").root != HashProfile.vllm("0.25", seed="0").root
    assert HashProfile.vllm("0.25", seed="").is_reproducible


def test_a_given_root_is_used_as_it_is() -> None:
    root = bytes(range(32))
    assert HashProfile.vllm("0.25", root=root).root == root
    assert HashProfile.strict(root=root).root == root
    assert HashProfile.vllm("0.25", root=root).is_reproducible


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": "a", "root": bytes(32)},
        {"seed": "a", "random_root": True},
        {"root": bytes(32), "random_root": True},
        {"root": "00" * 32},
        {"root": bytes(8)},
        {"seed": 1.5},
        {"seed": True},
    ],
    ids=str,
)
def test_roots_that_contradict_or_are_none_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidProfileError):
        HashProfile.vllm("0.33", **arguments)
    with pytest.raises(InvalidProfileError):
        HashProfile.strict(**arguments)


def test_a_namespace_is_not_silently_dropped() -> None:
    with pytest.raises(InvalidProfileError, match="namespace="):
        HashProfile.strict(namespace="m", root=bytes(32))
    with pytest.raises(InvalidProfileError, match="namespace="):
        HashProfile.parse("vllm:0.33", namespace="m")


def test_strict_roots_differ_by_namespace_and_seed() -> None:
    roots = [
        HashProfile.strict(namespace=namespace, seed=seed).root
        for namespace in ("", "a", "b")
        for seed in (None, "", "a", "b")
    ]
    assert len(set(roots)) == len(roots)
    assert HashProfile.strict(namespace="a") == HashProfile.strict(namespace="a")


@pytest.mark.parametrize("algorithm", FAST)
def test_fast_algorithms_warn_and_draw_a_root(algorithm: str) -> None:
    with pytest.warns(CollisionRiskWarning, match="not collision resistant"):
        drawn = [HashProfile.strict(algorithm) for _ in range(2)]
    assert drawn[0].root != drawn[1].root
    assert not drawn[0].is_reproducible
    with pytest.warns(CollisionRiskWarning):
        shared = [HashProfile.strict(algorithm, seed="deployment") for _ in range(2)]
    assert shared[0] == shared[1]
    assert shared[0].is_reproducible


def test_the_warning_names_the_callers_line_and_comes_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            HashProfile.vllm("0.33", "xxhash", "0")
            HashProfile.parse("vllm:0.33", "xxhash", "0")
    files = [os.path.basename(warning.filename) for warning in caught]
    assert files == ["test_hash_profile.py"] * 2


def test_lookahead_belongs_to_the_release_that_has_it() -> None:
    assert HashProfile.vllm("0.33", lookahead_tokens=3).lookahead_tokens == 3
    with pytest.raises(InvalidProfileError, match="lookahead_tokens=1"):
        HashProfile.vllm("0.32", lookahead_tokens=1)
    for bad in (-1, 1.5, "1", True):
        with pytest.raises(InvalidProfileError, match="lookahead_tokens="):
            HashProfile.vllm("0.33", lookahead_tokens=bad)  # type: ignore[arg-type]


def test_profiles_are_values() -> None:
    profile = HashProfile.vllm("0.25", seed="0")
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert hash(profile) == hash(HashProfile.vllm("0.25", seed="0"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.root = b""  # type: ignore[misc]
    assert profile.root.hex() not in repr(profile)


def test_parse_takes_every_known_name() -> None:
    for name in known_profiles():
        assert HashProfile.parse(name, "sha256_cbor", "0").name == name
    for name in ("", "strictly", "vllm", "vllm:", "sglang:0.5"):
        with pytest.raises(InvalidProfileError, match=r"strict, vllm:0\.19"):
            HashProfile.parse(name)


HASH_IN_A_NEW_PROCESS = """
import warnings; warnings.simplefilter("ignore")
from prefixhash import BlockHasher, HashProfile, Request, LoRARequest
profile = HashProfile.strict({algorithm!r}, seed={seed!r})
request = Request("r", range(64), block_hasher=BlockHasher(16, profile),
                  lora_request=LoRARequest("a", "/a"), cache_salt="s")
print(profile.is_reproducible, request.block_hashes[-1].hex())
"""


def hashes_of_two_processes(algorithm: str, seed: str | None) -> list[str]:
    code = HASH_IN_A_NEW_PROCESS.format(algorithm=algorithm, seed=seed)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    return [
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        ).stdout
        for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("algorithm", "seed", "equal"),
    [("sha256_cbor", None, True), ("xxhash_cbor", None, False), ("xxhash", "shared", True)],
)
def test_hashes_of_two_processes(algorithm: str, seed: str | None, equal: bool) -> None:
    first, second = hashes_of_two_processes(algorithm, seed)
    assert (first == second) is equal
    assert first.startswith(str(equal))  # is_reproducible says which


def test_digests_have_at_least_128_bits() -> None:
    for name, algorithm in ALGORITHMS.items():
        profile = HashProfile.strict(name, seed="s")
        (digest,) = BlockHasher(1, profile).hash_tokens([1])
        assert len(digest) == algorithm.digest_size >= 16


@pytest.mark.parametrize("version", ["0.33.0+cu129", "0.33.0+cpu", "0.33.1.dev12+gabc123"])
def test_local_versions_are_the_release(version: str) -> None:
    assert HashProfile.vllm(version) == HashProfile.vllm("0.33")


@pytest.mark.parametrize("algorithm", CRYPTOGRAPHIC)
def test_a_strict_root_is_made_of_values_not_of_objects(algorithm: str) -> None:
    text = "".join(("sha", "red"))
    same = HashProfile.strict(algorithm, text, seed=text)
    equal = HashProfile.strict(algorithm, text, seed="".join(list(text)))
    assert same.root == equal.root


def test_text_that_utf_8_cannot_encode_is_refused() -> None:
    for arguments in ({"namespace": "\ud800"}, {"seed": "\ud800"}):
        with pytest.raises(InvalidProfileError, match="UTF-8"):
            HashProfile.strict(**arguments)  # type: ignore[arg-type]


def test_only_vllms_keys_hold_lookahead_tokens() -> None:
    with pytest.raises(InvalidProfileError, match="lookahead_tokens=1"):
        dataclasses.replace(HashProfile.strict(), lookahead_tokens=1)


def test_a_parent_must_be_a_hash() -> None:
    for parent in (b"", b"abc", bytes(31)):
        with pytest.raises(InvalidArgumentError, match="parent="):
            BlockHasher(1).hash_tokens([1], parent)
