"""Random requests that tempt a cache: equal tokens under other adapters, media and tenants."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from prefixhash import LoRARequest, MultiModalFeature, PlaceholderRange, Request
from tests.proof.engine import Hash, Job
from tests.proof.model import VOCABULARY, WIDTH

PLACEHOLDER = 7
ADAPTERS = (
    *[None] * 8,
    LoRARequest("sql", "/a"),
    LoRARequest("sql", "/b"),
    LoRARequest("sql", "/a", "2"),
    LoRARequest("north"),
)
TENANTS = (None, None, None, "north", "south")


def jobs(rng: random.Random, count: int, hasher: Hash, num_kinds: int) -> list[Job]:
    """`count` requests of 5 to 70 tokens, of `num_kinds` kinds: a prompt, media or embeddings, an
    adapter and a tenant, behind which each request goes on by itself."""
    prompts = [[rng.randrange(VOCABULARY) for _ in range(length)] for length in (16, 30, 47)]
    kinds = [_kind(rng, rng.choice(prompts)) for _ in range(num_kinds)]
    # Of a mixed prompt also the one that differs in the mask alone.
    kinds += [_with_other_mask(kind) for kind in kinds if "prompt_is_token_ids" in kind]
    made = []
    for number in range(count):
        fields = dict(rng.choice(kinds))
        own = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 16))]
        for name, extend in _EXTEND.items():
            if name in fields:
                fields[name] = extend(fields[name], own)
        request = Request(f"r{number}", **fields, block_hasher=hasher)
        made.append(Job(request, rng.randrange(0, 8)))
    return made


# How a field of a kind grows by a request's own tokens.
_EXTEND: dict[str, Callable[[Any, list[int]], Any]] = {
    "token_ids": lambda ids, own: ids + own,
    "prompt_embeds": lambda rows, own: torch.cat((rows, rows[: len(own)] * 2)),
    "prompt_is_token_ids": lambda mask, own: mask + [True] * len(own),
}


def _kind(rng: random.Random, prompt: list[int]) -> dict[str, Any]:
    cut = rng.choice((len(prompt), rng.randrange(12, len(prompt))))
    shared = {"lora_request": rng.choice(ADAPTERS), "cache_salt": rng.choice(TENANTS)}
    return {**shared, **_input(rng, prompt[:cut])}


def _input(rng: random.Random, ids: list[int]) -> dict[str, Any]:
    """Tokens alone, or with an image stand-in, or with prompt embeddings, perhaps under a mask."""
    chance = rng.random()
    if chance < 0.4:
        return {"token_ids": ids}
    if chance < 0.65:
        ids[2:8] = [PLACEHOLDER] * 6
        offset, length = rng.choice(((2, 6), (2, 5), (3, 5)))
        image = MultiModalFeature(rng.choice("ab"), PlaceholderRange(offset, length))
        return {"token_ids": ids, "mm_features": [image]}
    generator = torch.Generator().manual_seed(rng.randrange(2))
    rows = torch.randn(len(ids), WIDTH, generator=generator, dtype=torch.float64)
    if chance < 0.8:
        return {"prompt_embeds": rows}
    is_token = [position % 2 > 0 for position in range(len(ids))]
    return {"token_ids": ids, "prompt_embeds": rows, "prompt_is_token_ids": is_token}


def _with_other_mask(kind: dict[str, Any]) -> dict[str, Any]:
    is_token = [position % 3 > 0 for position in range(len(kind["token_ids"]))]
    return {**kind, "prompt_is_token_ids": is_token}
