"""The prefix cache that a scheduler embeds: look up, allocate, commit, free, preempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixhash._arguments import flag, integer
from prefixhash.cache.cache_state import CacheState
from prefixhash.cache.checks import (
    check_commit,
    check_hit,
    check_request,
    check_unchanged,
    numbers_of,
)
from prefixhash.cache.groups import CacheGroup
from prefixhash.cache.interface import CachedRequest, CacheHit
from prefixhash.cache.kinds import FULL_ATTENTION
from prefixhash.cache.options import MOST_TOKENS
from prefixhash.cache.tables import UNBOUNDED, Held
from prefixhash.errors import InvalidArgumentError, InvalidRequestError


class PrefixCache(CacheState):
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

    @classmethod
    def single(cls, num_blocks: int, block_size: int, **options: Any) -> PrefixCache:
        """A cache of one full-attention group; `options` are those of `PrefixCache`."""
        return cls([CacheGroup(FULL_ATTENTION.names[0], block_size)], num_blocks, **options)

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
                self._hash_check.check(request)
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
            self._hash_check.check(held.request)
        return number

    def _commit(self, held: Held, num_computed: int) -> None:
        """Close the steps that are over, and publish what they complete."""
        if held.is_whole_step(num_computed):  # most steps of a decode: nothing rejected
            if num_computed >= held.next_publish:
                self._publish(held, num_computed, (num_computed,))
            elif self._has_state and not num_computed % self.hash_block_size:
                held.step_ends.add(num_computed)
            held.close_step(num_computed)
            return
        closed, ends, rejected = held.steps_until(num_computed)
        self._publish(held, num_computed, ends)
        held.close_steps(num_computed, closed, rejected)

    def _publish(self, held: Held, num_computed: int, ends: Sequence[int]) -> None:
        """Make findable what steps with these ends complete; remember where a state may lie."""
        if num_computed >= held.next_publish and held.generation == self.generation:
            self._publisher.publish(held, min(num_computed, held.request.num_tokens), ends)
            held.seal(num_computed, self.hash_block_size)
        elif self._has_state:
            for end in ends:
                if not end % self.hash_block_size:
                    held.step_ends.add(end)

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
