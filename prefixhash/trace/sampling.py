"""A curve from a sample of the blocks, for traces whose distinct blocks do not fit in memory.

Spatial sampling (Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015): follow
the blocks whose hash falls below a threshold and nothing else. Among them the stack distances are
those of the whole trace, scaled by the rate. Ids are chained here, so that a block's own distance
is the largest along its prefix and the sample needs nothing of the blocks before it.

The sample is drawn as eight separate ones. Their mean is the result and their spread gives its
standard error. Misses are what is scaled up (hits are the rest): a few hot blocks that happen to be
in or out of the sample then do no harm.
"""

from __future__ import annotations

import itertools
import math

from prefixhash.errors import InvalidArgumentError
from prefixhash.trace._stack import BlockStack
from prefixhash.trace.definitions import Definition, Weights
from prefixhash.trace.hit_curve import HitRateCurve
from prefixhash.trace.metering import Meter
from prefixhash.trace.policies import ORDERS
from prefixhash.trace.records import BlockId, TraceRequest
from prefixhash.trace.series import WorkingSetSamples

REPLICATES = 8
_MASK = (1 << 64) - 1
_PRIME = (1 << 61) - 1


class SampledCurveBuilder:
    """As `CurveBuilder`, following about `share` of the distinct blocks."""

    def __init__(
        self,
        definition: Definition,
        block_size: int,
        share: float,
        head_first: bool = False,
        warmup: int = 0,
    ) -> None:
        self._definition = definition
        self._block_size = block_size
        self._warmup = warmup
        self._head_first = head_first
        self._share = share
        self._replicates = [_Replicate(head_first) for _ in range(REPLICATES)]
        self._num_requests = 0
        self._num_references = 0
        self._total = 0.0
        # What would count if every block hit; the misses are subtracted from it.
        self._countable = 0.0

    def add(self, request: TraceRequest) -> None:
        """Counts one request. O(blocks) hashes, O(log sample) for each sampled block."""
        weights = self._definition.weigh(request.num_tokens, len(request.ids), self._block_size)
        now = self._num_requests
        if now < self._warmup:
            weights = Weights(weights.cached, weights.limit, 0, 0, 0)
        threshold = int(self._share * (1 << 64))
        picked: list[list[tuple[int, float]]] = [[] for _ in range(REPLICATES)]
        chain = 0
        for index, block in enumerate(itertools.islice(request.ids, weights.cached)):
            chain = _mix(chain ^ _as_integer(block))
            draw = _mix(chain)
            if draw < threshold:
                weight = weights.each if index < weights.limit else 0.0
                if index == weights.cached - 1 >= weights.limit:
                    weight = weights.last
                # The low bits are independent of the threshold.
                picked[draw % REPLICATES].append((chain, weight))
        for replicate, blocks in zip(self._replicates, picked, strict=True):
            if blocks:
                replicate.access(blocks, now)
        self._num_requests += 1
        self._num_references += len(request.ids)
        self._total += weights.total
        self._countable += weights.value(weights.cached)

    def finish(self) -> HitRateCurve:
        scale = REPLICATES / self._share
        curves = [replicate.missed() for replicate in self._replicates]
        longest = max(map(len, curves))
        hits: list[float] = []
        errors: list[float] = []
        for index in range(longest):
            missed = [curve[min(index, len(curve) - 1)] * scale for curve in curves]
            mean = math.fsum(missed) / REPLICATES
            spread = math.fsum((value - mean) ** 2 for value in missed) / (REPLICATES - 1)
            hits.append(min(max(self._countable - mean, 0.0), self._countable))
            errors.append(math.sqrt(spread / REPLICATES) / self._total if self._total else 0.0)
        # Rounding must not make a larger cache look worse: the curve is searched as sorted.
        hits = list(itertools.accumulate(hits, max))
        sampled = sum(len(replicate.numbers) for replicate in self._replicates)
        if self._num_references and not all(replicate.numbers for replicate in self._replicates):
            raise InvalidArgumentError(
                "sample", self._share, f"follows {sampled} blocks, too few to tell its error"
            )
        return HitRateCurve(
            self._definition.name,
            ORDERS[self._head_first],
            self._block_size,
            self._total,
            hits,
            self._num_requests,
            self._num_references,
            round(sampled / self._share),
            True,
            Meter(),
            WorkingSetSamples(),
            errors,
            scale,
            sampled,
        )


class _Replicate:
    """One of the separate samples: its blocks, their stack, what missed."""

    def __init__(self, head_first: bool) -> None:
        self.numbers: dict[int, int] = {}
        self._stack = BlockStack(head_first)
        self._referenced = 0.0

    def access(self, blocks: list[tuple[int, float]], now: int) -> None:
        numbers = self.numbers
        ids = [numbers.setdefault(chain, len(numbers)) for chain, _ in blocks]
        weights = [weight for _, weight in blocks]
        self._referenced += math.fsum(weights)
        self._stack.access_each(ids, len(numbers), weights, now)

    def missed(self) -> list[float]:
        """What misses at each (scaled) capacity, in the definition's unit."""
        gains = itertools.accumulate(self._stack.gains.differences)
        return [self._referenced - hits for hits in itertools.accumulate(gains)]


def _as_integer(block: BlockId) -> int:
    if isinstance(block, int):
        return block & _MASK if -_MASK <= block <= _MASK else _fold(block)
    if isinstance(block, tuple):
        return _mix(block[0]) ^ _as_integer(block[1])
    data = block.encode("utf-8", "surrogatepass") if isinstance(block, str) else block
    return _fold(int.from_bytes(b"\1" + data, "big"))


def _fold(number: int) -> int:
    return number % _PRIME


def _mix(number: int) -> int:
    """A bijection of 64-bit integers that spreads its input (the finaliser of SplitMix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
