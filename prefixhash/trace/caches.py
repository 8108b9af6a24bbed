"""What a replay runs against: a policy over ids, or the block pool with ids as hashes."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from prefixhash.errors import InvalidArgumentError
from prefixhash.pool import BlockPool
from prefixhash.trace.definitions import Weights
from prefixhash.trace.policies import Policy
from prefixhash.trace.records import TraceRequest

OVERSIZE = ("clip", "reject")
# The null block, a full block, a partial tail.
SMALLEST_POOL = 3


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
    """What a cache did for a request: `value` in the definition's unit; `handle` ends it."""

    value: float
    handle: Any = None
    oversize: bool = False


class Cache(Protocol):
    """A cache of one capacity."""

    seconds: float

    @property
    def evictions(self) -> int: ...

    def start(self, prepared: Prepared) -> Admission | None:
        """Looks the request up and takes it in; None where a running one has to end first."""
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
        hits = self._policy.access(prepared.ids[: weights.cached])
        self.seconds += perf_counter() - begin
        return Admission(weights.value(hits))

    def end(self, handle: Any) -> None:
        pass


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
        oversize: str = "clip",
    ) -> None:
        check_oversize(oversize)
        check_pool_size(num_blocks)
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._head_first = head_first
        self._commit_output = commit_output
        self._reject = oversize == "reject"
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

    def end(self, handle: Any) -> None:
        begin = perf_counter()
        blocks, fresh, hashes = handle
        pool = self._pool
        if hashes:
            pool.cache(fresh, hashes)
        pool.free(blocks if self._head_first else blocks[::-1])
        self.seconds += perf_counter() - begin

    def _start(self, prepared: Prepared) -> Admission | None:
        weights = prepared.weights
        needed = self._needed(prepared)
        cached = weights.cached
        oversize = needed > self._usable
        if oversize:
            if self._reject:
                return Admission(0.0, None, True)
            needed, cached = self._usable, min(cached, self._usable - 1)
        pool = self._pool
        hits = pool.longest_prefix(prepared.ids[: self._findable(weights, cached)])
        if needed > pool.num_free_blocks and self._lacking(needed, hits):
            return None
        pool.touch(hits)
        blocks = hits + pool.allocate(needed - len(hits))
        pool.cache(blocks[len(hits) : cached], prepared.ids[len(hits) : cached])
        output = self._output_hashes(prepared, len(blocks))
        # The blocks that the output fills follow the prompt's full ones.
        first = prepared.source.num_tokens // self._block_size
        handle = (blocks, blocks[first : first + len(output)], output)
        return Admission(weights.value(len(hits)), handle, oversize)

    def _lacking(self, needed: int, hits: list[int]) -> bool:
        # Blocks of the hit that nobody holds are taken from the free ones as well.
        pool = self._pool
        revived = sum(1 for block in hits if not pool.ref_count(block))
        return needed - len(hits) + revived > pool.num_free_blocks

    @staticmethod
    def _findable(weights: Weights, cached: int) -> int:
        """How many of the prompt's blocks may be looked up: those that would count."""
        return min(cached, weights.cached if weights.last else weights.limit)

    def _needed(self, prepared: Prepared) -> int:
        source = prepared.source
        tokens = source.num_tokens + (source.output_tokens if self._commit_output else 0)
        return max(-(-tokens // self._block_size), len(prepared.ids))

    def _output_hashes(self, prepared: Prepared, num_blocks: int) -> list[tuple[int, int]]:
        """Names of the full blocks that the output completes; nobody else's prompt has them."""
        if not self._commit_output:
            return []
        source = prepared.source
        first = source.num_tokens // self._block_size
        last = (source.num_tokens + source.output_tokens) // self._block_size
        return [(prepared.index, place) for place in range(first, min(last, num_blocks))]


def check_oversize(oversize: str) -> None:
    if oversize not in OVERSIZE:
        raise InvalidArgumentError("oversize", oversize, f"is not one of {', '.join(OVERSIZE)}")


def check_pool_size(num_blocks: int) -> None:
    if num_blocks < SMALLEST_POOL:
        raise InvalidArgumentError(
            "capacity", num_blocks, "a pool needs 3 blocks: the null block, one full, one tail"
        )
