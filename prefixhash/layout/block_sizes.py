"""Block sizes where several groups, kernels or state layers meet. All sizes in tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prefixhash import _arguments
from prefixhash._arguments import sequence
from prefixhash.errors import (
    InvalidArgumentError,
    NoCommonBlockSizeError,
    UnsupportedCombinationError,
)
from prefixhash.layout.checks import instance, instances, keep_integers
from prefixhash.layout.groups import KVCacheGroup
from prefixhash.layout.layer_spec import LayerSpec
from prefixhash.layout.options import STATE_CACHE_MODES
from prefixhash.layout.specs import MambaSpec


@dataclass(frozen=True)
class MultipleOf:
    """A kernel takes every block size that is a multiple of `base`."""

    base: int

    def __post_init__(self) -> None:
        keep_integers(self, 1, "base")


KernelBlockSize = int | MultipleOf


class BlockSizes(NamedTuple):
    """`scheduler`: unit of allocation over all groups; `hash`: tokens per block hash."""

    scheduler: int
    hash: int


class AlignedBlocks(NamedTuple):
    """Attention block, state block and state page after alignment; None: leave it as it is."""

    attention_block_size: int
    state_block_size: int | None
    state_page_size_padded: int | None


def resolve_block_sizes(
    groups: Sequence[KVCacheGroup | LayerSpec],
    block_size: int,
    *,
    context_ranks: int = 1,
    prefix_caching: bool = True,
    connector: bool = False,
    hash_block_size: int | None = None,
) -> BlockSizes:
    """At how many tokens the scheduler allocates and hashes are taken.

    Up to one group: both are `block_size` (the configured one) times `context_ranks`. Several:
    the scheduler takes the least common multiple of the groups' sizes; hashes are taken at
    `hash_block_size` or the greatest common divisor: every group's hashes are a subsequence.
    Without caching or a connector, or where a state group's block is not the configured one,
    hashes are as coarse as the scheduler's blocks.
    """
    block_size = _arguments.integer("block_size", block_size, 1)
    context_ranks = _arguments.integer("context_ranks", context_ranks, 1)
    hash_block_size = _arguments.optional_integer("hash_block_size", hash_block_size, 1)
    caching = _arguments.flag("prefix_caching", prefix_caching)
    caching |= _arguments.flag("connector", connector)
    specs = _specs_of(groups)
    if len(specs) <= 1:
        return BlockSizes(block_size * context_ranks, block_size * context_ranks)
    if context_ranks > 1:
        problem = "context parallelism needs a single group: use 1 rank or one kind of layer"
        raise UnsupportedCombinationError("context_ranks", problem)
    sizes = [spec.block_size for spec in specs]
    scheduler = math.lcm(*sizes)
    states = any(isinstance(spec, MambaSpec) and spec.block_size != block_size for spec in specs)
    if states or not caching:
        return BlockSizes(scheduler, scheduler)
    hashed = math.gcd(*sizes) if hash_block_size is None else hash_block_size
    if any(size % hashed for size in sizes):
        problem = f"must divide every group's block size {sizes}: use {math.gcd(*sizes)}"
        raise InvalidArgumentError("hash_block_size", hashed, problem)
    return BlockSizes(scheduler, hashed)


def select_kernel_block_size(
    block_size: int, supported: Sequence[Sequence[KernelBlockSize]]
) -> int:
    """The block size that the kernels of one group see; divides `block_size`.

    `supported` lists, per kernel, exact sizes and `MultipleOf` rules. `block_size` itself if every
    kernel takes it, otherwise the largest exact size that divides it and suits all; otherwise
    `NoCommonBlockSizeError`. A block is then block_size / k kernel blocks; token slots stay the
    same.
    """
    block_size = _arguments.integer("block_size", block_size, 1)
    kernels = tuple(
        _kernel_sizes("supported", sizes)
        for sizes in sequence("supported", supported, "a sequence of sizes for each kernel")
    )
    exact = {size for sizes in kernels for size in sizes if isinstance(size, int)}
    candidates = [block_size, *sorted(exact, reverse=True)]
    for candidate in candidates:
        if block_size % candidate == 0 and all(_takes(sizes, candidate) for sizes in kernels):
            return candidate
    raise NoCommonBlockSizeError(block_size, kernels)


def align_attention_with_states(
    bytes_per_token: int,
    state_bytes: int,
    kernel_block_sizes: Sequence[KernelBlockSize],
    *,
    block_size: int | None = None,
    state_cache_mode: str = "none",
    state_block_size: int | None = None,
    equal_pages: bool = False,
) -> AlignedBlocks:
    """The attention block whose page holds a state, for models that mix both.

    `bytes_per_token`: of one attention layer, keys and values together; `state_bytes`: of one state
    layer. The block is the smallest multiple of A with a page of at least a state, where A is the
    smallest block that any kernel takes, or the configured `block_size` if that is larger; the
    state page is padded to it. Mode `all` counts in chunks of lcm(A, `state_block_size`).
    `equal_pages`: padding is not allowed; `block_size` is overridden by the exact block, and a
    state that no whole kernel block matches is refused.
    """
    bytes_per_token = _arguments.integer("bytes_per_token", bytes_per_token, 1)
    state_bytes = _arguments.integer("state_bytes", state_bytes)
    block_size = _arguments.optional_integer("block_size", block_size, 1)
    state_block_size = _arguments.optional_integer("state_block_size", state_block_size, 1)
    _arguments.choice("state_cache_mode", state_cache_mode, STATE_CACHE_MODES)
    _arguments.flag("equal_pages", equal_pages)
    kernel = _smallest(kernel_block_sizes)
    if state_bytes == 0:
        return AlignedBlocks(block_size or kernel, None, None)
    tokens = -(-state_bytes // bytes_per_token)
    if equal_pages:
        return _exact_blocks(bytes_per_token, state_bytes, kernel, state_cache_mode)
    unit = max(kernel, block_size or 0)
    if state_cache_mode == "all":
        unit = math.lcm(state_block_size or unit, unit)
    aligned = unit * -(-tokens // unit)
    block = max(block_size or 0, aligned)
    state_block = {"all": aligned, "align": block, "none": None}[state_cache_mode]
    page = block * bytes_per_token
    return AlignedBlocks(block, state_block, page if page > state_bytes else None)


def grow_quantised_blocks(
    quantised: LayerSpec, others: Iterable[LayerSpec], kernel_block_sizes: Sequence[KernelBlockSize]
) -> tuple[LayerSpec, tuple[LayerSpec, ...]]:
    """A quantised layer with blocks grown until its page holds the smallest page of `others`.

    Blocks grow in units of the larger of the smallest kernel block and the layer's block; those
    of `others` that have the smallest page are padded to the grown page. Returns new specs.
    """
    instance("quantised", quantised, LayerSpec, "a layer spec")
    others = instances("others", others, LayerSpec, "layer specs")
    kernel = _smallest(kernel_block_sizes)
    if not others:
        return quantised, ()
    smallest = min(spec.page_size_bytes for spec in others)
    unit = max(kernel, quantised.block_size)
    page = quantised.with_block_size(unit).page_size_bytes
    grown = quantised.with_block_size(unit * -(-smallest // page))
    return grown, tuple(
        spec.padded_to(grown.page_size_bytes) if spec.page_size_bytes == smallest else spec
        for spec in others
    )


def _takes(sizes: Sequence[KernelBlockSize], block_size: int) -> bool:
    return any(
        block_size % size.base == 0 if isinstance(size, MultipleOf) else block_size == size
        for size in sizes
    )


def _kernel_sizes(name: str, sizes: Any) -> tuple[KernelBlockSize, ...]:
    """The sizes that a kernel takes, checked."""
    return tuple(
        size if isinstance(size, MultipleOf) else _arguments.integer(name, size, 1)
        for size in sequence(name, sizes, "a sequence of sizes and MultipleOf rules")
    )


def _smallest(sizes: Sequence[KernelBlockSize]) -> int:
    known = _kernel_sizes("kernel_block_sizes", sizes)
    if not known:
        raise InvalidArgumentError("kernel_block_sizes", sizes, "at least one is needed")
    return min(size.base if isinstance(size, MultipleOf) else size for size in known)


def _specs_of(groups: Sequence[KVCacheGroup | LayerSpec]) -> list[LayerSpec]:
    """What says how many blocks each group needs."""
    specs = []
    for group in sequence("groups", groups, "a sequence of groups or layer specs"):
        spec = group.spec if isinstance(group, KVCacheGroup) else group
        specs.append(instance("groups", spec, LayerSpec, "a sequence of groups or layer specs"))
    return specs


def _exact_blocks(
    bytes_per_token: int, state_bytes: int, kernel: int, state_cache_mode: str
) -> AlignedBlocks:
    if state_bytes % (bytes_per_token * kernel):
        problem = (
            f"equal pages need a multiple of {kernel} tokens of {bytes_per_token} bytes: pad the "
            "state, or allow padding"
        )
        raise InvalidArgumentError("state_bytes", state_bytes, problem)
    block = state_bytes // bytes_per_token
    return AlignedBlocks(block, None if state_cache_mode == "none" else block, None)
