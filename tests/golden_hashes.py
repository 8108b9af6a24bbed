"""Compares our digests with those that vLLM releases computed.

    python -m tests.golden_hashes tests/data/block_hashes.json

Takes any file of that format; prints one line per reference and algorithm; exit status 1 if any
digest differs.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prefixhash import (
    BlockHasher,
    CollisionRiskWarning,
    HashProfile,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)


@dataclass(frozen=True)
class Comparison:
    """The digests of one case under one engine, seed and algorithm."""

    engine: str
    algorithm: str
    case: str
    expected: list[str]
    ours: list[str]


def compare(path: Path) -> Iterator[Comparison]:
    golden = json.loads(path.read_text(encoding="utf-8"))
    cases = {case["name"]: case for case in golden["cases"]}
    for reference in golden["references"]:
        engine = f"{reference['engine']} {reference['version']}, seed {reference['seed']}"
        for algorithm, expected in reference["algorithms"].items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CollisionRiskWarning)
                profile = HashProfile.vllm(reference["version"], algorithm, reference["seed"])
            root = [profile.root.hex()]
            yield Comparison(engine, algorithm, "none_hash", [expected["none_hash"]], root)
            for name, hashes in expected["block_hashes"].items():
                ours = [digest.hex() for digest in hash_case(cases[name], profile)]
                yield Comparison(engine, algorithm, name, hashes, ours)


def hash_case(case: dict[str, Any], profile: HashProfile) -> list[bytes]:
    return make_request(case, BlockHasher(case["block_size"], profile)).block_hashes


def make_request(case: dict[str, Any], hasher: BlockHasher | None = None) -> Request:
    lora, embeds = case.get("lora"), case.get("prompt_embeds")
    return Request(
        case["name"],
        case["token_ids"],
        block_hasher=hasher,
        lora_request=lora and LoRARequest(lora["name"], lora["path"]),
        mm_features=[
            MultiModalFeature(item["identifier"], PlaceholderRange(item["offset"], item["length"]))
            for item in case.get("mm_features", ())
        ],
        prompt_embeds=embeds and make_embeds(embeds),
        cache_salt=case.get("cache_salt"),
    )


def make_embeds(formula: dict[str, Any]) -> torch.Tensor:
    """Element k, row-major, is start + step * k; a transposed one is row-major before that."""
    rows, width = formula["shape"]
    values = formula["start"] + formula["step"] * torch.arange(rows * width, dtype=torch.float64)
    values = values.to(getattr(torch, formula["dtype"]))
    if formula.get("transposed"):
        return values.reshape(width, rows).T
    return values.reshape(rows, width)


def main(argv: list[str]) -> int:
    counts: dict[tuple[str, str], list[int]] = {}
    for row in compare(Path(argv[1])):
        matched = row.ours == row.expected
        count = counts.setdefault((row.engine, row.algorithm), [0, 0])
        count[0] += matched
        count[1] += 1
        if not matched:
            print(f"DIFFERS {row.engine} {row.algorithm} {row.case}")
    for (engine, algorithm), (matched_cases, cases) in counts.items():
        print(f"{engine}, {algorithm}: matched {matched_cases} of {cases}")
    total = sum(count[1] for count in counts.values())
    print(f"matched {sum(count[0] for count in counts.values())} of {total}")
    return 0 if all(count[0] == count[1] for count in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
