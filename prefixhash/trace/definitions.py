"""The hit rates in use, by name: one trace gives figures 11 points apart, so each carries its own.

A block is a hit only if all earlier blocks of its request are hits. The definitions differ in what
may hit (whether a recorded partial last block is an object of the cache, too) and in what is
counted (tokens, blocks, or each request's own rate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from prefixhash.errors import InvalidArgumentError


class Weights(NamedTuple):
    """How a request's hit blocks are counted.

    Of the first `cached` blocks, which take part in caching, the first `limit` count `each` when
    they hit, and the last counts `last` on top where `cached > limit`; `total` is the most that
    the request could add to the denominator.
    """

    cached: int
    limit: int
    each: float
    last: float
    total: float

    def value(self, hits: int) -> float:
        """What `hits` leading hit blocks add to the numerator."""
        if hits <= self.limit:
            return hits * self.each
        return self.limit * self.each + (self.last if hits >= self.cached else 0)


@dataclass(frozen=True, slots=True)
class Definition:
    """One way to count a hit rate. `weigh` is called with (tokens, block ids, block size)."""

    name: str
    meaning: str
    used_by: str
    unit: str
    caches_tail: bool
    weigh: Callable[[int, int, int], Weights]


def _tokens(num_tokens: int, num_ids: int, size: int) -> Weights:
    full = min(num_tokens // size, num_ids)
    # At least one token is computed, so the block that holds the last token never counts.
    return Weights(full, min(full, max(num_tokens - 1, 0) // size), size, 0, num_tokens)


def _tokens_tail(num_tokens: int, num_ids: int, size: int) -> Weights:
    full = num_tokens // size
    if num_ids <= full:
        return _tokens(num_tokens, num_ids, size)
    return Weights(num_ids, full, size, num_tokens - full * size - 1, num_tokens)


def _blocks(num_tokens: int, num_ids: int, size: int) -> Weights:
    return Weights(num_ids, num_ids, 1, 0, num_ids)


def _full_blocks(num_tokens: int, num_ids: int, size: int) -> Weights:
    full = min(num_tokens // size, num_ids)
    return Weights(full, full, 1, 0, full)


def _requests(num_tokens: int, num_ids: int, size: int) -> Weights:
    return Weights(num_ids, num_ids, 1 / num_ids if num_ids else 0, 0, 1)


def _requests_full(num_tokens: int, num_ids: int, size: int) -> Weights:
    full = min(num_tokens // size, num_ids)
    return Weights(full, full, 1 / full if full else 0, 0, 1)


DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "tokens",
        "hit tokens / prompt tokens; only full blocks hit, one token is always computed",
        "vLLM, LMCache",
        "tokens",
        False,
        _tokens,
    ),
    Definition(
        "tokens-tail",
        "as tokens, but a recorded partial last block can hit",
        "llmtrafficlens, kvcache-simulator",
        "tokens",
        True,
        _tokens_tail,
    ),
    Definition(
        "blocks",
        "hit blocks / blocks of the prompts, a partial last block counts as one",
        "plain object caches",
        "blocks",
        True,
        _blocks,
    ),
    Definition(
        "full-blocks", "hit blocks / full blocks", "prefixlens", "blocks", False, _full_blocks
    ),
    Definition(
        "requests",
        "mean over requests of the request's own block rate",
        "AIPerf, Dynamo datagen",
        "requests",
        True,
        _requests,
    ),
    Definition(
        "requests-full",
        "as requests, over full blocks only (a request without one counts 0)",
        "per-request overlap of KV-aware routers",
        "requests",
        False,
        _requests_full,
    ),
)
HEADLINE = "tokens"
DEFINITION_NAMES = tuple(definition.name for definition in DEFINITIONS)


def find_definition(name: str) -> Definition:
    """The definition called `name`; raises `InvalidArgumentError` that lists them all."""
    for definition in DEFINITIONS:
        if definition.name == name:
            return definition
    raise InvalidArgumentError("count", name, f"is not one of {', '.join(DEFINITION_NAMES)}")
