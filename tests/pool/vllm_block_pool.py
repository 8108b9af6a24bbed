"""Run by an interpreter that has vLLM 0.33.0: drives both pools with the same operations.

Prints one line of JSON. The operations are drawn from a fixed seed, so the script is a recording.
"""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace

import vllm
from vllm.v1.core.block_pool import BlockPool as VllmPool

from prefixhash.pool import BlockPool

BLOCKS = 65
CHAINS = 24
LENGTH = 12
GROUPS = 2


class Both:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ours = BlockPool(BLOCKS)
        self.theirs = VllmPool(BLOCKS, True, 16)
        self.held: list[tuple[list[int], int, int, int]] = []  # blocks, chain, group, cached
        self.compared = {"allocations": 0, "lookups": 0, "hits": 0, "evictions": 0, "copies": 0}

    def hashes(self, name: int) -> list[bytes]:
        return [b"%04d%04d" % (name, i) + bytes(24) for i in range(LENGTH)]

    def objects(self, blocks: list[int]) -> list[object]:
        return [self.theirs.blocks[block] for block in blocks]

    def start(self) -> None:
        """Look a chain up, take its hits, allocate more."""
        chain, group = self.random.randrange(CHAINS), self.random.randrange(GROUPS)
        hits = self.ours.longest_prefix(self.hashes(chain), group)
        theirs = []
        for block_hash in self.hashes(chain):
            found = self.theirs.get_cached_block(block_hash, [group])
            if found is None:
                break
            theirs.append(found[0].block_id)
        assert hits == theirs, ("lookup", hits, theirs)
        self.compared["lookups"] += 1
        self.compared["hits"] += len(hits)
        if self.random.random() < 0.2:
            hits = []  # a second copy of the same chain
            self.compared["copies"] += 1
        self.ours.touch(hits)
        self.theirs.touch(self.objects(hits))
        blocks = hits + self.grow(self.random.randint(0, LENGTH - len(hits)))
        self.held.append((blocks, chain, group, len(hits)))

    def grow(self, n: int) -> list[int]:
        n = min(n, self.ours.num_free_blocks)
        new = self.ours.allocate(n)
        theirs = [block.block_id for block in self.theirs.get_new_blocks(n)]
        assert new == theirs, ("allocate", new, theirs)
        self.compared["allocations"] += 1
        return new

    def cache(self) -> None:
        i = self.random.randrange(len(self.held))
        blocks, chain, group, done = self.held[i]
        end = self.random.randint(done, len(blocks))
        request = SimpleNamespace(block_hashes=self.hashes(chain))
        self.ours.cache(blocks[done:end], self.hashes(chain)[done:end], group)
        self.theirs.cache_full_blocks(request, self.objects(blocks), done, end, 16, group)
        self.held[i] = (blocks, chain, group, end)

    def finish(self) -> None:
        blocks, *_ = self.held.pop(self.random.randrange(len(self.held)))
        order = blocks[::-1] if self.random.random() < 0.9 else blocks
        self.ours.free(order)
        self.theirs.free_blocks(self.objects(order))

    def evict(self) -> None:
        blocks = self.random.sample(range(1, BLOCKS), 2)
        self.ours.evict(blocks)
        self.theirs.evict_blocks(set(blocks))
        self.held = [
            (held, chain, group, LENGTH if set(blocks) & set(held) else done)
            for held, chain, group, done in self.held
        ]
        self.held = [(h, c, g, min(d, len(h))) for h, c, g, d in self.held]
        self.compared["evictions"] += 1

    def reset(self) -> None:
        assert self.ours.reset() == self.theirs.reset_prefix_cache()

    def step(self) -> None:
        draw = self.random.random()
        if not self.held or (draw < 0.4 and len(self.held) < 12):
            self.start()
        elif draw < 0.7:
            self.cache()
        elif draw < 0.97:
            self.finish()
        elif draw < 0.995:
            self.evict()
        else:
            self.reset()
        assert self.ours.num_free_blocks == self.theirs.get_num_free_blocks()

    def compare_all(self) -> None:
        theirs = self.theirs.free_block_queue.get_all_free_blocks()
        assert self.ours.free_block_ids() == [block.block_id for block in theirs]
        counts = [self.ours.ref_count(b) for b in range(1, BLOCKS)]
        assert counts == [block.ref_cnt for block in self.theirs.blocks[1:]]
        assert self.ours.num_cached_hashes == len(self.theirs.cached_block_hash_to_block)
        self.ours.check()


def main() -> None:
    steps = int(sys.argv[1])
    both = Both(seed=20)
    for i in range(steps):
        both.step()
        if i % 100 == 0:
            both.compare_all()
    both.compare_all()
    print(json.dumps({"vllm": vllm.__version__, "steps": steps, **both.compared}))


main()
