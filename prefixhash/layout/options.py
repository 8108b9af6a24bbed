"""What a plan depends on besides the layers and the memory, and how needs grow with the length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from prefixhash import _arguments
from prefixhash._arguments import sequence
from prefixhash.errors import InvalidArgumentError
from prefixhash.layout.checks import instance, keep, keep_flags, keep_integers, layer_names

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
    group_policy, group_price: how many layers a group gets (`equal_group_size`).
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
        keep_integers(self, 1, "max_model_len", "max_num_batched_tokens")
        keep_integers(self, 1, "decode_context_parallel", "prefill_context_parallel")
        keep_integers(self, 1, "num_blocks_override", optional=True)
        keep_integers(self, 0, "max_encoder_tokens", optional=True)
        keep_flags(self, "auto_fit", "hybrid_groups", "cross_layer_packing", "count_null_block")
        keep(self, "group_price", _arguments.number("group_price", self.group_price))
        keep(self, "draft_layers", layer_names("draft_layers", self.draft_layers))
        _arguments.choice("state_cache_mode", self.state_cache_mode, STATE_CACHE_MODES)
        _arguments.choice("group_policy", self.group_policy, GROUP_POLICIES)

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

    def __post_init__(self) -> None:
        keep_integers(self, 1, "unit")
        keep_integers(self, 0, "cap", optional=True)
        keep_integers(self, 0, "extra")

    def at(self, length: int) -> int:
        """Blocks for a request of `length` tokens."""
        if type(length) is not int or length < 0:
            length = _arguments.integer("length", length)
        tokens = length if self.cap is None or length < self.cap else self.cap
        return self.extra - (-tokens // self.unit)


def options_or_default(options: PlanOptions | None) -> PlanOptions:
    """`options`, or the defaults for None; raises `InvalidArgumentError` for anything else."""
    if options is None:
        return PlanOptions()
    return instance("options", options, PlanOptions, "PlanOptions or None")


def one_each(name: str, workers: Any, other: str, memory: Any) -> tuple[Any, Any]:
    """Both as tuples; raises `InvalidArgumentError` unless they have an entry for each worker."""
    what = "a sequence with an entry per worker"
    workers, memory = sequence(name, workers, what), sequence(other, memory, what)
    if len(workers) != len(memory):
        problem = f"needs one entry per worker ({len(workers)})"
        raise InvalidArgumentError(other, len(memory), problem)
    return workers, memory
