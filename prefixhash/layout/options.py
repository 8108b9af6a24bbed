"""What a plan depends on besides the layers and the memory, and how needs grow with the length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real

from prefixhash.errors import InvalidArgumentError

STATE_CACHE_MODES = ("none", "align", "all")
GROUP_POLICIES = ("reference", "least_cost")


@dataclass(frozen=True)
class PlanOptions:
    """Options of one run of the engine; every length is in tokens.

    max_model_len: longest request, prompt and output together (with `auto_fit`: the upper limit).
    auto_fit: lower `max_model_len` to what the memory holds instead of failing.
    max_num_batched_tokens: most tokens that one scheduler step computes.
    max_encoder_tokens: encoder length that cross-attention layers keep; must be given if any exist.
    num_blocks_override: plan so many blocks, whatever the memory.
    decode_context_parallel, prefill_context_parallel: ranks over which one request's tokens are
        dealt; full attention needs so much less.
    state_cache_mode: which states of state-space layers are kept: the running one (`none`), the
        running one and the last at a block end (`align`), or one for every block (`all`).
    hybrid_groups: False treats windowed layers as full attention, in one group.
    cross_layer_packing: put all layers' pages of a block side by side if there are several groups.
    group_policy, group_price: how many layers a group gets (`prefixhash.layout.groups`).
    draft_layers: layers of a draft model; the groups that hold one are marked.
    count_null_block: treat the null block as usable, as vLLM before 0.29 does; only for comparison.
    """

    max_model_len: int = 8192
    auto_fit: bool = False
    max_num_batched_tokens: int = 8192
    max_encoder_tokens: int | None = None
    num_blocks_override: int | None = None
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1
    state_cache_mode: str = "none"
    hybrid_groups: bool = True
    cross_layer_packing: bool = False
    group_policy: str = "reference"
    group_price: float = 1.0
    draft_layers: tuple[str, ...] = ()
    count_null_block: bool = False

    def __post_init__(self) -> None:
        for field in (
            "max_model_len",
            "max_num_batched_tokens",
            "num_blocks_override",
            "decode_context_parallel",
            "prefill_context_parallel",
        ):
            require_positive(field, getattr(self, field), optional=field == "num_blocks_override")
        require_integer("max_encoder_tokens", self.max_encoder_tokens, 0, optional=True)
        for field in ("auto_fit", "hybrid_groups", "cross_layer_packing", "count_null_block"):
            require_bool(field, getattr(self, field))
        price = self.group_price
        if not isinstance(price, Real) or not 0 <= price < math.inf:
            raise InvalidArgumentError("group_price", price, "must be a number of 0 or more")
        object.__setattr__(self, "draft_layers", names_of("draft_layers", self.draft_layers))
        require_one_of("state_cache_mode", self.state_cache_mode, STATE_CACHE_MODES)
        require_one_of("group_policy", self.group_policy, GROUP_POLICIES)

    @property
    def context_ranks(self) -> int:
        return self.decode_context_parallel * self.prefill_context_parallel

    @property
    def reserved_blocks(self) -> int:
        """Blocks that no request can use: the null block, unless it is counted."""
        return 0 if self.count_null_block else 1

    def with_max_model_len(self, max_model_len: int) -> PlanOptions:
        return replace(self, max_model_len=max_model_len)


@dataclass(frozen=True)
class BlockNeed:
    """Most blocks that one request of a length holds in one group.

    `extra + ceil(min(length, cap) / unit)`: constant up to the next block, flat from `cap` on.
    Every kind's need has this form, so it is worked out once and evaluated in a few operations.
    """

    unit: int
    cap: int | None
    extra: int

    def at(self, length: int) -> int:
        tokens = length if self.cap is None or length < self.cap else self.cap
        return self.extra - (-tokens // self.unit)


def options_or_default(options: PlanOptions | None) -> PlanOptions:
    """`options`, or the defaults for None; raises `InvalidArgumentError` for anything else."""
    if options is None:
        return PlanOptions()
    if not isinstance(options, PlanOptions):
        raise InvalidArgumentError("options", options, "must be PlanOptions or None")
    return options


def require_positive(argument: str, value: int | None, *, optional: bool = False) -> None:
    """Raises `InvalidArgumentError` unless `value` is an integer of 1 or more."""
    require_integer(argument, value, 1, optional=optional)


def require_integer(
    argument: str, value: int | None, least: int | None, *, optional: bool = False
) -> None:
    """Raises `InvalidArgumentError` unless `value` is an integer of `least` (if given) or more."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        problem = (
            "must be an integer" if least is None else f"must be an integer of {least} or more"
        )
        raise InvalidArgumentError(argument, value, problem)
    if least is not None and value < least:
        raise InvalidArgumentError(argument, value, f"must be an integer of {least} or more")


def require_one_each(
    argument: str, workers: Sequence[object], other: str, memory: Sequence[int]
) -> None:
    """Raises `InvalidArgumentError` unless both are sequences with an entry for each worker."""
    for name, value in ((argument, workers), (other, memory)):
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise InvalidArgumentError(name, value, "must be a sequence with an entry per worker")
    if len(workers) != len(memory):
        raise InvalidArgumentError(
            other, len(memory), f"needs one entry per worker ({len(workers)})"
        )


def require_bool(argument: str, value: object) -> None:
    """Raises `InvalidArgumentError` unless `value` is True or False: `"false"` is neither."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(argument, value, "must be True or False")


def names_of(argument: str, value: Iterable[str]) -> tuple[str, ...]:
    """Layer names as a tuple; a single text, which would be read letter by letter, is refused."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidArgumentError(argument, value, "must be a sequence of layer names")
    names = tuple(value)
    if not all_are(str, names):
        raise InvalidArgumentError(argument, value, "must hold layer names only")
    return names


def all_are(kind: type, values: Iterable[object]) -> bool:
    """Whether all `values` are of a kind: asked once per type, since layers are many."""
    return all(issubclass(found, kind) for found in set(map(type, values)))


def require_one_of(argument: str, value: str, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidArgumentError(argument, value, f"use one of {', '.join(known)}")
