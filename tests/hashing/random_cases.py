"""Random requests, and how we hash them; deterministic, so that engines' results can be recorded.

`tests/data/vllm_random_hashes.json` holds, for several vLLM releases, what their own hashers made
of the first cases of `cases()`; `vllm_hashes.py --record` wrote it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import torch

import prefixhash as ph

SEED = "7"  # the engines' PYTHONHASHSEED


def cases() -> Iterator[dict[str, Any]]:
    """Endless."""
    rng = random.Random(20260)
    while True:
        yield random_case(rng)


def summary(block_hashes: list[bytes]) -> str:
    """Number of blocks and a digest of all their hashes."""
    return f"{len(block_hashes)}:{hashlib.sha256(b''.join(block_hashes)).hexdigest()[:16]}"


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
        "lookahead": rng.choice((0, 0, 1, 3)),
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
