"""What calls of the cache are refused, and the walk over its invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from prefixhash._arguments import integer, is_integer, sequence, text
from prefixhash.cache.interface import CachedRequest, CacheHit
from prefixhash.cache.managers import AttentionManager
from prefixhash.cache.options import MOST_TOKENS
from prefixhash.cache.search import coarse
from prefixhash.cache.tables import Held
from prefixhash.errors import (
    InvalidArgumentError,
    InvalidBlockError,
    InvalidRequestError,
    InvariantError,
    StaleHitError,
)
from prefixhash.pool.block_pool import BlockPool
from prefixhash.pool.refusals import as_ids

_READ = ("request_id", "num_tokens", "block_hashes")


def check_request(request: Any) -> None:
    """Refuse what lacks the attributes of a request."""
    try:
        if type(request.request_id) is str and request.num_tokens >= 0 <= len(request.block_hashes):
            return
    except (AttributeError, TypeError):
        pass  # said below
    lacking = [name for name in _READ if not hasattr(request, name)]
    if lacking:
        raise InvalidRequestError("request", request, f"has no {lacking[0]}: give a Request")
    text("request.request_id", request.request_id, error=InvalidRequestError)


class HashCheck:
    """Refuses requests that are hashed at another block size, by another profile, or not at all.

    Hashes of smaller blocks would stand for more tokens than they cover: wrong reuse. Hashes of
    larger blocks or another profile, or none, would never be hit. Of a request that does not say
    what hashed it, only the number of hashes is looked at; a profile that looks ahead completes a
    block late.

    Args:
        block_size: tokens of a block that is hashed.
        hasher: the cache's own, or None.
    """

    __slots__ = ("_ahead", "_block_size", "_hasher", "_known")

    def __init__(self, block_size: int, hasher: Any) -> None:
        self._block_size = block_size
        self._hasher = hasher
        # The last hasher that was found good and says that it completes a block so many tokens
        # behind its end: requests mostly share one, and counting needs no call of it.
        self._known: Any = None
        self._ahead = 0

    def check(self, request: CachedRequest) -> None:
        """Raise InvalidRequestError unless the request's hashes are those of all its full blocks.

        O(1).
        """
        own = getattr(request, "block_hasher", None)
        if own is None or own is not self._known:
            self._check_slowly(request, own)
            return
        count = len(request.block_hashes)
        hashable = request.num_tokens - self._ahead
        if hashable < 0 or hashable // self._block_size != count:
            self._check_slowly(request, own)  # says what is wrong

    def _check_slowly(self, request: CachedRequest, own: Any) -> None:
        if own is not None and own is not self._hasher:
            self._check_hasher(own)
        count = len(request.block_hashes)
        count_full = getattr(own or self._hasher, "num_full_blocks", None)
        if count_full is not None:
            most = least = count_full(request.num_tokens)
        else:
            most = request.num_tokens // self._block_size
            least = most - 1
        if not least <= count <= most:
            self._refuse(request, count, most)
        tokens_of = getattr(own, "num_tokens_of", None)
        if tokens_of is not None and own.block_size == self._block_size:
            self._known, self._ahead = own, tokens_of(0)

    def _check_hasher(self, own: Any) -> None:
        size, hasher = self._block_size, self._hasher
        if getattr(own, "block_size", size) != size:
            raise InvalidRequestError(
                "block_hasher",
                own,
                f"hashes at another block size: give the request a BlockHasher({size}), or "
                "build the cache with another hash_block_size",
            )
        profile = getattr(hasher, "profile", None)
        if profile is not None and getattr(own, "profile", profile) != profile:
            raise InvalidRequestError(
                "block_hasher", own, f"is not what this cache was built with: {hasher!r}"
            )

    def _refuse(self, request: CachedRequest, count: int, most: int) -> NoReturn:
        size = self._block_size
        raise InvalidRequestError(
            "block_hashes",
            count,
            f"{request.num_tokens} tokens make {most} hashes at {size} tokens each: "
            f"give the request a BlockHasher({size}), or build the cache with "
            "another hash_block_size or with enable_caching=False",
        )


def check_shape(hit: CacheHit, num_groups: int) -> None:
    """Refuse what is no `CacheHit`, or of a cache with other groups."""
    if not (
        isinstance(hit, CacheHit)
        and _is_length(hit.num_tokens)
        and _is_length(hit.shared_prefix_tokens)
        and isinstance(hit.block_ids, tuple)
        and len(hit.block_ids) == num_groups
        and all(isinstance(ids, (list, tuple)) for ids in hit.block_ids)
    ):
        raise InvalidArgumentError("hit", hit, "must be what lookup() of this cache returned")


def _is_length(value: Any) -> bool:
    """Whether it is a length of a hit as lookup gives it: of Python's own type, and in range."""
    return type(value) is int and 0 <= value <= MOST_TOKENS


