"""The prefix cache that a scheduler embeds: look up, allocate, commit, free, preempt."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from prefixhash._arguments import flag, integer
from prefixhash.cache.allocation import Allocator, Step
from prefixhash.cache.build import CacheParts
from prefixhash.cache.checks import (
    check_cache,
    check_commit,
    check_hashes,
    check_hit,
    check_request,
    check_shape,
    check_unchanged,
)
from prefixhash.cache.groups import CacheGroup, as_groups
from prefixhash.cache.kinds import FULL_ATTENTION
from prefixhash.cache.managers import AttentionManager
from prefixhash.cache.options import CacheOptions, options_of
from prefixhash.cache.scheduling import chunk_end, common_blocks, last_hit
from prefixhash.cache.stats import CacheStats, StatsCounter
from prefixhash.cache.tables import CachedRequest, CacheHit, Held
from prefixhash.errors import InvalidRequestError
from prefixhash.events import Event
from prefixhash.pool import BlockPool


class PrefixCache:
    """Block tables of running requests over one pool, and the prefixes that others can reuse:

        hit = cache.lookup(request)
        blocks = cache.allocate(request, request.num_tokens - hit.num_tokens, hit)  # None: wait
        ...                                         # the engine computes the tokens
        cache.commit(request, request.num_tokens)   # only now can others hit its full blocks
        request.append_token_ids(...)               # and on: allocate(request, 1), step, commit
        cache.free(request)

    Commit once per allocated step, in order, any number of steps late, and leave out what was
    rejected (drafts). Before tokens below the committed number are exchanged, preempt the request.
    Every call is all or nothing.

    Args:
        groups: `CacheGroup`s, layer specs, or the groups of a plan; see `CacheGroup`.
        num_blocks: blocks of the pool, the null block included.
        options, settings: `CacheOptions`, or each of them by its name.

    Raises:
        InvalidArgumentError: values that do not go together; the message says which.
    """

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
        self._held: dict[str, Held] = {}
        self._preempted: set[str] = set()
        self._counter = StatsCounter()

    @classmethod
    def single(cls, num_blocks: int, block_size: int, **options: Any) -> PrefixCache:
        """A cache of one full-attention group; `options` are those of `PrefixCache`."""
        return cls([CacheGroup(FULL_ATTENTION.names[0], block_size)], num_blocks, **options)

    # -- lookup ----------------------------------------------------------------------------

    def lookup(self, request: CachedRequest) -> CacheHit:
        """The longest prefix that every group has, less than the whole request.

        Reads only: no hold, no statistic, no event, no order of eviction changes.

        Raises:
            InvalidRequestError: the request is not hashed, or not at `hash_block_size`.
        """
        check_request(request)
        if not self.pool.enable_caching:
            return CacheHit.none(len(self._managers))
        check_hashes(request, self.hash_block_size, self.options.block_hasher)
        limit = request.num_tokens - 1  # the last token is computed in any case
        hit = self._search.find(request.block_hashes, limit)
        while self._verifier is not None and hit.num_tokens:
            foreign = self._verifier.first_foreign(request, hit, self._managers)
            if foreign is None:
                break
            hit = self._search.find(request.block_hashes, foreign)
        return hit

    # -- allocation ------------------------------------------------------------------------

    def allocate(
        self,
        request: CachedRequest,
        num_new_tokens: int,
        hit: CacheHit | None = None,
        num_lookahead_tokens: int = 0,
        *,
        num_encoder_tokens: int = 0,
        whole_sequence: bool | None = None,
    ) -> tuple[list[int], ...] | None:
        """Slots for the next step: `num_new_tokens` behind all tokens computed or in flight.

        The first call for a request admits it; `hit` gives it the blocks of a lookup, and the new
        tokens begin behind them (no `hit`: all is computed). Draft tokens of the step belong to
        `num_new_tokens`, tokens of which a drafter writes KV ahead to `num_lookahead_tokens`.
        Blocks that have left every attention window are given back on the way.

        Returns:
            Per group the ids of the new blocks, in order of tokens; None if blocks are lacking,
            and then nothing has changed.

        Raises:
            StaleHitError: a block of the hit was evicted or reused since the lookup.
            InvalidRequestError: another request of this id holds blocks; the request was cut below
                its computed tokens; a hit for a request that holds blocks.
            InvalidArgumentError: a number of tokens is out of range.
        """
        step = Step.of(num_new_tokens, num_lookahead_tokens, num_encoder_tokens)
        held = self._find(request)
        if held is not None:
            check_unchanged(held, request)
            if hit is not None:
                raise InvalidRequestError(
                    "hit", hit, "the request holds blocks: only its first step can take a hit"
                )
            return self._allocator.extend(held, step)
        whole = self.options.whole_sequence
        if whole_sequence is not None:
            whole = flag("whole_sequence", whole_sequence)
        return self._admit(request, hit, step, whole=whole)

    def _admit(
        self, request: CachedRequest, hit: CacheHit | None, step: Step, *, whole: bool
    ) -> tuple[list[int], ...] | None:
        """The first step of a request. What may raise comes before the first change."""
        check_request(request)
        num_tokens, caching = request.num_tokens, self.pool.enable_caching
        held = Held.of(request, self.generation, self.options.block_hasher)
        if hit is None:
            hit = CacheHit.none(len(self._managers))
        else:
            if caching:
                check_hashes(request, self.hash_block_size, self.options.block_hasher)
            check_hit(request, hit, self._managers, self.pool, self.hash_block_size)
        if self._verifier is not None:
            held.records = self._verifier.records_of(request, hit, self._managers)
        reuse = (
            self._publisher.describe_reuse(request, hit.block_ids)
            if self.options.report_reuse
            else ()
        )
        if caching:
            held.seal(hit.num_tokens, self.hash_block_size)
        else:
            held.next_publish = sys.maxsize
        others = bool(self._held)
        if whole and not self._allocator.fits_wholly(request, hit, step, others):
            return None
        new = self._allocator.admit(held, hit, step, others)
        if new is None:
            return None
        self._held[request.request_id] = held
        again = request.request_id in self._preempted
        self._preempted.discard(request.request_id)
        self._counter.admitted(num_tokens, hit.num_tokens, self.hash_block_size, again)
        self._publisher.report_reuse(reuse)
        return new

    def trim(self, request: CachedRequest) -> None:
        """Give back what has left every attention window, as the next `allocate` would."""
        self._allocator.trim(self._running(request))

    # -- commit ----------------------------------------------------------------------------

    def commit(self, request: CachedRequest, num_computed_tokens: int) -> None:
        """The KV of the first `num_computed_tokens` tokens is computed and verified.

        Their full blocks become findable, as far as the request knows the tokens. Blocks of a
        request that was admitted before a forced `reset` are never published.

        Raises:
            InvalidRequestError: the request holds no blocks, or was cut below its computed tokens.
            InvalidArgumentError: fewer tokens than committed before, more than have slots, or
                tokens that the request has exchanged since their step was allocated.
        """
        held = self._running(request)
        num_computed_tokens = check_commit(held, num_computed_tokens)
        closed, ends, rejected = held.steps_until(num_computed_tokens)
        known = min(num_computed_tokens, request.num_tokens)
        # Most steps of a decode complete no block and have nothing to publish.
        if num_computed_tokens >= held.next_publish and held.generation == self.generation:
            check_hashes(request, self.hash_block_size, self.options.block_hasher)
            self._publisher.publish(held, known, ends)
            held.seal(num_computed_tokens, self.hash_block_size)
        elif self._publisher.has_state:
            for end in ends:
                if not end % self.hash_block_size:
                    held.step_ends.add(end)
        held.close_steps(num_computed_tokens, known, closed, rejected)

    # -- end -------------------------------------------------------------------------------

    def free(self, request: CachedRequest) -> None:
        """Give back all blocks, tails first; cached ones stay findable until they are reused.

        For a request that holds none (aborted while waiting, freed already) nothing happens.
        """
        held = self._find(request)
        if held is not None:
            check_unchanged(held, request, tokens=False)
            self._allocator.release(self._held.pop(request.request_id))
        self._preempted.discard(request.request_id)

    def preempt(self, request: CachedRequest) -> None:
        """Give back all blocks of a request that will be admitted again.

        Raises InvalidRequestError if the request holds none.
        """
        self._running(request, tokens=False)
        self._allocator.release(self._held.pop(request.request_id))
        self._preempted.add(request.request_id)
        self._counter.preempted()

    def reset(self, *, new_generation: bool = False) -> bool:
        """Drop every cached prefix; False, and nothing done, while requests hold blocks.

        `new_generation` drops them in any case, for changed weights: running requests keep their
        blocks, but what they have computed and will compute is never published.
        """
        if not self.pool.reset(force=new_generation):
            return False
        if new_generation:
            self.generation += 1
        if self._verifier is not None:
            self._verifier.clear()
        return True

    # -- what it holds ---------------------------------------------------------------------

    def block_table(self, request: CachedRequest, group: int = 0) -> list[int]:
        """The blocks of a request in order of tokens, 0 where none is needed; a copy.

        Raises:
            InvalidRequestError: the request holds no blocks.
            InvalidArgumentError: there is no such group.
        """
        held = self._running(request, tokens=False)
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
        if not self._publisher.has_state:
            return num_new_tokens
        num_new_tokens = integer("num_new_tokens", num_new_tokens, 1)
        if hit is not None:
            check_shape(hit, len(self._managers))
        held = self._find(request)
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

    def _running(self, request: CachedRequest, *, tokens: bool = True) -> Held:
        held = self._find(request)
        if held is None:
            raise InvalidRequestError(
                "request", request.request_id, "holds no blocks: allocate() admits it first"
            )
        check_unchanged(held, request, tokens=tokens)
        return held
