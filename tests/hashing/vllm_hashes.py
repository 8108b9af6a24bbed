"""Random requests through vLLM's own `Request`, hashed by its hasher and by ours.

    PYTHONPATH=. PYTHONHASHSEED=7 VENV_WITH_VLLM/bin/python tests/hashing/vllm_hashes.py [COUNT]

Runs inside an environment that has vLLM (0.19 to 0.33) and compares three ways: vLLM's hasher on
vLLM's request, our hasher on vLLM's request, our hasher on our request. Prints one JSON object;
exit status 1 if any hash differs.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from collections import Counter
from typing import Any

import torch
from vllm import SamplingParams
from vllm import __version__ as vllm_version
from vllm.lora.request import LoRARequest as EngineLoRA
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.multimodal.inputs import PlaceholderRange as EngineRange
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request as EngineRequest

import prefixhash as ph
from prefixhash.hashing import ALGORITHMS

HAS_LOOKAHEAD = "num_hash_lookahead_tokens" in get_request_block_hasher.__code__.co_varnames


def fresh(text: str) -> str:
    """A string object of its own, as an engine core gets from its decoder."""
    return text.encode().decode()


def random_case(rng: random.Random) -> dict[str, Any]:
    size = rng.choice((1, 2, 3, 4, 5, 8, 16, 16, 16, 32, 64))
    length = rng.choice((0, 1, size - 1, size, size + 1, rng.randrange(1, 400)))
    case: dict[str, Any] = {
        "block_size": size,
        "tokens": [random_token(rng) for _ in range(length)],
        "appended": [
            [random_token(rng) for _ in range(rng.choice((1, 1, 1, size, 2 * size + 1)))]
            for _ in range(rng.randrange(0, 30))
        ],
        "lookahead": rng.choice((0, 0, 1, 3)) if HAS_LOOKAHEAD else 0,
    }
    if rng.random() < 0.4:
        name = rng.choice(("x", "sql-adapter", "lora", "é", "n" * 300))
        case["lora"] = (name, rng.choice((name, "/adapters/sql", "mm")))
    if rng.random() < 0.4:
        case["salt"] = rng.choice(("tenant-7", "x", "cache_salt", "", "s" * 70_000))
    if rng.random() < 0.5:
        case["media"] = random_media(rng, length)
    if length and rng.random() < 0.3:
        case["embeds"] = (rng.choice(("float32", "float16", "bfloat16")), rng.randrange(1, 9))
        case["mask"] = rng.choice((None, [rng.random() < 0.5 for _ in range(length)]))
        case["tokens_known"] = case["mask"] is not None or rng.random() < 0.3
    return case


def random_token(rng: random.Random) -> int:
    edges = (0, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**63 - 1)
    return rng.choice(edges) if rng.random() < 0.1 else rng.randrange(151_936)


def random_media(rng: random.Random, length: int) -> list[tuple[str, int, int]]:
    """Items in order; mostly one after the other, sometimes nested, equal or empty."""
    items = []
    for _ in range(rng.randrange(1, 8)):
        offset = rng.randrange(length + 1)
        items.append((f"img-{rng.randrange(4)}", offset, rng.randrange(length - offset + 1)))
    items.sort(key=lambda item: item[1])
    if rng.random() < 0.3:
        return items
    disjoint: list[tuple[str, int, int]] = []
    for name, offset, span in items:
        if not disjoint or offset >= disjoint[-1][1] + disjoint[-1][2]:
            disjoint.append((name, offset, span))
    return disjoint


def embeds_of(case: dict[str, Any]) -> torch.Tensor | None:
    if "embeds" not in case:
        return None
    dtype, width = case["embeds"]
    generator = torch.Generator().manual_seed(len(case["tokens"]))
    rows = torch.randn(2 * len(case["tokens"]), width, generator=generator)[::2]
    return rows.to(getattr(torch, dtype))


def engine_request(case: dict[str, Any], hasher: Any) -> EngineRequest:
    known = case.get("tokens_known", True)
    lora = case.get("lora")
    extra = {"prompt_is_token_ids": case["mask"]} if case.get("mask") else {}
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=list(case["tokens"]) if known else None,
        sampling_params=SamplingParams(max_tokens=10_000),
        pooling_params=None,
        prompt_embeds=embeds_of(case),
        mm_features=[
            MultiModalFeatureSpec(
                data=None,
                modality=fresh("image"),
                identifier=fresh(name),
                mm_position=EngineRange(offset=offset, length=length),
            )
            for name, offset, length in case.get("media", ())
        ],
        lora_request=EngineLoRA(fresh(lora[0]), 1, fresh(lora[1])) if lora else None,
        cache_salt=fresh(case["salt"]) if "salt" in case else None,
        block_hasher=hasher,
        **extra,
    )
    for ids in case["appended"]:
        request.append_output_token_ids(ids)
    return request


def our_request(case: dict[str, Any], hasher: ph.BlockHasher) -> ph.Request:
    lora = case.get("lora")
    request = ph.Request(
        "r",
        case["tokens"] if case.get("tokens_known", True) else None,
        block_hasher=hasher,
        prompt_embeds=embeds_of(case),
        prompt_is_token_ids=case.get("mask"),
        mm_features=[
            ph.MultiModalFeature(name, ph.PlaceholderRange(offset, length))
            for name, offset, length in case.get("media", ())
        ],
        lora_request=ph.LoRARequest(*lora) if lora else None,
        cache_salt=case.get("salt"),
    )
    for ids in case["appended"]:
        request.append_token_ids(ids)
    return request


def main(argv: list[str]) -> int:
    count = int(argv[1]) if len(argv) > 1 else 500
    rng = random.Random(20260)
    warnings.simplefilter("ignore", ph.CollisionRiskWarning)
    blocks: Counter[str] = Counter()
    differing = []
    for number in range(count):
        case = random_case(rng)
        for algorithm in ALGORITHMS:
            hash_function = get_hash_fn_by_name(algorithm)
            init_none_hash(hash_function)
            lookahead = case["lookahead"]
            profile = ph.HashProfile.vllm(
                vllm_version, algorithm, os.environ["PYTHONHASHSEED"], lookahead_tokens=lookahead
            )
            ours = ph.BlockHasher(case["block_size"], profile)
            options = (lookahead,) if lookahead else ()
            theirs = get_request_block_hasher(case["block_size"], hash_function, *options)
            expected = engine_request(case, theirs).block_hashes
            blocks[algorithm] += len(expected)
            requests = (engine_request(case, ours), our_request(case, ours))
            differing += [
                (number, algorithm, type(request).__module__)
                for request in requests
                if request.block_hashes != expected
            ]
    result = {"vllm": vllm_version, "requests": count, "blocks": blocks, "differing": differing}
    print(json.dumps(result))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