def check_hit(
    request: CachedRequest,
    hit: CacheHit,
    managers: Sequence[AttentionManager],
    pool: BlockPool,
    hash_block_size: int,
) -> None:
    """Refuse a hit whose blocks do not carry the request's own hashes, now. O(blocks)."""
    check_shape(hit, len(managers))
    length = hit.num_tokens
    if length >= max(request.num_tokens, 1):
        raise InvalidArgumentError("hit", length, "is no lookup of this request: look it up again")
    for manager, ids in zip(managers, hit.block_ids, strict=True):
        if not manager.cacheable or not length:
            if any(ids):
                raise InvalidBlockError("hit", ids, f"group {manager.group} takes no cached blocks")
            continue
        first = manager.skipped_tokens(length) // manager.block_size
        count, rest = divmod(length, manager.block_size)
        hashes = coarse(request.block_hashes, manager.block_size // hash_block_size)
        needed = hashes[first:count]
        if rest or len(ids) != count or any(ids[:first]):
            raise InvalidArgumentError("hit", hit, "is no lookup of this request: look it up again")
        if not pool.carries(ids[first:], needed, manager.group):
            raise StaleHitError(
                f"a block of the hit of {length} tokens of request {request.request_id!r} was "
                f"evicted or reused since the lookup (group {manager.group}): look it up again"
            )


def check_unchanged(held: Held, request: CachedRequest, tokens: bool = True) -> None:
    """Refuse another request of this id, and one whose computed tokens were exchanged."""
    if held.request is not request:
        raise InvalidRequestError(
            "request_id", request.request_id, "another request of this id holds blocks"
        )
    if tokens and not held.is_unchanged():
        raise InvalidRequestError(
            "request",
            request.request_id,
            f"was cut below its {held.num_computed} computed tokens: preempt() it, then "
            "look it up and allocate again",
        )


def check_commit(held: Held, num_computed: int, longest: int) -> int:
    """Refuse to take tokens back, and tokens without slots: none lie behind `longest`."""
    most = min(held.num_scheduled, longest)
    if type(num_computed) is not int:
        num_computed = integer("num_computed_tokens", num_computed)
    try:
        number = num_computed
    except OverflowError:  # a C integer where this is compiled
        number = -1
    if not held.num_computed <= number <= most:
        raise InvalidArgumentError(
            "num_computed_tokens",
            num_computed,
            f"must lie between the {held.num_computed} tokens committed before and the {most} "
            "that have slots; to compute tokens again, preempt() the request",
        )
    if number > held.lowest_cut:
        raise InvalidArgumentError(
            "num_computed_tokens",
            num_computed,
            f"the tokens from {held.lowest_cut} on were exchanged after their step was allocated, "
            f"so it has computed others: commit {held.lowest_cut} at most",
        )
    return number


def numbers_of(name: str, values: Any, count: int, least: int) -> Sequence[int]:
    """One integer for each of `count` requests; one alone stands for all."""
    if is_integer(values):
        return [integer(name, values, least, MOST_TOKENS)] * count
    numbers = list(sequence(name, values, "one integer, or one for each request"))
    if len(numbers) != count:
        raise InvalidArgumentError(name, values, f"one for each request: {count} needed")
    for i, value in enumerate(numbers):
        if type(value) is not int or not least <= value <= MOST_TOKENS:
            numbers[i] = integer(f"{name}[{i}]", value, least, MOST_TOKENS)
    return numbers


def check_cache(
    pool: BlockPool,
    managers: Sequence[AttentionManager],
    helds: Sequence[Held],
    pinned: Iterable[int],
) -> None:
    """Compare block tables with the pool.

    Raises:
        InvariantError: they disagree.
    """
    pinned = as_ids(pinned)
    for block in pinned:
        pool.ref_count(block)  # refuses a foreign id
    holds = Counter(pinned)
    for held in helds:
        for table in held.tables:
            holds.update(block for block in table.blocks if block)
            if not 0 <= table.num_cached <= len(table.blocks):
                raise InvariantError(f"{table.num_cached} cached of {len(table.blocks)} blocks")
        _check_slots(held, managers)
    for block in range(1, pool.num_blocks):
        if pool.ref_count(block) != holds[block]:
            raise InvariantError(
                f"block {block} is held {pool.ref_count(block)} times, tables hold it "
                f"{holds[block]} times"
            )


def _check_slots(held: Held, managers: Sequence[AttentionManager]) -> None:
    """Every token that is still attended to has a block."""
    for manager, table in zip(managers, held.tables, strict=True):
        if not manager.cacheable:
            continue
        first = manager.skipped_tokens(held.num_computed) // manager.block_size
        last = held.num_computed // manager.block_size
        if not manager.keeps_states and 0 in table.blocks[first:last]:
            raise InvariantError(
                f"request {held.request.request_id!r} lacks a block among {table.blocks} of "
                f"group {manager.group} that attention reads"
            )
