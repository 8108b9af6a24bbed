"""Tokens that a prompt shares with an earlier one past the last full block they share.

Only where tokens were recorded: ids say nothing about the inside of a block.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence
from itertools import takewhile

from prefixhash.trace.records import TraceRequest

_BYTES = 8


class TokenTails:
    """The blocks that followed each prefix, sorted: the best match is a neighbour.

    Memory: eight bytes for each token of the distinct blocks.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._followers: dict[object, list[bytes]] = {}

    def shared_beyond(self, request: TraceRequest, shared_blocks: int) -> int:
        """The tokens shared past `shared_blocks` blocks, fewer than a block; takes the prompt in.

        An image ends what can be shared: its placeholder tokens say nothing about it. O(tokens).
        """
        prompt = request.prompt
        if prompt is None:
            return 0
        ends = min((item.mm_position.offset for item in prompt.media), default=request.num_tokens)
        found = 0
        for place in range(shared_blocks, len(request.ids) + 1):
            first = place * self._size
            stop = min(first + self._size, request.num_tokens, max(ends, first))
            block = _packed(prompt.token_ids[first:stop])
            if not block:
                continue
            parent = request.ids[place - 1] if place else ("start", prompt.lora, prompt.cache_salt)
            followers = self._followers.setdefault(parent, [])
            index = bisect.bisect_left(followers, block)
            if place == shared_blocks:
                near = followers[max(index - 1, 0) : index + 1]
                found = max((_common_tokens(block, other) for other in near), default=0)
            if index == len(followers) or followers[index] != block:
                followers.insert(index, block)
        return min(found, self._size - 1)


def _packed(tokens: Sequence[int]) -> bytes:
    """Bytes whose order keeps equal beginnings together (the numeric order does not matter)."""
    return array("q", tokens).tobytes()


def _common_tokens(one: bytes, other: bytes) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // _BYTES
