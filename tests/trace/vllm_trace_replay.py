"""Run by an interpreter that has vLLM 0.33.0: replays a trace in vLLM's own BlockPool.

Arguments: the trace, then numbers of blocks. Prints one line of JSON with the hit tokens at each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import vllm
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from prefixhash.trace.interning import Interner
from prefixhash.trace.reading import read_trace


class Request:
    """What `BlockPool.cache_full_blocks` reads of a request."""

    def __init__(self, number: int, hashes: list[bytes]) -> None:
        self.request_id = str(number)
        self.block_hashes = hashes


class Replay:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, True, block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.hits = 0

    def serve(self, number: int, hashes: list[bytes], num_tokens: int) -> None:
        size = self.block_size
        needed = -(-num_tokens // size)
        if needed > self.num_blocks - 1:
            # A prompt larger than the pool keeps what fits beside its tail.
            needed = self.num_blocks - 1
            hashes = hashes[: needed - 1]
        found: list[KVCacheBlock] = []
        for block_hash in hashes[: (num_tokens - 1) // size]:
            blocks = self.pool.get_cached_block(block_hash, [0])
            if blocks is None:
                break
            found.append(blocks[0])
        self.hits += len(found) * size
        self.pool.touch(found)
        held = found + self.pool.get_new_blocks(needed - len(found))
        if len(hashes) > len(found):
            request: Any = Request(number, hashes)
            self.pool.cache_full_blocks(request, held, len(found), len(hashes), size, 0)
        self.pool.free_blocks(reversed(held))


def main() -> None:
    trace = read_trace(sys.argv[1])
    replays = [Replay(int(blocks), trace.block_size) for blocks in sys.argv[2:]]
    interner = Interner()
    total = 0
    for number, request in enumerate(trace):
        full = request.num_tokens // trace.block_size
        hashes = [b"%032d" % name for name in interner.intern(request.ids[:full])]
        total += request.num_tokens
        for replay in replays:
            replay.serve(number, hashes, request.num_tokens)
    print(json.dumps({"vllm": vllm.__version__, "total": total, "hits": [r.hits for r in replays]}))


main()
