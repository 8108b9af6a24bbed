"""`Request`: tokens, adapter, media, prompt embeddings and salt, and the hashes of its full blocks.

Everything is validated when a `Request` is made or changed, so that the hashing path need not ask
again, and everything that stands in a key is read-only afterwards.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, overload

from prefixhash._arguments import integer, text
from prefixhash.errors import InvalidRequestError
from prefixhash.request.fields import (
    LoRARequest,
    MultiModalFeature,
    check_lora,
    embeds_mask,
    end_of,
    prompt_ids,
    sorted_features,
)
from prefixhash.request.tokens import MAX_TOKEN_ID, token_array

_CUTS_KEPT = 32  # truncations that an observer may lag behind and still be told exactly


class TokenIds(Sequence[int]):
    """Read-only view of a request's token ids; a slice is an `array('q')` copy."""

    __slots__ = ("_ids",)

    def __init__(self, ids: array[int]) -> None:
        if not isinstance(ids, array) or ids.typecode != "q":
            raise InvalidRequestError("ids", ids, "must be an array('q')")
        self._ids = ids

    @property
    def buffer(self) -> array[int]:
        """The array behind the view, for reading without a copy: do not change or keep it."""
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> array[int]: ...
    def __getitem__(self, key: int | slice) -> int | array[int]:
        return self._ids[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self._ids == other._ids
        if isinstance(other, (list, tuple, array)):
            return self._ids.tolist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # the ids behind the view grow

    def __repr__(self) -> str:
        return f"TokenIds({self._ids.tolist()!r})"


class Request:
    """A request and the hashes of its full blocks.

    `token_ids`: list, tuple, range, `array`, numpy array, memoryview or torch tensor of integers in
    [0, 2**63), one-dimensional. `mm_features`: any order; sorted by offset, items over one span and
    nested ones are kept. `prompt_embeds`: torch tensor (any dtype, device and layout) or numpy
    array of shape (prompt length, hidden size); it is kept by reference and must not be written to
    afterwards. `prompt_is_token_ids`: one bool per prompt position, False where the embedding is
    used instead of the token. `cache_salt`: requests with different salts share no block; an
    empty one is none.

    With a `block_hasher`, `block_hashes` holds the hash of every full block from the start; each
    block is hashed once, when it is completed. Raises `InvalidRequestError` for a field that cannot
    be hashed; a call that raises has changed nothing.
    """

    def __init__(
        self,
        request_id: str,
        token_ids: Any = None,
        *,
        block_hasher: Callable[[Any], list[bytes]] | None = None,
        lora_request: LoRARequest | None = None,
        mm_features: Iterable[MultiModalFeature] | None = (),
        prompt_embeds: Any = None,
        prompt_is_token_ids: Any = None,
        cache_salt: str | None = None,
    ) -> None:
        text("request_id", request_id, error=InvalidRequestError)
        if cache_salt is not None:
            text("cache_salt", cache_salt, meaning=", or None", error=InvalidRequestError)
        check_lora(lora_request)
        if block_hasher is not None and not callable(block_hasher):
            raise InvalidRequestError("block_hasher", block_hasher, "must be a BlockHasher")
        ids = prompt_ids(token_ids, prompt_embeds)
        self._request_id = request_id
        self._lora_request = lora_request
        self._cache_salt = cache_salt
        self._ids = ids
        self._all_token_ids = TokenIds(ids)
        self._num_prompt_tokens = len(ids)
        self._prompt_embeds = prompt_embeds
        self._prompt_is_token_ids = embeds_mask(
            prompt_is_token_ids, len(ids), token_ids is not None and prompt_embeds is not None
        )
        self._mm_features = sorted_features(mm_features, len(ids))
        self._mm_end = end_of(self._mm_features)
        self._is_plain = (
            lora_request is None
            and not cache_salt
            and prompt_embeds is None
            and not self._mm_features
        )
        # Digest of the embedding rows of a block, by (start, end); the name and the keys are those
        # of vLLM's Request, so that a hasher keeps its digests on either.
        self._prompt_embeds_per_block_hashes: dict[Any, bytes] = {}
        self._block_hashes: list[bytes] = []
        self._block_hasher = block_hasher
        self._num_truncations = 0
        self._cuts: deque[int] = deque(maxlen=_CUTS_KEPT)
        if block_hasher is not None:
            # Before the first block is full, so that no later append is refused for the media.
            check = getattr(block_hasher, "check_request", None)
            if check is not None:
                check(self)
            self._block_hashes.extend(block_hasher(self))
        self._next_hash_at = 0
        self._plan_hashing()

    @property
    def request_id(self) -> str:
        """Name of the request; no part of any key."""
        return self._request_id

    @property
    def lora_request(self) -> LoRARequest | None:
        """The adapter, or None for the base model."""
        return self._lora_request

    @property
    def mm_features(self) -> tuple[MultiModalFeature, ...]:
        """The media items by offset; items with one offset stand in the order given."""
        return self._mm_features

    @property
    def is_plain(self) -> bool:
        """Whether it was made of tokens alone: no adapter, media, embeddings or salt."""
        return self._is_plain

    @property
    def mm_end(self) -> int:
        """The first position behind all media items; 0 without any."""
        return self._mm_end

    @property
    def prompt_embeds(self) -> Any:
        """The embeddings, (prompt length, hidden size), or None."""
        return self._prompt_embeds

    @property
    def prompt_is_token_ids(self) -> tuple[bool, ...] | None:
        """Per prompt position: True for a token, False for an embedding; None if not mixed."""
        return self._prompt_is_token_ids

    @property
    def cache_salt(self) -> str | None:
        """The salt that separates this request's blocks from others'."""
        return self._cache_salt

    @property
    def all_token_ids(self) -> TokenIds:
        """Prompt and appended tokens; positions without a token id (pure embeddings) hold 0."""
        return self._all_token_ids

    @property
    def num_tokens(self) -> int:
        """Tokens so far, prompt included."""
        return len(self._ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt; smaller than at first only after `truncate` into the prompt."""
        return self._num_prompt_tokens

    @property
    def block_hashes(self) -> list[bytes]:
        """Hashes of the full blocks. The list itself, in O(1): read it, do not change it."""
        return self._block_hashes

    @property
    def block_hasher(self) -> Callable[[Any], list[bytes]] | None:
        """What makes `block_hashes`, or None."""
        return self._block_hasher

    @property
    def num_truncations(self) -> int:
        """How often `truncate` has dropped tokens."""
        return self._num_truncations

    def lowest_cut_since(self, num_truncations: int) -> int | None:
        """Tokens that have stayed as they were since `num_truncations` was that; None for all.

        A token count does not tell that a request was cut and grew again; this does. 0 for an
        observer that lags more than 32 truncations behind.
        """
        lag = self._num_truncations - integer("num_truncations", num_truncations)
        if lag > len(self._cuts):
            return 0
        return min(list(self._cuts)[-lag:]) if lag > 0 else None

    def append_token_ids(self, ids: Any) -> None:
        """Appends one token id or a sequence of them, and hashes the blocks this completes.

        Costs the new tokens and the new blocks only. Nothing is appended if anything is wrong.
        """
        length = len(self._ids)
        if type(ids) is int and 0 <= ids <= MAX_TOKEN_ID:
            self._ids.append(ids)
        else:
            single = hasattr(ids, "__index__") and not hasattr(ids, "__len__")
            self._ids.extend(token_array([ids] if single else ids, "ids"))
        if self._block_hasher is None or len(self._ids) < self._next_hash_at:
            return
        try:
            self._block_hashes.extend(self._block_hasher(self))
        except BaseException:
            del self._ids[length:]
            raise
        self._plan_hashing()

    def _plan_hashing(self) -> None:
        """Know how many tokens complete the next block: fewer need no call of the hasher."""
        tokens_of = getattr(self._block_hasher, "num_tokens_of", None)  # a function has it not
        if tokens_of is None:
            self._next_hash_at = 0
        else:
            self._next_hash_at = min(tokens_of(len(self._block_hashes) + 1), sys.maxsize)

    def truncate(self, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens; drops the hashes of blocks that reach past the cut.

        For rejected drafts and edited sessions. A cut into the prompt drops the media, embeddings
        and mask behind it; a cut inside a media item is refused, because what is left of the item
        could not be told from the whole.
        """
        there = len(self._ids)
        cut = integer("num_tokens", num_tokens, 0, there, error=InvalidRequestError)
        if cut < self._mm_end:
            self._check_media_cut(cut)
        hashes = self._hashes_after(cut)
        if cut < len(self._ids):
            self._num_truncations += 1
            self._cuts.append(cut)
        if cut < self._num_prompt_tokens:
            self._truncate_prompt(cut)
        del self._ids[cut:]
        self._block_hashes[:] = hashes
        self._plan_hashing()

    def _check_media_cut(self, cut: int) -> None:
        for feature in self._mm_features:
            position = feature.mm_position
            if position.offset < cut < position.end:
                raise InvalidRequestError(
                    "num_tokens",
                    cut,
                    f"cuts the media item at [{position.offset}, {position.end}): "
                    "cut before or behind it",
                )

    def _hashes_after(self, cut: int) -> list[bytes]:
        """The hashes that survive a cut."""
        if self._block_hasher is None:
            return []
        count = getattr(self._block_hasher, "num_full_blocks", None)
        if count is not None:
            return self._block_hashes[: count(cut)]
        # A plain function does not say how many blocks it makes of a length: ask it.
        shorter = copy(self)
        shorter._ids = self._ids[:cut]
        shorter._all_token_ids = TokenIds(shorter._ids)
        shorter._block_hashes = []
        return list(self._block_hasher(shorter))

    def _truncate_prompt(self, cut: int) -> None:
        self._num_prompt_tokens = cut
        self._mm_features = tuple(f for f in self._mm_features if f.mm_position.offset < cut)
        self._mm_end = end_of(self._mm_features)
        if self._prompt_embeds is not None:
            self._prompt_embeds = self._prompt_embeds[:cut]
            digests = self._prompt_embeds_per_block_hashes
            for key in [key for key in digests if key[1] > cut]:
                del digests[key]
        if self._prompt_is_token_ids is not None:
            self._prompt_is_token_ids = self._prompt_is_token_ids[:cut]

    def __repr__(self) -> str:
        return (
            f"<Request {self._request_id!r}: {len(self._ids)} tokens, "
            f"{len(self._block_hashes)} block hashes>"
        )
