"""What comes next in a trace, for the policy that knows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.trace.checks import block_numbers, items_of

NEVER = 1 << 62


class Future:
    """When each use of a block is followed by the next one that can count as a hit.

    Memory: one number for each use in the trace; knowing the future has no smaller price.
    """

    def __init__(self, requests: Iterable[tuple[Sequence[int], int]]) -> None:
        """`requests`: the blocks of each request, and how many of the first can count as hits.

        Raises `InvalidArgumentError` for anything else, and whatever iterating `requests` raises.
        """
        listed = items_of("requests", requests, "(block ids, how many can count as hits)")
        kept = [_request(index, item) for index, item in enumerate(listed)]
        self._next_uses: list[list[int]] = [[]] * len(kept)
        following: dict[int, int] = {}
        for index in range(len(kept) - 1, -1, -1):
            ids, limit = kept[index]
            self._next_uses[index] = [following.get(block, NEVER) for block in ids]
            following.update(dict.fromkeys(ids[:limit], index))

    def uses(self, index: int, num_ids: int) -> Sequence[int]:
        """For each of the `num_ids` blocks of request `index`, the request that uses it next.

        `NEVER` for none. Raises `InvalidArgumentError` where this is no request of the trace.
        """
        known = len(self._next_uses)
        if _arguments.integer("index", index) >= known:
            problem = f"the future is known of {known} requests"
            raise InvalidArgumentError("index", index, problem)
        uses = self._next_uses[index]
        if _arguments.integer("num_ids", num_ids) != len(uses):
            problem = f"request {index} of the known future has {len(uses)} blocks"
            raise InvalidArgumentError("num_ids", num_ids, problem)
        return uses


def _request(index: int, item: Any) -> tuple[Sequence[int], int]:
    name = f"requests[{index}]"
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise InvalidArgumentError(name, item, "must be (block ids, how many can count as hits)")
    return block_numbers(f"{name}[0]", item[0]), _arguments.integer(f"{name}[1]", item[1])
