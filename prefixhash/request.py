"""What a request is to the hash: tokens, adapter, media, prompt embeddings, salt.

Everything is validated when a `Request` is made or changed, so that the hashing path need not ask
again, and everything that stands in a key is read-only afterwards.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from operator import index
from typing import Any, overload

from prefixhash._tokens import MAX_TOKEN_ID, token_array
from prefixhash.errors import InvalidRequestError

_CUTS_KEPT = 32  # truncations that an observer may lag behind and still be told exactly


@dataclass(frozen=True)
class PlaceholderRange:
    """Where one media item stands in the prompt: `length` token positions from `offset` on."""

    offset: int
    length: int

    def __post_init__(self) -> None:
        for name in ("offset", "length"):
            value = _index(getattr(self, name), name)
            if value < 0:
                raise InvalidRequestError(name, value, "must be 0 or more tokens")
            object.__setattr__(self, name, value)

    @property
    def end(self) -> int:
        """The first position after the item."""
        return self.offset + self.length


@dataclass(frozen=True)
class MultiModalFeature:
    """One run of placeholder tokens that a media item fills.

    `identifier` must stand for the content (see `media_identifier`): two items with one identifier
    are taken for the same item. A video with several separated runs is one feature per run.
    """

    identifier: str
    mm_position: PlaceholderRange
    modality: str = "image"

    def __post_init__(self) -> None:
        _check_text(self.identifier, "identifier", "the content identity of the item")
        _check_text(self.modality, "modality", "such as 'image', 'audio' or 'video'")
        if not isinstance(self.mm_position, PlaceholderRange):
            raise InvalidRequestError(
                "mm_position", self.mm_position, "must be a PlaceholderRange(offset, length)"
            )


@dataclass(frozen=True)
class LoRARequest:
    """The adapter that a request runs with.

    Give `revision` a new value whenever the weights behind an equal name and path change: the
    strict profile keys it, so that KV of the old weights is never reused. (vLLM's own keys hold no
    revision, and before 0.31 no path.)
    """

    lora_name: str
    lora_path: str = ""
    revision: str = ""

    def __post_init__(self) -> None:
        _check_text(self.lora_name, "lora_name", "the name of the adapter")
        _check_text(self.lora_path, "lora_path", "a path, or ''", empty=True)
        _check_text(self.revision, "revision", "a version of the weights, or ''", empty=True)


class TokenIds(Sequence[int]):
    """Read-only view of a request's token ids; a slice is an `array('q')` copy."""

    __slots__ = ("_ids",)

    def __init__(self, ids: array[int]) -> None:
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
        _check_text(request_id, "request_id", "the name of the request", empty=True)
        if cache_salt is not None:
            _check_text(cache_salt, "cache_salt", "a string, or None", empty=True)
        _check_lora(lora_request)
        if block_hasher is not None and not callable(block_hasher):
            raise InvalidRequestError("block_hasher", block_hasher, "must be a BlockHasher")
        ids = _prompt_ids(token_ids, prompt_embeds)
        self._request_id = request_id
        self._lora_request = lora_request
        self._cache_salt = cache_salt
        self._ids = ids
        self._all_token_ids = TokenIds(ids)
        self._num_prompt_tokens = len(ids)
        self._prompt_embeds = prompt_embeds
        self._prompt_is_token_ids = _mask(
            prompt_is_token_ids, len(ids), token_ids is not None and prompt_embeds is not None
        )
        self._mm_features = _sorted_features(mm_features, len(ids))
        self._mm_end = _end_of(self._mm_features)
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
        lag = self._num_truncations - num_truncations
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
        if self._block_hasher is None:
            return
        try:
            self._block_hashes.extend(self._block_hasher(self))
        except BaseException:
            del self._ids[length:]
            raise

    def truncate(self, num_tokens: int) -> None:
        """Keeps the first `num_tokens` tokens; drops the hashes of blocks that reach past the cut.

        For rejected drafts and edited sessions. A cut into the prompt drops the media, embeddings
        and mask behind it; a cut inside a media item is refused, because what is left of the item
        could not be told from the whole.
        """
        cut = _index(num_tokens, "num_tokens")
        if not 0 <= cut <= len(self._ids):
            raise InvalidRequestError(
                "num_tokens", cut, f"must be between 0 and the {len(self._ids)} tokens there are"
            )
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
        return self._block_hasher(shorter)

    def _truncate_prompt(self, cut: int) -> None:
        self._num_prompt_tokens = cut
        self._mm_features = tuple(f for f in self._mm_features if f.mm_position.offset < cut)
        self._mm_end = _end_of(self._mm_features)
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


def _prompt_ids(token_ids: Any, prompt_embeds: Any) -> array[int]:
    num_rows = _num_embeds(prompt_embeds)
    if token_ids is None:
        if num_rows is None:
            raise InvalidRequestError("token_ids", None, "give token_ids, prompt_embeds, or both")
        return array("q", bytes(8 * num_rows))
    ids = token_array(token_ids, "token_ids")
    if num_rows is not None and num_rows != len(ids):
        raise InvalidRequestError(
            "prompt_embeds", f"{num_rows} rows", f"must have one row per token ({len(ids)})"
        )
    return ids[:] if ids is token_ids else ids


