"""What the cache reads of a request, and what it says of a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

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


class CacheHit(NamedTuple):
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
    block_ids: tuple[Sequence[int], ...]
    shared_prefix_tokens: int = 0

    @classmethod
    def none(cls, num_groups: int) -> CacheHit:
        """No hit."""
        return cls(0, ((),) * integer("num_groups", num_groups, 1, _MOST_GROUPS))
