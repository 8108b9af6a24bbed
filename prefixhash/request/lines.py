"""Requests as lines of JSON: the one reader of what `hash`, `replay` and `curve` take and `synth`
writes.

`KEYS` says what a line can hold. Everything else is refused, in the line and in the objects inside
it: a misspelt `cache_salt` that goes unnoticed would share the blocks of two tenants. `null` means
absent.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prefixhash import _arguments
from prefixhash._source import BadRecordError, Source, decode_json
from prefixhash.errors import InvalidArgumentError, InvalidRequestError, TraceFormatError
from prefixhash.request.fields import (
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    sorted_features,
)
from prefixhash.request.request import Request
from prefixhash.request.tokens import token_array


@dataclass(frozen=True)
class RequestLine:
    """A request as a line says it: what its KV depends on, and when and by whom it was sent.

    `timestamp` in seconds, `token_ids` an array of 64-bit integers, `mm_features` by offset. What a
    line leaves out is None (`output_tokens`: 0). Raises `InvalidRequestError` for a field that no
    line can say. O(tokens).
    """

    token_ids: Sequence[int]
    lora_request: LoRARequest | None = None
    mm_features: tuple[MultiModalFeature, ...] = ()
    cache_salt: str | None = None
    request_id: str | None = None
    timestamp: float | None = None
    output_tokens: int = 0
    session: str | None = None
    turn: int | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        ids = token_array(self.token_ids, "token_ids")
        if not isinstance(self.lora_request, LoRARequest | None):
            raise InvalidRequestError("lora_request", self.lora_request, "must be a LoRARequest")
        checked: dict[str, Any] = {
            "token_ids": ids,
            "mm_features": sorted_features(self.mm_features, len(ids)),
        }
        checked["output_tokens"] = _count("output_tokens", self.output_tokens)
        for name, read in _OPTIONAL.items():
            value = getattr(self, name)
            checked[name] = None if value is None else read(name, value)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def request(self, request_id: str, block_hasher: Callable[[Any], list[bytes]]) -> Request:
        """The request, hashed; called `request_id` where the line gives no name of its own."""
        return Request(
            request_id if self.request_id is None else self.request_id,
            self.token_ids,
            block_hasher=block_hasher,
            lora_request=self.lora_request,
            mm_features=self.mm_features,
            cache_salt=self.cache_salt,
        )


class Key(NamedTuple):
    """A key of a JSON object: the field that it fills, its name and synonyms, how it is read.

    `read` takes the key, or the path to it, and the value. `meaning` is for people.
    """

    field: str
    names: tuple[str, ...]
    read: Callable[[str, Any], Any]
    meaning: str


def read_request_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, RequestLine]]:
    """(line number, request) of every line of a file that is not blank; `-` is standard input.

    Plain or gzip, in one pass. Memory: one line. Raises `InvalidArgumentError` for a path that is
    none, `OSError` for one that cannot be opened, `TraceFormatError` with file and line for a line
    that is no request.
    """
    return lines_of(Source(path, once=True))


def lines_of(source: Source) -> Iterator[tuple[int, RequestLine]]:
    """The requests of an opened source, as `read_request_lines`."""
    for number, text in source.lines():
        try:
            line = read_request_line(decode_json(text))
        except (BadRecordError, InvalidArgumentError) as error:
            raise TraceFormatError(source.name, number, str(error)) from error
        yield number, line


def read_request_line(record: Any) -> RequestLine:
    """The request that a decoded line says; raises `InvalidRequestError`."""
    fields = _object("", record, KEYS, required=("token_ids",))
    num_tokens = len(fields["token_ids"])
    declared = fields.pop("input_length", num_tokens)
    if declared != num_tokens:
        raise InvalidRequestError("input_length", declared, f"but there are {num_tokens} token ids")
    return RequestLine(**fields)


def write_request_line(line: RequestLine) -> dict[str, Any]:
    """A record, ready for `json.dumps`, that reads back as `line`; absent fields are left out."""
    record = {
        "request_id": line.request_id,
        "timestamp": line.timestamp,
        "output_length": line.output_tokens,
        "session_id": line.session,
        "turn": line.turn,
        "type": line.kind,
        "lora": _lora_record(line.lora_request),
        "cache_salt": line.cache_salt,
        "mm_features": [_feature_record(feature) for feature in line.mm_features] or None,
        "token_ids": list(line.token_ids),
    }
    return {key: value for key, value in record.items() if value is not None}


def _lora_record(lora: LoRARequest | None) -> Any:
    if lora is None or not (lora.lora_path or lora.revision):
        return lora and lora.lora_name
    return {"name": lora.lora_name, "path": lora.lora_path, "revision": lora.revision}


def _feature_record(feature: MultiModalFeature) -> dict[str, Any]:
    place = feature.mm_position
    return {
        "identifier": feature.identifier,
        "modality": feature.modality,
        "mm_position": {"offset": place.offset, "length": place.length},
    }


def _object(path: str, value: Any, keys: Sequence[Key], required: Sequence[str]) -> dict[str, Any]:
    """The fields that a JSON object at `path` ("" for the line) fills, each checked."""
    if not isinstance(value, dict):
        raise InvalidRequestError(path or "line", value, "must be a JSON object")
    given = {name: item for name, item in value.items() if item is not None}
    _check_names(path, value, given, keys, required)
    prefix = f"{path}." if path else ""
    return {
        key.field: key.read(prefix + name, given[name])
        for key in keys
        for name in key.names
        if name in given
    }


def _check_names(
    path: str,
    value: dict[str, Any],
    given: dict[str, Any],
    keys: Sequence[Key],
    required: Sequence[str],
) -> None:
    """Every key is known, none is given twice under two names, none that is needed is absent."""
    where = path or "line"
    known = [name for key in keys for name in key.names]
    unknown = [name for name in value if name not in known]
    for key in keys:
        found = [name for name in key.names if name in given]
        if len(found) > 1:
            problem = f"says the same as {found[0]!r}: give one of the two"
            raise InvalidRequestError(f"key of {where}", found[1], problem)
        meant = any(_arguments.nearest(name, key.names) for name in unknown)
        if key.field in required and not found and not meant:
            problem = f"lacks the field {' or '.join(map(repr, key.names))}"
            raise InvalidRequestError(where, value, problem)
    if unknown:
        near = _arguments.nearest(unknown[0], known)
        problem = f"unknown field; {near}known: {', '.join(known)}"
        raise InvalidRequestError(f"key of {where}", unknown[0], problem)


def _token_ids(name: str, value: Any) -> array[int]:
    return token_array(_list(name, value, "integers"), name)


def _list(name: str, value: Any, of: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequestError(name, value, f"must be a list of {of}")
    return value


def _text(name: str, value: Any) -> str:
    return _arguments.text(name, value, empty=False, error=InvalidRequestError)


def _any_text(name: str, value: Any) -> str:
    return _arguments.text(name, value, error=InvalidRequestError)


def _label(name: str, value: Any) -> str:
    """A name that stands in no hash: an integer will do, too."""
    if _arguments.is_integer(value):
        return str(value)
    return _arguments.text(name, value, meaning=" or an integer", error=InvalidRequestError)


def _count(name: str, value: Any) -> int:
    return _arguments.integer(name, value, error=InvalidRequestError)


def _time(name: str, value: Any) -> float:
    seconds = _arguments.number(name, value, -math.inf, error=InvalidRequestError)
    if math.isinf(seconds):
        raise InvalidRequestError(name, value, "must be finite")
    return seconds


def _lora(name: str, value: Any) -> LoRARequest:
    if isinstance(value, dict):
        return LoRARequest(**_object(name, value, LORA_KEYS, required=("lora_name",)))
    meaning = ", or an object with name, path and revision"
    lora_name = _arguments.text(
        name, value, empty=False, meaning=meaning, error=InvalidRequestError
    )
    return LoRARequest(lora_name)


def _features(name: str, value: Any) -> tuple[MultiModalFeature, ...]:
    items = _list(name, value, "objects")
    return tuple(_feature(f"{name}[{place}]", item) for place, item in enumerate(items))


def _feature(name: str, value: Any) -> MultiModalFeature:
    nested = isinstance(value, dict) and value.get("mm_position") is not None
    place_fields = ("mm_position",) if nested else ("offset", "length")
    fields = _object(name, value, MEDIA_KEYS, required=("identifier", *place_fields))
    if nested and ("offset" in fields or "length" in fields):
        problem = "stands beside offset or length: give one of the two"
        raise InvalidRequestError(f"{name}.mm_position", value["mm_position"], problem)
    place = fields.get("mm_position") or PlaceholderRange(fields["offset"], fields["length"])
    return MultiModalFeature(fields["identifier"], place, fields.get("modality", "image"))


def _place(name: str, value: Any) -> PlaceholderRange:
    return PlaceholderRange(**_object(name, value, PLACE_KEYS, required=("offset", "length")))


_OPTIONAL: dict[str, Callable[[str, Any], Any]] = {
    "cache_salt": _any_text,
    "request_id": _label,
    "timestamp": _time,
    "session": _label,
    "turn": _count,
    "kind": _label,
}
KEYS = (
    Key(
        "token_ids",
        ("token_ids", "prompt_token_ids"),
        _token_ids,
        "list of integers in [0, 2^63) (required)",
    ),
    Key(
        "lora_request",
        ("lora", "lora_request", "lora_name"),
        _lora,
        'name, or {"name", "path", "revision"}',
    ),
    Key(
        "mm_features",
        ("mm_features",),
        _features,
        'list of {"identifier", "offset", "length", "modality"}; offset and length may stand under '
        '"mm_position"',
    ),
    Key("cache_salt", ("cache_salt",), _any_text, "string"),
    Key("request_id", ("request_id",), _label, "string; without one, the number of the line"),
    Key("timestamp", ("timestamp",), _time, "seconds"),
    # Not kept: it only has to agree with the tokens.
    Key("input_length", ("input_length",), _count, "number of token ids, if given"),
    Key("output_tokens", ("output_length",), _count, "tokens of the answer"),
    Key("session", ("session_id",), _label, "whose request it is"),
    Key("turn", ("turn",), _count, "number of the request in its session"),
    Key("kind", ("type",), _label, "a name to group requests by"),
)
LORA_KEYS = (
    Key("lora_name", ("name", "lora_name"), _text, "name of the adapter (required)"),
    Key("lora_path", ("path", "lora_path"), _any_text, "where its weights lie"),
    Key("revision", ("revision",), _any_text, "version of the weights"),
)
PLACE_KEYS = (
    Key("offset", ("offset",), _count, "first token position (required)"),
    Key("length", ("length",), _count, "token positions (required)"),
)
MEDIA_KEYS = (
    Key("identifier", ("identifier",), _text, "what stands for the content (required)"),
    Key("modality", ("modality",), _text, "image (default), audio, video, ..."),
    *PLACE_KEYS,
    Key("mm_position", ("mm_position",), _place, "an object with offset and length instead"),
)
