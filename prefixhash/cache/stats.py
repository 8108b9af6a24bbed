"""Counts of a cache. A hit rate is worth nothing without its definition, so each carries a name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache has done since it was built; a snapshot.

    A request is counted once, when it is first admitted: a lookup, or an admission refused for
    lack of blocks, counts nothing. Admissions after a preemption are counted in `preempted_*`
    only, because a request hits its own blocks there.

    Attributes:
        requests: admitted requests.
        queries: their tokens at admission.
        hits: those of them that came from the cache.
        query_blocks, hit_blocks: the same in full blocks of the hash block size.
        preempted_requests, preempted_queries, preempted_hits: readmissions after a preemption.
        preemptions: calls of `preempt`.
        evictions: cached blocks that were reused.
        usage: share of the blocks in use, from 0.0 to 1.0.
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    query_blocks: int = 0
    hit_blocks: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    preemptions: int = 0
    evictions: int = 0
    usage: float = 0.0

    @property
    def token_hit_rate(self) -> float:
        """Definition "tokens": hit tokens / prompt tokens; 0.0 before the first request."""
        return self.hits / self.queries if self.queries else 0.0

    @property
    def full_block_hit_rate(self) -> float:
        """Definition "full-blocks": hit blocks / full blocks; 0.0 before the first request."""
        return self.hit_blocks / self.query_blocks if self.query_blocks else 0.0


class StatsCounter:
    """The running counts behind `CacheStats`; fields as there."""

    __slots__ = ("_first", "_hit_blocks", "_preemptions", "_query_blocks", "_readmitted")

    def __init__(self) -> None:
        # Requests, tokens, hit tokens: at the first admission, and after preemptions.
        self._first = [0, 0, 0]
        self._readmitted = [0, 0, 0]
        self._query_blocks = 0
        self._hit_blocks = 0
        self._preemptions = 0

    def admitted(self, num_tokens: int, num_hits: int, block_size: int, again: bool) -> None:
        """A request was given blocks; `again` after a preemption."""
        counts = self._readmitted if again else self._first
        counts[0] += 1
        counts[1] += num_tokens
        counts[2] += num_hits
        if not again:
            self._query_blocks += num_tokens // block_size
            self._hit_blocks += num_hits // block_size

    def preempted(self) -> None:
        """A request lost its blocks."""
        self._preemptions += 1

    def snapshot(self, evictions: int, usage: float) -> CacheStats:
        """The counts, with what the pool knows."""
        requests, queries, hits = self._first
        again, again_queries, again_hits = self._readmitted
        return CacheStats(
            requests,
            queries,
            hits,
            self._query_blocks,
            self._hit_blocks,
            again,
            again_queries,
            again_hits,
            self._preemptions,
            evictions,
            usage,
        )
