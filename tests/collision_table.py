"""Which pairs of requests share a block hash although their KV differs, by profile.

    python -m tests.collision_table

prints the table of the README.
"""

from __future__ import annotations

from typing import Any

import torch

from prefixhash import (
    BlockHasher,
    HashProfile,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)

PROFILES = ("vllm:0.25", "vllm:0.33", "strict")
IDS = [9] * 32


def image(identifier: str, offset: int, length: int) -> MultiModalFeature:
    return MultiModalFeature(identifier, PlaceholderRange(offset, length))


_BITS = torch.arange(32 * 8, dtype=torch.int16).reshape(32, 8)
_ROWS = torch.ones(32, 8)

# What differs between the two requests, and their fields beside the tokens.
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an adapter named X / a salt X": (
        {"lora_request": LoRARequest("X", "/x")},
        {"cache_salt": "X"},
    ),
    "one adapter name, two paths": (
        {"lora_request": LoRARequest("X", "/a")},
        {"lora_request": LoRARequest("X", "/b")},
    ),
    "one adapter name and path, two revisions of the weights": (
        {"lora_request": LoRARequest("X", "/x", "1")},
        {"lora_request": LoRARequest("X", "/x", "2")},
    ),
    "one image at two offsets of a block": (
        {"mm_features": [image("a", 4, 8)]},
        {"mm_features": [image("a", 6, 8)]},
    ),
    "one image identifier, two lengths": (
        {"mm_features": [image("a", 0, 20)]},
        {"mm_features": [image("a", 0, 30)]},
    ),
    "two sound tracks under one video": (
        {"mm_features": [image("v", 0, 30), image("sound-1", 8, 4)]},
        {"mm_features": [image("v", 0, 30), image("sound-2", 8, 4)]},
    ),
    "two items over one span": (
        {"mm_features": [image("a", 0, 32), image("b", 0, 32)]},
        {"mm_features": [image("a", 0, 32), image("c", 0, 32)]},
    ),
    "embeddings of equal bytes, float16 / bfloat16": (
        {"token_ids": None, "prompt_embeds": _BITS.view(torch.float16)},
        {"token_ids": None, "prompt_embeds": _BITS.view(torch.bfloat16)},
    ),
    "mixed prompt, another mask": (
        {"token_ids": [0] * 32, "prompt_embeds": _ROWS, "prompt_is_token_ids": [False] * 32},
        {"token_ids": [0] * 32, "prompt_embeds": _ROWS, "prompt_is_token_ids": [True] * 32},
    ),
}


def collides(pair: str, profile: str) -> bool:
    """Whether the first blocks of the two requests have one hash."""
    hasher = BlockHasher(16, HashProfile.parse(profile, "sha256_cbor", "0"))
    first, second = (
        Request("r", **{"token_ids": IDS, **fields}, block_hasher=hasher).block_hashes[0]
        for fields in PAIRS[pair]
    )
    return first == second


def markdown() -> str:
    lines = [
        f"| requests that differ in | {' | '.join(PROFILES)} |",
        f"|---|{'---|' * len(PROFILES)}",
    ]
    for pair in PAIRS:
        cells = ["**collide**" if collides(pair, profile) else "differ" for profile in PROFILES]
        lines.append(f"| {pair} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
