"""What the hashers of several vLLM releases made of random requests, recorded and made again:
appended tokens, media in all positions, embeddings, masks, lookahead, long strings."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from prefixhash import BlockHasher, HashProfile
from tests.conftest import DATA
from tests.hashing.random_cases import SEED, cases, our_request, summary

RECORDED: dict[str, dict[str, list[str]]] = json.loads(
    (DATA / "vllm_random_hashes.json").read_text(encoding="utf-8")
)
COUNT = 140
CASES = list(islice(cases(), COUNT))


@pytest.mark.parametrize(
    ("version", "algorithm"),
    [(version, algorithm) for version, rows in RECORDED.items() for algorithm in rows],
)
def test_random_requests_hash_as_the_release_hashed_them(version: str, algorithm: str) -> None:
    recorded = RECORDED[version][algorithm]
    assert len(recorded) == COUNT
    ours = [summary(hashes(case, version, algorithm)) for case in CASES]
    assert ours == recorded


def hashes(case: dict[str, Any], version: str, algorithm: str) -> list[bytes]:
    minor = int(version.split(".")[1])
    ahead = case["lookahead"] if minor >= 33 else 0
    if minor < 21:  # mixed prompts came with 0.21
        case = {**case, "mask": None}
    profile = HashProfile.vllm(version, algorithm, SEED, lookahead_tokens=ahead)
    return our_request(case, BlockHasher(case["block_size"], profile)).block_hashes


def test_the_recorded_cases_reach_every_part_of_a_key() -> None:
    for part in ("lora", "salt", "media", "embeds", "mask"):
        assert sum(bool(case.get(part)) for case in CASES) >= 8
    assert sum(bool(case.get("media") and case["lookahead"]) for case in CASES) >= 8
    assert sum(bool(case.get("embeds") and case["lookahead"]) for case in CASES) >= 8
