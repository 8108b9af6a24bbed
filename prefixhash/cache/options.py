"""The options of a cache, checked once and handed to its parts as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from prefixhash._arguments import flag, number, optional_integer
from prefixhash.errors import InvalidArgumentError
from prefixhash.pool import ResidencySampler

# Of a block, a window, a step, a request: sums of such lengths stay 64-bit integers.
MOST_TOKENS = 1 << 40


@dataclass(frozen=True)
class CacheOptions:
    """Options of a `PrefixCache`, which takes them as one value or each by its name.

    Args:
        hash_block_size: tokens per hash; default: the greatest common divisor of the block sizes.
        max_model_len: most tokens of a request; no slots are allocated beyond.
        max_batched_tokens: most tokens of one request in flight; what `whole_sequence` admission
            assumes of groups that recycle blocks. Default: no recycling.
        enable_caching: False finds and publishes nothing. Default: on, but off with a cross-
            attention group, whose decoder KV depends on an encoder input that hashes of tokens do
            not cover; say True if yours do.
        whole_sequence: admit a request only if all its tokens fit, not just the first step.
        watermark: share of the pool that an admission must leave free while others run, in [0, 1).
        eagle: an EAGLE-type drafter runs: the groups of its layers (`is_draft`), or all if none is
            marked, leave the last matched block of a hit to be computed again.
        retention_interval: how densely sliding-window and state groups keep what a hit needs:
            None at every aligned length, a multiple of the alignment at its multiples, 0 only at
            the ends of prompts and where requests were seen to part.
        events: record events, see `PrefixCache.take_events`.
        report_reuse: with events, report the blocks of a hit again when it is admitted.
        block_hasher: the `BlockHasher` of the requests: gives events their extra keys, and checks
            that requests are hashed at `hash_block_size`.
        verify_tokens: keep the tokens of every cached block and compare them on a hit, for hash
            algorithms that are not collision resistant; needs `block_hasher`.
        residency: sampler of the life of cached blocks.

    Raises:
        InvalidArgumentError: a value that cannot be used; the message names it.
    """

    hash_block_size: int | None = None
    max_model_len: int | None = None
    max_batched_tokens: int | None = None
    enable_caching: bool | None = None
    whole_sequence: bool = False
    watermark: float = 0.0
    eagle: bool = False
    retention_interval: int | None = None
    events: bool = False
    report_reuse: bool = False
    block_hasher: Any = None
    verify_tokens: bool = False
    residency: ResidencySampler | None = None

    def __post_init__(self) -> None:
        for name in ("hash_block_size", "max_model_len", "max_batched_tokens"):
            self._set(name, optional_integer(name, getattr(self, name), 1, MOST_TOKENS))
        self._set(
            "retention_interval", optional_integer("retention_interval", self.retention_interval)
        )
        for name in ("whole_sequence", "eagle", "events", "report_reuse", "verify_tokens"):
            self._set(name, flag(name, getattr(self, name)))
        if self.enable_caching is not None:
            self._set("enable_caching", flag("enable_caching", self.enable_caching))
        self._set("watermark", number("watermark", self.watermark, 0.0, 1.0))
        if self.block_hasher is not None and not hasattr(self.block_hasher, "extra_keys"):
            raise InvalidArgumentError("block_hasher", self.block_hasher, "must be a BlockHasher")
        if self.verify_tokens and self.block_hasher is None:
            raise InvalidArgumentError(
                "verify_tokens", True, "needs block_hasher, to compare what else is in a hash"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def options_of(options: Any, settings: Mapping[str, Any]) -> CacheOptions:
    """`options`, or the defaults, with the given settings in their place."""
    given = CacheOptions() if options is None else options
    if not isinstance(given, CacheOptions):
        raise InvalidArgumentError("options", options, "must be CacheOptions, or None")
    return replace(given, **settings) if settings else given


class GroupShape(NamedTuple):
    """What decides which blocks a group needs; groups of one manager and shape need the same.

    `reach` is the length of the window or chunk in tokens, 0 where there is none; the other fields
    are those of `CacheGroup`.
    """

    block_size: int
    reach: int = 0
    speculative_blocks: int = 0
    eagle: bool = False


class CacheUnits(NamedTuple):
    """Lengths, in tokens, that follow from the options and the groups together.

    `hash_block_size` tokens have one hash; hits are multiples of `alignment`; a drafter has the
    last `drop` tokens that match computed again.
    """

    hash_block_size: int
    alignment: int
    drop: int
