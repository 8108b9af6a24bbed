"""`media_identifier`: a content identity for media, for callers that have none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from prefixhash._arguments import text
from prefixhash.errors import InvalidArgumentError
from prefixhash.hashing import _cbor
from prefixhash.hashing.embeds import dtype_name, raw_bytes
from prefixhash.request.fields import check_values

_MAX_DEPTH = 64


def media_identifier(value: Any) -> str:
    """SHA-256 of the content, as 64 hex digits: equal content, equal identity, in every process.

    Takes bytes, strings, numbers, None, numpy arrays and torch tensors (by dtype, shape and values,
    whatever their layout or device), PIL images (mode, size, palette, transparency and pixels of
    every frame), and lists, tuples and dicts of these, whose borders are part of the identity. The
    order of a dict's keys is not. Raises `InvalidArgumentError` for anything else. O(bytes).
    """
    digest = hashlib.sha256()
    _feed(value, digest, 0)
    return digest.hexdigest()


def _feed(value: Any, digest: Any, depth: int) -> None:
    """Feeds the canonical CBOR of (kind, parts...) of a value, without building it in memory."""
    if depth > _MAX_DEPTH:
        raise InvalidArgumentError("value", value, f"nested deeper than {_MAX_DEPTH} levels")
    if value is None or isinstance(value, (bool, int, str)):
        digest.update(_scalar(value))
    elif isinstance(value, float):
        digest.update(_cbor.encode(("float", value.hex())))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _feed_bytes(("bytes",), bytes(value), digest)
    elif isinstance(value, (list, tuple)):
        digest.update(_cbor.encode(("list", len(value))))
        for item in value:
            _feed(item, digest, depth + 1)
    elif isinstance(value, Mapping):
        _feed_mapping(value, digest, depth)
    elif hasattr(value, "getpalette"):
        _feed_image(value, digest)
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        _feed_array(value, digest)
    else:
        raise InvalidArgumentError(
            "value", value, f"cannot identify a {type(value).__name__}: pass its bytes or an array"
        )


def _scalar(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return _cbor.encode(("scalar", value))
    if isinstance(value, str):
        return _cbor.encode(("scalar", text("value", value)))
    number = int(value)
    if -(2**64) <= number < 2**64:
        return _cbor.encode(("scalar", number))
    try:
        return _cbor.encode(("int", str(number)))
    except ValueError:
        bits = f"an integer of {number.bit_length()} bits"
        raise InvalidArgumentError("value", bits, "has more digits than Python writes") from None


def _feed_bytes(kind: tuple[Any, ...], data: bytes, digest: Any) -> None:
    digest.update(_cbor.encode((*kind, len(data))))
    digest.update(data)


def _feed_mapping(value: Mapping[Any, Any], digest: Any, depth: int) -> None:
    for key in value:
        if not isinstance(key, str):
            raise InvalidArgumentError("value", key, "keys of a dict must be strings")
    digest.update(_cbor.encode(("dict", len(value))))
    for key in sorted(value):
        digest.update(_scalar(key))
        _feed(value[key], digest, depth + 1)


def _feed_array(value: Any, digest: Any) -> None:
    check_values(value, "value")
    kind = ("array", dtype_name(value), tuple(map(int, value.shape)))
    _feed_bytes(kind, raw_bytes(value), digest)


def _feed_image(image: Any, digest: Any) -> None:
    frames = getattr(image, "n_frames", 1)
    digest.update(_cbor.encode(("image", frames)))
    if frames == 1:
        _feed_frame(image, digest)
        return
    current = image.tell()
    try:
        for frame in range(frames):
            image.seek(frame)
            _feed_frame(image, digest)
    finally:
        image.seek(current)


def _feed_frame(image: Any, digest: Any) -> None:
    image.load()  # some formats have no palette before
    palette = image.palette
    digest.update(_cbor.encode(("frame", image.mode, tuple(image.size))))
    if image.mode in ("P", "PA") and palette is not None:
        _feed_bytes(("palette", palette.mode), bytes(palette.palette), digest)
    # Of a palette image, which index (or which alpha per index) is transparent.
    _feed(image.info.get("transparency"), digest, 1)
    _feed_bytes(("pixels",), image.tobytes(), digest)
