"""What one request needs, and the longest request that a memory holds.

A request of a length needs, in total over the groups, a number of blocks that is piecewise linear
in the length; in bytes, that many times the bytes of one block. The null block, which no request
may use, is reserved on top of it (`PlanOptions.count_null_block` turns that off).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prefixhash import _arguments
from prefixhash.errors import NotEnoughMemoryError
from prefixhash.layout.checks import instances, keep
from prefixhash.layout.groups import KVCacheGroup, groups_of
from prefixhash.layout.options import BlockNeed, PlanOptions, one_each, options_or_default
from prefixhash.layout.packing import lay_out_block


@dataclass(frozen=True)
class NeedCurve:
    """Blocks that one request of a length needs in each group and in total."""

    per_group: tuple[BlockNeed, ...]

    def __post_init__(self) -> None:
        needs = instances("per_group", self.per_group, BlockNeed, "BlockNeed values")
        keep(self, "per_group", needs)
        # Groups with equal needs are summed once.
        keep(self, "_counts", tuple(Counter(needs).items()))

    @classmethod
    def of(cls, groups: Sequence[KVCacheGroup], options: PlanOptions) -> NeedCurve:
        return cls(tuple(group.spec.block_need(options) for group in groups_of(groups)))

    def blocks(self, length: int) -> tuple[int, ...]:
        """Blocks per group for a request of `length` tokens."""
        return tuple(need.at(length) for need in self.per_group)

    def total(self, length: int) -> int:
        """Blocks over all groups for a request of `length` tokens."""
        counts: tuple[tuple[BlockNeed, int], ...] = self._counts  # type: ignore[attr-defined]
        return sum(need.at(length) * count for need, count in counts)

    def longest(self, limit: int, blocks: int) -> int:
        """Largest length in 1 ... `limit` that needs at most `blocks` blocks, or 0.

        Bisection over the closed form: log2(limit) evaluations of a few operations each.
        """
        limit = _arguments.integer("limit", limit, 1)
        blocks = _arguments.integer("blocks", blocks, None)
        if self.total(1) > blocks:
            return 0
        low, high = 1, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.total(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(frozen=True)
class Budget:
    """What one worker has: bytes of one block, available bytes, blocks that requests may use
    (-1 where not even one block fits, so that requests that need no block do not fit, either).
    """

    bytes_per_block: int
    available_memory: int
    usable_blocks: int

    @classmethod
    def of(
        cls, groups: Sequence[KVCacheGroup], available_memory: int, options: PlanOptions
    ) -> Budget | None:
        """None for a worker without layers, which limits nothing."""
        layout = lay_out_block(groups, cross_layer_packing=options.cross_layer_packing)
        return cls.for_bytes(layout.bytes_per_block, available_memory, options)

    @classmethod
    def for_bytes(
        cls, bytes_per_block: int, available_memory: int, options: PlanOptions
    ) -> Budget | None:
        available_memory = _arguments.integer("available_memory", available_memory, None)
        if bytes_per_block == 0:
            return None
        if options.num_blocks_override is not None:
            available_memory = options.num_blocks_override * bytes_per_block
        blocks = available_memory // bytes_per_block
        usable = blocks - options.reserved_blocks if blocks > 0 else -1
        return cls(bytes_per_block, available_memory, usable)


def blocks_needed(
    groups: Sequence[KVCacheGroup], options: PlanOptions | None = None
) -> tuple[int, ...]:
    """Blocks per group that one request of `options.max_model_len` tokens needs at most."""
    options = options_or_default(options)
    return NeedCurve.of(groups, options).blocks(options.max_model_len)


def bytes_needed(groups: Sequence[KVCacheGroup], options: PlanOptions | None = None) -> int:
    """Bytes that one request of `options.max_model_len` tokens needs at most.

    Blocks over all groups times the bytes of one block, padding included; without the null block.
    """
    options = options_or_default(options)
    groups = groups_of(groups)
    layout = lay_out_block(groups, cross_layer_packing=options.cross_layer_packing)
    return sum(blocks_needed(groups, options)) * layout.bytes_per_block


def estimate_max_model_len(
    groups: Sequence[KVCacheGroup], available_memory: int, options: PlanOptions | None = None
) -> int:
    """Longest request in tokens that `available_memory` bytes hold, at most `max_model_len`.

    0 if not even one token fits. Exact, not rounded to blocks. Needs that do not grow with the
    length give `max_model_len` or 0. O(log2(max_model_len) * kinds of groups).
    """
    options = options_or_default(options)
    groups = groups_of(groups)
    budget = Budget.of(groups, available_memory, options)
    if budget is None:
        return options.max_model_len
    curve = NeedCurve.of(groups, options)
    return curve.longest(options.max_model_len, budget.usable_blocks)


def auto_fit_max_model_len(
    groups_per_worker: Sequence[Sequence[KVCacheGroup]],
    available_memory: Sequence[int],
    options: PlanOptions | None = None,
) -> int:
    """Longest request that fits on every worker, at most `max_model_len`.

    Workers without layers limit nothing. Raises `NotEnoughMemoryError` if not even one token fits
    somewhere. Neither the options nor the groups are changed.
    """
    options = options_or_default(options)
    workers, memories = one_each(
        "groups_per_worker", groups_per_worker, "available_memory", available_memory
    )
    parts = [groups_of(groups) for groups in workers]
    lengths = [
        estimate_max_model_len(groups, memory, options)
        for groups, memory in zip(parts, memories, strict=True)
    ]
    longest = min(lengths, default=options.max_model_len)
    if longest == 0:
        worker = lengths.index(0)
        check_enough_memory(parts[worker], memories[worker], options, worker=worker)
    return longest


def check_enough_memory(
    groups: Sequence[KVCacheGroup],
    available_memory: int,
    options: PlanOptions | None = None,
    *,
    worker: int = 0,
) -> None:
    """Raises `NotEnoughMemoryError` unless a request of `max_model_len` tokens fits.

    No layers need no memory. The error carries the bytes needed and available, the longest length
    that fits, and `worker`.
    """
    options = options_or_default(options)
    groups = groups_of(groups)
    worker = _arguments.integer("worker", worker)
    budget = Budget.of(groups, available_memory, options)
    check_budgets(NeedCurve.of(groups, options), {worker: budget}, options)


def check_budgets(
    curve: NeedCurve, budgets: dict[int, Budget | None], options: PlanOptions
) -> None:
    """`check_enough_memory` for many workers with one curve; `budgets` is keyed by worker."""
    limited = {worker: budget for worker, budget in budgets.items() if budget is not None}
    if not limited:
        return
    needed = curve.total(options.max_model_len)
    worker, tightest = min(limited.items(), key=lambda item: item[1].usable_blocks)
    if needed <= tightest.usable_blocks:
        return
    # Where requests hold nothing, one block is still needed: a pool of none cannot run.
    needed = max(needed, 1)
    limit = options.max_model_len
    per_worker = tuple(
        (needed * b.bytes_per_block, b.available_memory, curve.longest(limit, b.usable_blocks))
        for b in limited.values()
    )
    problem = f"one request of max_model_len={limit} tokens does not fit in {_said(options)}"
    raise NotEnoughMemoryError(
        problem,
        needed=needed * tightest.bytes_per_block,
        available=tightest.available_memory,
        max_model_len=curve.longest(limit, tightest.usable_blocks),
        worker=worker,
        reserved=tightest.bytes_per_block * options.reserved_blocks,
        per_worker=per_worker,
    )


def _said(options: PlanOptions) -> str:
    if options.num_blocks_override is None:
        return "available_memory"
    return f"num_blocks_override={options.num_blocks_override} blocks"
