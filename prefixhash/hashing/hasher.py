"""`BlockHasher`: from a request, or from bare tokens, to the hashes of its full blocks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import index
from typing import Any

from prefixhash.errors import InvalidArgumentError, InvalidRequestError
from prefixhash.hashing import extra_keys as keys
from prefixhash.hashing._chain import HashChain
from prefixhash.hashing.profile import HashProfile
from prefixhash.request import TokenIds
from prefixhash.request.tokens import is_integer, token_array

Extras = list[tuple[Any, ...] | None]


class BlockHasher:
    """Computes the chained hash of every full block of `block_size` tokens.

    One hasher serves any number of requests and threads. Called with a request it returns the
    hashes of the blocks completed since `request.block_hashes`, in O(new tokens); without a new
    full block in O(1). The request may be a `Request` or any object with `block_hashes`,
    `num_tokens` and `all_token_ids` and, where they apply, `lora_request`, `mm_features` (sorted by
    offset), `prompt_embeds`, `prompt_is_token_ids` and `cache_salt`, vLLM's own `Request` included.
    """

    def __init__(self, block_size: int, profile: HashProfile | None = None) -> None:
        if not is_integer(block_size) or block_size < 1:
            raise InvalidArgumentError("block_size", block_size, "must be at least 1 token")
        if profile is None:
            profile = HashProfile.strict()
        elif not isinstance(profile, HashProfile):
            raise InvalidArgumentError("profile", profile, "must be a HashProfile")
        self.block_size = index(block_size)
        self.profile = profile
        self._chain = HashChain(profile.algorithm)
        self._parent_sizes = {profile.algorithm.digest_size, len(profile.root)}

    def __call__(self, request: Any, /) -> list[bytes]:
        """Hashes of the blocks that `request` completed since its `block_hashes`; it is not changed
        but for digests of prompt embeddings kept on it."""
        size, ahead = self.block_size, self.profile.lookahead_tokens
        hashes = request.block_hashes
        start = len(hashes) * size
        count = (index(request.num_tokens) - ahead - start) // size
        if count < 1:
            return []
        if not start:
            self.check_request(request)
        stop = start + count * size
        ids, offset = self._window(request, start, stop + ahead)
        extras = self._extras(request, start, stop, ids)
        parent = hashes[-1] if hashes else self.profile.root
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
        size, ahead = self.block_size, self.profile.lookahead_tokens
        if not ahead:
            return self._chain.hash_tokens(parent, token_ids, size)
        ids = token_array(token_ids, "token_ids")
        count = self.num_full_blocks(len(ids))
        if count < 1:
            return []
        extras = _lookahead([None] * count, ids, size, ahead)
        return self._chain(parent, ids, size, extras, 0, count * size)

    def extra_keys(self, request: Any, block_index: int) -> tuple[Any, ...] | None:
        """What stands in the key of block `block_index` beside its tokens; None if nothing does.

        Cost: the media items of the request. Of a vLLM profile this is the untagged or tagged tuple
        that the engine reports with the block, without lookahead tokens. It is made of the block
        alone; where a vLLM release hashed a block as part of a longer walk over nested media, with
        lookahead, the hash may hold other media.
        """
        if not is_integer(block_index):
            raise InvalidArgumentError("block_index", block_index, "must be an integer")
        if block_index < 0:
            raise InvalidArgumentError("block_index", block_index, "must be 0 or more")
        start = index(block_index) * self.block_size
        stop = start + self.block_size
        if self.profile.schema.is_strict:
            extras = self._strict_extras(request, start, stop)
        else:
            prompt = getattr(request, "num_prompt_tokens", stop)
            extras = self._vllm_extras(request, start, stop, resumed=stop > prompt)
        return None if extras is None else extras[0]

    def check_request(self, request: Any) -> None:
        """Refuses a request of which persistent keys must not be made.

        Raises `InvalidRequestError` for a media identifier of one process, see `media_identifier`;
        a profile that is not reproducible takes it. `Request` asks this when it is made.
        """
        features = getattr(request, "mm_features", None)
        if features and self.profile.schema.is_strict and self.profile.is_reproducible:
            keys.check_identifiers(request)

    def num_full_blocks(self, num_tokens: int) -> int:
        """How many blocks of `num_tokens` tokens can be hashed."""
        return max(num_tokens - self.profile.lookahead_tokens, 0) // self.block_size

    def __repr__(self) -> str:
        return f"BlockHasher({self.block_size}, {self.profile})"

    def _window(self, request: Any, start: int, stop: int) -> tuple[array[int], int]:
        """An array in which tokens [start, stop) begin at an offset; copied only if need be."""
        tokens = request.all_token_ids
        zeroing = self.profile.schema.zero_embedding_ids
        mask = getattr(request, "prompt_is_token_ids", None) if zeroing else None
        if isinstance(tokens, TokenIds):  # validated when they came in
            if mask is None and not self.profile.lookahead_tokens:
                return tokens.buffer, start
            ids = tokens[start:stop]
        else:
            ids = token_array(tokens[start:stop], "all_token_ids")
            if len(ids) != stop - start:
                problem = f"all_token_ids holds only {start + len(ids)}"
                raise InvalidRequestError("num_tokens", request.num_tokens, problem)
        if mask is not None:
            _zero_embedding_ids(mask[start:stop], ids)
        return ids, 0

    def _extras(self, request: Any, start: int, stop: int, ids: array[int]) -> Extras | None:
        if self.profile.schema.is_strict:
            return self._strict_extras(request, start, stop)
        extras = self._vllm_extras(request, start, stop, resumed=start > 0)
        ahead = self.profile.lookahead_tokens
        if not ahead:
            return extras
        blocks = (stop - start) // self.block_size
        return _lookahead(extras or [None] * blocks, ids, self.block_size, ahead)

    def _strict_extras(self, request: Any, start: int, stop: int) -> Extras | None:
        features = getattr(request, "mm_features", None) or ()
        if features and keys.media_end(request, features) <= start:
            features = ()
        embeds_given = getattr(request, "prompt_embeds", None)
        has_embeds = embeds_given is not None and start < embeds_given.shape[0]
        first = keys.strict_request_keys(request) if start == 0 else ()
        if not (features or has_embeds):
            rest = (stop - start) // self.block_size - 1
            return [first, *[None] * rest] if first else None
        sweep = keys.MediaSweep(features)
        extras: Extras = []
        for begin in range(start, stop, self.block_size):
            end = begin + self.block_size
            media = sweep.keys(begin, end)
            embeds = keys.strict_embeds_keys(request, begin, end) if has_embeds else ()
            extras.append((*first, *media, *embeds) or None)
            first = ()
        return extras

    def _vllm_extras(self, request: Any, start: int, stop: int, *, resumed: bool) -> Extras | None:
        schema = self.profile.schema
        spans = keys.vllm_media_spans(getattr(request, "mm_features", None) or (), start)
        salt = keys.vllm_salt_keys(request, start, schema.tagged)
        has_embeds = getattr(request, "prompt_embeds", None) is not None
        lora = bool(getattr(request, "lora_request", None))
        if not (spans or salt or lora or has_embeds):
            return None
        item = keys.vllm_media_start(spans, start, schema) if resumed else 0
        adapter = keys.vllm_lora_keys(request, schema.tagged)
        if not (spans or has_embeds):
            # One tuple for all blocks but the first: kernels encode it once.
            rest = (stop - start) // self.block_size - 1
            return [(*adapter, *salt) or None, *[adapter or None] * rest]
        ahead = self.profile.lookahead_tokens
        extras: Extras = []
        for begin in range(start, stop, self.block_size):
            end = begin + self.block_size
            media, item = keys.vllm_media_keys(spans, begin, end + ahead, item, schema.tagged)
            if ahead:
                item = keys.vllm_media_rewind(spans, end, item)
            embeds = (
                keys.vllm_embeds_keys(request, begin, end + ahead, schema.tagged)
                if has_embeds
                else ()
            )
            extras.append((*adapter, *media, *salt, *embeds) or None)
            salt = ()
        return extras


def _lookahead(extras: Sequence[Any], ids: array[int], block_size: int, ahead: int) -> Extras:
    """vLLM's form: (extras of block and lookahead, token, ..., token)."""
    ends = range(block_size, len(extras) * block_size + 1, block_size)
    return [(extra, *ids[end : end + ahead]) for end, extra in zip(ends, extras, strict=True)]


def _zero_embedding_ids(mask: Sequence[bool], ids: array[int]) -> None:
    for i, is_token in enumerate(mask):
        if not is_token:
            ids[i] = 0
