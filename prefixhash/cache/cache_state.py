"""The state of a prefix cache and everything that only reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prefixhash._arguments import integer
from prefixhash.cache.allocation import Allocator
from prefixhash.cache.build import CacheParts
from prefixhash.cache.checks import (
    HashCheck,
    check_cache,
    check_request,
    check_shape,
    check_unchanged,
)
from prefixhash.cache.groups import as_groups
from prefixhash.cache.interface import CachedRequest, CacheHit
from prefixhash.cache.managers import AttentionManager
from prefixhash.cache.options import MOST_TOKENS, CacheOptions, options_of
from prefixhash.cache.scheduling import chunk_end, common_blocks, last_hit
from prefixhash.cache.stats import CacheStats, StatsCounter
from prefixhash.cache.tables import UNBOUNDED, Held
from prefixhash.errors import InvalidRequestError
from prefixhash.events import Event
from prefixhash.pool.block_pool import BlockPool


class CacheState:
    """The read side of `PrefixCache`."""

    def __init__(
        self,
        groups: Iterable[Any],
        num_blocks: int,
        *,
        options: CacheOptions | None = None,
        **settings: Any,
    ) -> None:
        options = options_of(options, settings)
        self.options = options
        self.groups = as_groups(groups, eagle=options.eagle)
        parts = CacheParts.build(self.groups, num_blocks, options)
        self.pool: BlockPool = parts.pool
        self.hash_block_size: int = parts.units.hash_block_size
        self.alignment: int = parts.units.alignment
        self.generation = 0
        self._drop = parts.units.drop
        self._managers: Sequence[AttentionManager] = parts.managers
        self._search = parts.search
        self._publisher = parts.publisher
        self._verifier = parts.verifier
        self._allocator = Allocator(parts.managers, parts.pool, options)
        # Read at every call: kept beside the options, from which they come.
        self._hasher = options.block_hasher
        self._hash_check = HashCheck(self.hash_block_size, options.block_hasher)
        self._report_reuse = options.report_reuse
        self._whole_sequence = options.whole_sequence
        self._longest = UNBOUNDED if options.max_model_len is None else options.max_model_len
        self._caching: bool = parts.pool.enable_caching
        self._has_state: bool = parts.publisher.has_state
        self._no_hit = parts.search.no_hit
        self._num_batches = 0
        self._held: dict[str, Held] = {}
        self._preempted: set[str] = set()
        self._counter = StatsCounter()

    # -- lookup ----------------------------------------------------------------------------

    def lookup(self, request: CachedRequest) -> CacheHit:
        """The longest prefix that every group has, less than the whole request.

        Reads only: no hold, no statistic, no event, no order of eviction changes.

        Raises:
            InvalidRequestError: the request is not hashed, or not at `hash_block_size`.
        """
        check_request(request)
        if not self._caching:
            return self._no_hit
        self._hash_check.check(request)
        limit = request.num_tokens - 1  # the last token is computed in any case
        hit = self._search.find(request.block_hashes, limit)
        while self._verifier is not None and hit.num_tokens:
            foreign = self._verifier.first_foreign(request, hit, self._managers)
            if foreign is None:
                break
            hit = self._search.find(request.block_hashes, foreign)
        return hit

    # -- what it holds ---------------------------------------------------------------------

    def block_table(self, request: CachedRequest, group: int = 0) -> list[int]:
        """The blocks of a request in order of tokens, 0 where none is needed; a copy.

        Raises:
            InvalidRequestError: the request holds no blocks.
            InvalidArgumentError: there is no such group.
        """
        held = self._running(request, False)
        group = integer("group", group, 0, len(held.tables) - 1)
        return list(held.tables[group].blocks)

    def num_computed_tokens(self, request: CachedRequest) -> int:
        """Tokens committed so far, hits included; 0 for a request that holds no blocks."""
        held = self._find(request)
        return 0 if held is None else held.num_computed

    def common_prefix_blocks(self) -> list[int]:
        """Per group, how many blocks at the start are the same in every running request.

        0 where the blocks at the start have left a window. O(requests * common blocks).
        """
        running = list(self._held.values())
        groups = range(len(self._managers))
        return [common_blocks([held.tables[i].blocks for held in running]) for i in groups]

    def chunk_tokens(
        self, request: CachedRequest, num_new_tokens: int, hit: CacheHit | None = None
    ) -> int:
        """`num_new_tokens`, or fewer so that the step ends where a state can be kept.

        State groups can be hit only where a step ended. Steps of a prompt should end where other
        requests were seen to part (`CacheHit.shared_prefix_tokens`), at the last place where the
        same prompt can be hit, and else at multiples of the alignment. Without a state group the
        number is returned as it is.
        """
        num_new_tokens = integer("num_new_tokens", num_new_tokens, 1, MOST_TOKENS)
        if hit is not None:
            check_shape(hit, len(self._managers))
        held = self._find(request)
        if not self._has_state:
            return num_new_tokens
        start = held.num_scheduled if held else hit.num_tokens if hit else 0
        junction = held.junction if held else hit.shared_prefix_tokens if hit else 0
        prompt = request.num_prompt_tokens
        stops = junction, last_hit(prompt, self.alignment, self._drop)
        return chunk_end(start, start + num_new_tokens, prompt, stops, self.alignment) - start

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._held)

    @property
    def stats(self) -> CacheStats:
        """A snapshot of the counts."""
        return self._counter.snapshot(self.pool.num_evictions, self.pool.usage)

    def take_events(self) -> list[Event]:
        """Events since the last call, oldest first; empty without `events=True`."""
        return self.pool.take_events()

    def check(self, pinned: Iterable[int] = ()) -> None:
        """Walk every invariant of cache and pool. O(blocks), for tests and debugging.

        `pinned` are blocks that the embedder holds besides, through `pool.touch` or
        `pool.allocate`, once for each hold.

        Raises:
            InvariantError: the state contradicts itself.
        """
        self.pool.check()
        check_cache(self.pool, self._managers, list(self._held.values()), pinned)

    def _find(self, request: CachedRequest) -> Held | None:
        """What the request holds, or None."""
        try:
            return self._held.get(request.request_id)
        except (AttributeError, TypeError):
            check_request(request)  # says what it lacks
            raise

    def _running(self, request: CachedRequest, tokens: bool) -> Held:
        held = self._find(request)
        if held is None:
            raise InvalidRequestError(
                "request", request.request_id, "holds no blocks: allocate() admits it first"
            )
        check_unchanged(held, request, tokens)
        return held
