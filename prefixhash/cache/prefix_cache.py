"""The prefix cache that a scheduler embeds: look up, allocate, commit, free, preempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prefixhash._arguments import flag, integer
from prefixhash.cache.allocation import Allocator
from prefixhash.cache.build import CacheParts
from prefixhash.cache.checks import (
    check_cache,
    check_commit,
    check_hashes,
    check_hit,
    check_request,
    check_shape,
    check_unchanged,
    numbers_of,
)
from prefixhash.cache.groups import CacheGroup, as_groups
from prefixhash.cache.interface import CachedRequest, CacheHit
from prefixhash.cache.kinds import FULL_ATTENTION
from prefixhash.cache.managers import AttentionManager
from prefixhash.cache.options import MOST_TOKENS, CacheOptions, options_of
from prefixhash.cache.scheduling import chunk_end, common_blocks, last_hit
from prefixhash.cache.stats import CacheStats, StatsCounter
from prefixhash.cache.tables import UNBOUNDED, Held
from prefixhash.errors import InvalidArgumentError, InvalidRequestError
from prefixhash.events import Event
from prefixhash.pool.block_pool import BlockPool


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
        # Read at every call: kept beside the options, from which they come.
        self._hasher = options.block_hasher
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
        if not self._caching:
            return self._no_hit
        check_hashes(request, self.hash_block_size, self._hasher)
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
    ) -> tuple[Sequence[int], ...] | None:
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
        new, lookahead = num_new_tokens, num_lookahead_tokens
        if type(new) is not int or not 0 < new <= MOST_TOKENS:
            new = integer("num_new_tokens", new, 1, MOST_TOKENS)
        if type(lookahead) is not int or not 0 <= lookahead <= MOST_TOKENS:
            lookahead = integer("num_lookahead_tokens", lookahead, 0, MOST_TOKENS)
        encoder = num_encoder_tokens
        if type(encoder) is not int or not 0 <= encoder <= MOST_TOKENS:
            encoder = integer("num_encoder_tokens", encoder, 0, MOST_TOKENS)
        held = self._find(request)
        if held is None:
            whole = self._whole_sequence
            if whole_sequence is not None:
                whole = flag("whole_sequence", whole_sequence)
            return self._admit(request, hit, new, lookahead, encoder, whole)
        check_unchanged(held, request)
        if hit is not None:
            raise InvalidRequestError(
                "hit", hit, "the request holds blocks: only its first step can take a hit"
            )
        return self._allocator.extend(held, new, lookahead, encoder)

    def allocate_batch(
        self,
        requests: Sequence[CachedRequest],
        num_new_tokens: Sequence[int] | int = 1,
        num_lookahead_tokens: int = 0,
    ) -> list[tuple[Sequence[int], ...] | None]:
        """`allocate` for requests that hold blocks, in the order given: one call for a step.

        `num_new_tokens` is one number for all, or one for each. A request for which blocks are
        lacking gets None and stays as it was; the ones behind it are tried all the same, and the
        scheduler decides whom to preempt. A call that raises has changed nothing.

        Returns:
            Per request what `allocate` returns.

        Raises:
            InvalidRequestError: a request holds no blocks, stands twice in the batch, or was cut
                below its computed tokens.
            InvalidArgumentError: a number of tokens is out of range, or one is lacking.
        """
        lookahead = integer("num_lookahead_tokens", num_lookahead_tokens, 0, MOST_TOKENS)
        helds = self._batch(requests)
        news = numbers_of("num_new_tokens", num_new_tokens, len(helds), 1)
        allocator = self._allocator
        return [
            allocator.extend(held, new, lookahead, 0) for held, new in zip(helds, news, strict=True)
        ]

    def _batch(self, requests: Sequence[CachedRequest]) -> list[Held]:
        """What the requests of a batch hold; each may stand in it once."""
        if not isinstance(requests, (list, tuple)):
            raise InvalidArgumentError("requests", requests, "must be a list of requests")
        self._num_batches += 1
        helds: list[Held] = []
        for request in requests:
            held = self._running(request, True)
            if held.batch == self._num_batches:
                raise InvalidRequestError(
                    "requests", request.request_id, "stands in the batch twice: leave one out"
                )
            held.batch = self._num_batches
            helds.append(held)
        return helds

    def _admit(
        self,
        request: CachedRequest,
        hit: CacheHit | None,
        new: int,
        lookahead: int,
        encoder: int,
        whole: bool,
    ) -> tuple[Sequence[int], ...] | None:
        """The first step of a request. What may raise comes before the first change."""
        check_request(request)
        num_tokens, caching = request.num_tokens, self._caching
        held = Held(request, self.generation, self._hasher)
        if hit is None:
            hit = self._no_hit
        else:
            if caching:
                check_hashes(request, self.hash_block_size, self._hasher)
            check_hit(request, hit, self._managers, self.pool, self.hash_block_size)
        if self._verifier is not None:
            held.records = self._verifier.records_of(request, hit, self._managers)
        reuse = None
        if self._report_reuse:
            reuse = self._publisher.describe_reuse(request, hit.block_ids)
        if caching:
            held.seal(hit.num_tokens, self.hash_block_size)
        else:
            held.next_publish = UNBOUNDED
        others = len(self._held) > 0
        allocator = self._allocator
        if whole and not allocator.fits_wholly(request, hit, new, encoder, others):
            return None
        blocks = allocator.admit(held, hit, new, lookahead, encoder, others)
        if blocks is None:
            return None
        self._held[request.request_id] = held
        again = request.request_id in self._preempted
        self._preempted.discard(request.request_id)
        self._counter.admitted(num_tokens, hit.num_tokens, self.hash_block_size, again)
        if reuse is not None:
            self._publisher.report_reuse(reuse)
        return blocks

    def trim(self, request: CachedRequest) -> None:
        """Give back what has left every attention window, as the next `allocate` would."""
        self._allocator.trim(self._running(request, True))

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
        held = self._running(request, True)
        self._commit(held, self._check_commit(held, num_computed_tokens))

    def commit_batch(
        self, requests: Sequence[CachedRequest], num_computed_tokens: Sequence[int] | None = None
    ) -> None:
        """`commit` for several requests, in the order given: one call for a step.

        `num_computed_tokens` holds one number for each; None: all steps that were allocated are
        computed, and nothing was rejected. A call that is refused has changed nothing; only if a
        hasher raises while the blocks of one request are published, those before it stay committed.

        Raises:
            InvalidRequestError: a request holds no blocks, stands twice in the batch, or was cut
                below its computed tokens.
            InvalidArgumentError: as `commit`, or a number is lacking.
        """
        helds = self._batch(requests)
        numbers: Sequence[int]
        if num_computed_tokens is None:
            numbers = [held.num_scheduled for held in helds]
        else:
            numbers = numbers_of("num_computed_tokens", num_computed_tokens, len(helds), 0)
        for i in range(len(helds)):
            self._check_commit(helds[i], numbers[i])
        for i in range(len(helds)):
            self._commit(helds[i], numbers[i])

    def _check_commit(self, held: Held, num_computed: int) -> int:
        """The number as an `int`. Whatever `commit` refuses is refused here."""
        number = check_commit(held, num_computed, self._longest)
        if number >= held.next_publish and held.generation == self.generation:
            check_hashes(held.request, self.hash_block_size, self._hasher)
        return number

    def _commit(self, held: Held, num_computed: int) -> None:
        """Close the steps that are over, and publish what they complete."""
        if num_computed < held.next_publish and held.is_whole_step(num_computed):
            # Most steps of a decode: nothing rejected, nothing to publish.
            if self._has_state and not num_computed % self.hash_block_size:
                held.step_ends.add(num_computed)
            held.close_step(num_computed)
            return
        closed, ends, rejected = held.steps_until(num_computed)
        known = min(num_computed, held.request.num_tokens)
        if num_computed >= held.next_publish and held.generation == self.generation:
            self._publisher.publish(held, known, ends)
            held.seal(num_computed, self.hash_block_size)
        elif self._has_state:
            for end in ends:
                if not end % self.hash_block_size:
                    held.step_ends.add(end)
        held.close_steps(num_computed, known, closed, rejected)

    # -- end -------------------------------------------------------------------------------

    def free(self, request: CachedRequest) -> None:
        """Give back all blocks, tails first; cached ones stay findable until they are reused.

        For a request that holds none (aborted while waiting, freed already) nothing happens.
        """
        held = self._find(request)
        if held is not None:
            check_unchanged(held, request, False)
            self._allocator.release(self._held.pop(request.request_id))
        self._preempted.discard(request.request_id)

    def preempt(self, request: CachedRequest) -> None:
        """Give back all blocks of a request that will be admitted again.

        Raises InvalidRequestError if the request holds none.
        """
        self._running(request, False)
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