def _num_embeds(prompt_embeds: Any) -> int | None:
    if prompt_embeds is None:
        return None
    shape = getattr(prompt_embeds, "shape", None)
    if shape is None or not hasattr(prompt_embeds, "dtype"):
        raise InvalidRequestError(
            "prompt_embeds", prompt_embeds, "must be a torch tensor or a numpy array"
        )
    check_values(prompt_embeds, "prompt_embeds")
    if len(shape) != 2:
        raise InvalidRequestError(
            "prompt_embeds", f"shape {tuple(shape)}", "must be (prompt length, hidden size)"
        )
    return int(shape[0])


def _mask(value: Any, num_prompt_tokens: int, mixed: bool) -> tuple[bool, ...] | None:
    if value is None:
        return None
    if not mixed:
        raise InvalidRequestError(
            "prompt_is_token_ids", value, "needs both token_ids and prompt_embeds"
        )
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, Sequence):
        raise InvalidRequestError("prompt_is_token_ids", value, "must be a sequence of bools")
    mask = tuple(items)
    if len(mask) != num_prompt_tokens:
        raise InvalidRequestError(
            "prompt_is_token_ids",
            f"{len(mask)} entries",
            f"must have one entry per prompt token ({num_prompt_tokens})",
        )
    for i, item in enumerate(mask):
        if type(item).__name__ not in ("bool", "bool_"):  # numpy's is no bool
            raise InvalidRequestError(f"prompt_is_token_ids[{i}]", item, "must be True or False")
    return tuple(map(bool, mask))


def _sorted_features(
    features: Iterable[Any] | None, num_prompt_tokens: int
) -> tuple[MultiModalFeature, ...]:
    if not isinstance(features, Iterable | None):
        raise InvalidRequestError("mm_features", features, "must be a list of MultiModalFeature")
    items = [_feature(item, f"mm_features[{i}]") for i, item in enumerate(features or ())]
    for i, item in enumerate(items):
        if item.mm_position.end > num_prompt_tokens:
            raise InvalidRequestError(
                f"mm_features[{i}].mm_position",
                item.mm_position,
                f"must lie within the {num_prompt_tokens} tokens of the prompt",
            )
    return tuple(sorted(items, key=lambda item: item.mm_position.offset))


def _feature(item: Any, argument: str) -> MultiModalFeature:
    """The item itself, or a frozen copy of an engine's own, whose fields could change later."""
    if isinstance(item, MultiModalFeature):
        return item
    place: Any = getattr(item, "mm_position", None)
    if not (hasattr(place, "offset") and hasattr(place, "length") and hasattr(item, "identifier")):
        raise InvalidRequestError(argument, item, "must be a MultiModalFeature")
    try:
        position = PlaceholderRange(place.offset, place.length)
        return MultiModalFeature(item.identifier, position, getattr(item, "modality", "image"))
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"{argument}.{error.argument}", error.value, error.problem
        ) from None


def _end_of(features: Iterable[MultiModalFeature]) -> int:
    return max((feature.mm_position.end for feature in features), default=0)


def check_values(values: Any, argument: str) -> None:
    """Refuses arrays whose bytes are not their values: objects, records, sparse, without data."""
    dtype = values.dtype
    if getattr(dtype, "hasobject", False) or getattr(dtype, "names", None):
        raise InvalidRequestError(argument, f"dtype {dtype}", "must hold numbers")
    layout = str(getattr(values, "layout", "torch.strided"))
    if layout != "torch.strided" or getattr(values, "is_meta", False):
        kind = "a meta tensor" if layout == "torch.strided" else f"layout {layout}"
        raise InvalidRequestError(argument, kind, "must be a dense tensor with data")


def _check_lora(lora_request: Any) -> None:
    if lora_request is None or isinstance(lora_request, LoRARequest):
        return
    # An engine's own adapter object will do, if it names itself.
    name = getattr(lora_request, "lora_name", None)
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(
            "lora_request", lora_request, "must be a LoRARequest, or have a lora_name"
        )
    _check_text(name, "lora_request.lora_name", "the name of the adapter")
    for field in ("lora_path", "revision"):
        value = getattr(lora_request, field, "")
        _check_text(value, f"lora_request.{field}", "a string, or ''", empty=True)


def _check_text(value: object, argument: str, meaning: str, *, empty: bool = False) -> None:
    if not isinstance(value, str) or not (value or empty):
        raise InvalidRequestError(
            argument, value, f"must be a {'' if empty else 'non-empty '}string: {meaning}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            argument, value, "holds a lone surrogate, which UTF-8 cannot encode"
        ) from None


def _index(value: Any, argument: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidRequestError(argument, value, "must be an integer")
    return index(value)
