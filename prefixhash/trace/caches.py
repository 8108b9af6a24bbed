"""What a replay runs against: a policy over ids, or the block pool with ids as hashes."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.pool import BlockPool
from prefixhash.trace.capacity import SMALLEST_POOL
from prefixhash.trace.definitions import Weights
from prefixhash.trace.policies import Policy
from prefixhash.trace.records import TraceRequest

OVERSIZE = CLIP, REJECT = ("clip", "reject")


@dataclass(slots=True)
class Prepared:
    """A request as the caches of one replay see it: prepared once, served to each of them.

    `ids`: the blocks of the prompt as dense numbers; `weights`: what its hits count. `request`: the
    hashed request of an engine replay.
    """

    index: int
    source: TraceRequest
    ids: list[int]
    weights: Weights
    request: Any = None


@dataclass(slots=True)
class Admission:
    """What a cache did for a request: `value` in the definition's unit; `handle` ends it.

    `saved`: tokens of the prompt that were hit, where there is a handle.
    """

    value: float
    handle: Any = None
    oversize: bool = False
    saved: int = 0


class Cache(Protocol):
    """A cache of one capacity."""

    seconds: float

    @property
    def evictions(self) -> int: ...

    def start(self, prepared: Prepared) -> Admission | None:
        """Looks the request up and takes it in; None where a running one has to end first."""
        ...

    def computed(self, handle: Any) -> None:
        """The prompt is computed: others may find its blocks."""
        ...

    def end(self, handle: Any) -> None:
        """Gives back what the request held."""
        ...


class PolicyCache:
    """A replacement policy: holds nothing, so it admits always."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.seconds = 0.0

    @property
    def evictions(self) -> int:
        return self._policy.evictions

    def start(self, prepared: Prepared) -> Admission:
        weights = prepared.weights
        begin = perf_counter()
        hits = self._policy.take(prepared.ids[: weights.cached])
        self.seconds += perf_counter() - begin
        return Admission(weights.value(hits))

    def computed(self, handle: Any) -> None:
        pass

    def end(self, handle: Any) -> None:
        pass


@dataclass(slots=True)
class _Held:
    """The blocks of a running request, and what they will be known by: prompt, then output."""

    blocks: list[int]
    fresh: list[int]
    hashes: list[int]
    output: list[int]
    output_hashes: list[tuple[int, int]]


class PoolCache:
    """The block pool, addressed by the trace's ids: N blocks hold N - 2 cached ones at rest.

    (Block 0 is the null block, and a running request needs one for its partial tail.)
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        head_first: bool = False,
        commit_output: bool = False,
        oversize: str = CLIP,
    ) -> None:
        check_pool(num_blocks, oversize)
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._head_first = head_first
        self._commit_output = commit_output
        self._reject = oversize == REJECT
        self._usable = num_blocks - 1
        self.seconds = 0.0

    @property
    def evictions(self) -> int:
        return self._pool.num_evictions

    def start(self, prepared: Prepared) -> Admission | None:
        begin = perf_counter()
        try:
            return self._start(prepared)
        finally:
            self.seconds += perf_counter() - begin

    def computed(self, handle: _Held) -> None:
        begin = perf_counter()
        self._pool.cache(handle.fresh, handle.hashes)
        self.seconds += perf_counter() - begin

    def end(self, handle: _Held) -> None:
        begin = perf_counter()
        if handle.output_hashes:
            self._pool.cache(handle.output, handle.output_hashes)
        self._pool.free(handle.blocks if self._head_first else handle.blocks[::-1])
        self.seconds += perf_counter() - begin

    def _start(self, prepared: Prepared) -> Admission | None:
        weights = prepared.weights
        output = prepared.source.output_tokens if self._commit_output else 0
        needed = self._needed(prepared, output)
        cached = weights.cached
        oversize = needed > self._usable
        if oversize and self._reject:
            return Admission(0.0, None, True)
        if oversize:
            # What fits of the prompt, and no output.
            output = 0
            needed = min(self._needed(prepared, 0), self._usable)
            cached = min(cached, self._usable - 1)
        if not prepared.source.num_tokens:
            return Admission(0.0, None, oversize)
        pool = self._pool
        hits = pool.longest_prefix(prepared.ids[: self._findable(weights, cached)])
        if needed > pool.num_free_blocks and self._lacking(needed, hits):
            return None
        pool.touch(hits)
        blocks = hits + pool.allocate(needed - len(hits))
        # The blocks that the output fills follow the prompt's full ones.
        first = prepared.source.num_tokens // self._block_size
        last = (prepared.source.num_tokens + output) // self._block_size if output else first
        handle = _Held(
            blocks,
            blocks[len(hits) : cached],
            prepared.ids[len(hits) : cached],
            blocks[first:last],
            # Nobody else's prompt has them.
            [(prepared.index, place) for place in range(first, last)],
        )
        saved = min(len(hits) * self._block_size, prepared.source.num_tokens)
        return Admission(weights.value(len(hits)), handle, oversize, saved)

    def _lacking(self, needed: int, hits: list[int]) -> bool:
        # Blocks of the hit that nobody holds are taken from the free ones as well.
        pool = self._pool
        revived = sum(1 for block in hits if not pool.ref_count(block))
        return needed - len(hits) + revived > pool.num_free_blocks

    @staticmethod
    def _findable(weights: Weights, cached: int) -> int:
        """How many of the prompt's blocks may be looked up: those that would count."""
        return min(cached, weights.cached if weights.last else weights.limit)

    def _needed(self, prepared: Prepared, output: int) -> int:
        tokens = prepared.source.num_tokens + output
        return max(-(-tokens // self._block_size), len(prepared.ids))


def check_pool(num_blocks: int, oversize: str) -> None:
    """Raises `InvalidArgumentError` for a pool that is too small, or no way with large prompts."""
    _arguments.choice("oversize", oversize, OVERSIZE)
    if _arguments.integer("capacity", num_blocks) < SMALLEST_POOL:
        problem = f"a pool needs {SMALLEST_POOL} blocks: the null block, one full, one tail"
        raise InvalidArgumentError("capacity", num_blocks, problem)
