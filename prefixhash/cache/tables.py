"""What a request holds: one block table per group, and how far it has come."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from prefixhash._arguments import integer

_MOST_GROUPS = 1 << 16  # far above what any model has


class CachedRequest(Protocol):
    """What `PrefixCache` reads of a request; `prefixhash.Request` and vLLM's have it.

    `num_prompt_tokens` is read with sparse retention or state groups only, `all_token_ids` with
    events or `verify_tokens` only. Three more are read where they exist, as on our `Request`:
    `block_hasher` (is it hashed as this cache needs it?), `num_truncations` and `lowest_cut_since`
    (was it cut and grown again?).
    """

    @property
    def request_id(self) -> str: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def block_hashes(self) -> list[bytes]: ...
    @property
    def all_token_ids(self) -> Sequence[int]: ...


@dataclass(slots=True)
class BlockTable:
    """The blocks of one request in one group, in order of tokens; 0 where none is needed."""

    blocks: list[int] = field(default_factory=list)
    # Blocks from the start on which commit has decided, whether or not it cached them.
    num_cached: int = 0
    # Blocks from the start that were given back because no later token attends to them.
    retired: int = 0
    # State groups: whether this request has allocated a state of its own.
    started: bool = False


@dataclass(slots=True)
class Held:
    """A request that holds blocks."""

    request: Any
    generation: int
    tables: list[BlockTable] = field(default_factory=list)
    # Tokens whose KV is known to be right: hits, then what commit reported.
    num_computed: int = 0
    # Sizes of the steps that were allocated and not yet committed, oldest first.
    open_steps: list[int] = field(default_factory=list)
    # For each, up to where it read tokens that the request knew when it was allocated; 0 for none.
    open_given: list[int] = field(default_factory=list)
    # Ends of hash blocks at which a step ended, as far as a state there may still be published.
    step_ends: set[int] = field(default_factory=set)
    # Fewer computed tokens than this complete no hash block: there is nothing to publish.
    next_publish: int = 0
    # Where requests with this prefix were seen to part, 0 if nowhere: see CacheHit.
    junction: int = 0
    # Computed tokens that the request knew then; it must not become shorter than that.
    num_known: int = 0
    # Number and last of the hashes of computed blocks: they must not change afterwards.
    num_hashes: int = 0
    last_hash: bytes | None = None
    # Tokens behind a block that its hash needs, too.
    lookahead: int = 0
    # Tokens that the request knew of those scheduled; truncations of it that were looked at, and
    # the lowest cut into those tokens since the oldest open step was allocated.
    num_given: int = 0
    num_truncations: int = 0
    lowest_cut: int = sys.maxsize
    # With verify_tokens: one record per hash, see prefixhash.cache.verify.
    records: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, request: CachedRequest, generation: int, hasher: Any) -> Held:
        """Of a request that holds nothing yet; `hasher` is the cache's, if it has one."""
        hasher = hasher or getattr(request, "block_hasher", None)
        profile = getattr(hasher, "profile", None)
        return cls(
            request,
            generation,
            num_truncations=getattr(request, "num_truncations", 0),
            lookahead=getattr(profile, "lookahead_tokens", 0),
        )

    @property
    def num_scheduled(self) -> int:
        """Tokens that are computed or being computed."""
        return self.num_computed + sum(self.open_steps)

    def open_step(self, num_tokens: int, end: int) -> None:
        """A step up to `end` was allocated. It reads the tokens as the request has them now."""
        self.open_steps.append(num_tokens)
        given = self.request.num_tokens
        if given > end:
            given = end
        if given > self.num_given:
            self.num_given = given
        self.open_given.append(given if given > end - num_tokens else 0)

    def close_steps(self, num_computed: int, num_known: int, closed: int, rejected: bool) -> None:
        """The first `closed` steps are over; `rejected`: the last one was computed in part only.

        Then a cut behind that part is but the end of the drafts, unless a step that is still open
        has read tokens of the request, too.
        """
        self.num_computed, self.num_known = num_computed, num_known
        del self.open_steps[:closed]
        del self.open_given[:closed]
        if rejected:
            self.num_given = max(self.open_given, default=0)
            if self.lowest_cut >= self.num_given:
                self.lowest_cut = sys.maxsize

    def note_cuts(self, num_truncations: int) -> None:
        """The request says that it was cut: keep the lowest cut into tokens that steps read."""
        cut: int = self.request.lowest_cut_since(self.num_truncations)
        self.num_truncations = num_truncations
        if cut < max(self.num_given, self.num_computed):
            self.lowest_cut = min(self.lowest_cut, cut)

    def steps_until(self, num_computed: int) -> tuple[int, list[int], bool]:
        """How many open steps `num_computed` closes, and where those ended that it covers wholly.

        A step that is covered only in part had its drafts rejected; it is closed all the same, and
        the last value says so.
        """
        closed = 0
        ends = []
        position = self.num_computed
        for step in self.open_steps:
            if position >= num_computed:
                break
            closed += 1
            position += step
            if position <= num_computed:
                ends.append(position)
        return closed, ends, position > num_computed

    def is_like(self, request: CachedRequest) -> bool:
        """Whether a request that does not tell of cuts has its computed blocks still."""
        hashes = request.block_hashes
        count = self.num_hashes
        if request.num_tokens < self.num_known or len(hashes) < count:
            return False
        return not count or hashes[count - 1] == self.last_hash

    def seal(self, num_computed: int, hash_block_size: int) -> None:
        """Remember the hash of the last computed block: tokens before it must not change now."""
        hashes = self.request.block_hashes
        count = min(max(num_computed - self.lookahead, 0) // hash_block_size, len(hashes))
        self.num_known = max(self.num_known, count * hash_block_size)
        if count > self.num_hashes:
            self.num_hashes = count
            self.last_hash = hashes[count - 1]
        self.next_publish = (count + 1) * hash_block_size + self.lookahead


@dataclass(frozen=True, slots=True)
class CacheHit:
    """What a lookup found; a description, which holds nothing and may become stale.

    Attributes:
        num_tokens: length of the prefix whose KV is in the cache, less than the request's tokens.
        block_ids: per group the blocks of that prefix in order of tokens; 0 where the group does
            not need the block. Read only.
        shared_prefix_tokens: length that at least one group has in the cache although the common
            hit is shorter, 0 if there is none: other requests share this prefix, and a state group
            should keep its state there (`PrefixCache.chunk_tokens` ends a step at it).
    """

    num_tokens: int
    block_ids: tuple[list[int], ...]
    shared_prefix_tokens: int = 0

    @classmethod
    def none(cls, num_groups: int) -> CacheHit:
        """No hit."""
        return cls(0, tuple([] for _ in range(integer("num_groups", num_groups, 1, _MOST_GROUPS))))
