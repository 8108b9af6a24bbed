"""The hit rates in use, by name: one trace gives figures 11 points apart, so each carries its own.

A block is a hit only if all earlier blocks of its request are hits. The definitions differ in what
may hit (whether a recorded partial last block is an object of the cache, too) and in what is
counted (tokens, blocks, or each request's own rate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from prefixhash import _arguments
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
    """One way to count a hit rate, by `rule`, a function of (tokens, block ids, block size).

    `in_engine`: what the engine's own lookup finds is counted so; others are counted on the ids.
    """

    name: str
    meaning: str
    used_by: str
    unit: str
    rule: Callable[[int, int, int], Weights]
    in_engine: bool = False

    def __post_init__(self) -> None:
        for name in ("name", "meaning", "used_by", "unit"):
            _arguments.text(name, getattr(self, name))
        if not callable(self.rule):
            raise InvalidArgumentError("rule", self.rule, "must be a function")
        _arguments.flag("in_engine", self.in_engine)

    def weigh(self, num_tokens: int, num_ids: int, block_size: int) -> Weights:
        """How a prompt of `num_tokens` with `num_ids` block ids counts; `InvalidArgumentError`."""
        return self.rule(
            _arguments.integer("num_tokens", num_tokens),
            _arguments.integer("num_ids", num_ids),
            _arguments.integer("block_size", block_size, 1),
        )


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


_TOKENS = Definition(
    "tokens",
    "hit tokens / prompt tokens; only full blocks hit, one token is always computed",
    "vLLM, LMCache",
    "tokens",
    _tokens,
    in_engine=True,
)
_ROWS = (
    _TOKENS,
    Definition(
        "tokens-tail",
        "as tokens, but a recorded partial last block can hit",
        "llmtrafficlens, kvcache-simulator",
        "tokens",
        _tokens_tail,
    ),
    Definition(
        "blocks",
        "hit blocks / blocks of the prompts, a partial last block counts as one",
        "plain object caches",
        "blocks",
        _blocks,
    ),
    Definition("full-blocks", "hit blocks / full blocks", "prefixlens", "blocks", _full_blocks),
    Definition(
        "requests",
        "mean over requests of the request's own block rate",
        "AIPerf, Dynamo datagen",
        "requests",
        _requests,
    ),
    Definition(
        "requests-full",
        "as requests, over full blocks only (a request without one counts 0)",
        "per-request overlap of KV-aware routers",
        "requests",
        _requests_full,
    ),
)
DEFINITIONS: dict[str, Definition] = {definition.name: definition for definition in _ROWS}
HEADLINE = _TOKENS.name


def find_definition(name: str) -> Definition:
    """The definition called `name`; raises `InvalidArgumentError` that lists them all."""
    return DEFINITIONS[_arguments.choice("count", name, DEFINITIONS)]
