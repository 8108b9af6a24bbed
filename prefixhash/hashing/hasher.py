"""`BlockHasher`: from a request, or from bare tokens, to the hashes of its full blocks."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

from prefixhash._arguments import integer
from prefixhash.errors import InvalidArgumentError, InvalidRequestError
from prefixhash.hashing.dialects.base import Extras
from prefixhash.hashing.parts import is_plain
from prefixhash.hashing.profile import HashProfile
from prefixhash.request import TokenIds
from prefixhash.request.tokens import token_array


class BlockHasher:
    """Computes the chained hash of every full block of `block_size` tokens.

    One hasher serves any number of requests and threads. Called with a request it returns the
    hashes of the blocks completed since `request.block_hashes`, in O(new tokens); without a new
    full block in O(1). The request may be a `Request` or any object with `block_hashes`,
    `num_tokens` and `all_token_ids` and, where they apply, `lora_request`, `mm_features` (sorted by
    offset), `prompt_embeds`, `prompt_is_token_ids` and `cache_salt`, vLLM's own `Request` included.
    """

    def __init__(self, block_size: int, profile: HashProfile | None = None) -> None:
        self.block_size = integer("block_size", block_size, 1, meaning=" tokens")
        # No prompt is longer, and a kernel counts no further.
        self._countable_size = min(self.block_size, sys.maxsize)
        if profile is None:
            profile = HashProfile.strict()
        elif not isinstance(profile, HashProfile):
            raise InvalidArgumentError("profile", profile, "must be a HashProfile")
        self.profile = profile
        self._dialect = profile.dialect
        self._ahead = profile.lookahead_tokens
        self._chain = profile.dialect.chain(profile.algorithm, profile.root)
        checks = (
            (profile.dialect.check_dropped, bool(profile.dialect.drops)),
            (profile.dialect.check_lasting, profile.is_reproducible),
        )
        self._checks = [check for check, needed in checks if needed]
        self._parent_sizes = {profile.algorithm.digest_size, len(profile.root)}

    def __call__(self, request: Any, /) -> list[bytes]:
        """Hashes of the blocks that `request` completed since its `block_hashes`; it is not changed
        but for digests of prompt embeddings kept on it.

        Raises `InvalidRequestError` for a part that cannot be hashed, or that these hashes lack.
        """
        size, ahead = self.block_size, self._ahead
        try:
            hashes, num_tokens = request.block_hashes, request.num_tokens
            start = len(hashes) * size
        except (AttributeError, OverflowError, TypeError) as error:
            raise _no_request(request) from error
        if type(num_tokens) is not int:
            num_tokens = integer("num_tokens", num_tokens, error=InvalidRequestError)
        count = (num_tokens - ahead - start) // size
        if count < 1:
            return []
        plain = is_plain(request)
        if start:
            parent = self._last_hash(hashes)
        else:
            parent = self.profile.root
            if not plain:
                self.check_request(request)
        stop = start + count * size
        ids, offset = self._window(request, start, stop + ahead, plain)
        extras = None
        if not plain:
            extras = self._dialect.extras(request, start, stop, size, ahead, start > 0)
        if ahead:
            extras = _with_lookahead(extras or [None] * count, ids, size, ahead)
        return self._chain(parent, ids, size, extras, offset, offset + count * size)

    def hash_tokens(self, token_ids: Any, parent: bytes | None = None) -> list[bytes]:
        """Hashes of the full blocks of bare tokens: no adapter, media or salt.

        For routers. `token_ids` is whatever `Request` takes; `parent` the hash of the block before
        them, or None at the start of a prompt. The compiled kernel reads buffers (`array`, numpy,
        memoryview, CPU tensors) without a copy and hashes 64 blocks or more without the GIL: do
        not write to a buffer while it is hashed.
        """
        if parent is None:
            parent = self.profile.root
        elif not isinstance(parent, bytes) or len(parent) not in self._parent_sizes:
            size = self.profile.algorithm.digest_size
            raise InvalidArgumentError("parent", parent, f"must be a block hash of {size} bytes")
        if not self._ahead:
            return self._chain.hash_tokens(parent, token_ids, self._countable_size)
        ids = token_array(token_ids, "token_ids")
        count = self.num_full_blocks(len(ids))
        if count < 1:
            return []
        size = self.block_size
        extras = _with_lookahead([None] * count, ids, size, self._ahead)
        return self._chain(parent, ids, size, extras, 0, count * size)

    def extra_keys(self, request: Any, block_index: int) -> tuple[Any, ...] | None:
        """What stands in the key of block `block_index` beside its tokens; None if nothing does.

        Cost: the media items of the request. Of a vLLM profile this is the untagged or tagged tuple
        that the engine reports with the block, without lookahead tokens. It is made of the block
        alone; where a vLLM release hashed a block as part of a longer walk over nested media, with
        lookahead, the hash may hold other media.
        """
        start = integer("block_index", block_index) * self.block_size
        stop = start + self.block_size
        # Blocks of the prompt are hashed in its first call, those behind it when they fill.
        prompt = integer("num_prompt_tokens", getattr(request, "num_prompt_tokens", stop))
        extras = self._dialect.extras(
            request, start, stop, self.block_size, self._ahead, stop > prompt
        )
        return None if extras is None else extras[0]

    def check_request(self, request: Any) -> None:
        """Refuses a request of which these hashes must not be made.

        Raises `InvalidRequestError` for a part that the profile's hashes leave out, and for a media
        identifier of one process, see `media_identifier`; a profile that is not reproducible takes
        that. `Request` asks this when it is made.
        """
        for check in self._checks:
            check(request)

    def num_full_blocks(self, num_tokens: int) -> int:
        """How many blocks of `num_tokens` tokens can be hashed."""
        if type(num_tokens) is not int:
            num_tokens = integer("num_tokens", num_tokens)
        return max(num_tokens - self._ahead, 0) // self.block_size

    def num_tokens_of(self, num_blocks: int) -> int:
        """Tokens that a request needs for so many hashes, lookahead included."""
        return integer("num_blocks", num_blocks) * self.block_size + self._ahead

    def __repr__(self) -> str:
        return f"BlockHasher({self.block_size}, {self.profile})"

    def _last_hash(self, hashes: Any) -> bytes:
        parent = hashes[-1] if isinstance(hashes, Sequence) else None
        if isinstance(parent, bytes) and len(parent) in self._parent_sizes:
            return parent
        problem = f"must be a list of hashes of {self.profile.algorithm.digest_size} bytes"
        raise InvalidRequestError("block_hashes", hashes, problem)

    def _window(self, request: Any, start: int, stop: int, plain: bool) -> tuple[array[int], int]:
        """An array in which tokens [start, stop) begin at an offset; copied only if need be."""
        tokens = getattr(request, "all_token_ids", None)
        replaced = () if plain else self._dialect.replaced_ids(request, start, stop)
        if isinstance(tokens, TokenIds):  # validated when they came in
            if not (replaced or self._ahead):
                return tokens.buffer, start
            ids = tokens[start:stop]
        else:
            ids = _foreign_ids(request, tokens, start, stop)
        for position, token in replaced:
            ids[position - start] = token
        return ids, 0


def _foreign_ids(request: Any, tokens: Any, start: int, stop: int) -> array[int]:
    """Tokens [start, stop) of another engine's request, looked at."""
    try:
        held = tokens[start:stop]
    except (TypeError, LookupError):
        problem = "must be a sequence or buffer of token ids"
        raise InvalidRequestError("all_token_ids", tokens, problem) from None
    ids = token_array(held, "all_token_ids")
    if len(ids) != stop - start:
        problem = f"all_token_ids holds only {start + len(ids)}"
        raise InvalidRequestError("num_tokens", request.num_tokens, problem)
    return ids


def _no_request(value: Any) -> InvalidRequestError:
    problem = "must be a Request, or have block_hashes, num_tokens and all_token_ids"
    return InvalidRequestError("request", value, problem)


def _with_lookahead(extras: Extras, ids: array[int], block_size: int, ahead: int) -> Extras:
    """(extras of the block, token, ..., token): the tokens behind each block."""
    ends = range(block_size, len(extras) * block_size + 1, block_size)
    return [(extra, *ids[end : end + ahead]) for end, extra in zip(ends, extras, strict=True)]
