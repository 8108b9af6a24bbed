"""A first pass over a trace: its size, and what no cache could do better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from prefixhash import _arguments
from prefixhash.trace.engine import HashedTrace
from prefixhash.trace.incoming import checked_requests
from prefixhash.trace.interning import Interner
from prefixhash.trace.records import BlockId, TraceRequest
from prefixhash.trace.tails import TokenTails


@dataclass(frozen=True)
class Survey:
    """Sizes of a trace. `unique_tokens`: tokens of the distinct blocks."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    num_references: int
    unique_blocks: int
    unique_tokens: int
    longest_prompt: int
    chained: bool
    has_times: bool

    def __post_init__(self) -> None:
        for item in fields(self):
            check = _arguments.flag if item.type == "bool" else _arguments.integer
            object.__setattr__(self, item.name, check(item.name, getattr(self, item.name)))

    def unique_blocks_of(self, block_size: int, trace_block_size: int) -> int:
        """Distinct blocks of another size (exact where it divides the trace's)."""
        block_size = _arguments.integer("block_size", block_size, 1)
        trace_block_size = _arguments.integer("trace_block_size", trace_block_size, 1)
        if block_size == trace_block_size:
            return self.unique_blocks
        return self.unique_tokens // block_size

    def most_blocks(self, block_size: int) -> int:
        """A pool of so many blocks holds all prompts and outputs at a time, shared or not."""
        block_size = _arguments.integer("block_size", block_size, 1)
        tokens = self.prompt_tokens + self.output_tokens
        # A tail for each request, whether its last block was recorded or not; the null block.
        return tokens // block_size + self.num_references + 2 * self.num_requests + 3


def survey_trace(trace: Iterable[TraceRequest], block_size: int) -> Survey:
    """Runs over the trace once; `block_size`: tokens of a block id. Memory: the distinct blocks.

    Raises `InvalidArgumentError` and whatever iterating `trace` raises.
    """
    block_size = _arguments.integer("block_size", block_size, 1)
    interner = Interner()
    requests = prompt = output = references = unique_tokens = longest = 0
    has_times = False
    # One that hashes has checked its requests already.
    requests_in = trace if isinstance(trace, HashedTrace) else checked_requests(trace, block_size)
    for request in requests_in:
        known = len(interner)
        interner.intern(request.ids)
        fresh = len(interner) - known
        # A partial last block holds fewer tokens; new, it is counted for what it holds.
        partial = len(request.ids) * block_size - request.num_tokens
        unique_tokens += fresh * block_size - (partial if fresh and partial > 0 else 0)
        requests += 1
        prompt += request.num_tokens
        output += request.output_tokens
        references += len(request.ids)
        longest = max(longest, request.num_tokens)
        has_times = has_times or bool(request.timestamp)
    return Survey(
        requests,
        prompt,
        output,
        references,
        len(interner),
        unique_tokens,
        longest,
        interner.chained,
        has_times,
    )


class Prefixes:
    """All prefixes seen so far, as a tree of block ids: what an unbounded cache shares.

    Memory: one entry for each distinct prefix block, and its tokens where they were recorded.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: dict[tuple[int, BlockId], int] = {}
        self._tails = TokenTails(block_size)

    def shared_tokens(self, request: TraceRequest) -> int:
        """Leading tokens of the prompt that an earlier prompt began with, at least one left out.

        At the grain of the trace: tokens, or blocks and a recorded partial last block. Then takes
        the prompt in. O(blocks), or O(tokens).
        """
        nodes = self._nodes
        node = -1
        shared = 0
        known = len(nodes)
        for position, block in enumerate(request.ids, 1):
            node = nodes.setdefault((node, block), len(nodes))
            if node < known:
                shared = position
        tail = self._tails.shared_beyond(request, shared) if request.prompt is not None else 0
        return max(min(shared * self._block_size + tail, request.num_tokens - 1), 0)
