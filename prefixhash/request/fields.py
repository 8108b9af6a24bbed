"""The fields of a request: adapter, media and where they stand, and the checks of all of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prefixhash._arguments import integer, is_flag, text
from prefixhash.errors import InvalidRequestError
from prefixhash.request.tokens import MAX_TOKEN_ID, listed, token_array


@dataclass(frozen=True)
class PlaceholderRange:
    """Where one media item stands in the prompt: `length` token positions from `offset` on."""

    offset: int
    length: int

    def __post_init__(self) -> None:
        for name in ("offset", "length"):
            value = getattr(self, name)
            tokens = integer(name, value, 0, MAX_TOKEN_ID, error=InvalidRequestError)
            object.__setattr__(self, name, tokens)

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
        text("identifier", self.identifier, empty=False, error=InvalidRequestError)
        text("modality", self.modality, empty=False, error=InvalidRequestError)
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
        text("lora_name", self.lora_name, empty=False, error=InvalidRequestError)
        text("lora_path", self.lora_path, error=InvalidRequestError)
        text("revision", self.revision, error=InvalidRequestError)


def prompt_ids(token_ids: Any, prompt_embeds: Any) -> array[int]:
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


def embeds_mask(value: Any, num_prompt_tokens: int, mixed: bool) -> tuple[bool, ...] | None:
    if value is None:
        return None
    if not mixed:
        raise InvalidRequestError(
            "prompt_is_token_ids", value, "needs both token_ids and prompt_embeds"
        )
    mask = checked_mask(value, "prompt_is_token_ids")
    if len(mask) != num_prompt_tokens:
        raise InvalidRequestError(
            "prompt_is_token_ids",
            f"{len(mask)} entries",
            f"must have one entry per prompt token ({num_prompt_tokens})",
        )
    return mask


def checked_mask(value: Any, argument: str, first: int = 0) -> tuple[bool, ...]:
    """The bools in a sequence, an array or a tensor; errors count its items from `first`."""
    items = listed(value, argument, "must be a sequence of bools")
    for i, item in enumerate(items, first):
        if not is_flag(item):
            raise InvalidRequestError(f"{argument}[{i}]", item, "must be True or False")
    return tuple(map(bool, items))


def sorted_features(
    features: Iterable[Any] | None, num_prompt_tokens: int
) -> tuple[MultiModalFeature, ...]:
    if features is None:
        return ()
    given = listed(features, "mm_features", "must be a list of MultiModalFeature, or None")
    items = [_feature(item, f"mm_features[{i}]") for i, item in enumerate(given)]
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


def end_of(features: Iterable[MultiModalFeature]) -> int:
    return max((feature.mm_position.end for feature in features), default=0)


def check_values(values: Any, argument: str) -> None:
    """Refuses arrays whose bytes are not their values: objects, records, sparse, without data."""
    dtype = values.dtype
    if not (hasattr(dtype, "byteorder") or type(dtype).__module__ == "torch"):
        raise InvalidRequestError(argument, values, "must be a torch tensor or a numpy array")
    if getattr(dtype, "hasobject", False) or getattr(dtype, "names", None):
        raise InvalidRequestError(argument, f"dtype {dtype}", "must hold numbers")
    layout = str(getattr(values, "layout", "torch.strided"))
    if layout != "torch.strided" or getattr(values, "is_meta", False):
        kind = "a meta tensor" if layout == "torch.strided" else f"layout {layout}"
        raise InvalidRequestError(argument, kind, "must be a dense tensor with data")


def check_lora(lora_request: Any) -> None:
    if lora_request is None or isinstance(lora_request, LoRARequest):
        return
    # An engine's own adapter object will do, if it names itself.
    name = getattr(lora_request, "lora_name", None)
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(
            "lora_request", lora_request, "must be a LoRARequest, or have a lora_name"
        )
    text("lora_request.lora_name", name, empty=False, error=InvalidRequestError)
    for field in ("lora_path", "revision"):
        value = getattr(lora_request, field, "")
        text(f"lora_request.{field}", value, error=InvalidRequestError)
