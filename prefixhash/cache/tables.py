"""What a request holds: one block table per group, and how far it has come."""

from __future__ import annotations

import sys
from typing import Any

from prefixhash.cache.interface import CachedRequest

UNBOUNDED = sys.maxsize >> 1  # more tokens than there are; sums with it stay C integers


class BlockTable:
    """The blocks of one request in one group, in order of tokens; 0 where none is needed.

    `num_cached`: blocks from the start on which commit has decided, whether or not it cached them.
    `retired`: blocks from the start that were given back because no later token attends to them.
    `started`: of a state group, whether this request has allocated a state of its own.
    """

    __slots__ = ("blocks", "num_cached", "retired", "started")

    def __init__(self, blocks: list[int], num_cached: int = 0, retired: int = 0) -> None:
        self.blocks = blocks
        self.num_cached = num_cached
        self.retired = retired
        self.started = False


class Held:
    """A request that holds blocks: its tables, and how far it has come.

    Written by hand rather than as a dataclass, because it is a C struct where it is compiled.
    """

    __slots__ = (
        "batch",
        "generation",
        "junction",
        "last_hash",
        "lookahead",
        "lowest_cut",
        "next_publish",
        "next_release",
        "num_computed",
        "num_given",
        "num_hashes",
        "num_known",
        "num_open",
        "num_scheduled",
        "num_slots",
        "num_truncations",
        "older_steps",
        "records",
        "request",
        "step",
        "step_ends",
        "step_given",
        "tables",
        "tells_cuts",
    )

    def __init__(self, request: CachedRequest, generation: int, hasher: Any) -> None:
        """Of a request that holds nothing yet; `hasher` is the cache's, if it has one."""
        hasher = hasher or getattr(request, "block_hasher", None)
        num_truncations = getattr(request, "num_truncations", None)
        self.request: Any = request
        self.generation = generation
        self.tables: list[BlockTable] = []
        # Tokens whose KV is known to be right: hits, then what commit reported. Then with those
        # that are being computed.
        self.num_computed = 0
        self.num_scheduled = 0
        # The steps that were allocated and not yet committed: how many, the newest, and those
        # before it, oldest first. Of each its size, and up to where it read tokens that the request
        # knew when it was allocated, 0 for none.
        self.num_open = 0
        self.step = 0
        self.step_given = 0
        self.older_steps: list[tuple[int, int]] = []
        # Ends of hash blocks at which a step ended, as far as a state there may be published.
        self.step_ends: set[int] = set()
        # A step up to so many tokens needs no block while fewer than the other number are computed,
        # since that leaves no window; fewer than the third complete no hash block to publish.
        self.num_slots = 0
        self.next_release = 0
        self.next_publish = 0
        # Where requests with this prefix were seen to part, 0 if nowhere: see CacheHit.
        self.junction = 0
        # Computed tokens that the request knew then; it must not become shorter than that.
        self.num_known = 0
        # Number and last of the hashes of computed blocks: they must not change afterwards.
        self.num_hashes = 0
        self.last_hash: bytes | None = None
        # Tokens behind a block that its hash needs, too.
        self.lookahead: int = getattr(getattr(hasher, "profile", None), "lookahead_tokens", 0)
        # Tokens that the request knew of those scheduled; whether it tells of truncations, those
        # that were looked at, and the lowest cut into those tokens since the oldest open step.
        self.num_given = 0
        self.tells_cuts = num_truncations is not None
        self.num_truncations: int = num_truncations or 0
        self.lowest_cut = UNBOUNDED
        # The last batch that it stood in.
        self.batch = 0
        # With verify_tokens: one record per hash, see prefixhash.cache.verify.
        self.records: list[Any] = []

    def is_quiet(self, num_tokens: int) -> bool:
        """Whether a step up to so many tokens neither needs nor gives back a block."""
        return num_tokens <= self.num_slots and self.num_computed < self.next_release

    def is_unchanged(self) -> bool:
        """Whether the tokens that are computed are still those of the request."""
        if not self.tells_cuts:
            return self._keeps_hashes()
        num_truncations = self.request.num_truncations
        if num_truncations != self.num_truncations:
            self._note_cuts(num_truncations)
        return self.lowest_cut >= self.num_computed

    def open_step(self, num_tokens: int, end: int) -> None:
        """A step up to `end` was allocated. It reads the tokens as the request has them now."""
        if self.num_open:
            self.older_steps.append((self.step, self.step_given))
        self.num_open += 1
        self.step = num_tokens
        self.num_scheduled = end
        given = self.request.num_tokens
        if given > end:
            given = end
        if given > self.num_given:
            self.num_given = given
        self.step_given = given if given > end - num_tokens else 0

    def is_whole_step(self, num_computed: int) -> bool:
        """Whether one step is open, and so many tokens are all of it."""
        return self.num_open == 1 and num_computed == self.num_scheduled

    def close_step(self, num_computed: int) -> None:
        """The one open step was computed wholly."""
        self._compute(num_computed)
        self.num_open = 0

    def close_steps(self, num_computed: int, closed: int, rejected: bool) -> None:
        """The first `closed` steps are over; `rejected`: the last one was computed in part only.

        Then a cut behind that part is but the end of the drafts, unless a step that is still open
        has read tokens of the request, too.
        """
        self._compute(num_computed)
        still_open = self._open_steps()[closed:]
        self.num_scheduled = num_computed + sum([size for size, _ in still_open])
        if rejected:
            self.num_given = max([given for _, given in still_open], default=0)
            if self.lowest_cut >= self.num_given:
                self.lowest_cut = UNBOUNDED
        self.num_open = len(still_open)
        self.older_steps = still_open[:-1]

    def _compute(self, num_computed: int) -> None:
        known = self.request.num_tokens
        self.num_known = num_computed if num_computed < known else known
        self.num_computed = num_computed

    def _open_steps(self) -> list[tuple[int, int]]:
        """Size and known tokens of each open step, oldest first."""
        return [*self.older_steps, (self.step, self.step_given)] if self.num_open else []

    def _note_cuts(self, num_truncations: int) -> None:
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
        for step, _ in self._open_steps():
            if position >= num_computed:
                break
            closed += 1
            position += step
            if position <= num_computed:
                ends.append(position)
        return closed, ends, position > num_computed

    def _keeps_hashes(self) -> bool:
        """Whether a request that does not tell of cuts has its computed blocks still."""
        hashes = self.request.block_hashes
        count = self.num_hashes
        if self.request.num_tokens < self.num_known or len(hashes) < count:
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
