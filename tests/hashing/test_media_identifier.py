"""`media_identifier`: equal content, equal identity; anything else, another."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from prefixhash import InvalidArgumentError, media_identifier


def palette_image(colours: list[int]) -> Image.Image:
    image = Image.new("P", (4, 4), 1)
    image.putpalette(colours)
    return image


def with_transparency(index: int) -> Image.Image:
    image = palette_image([0, 0, 0, 255, 0, 0])
    image.info["transparency"] = index
    return image


DIFFERENT: dict[str, Any] = {
    "bytes": b"\0" * 4,
    "empty bytes": b"",
    "text": "\0" * 4,
    "none": None,
    "false": False,
    "zero": 0,
    "float zero": 0.0,
    "big": 2**70,
    "text of big": str(2**70),
    "list": [0],
    "nested list": [[0]],
    "empty list": [],
    "empty dict": {},
    "dict": {"a": 0},
    "list of pairs": [["a", 0]],
    "float32": np.zeros(1, np.float32),
    "int32": np.zeros(1, np.int32),
    "uint8 of the same bytes": np.zeros(4, np.uint8),
    "column": np.zeros((4, 1), np.uint8),
    "scalar array": np.zeros((), np.float32),
    "RGB 30x150": Image.new("RGB", (30, 150)),
    "RGB 150x30": Image.new("RGB", (150, 30)),
    "L of the same bytes": Image.new("L", (90, 150)),
    "palette red": palette_image([0, 0, 0, 255, 0, 0]),
    "palette blue": palette_image([0, 0, 0, 0, 0, 255]),
    "transparent 0": with_transparency(0),
    "transparent 1": with_transparency(1),
}


def test_contents_that_differ_have_different_identities() -> None:
    identities = {name: media_identifier(value) for name, value in DIFFERENT.items()}
    assert len(set(identities.values())) == len(identities)
    assert all(len(identity) == 64 for identity in identities.values())


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def typed(value: Any) -> Any:
    """The value with its types spelt out, so that True, 1 and b"" == "" do not compare equal."""
    if isinstance(value, list):
        return ("list", [typed(item) for item in value])
    if isinstance(value, dict):
        return ("dict", {key: typed(item) for key, item in value.items()})
    return (type(value).__name__, value)


@given(NESTED, NESTED)
def test_identity_is_equality_of_content(one: Any, other: Any) -> None:
    assert (media_identifier(one) == media_identifier(other)) == (typed(one) == typed(other))


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4))
def test_borders_between_parts_count(parts: list[list[int]]) -> None:
    as_arrays = [np.array(part, np.int64) for part in parts]
    whole = [np.array([i for part in parts for i in part], np.int64)]
    assert (media_identifier(as_arrays) == media_identifier(whole)) == (len(parts) == 1)


def test_layout_device_and_library_do_not_matter() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    same = [
        array,
        np.asfortranarray(array),
        array.astype(">f4"),
        np.repeat(array, 2, axis=1)[:, ::2],
        torch.from_numpy(array),
        torch.from_numpy(array).T.contiguous().T,
        torch.from_numpy(array).clone().requires_grad_(),
    ]
    assert len({media_identifier(value) for value in same}) == 1
    assert media_identifier(array.reshape(6, 4)) != media_identifier(array)


def test_bfloat16_and_buffers_work() -> None:
    rows = torch.arange(8).to(torch.bfloat16)
    assert media_identifier(rows) != media_identifier(rows.view(torch.float16))
    assert media_identifier(bytearray(b"ab")) == media_identifier(memoryview(b"ab"))
    assert media_identifier(b"ab") == media_identifier(bytearray(b"ab"))


def test_key_order_of_a_dict_and_list_or_tuple_do_not_matter() -> None:
    assert media_identifier({"a": 1, "b": 2}) == media_identifier({"b": 2, "a": 1})
    assert media_identifier((1, 2)) == media_identifier([1, 2])


def animation(tmp_path: Any, shades: tuple[int, ...]) -> Image.Image:
    frames = [Image.new("L", (8, 8), shade) for shade in shades]
    path = tmp_path / f"{shades}.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    return Image.open(path)


def test_every_frame_of_an_animation_counts(tmp_path: Any) -> None:
    with animation(tmp_path, (0, 100)) as one, animation(tmp_path, (0, 200)) as other:
        one.seek(1)
        assert media_identifier(one) != media_identifier(other)
        assert one.tell() == 1


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, np.array([object()]), [{"a": {1, 2}}], "\ud800", {"\ud800": 1}],
    ids=str,
)
def test_what_has_no_content_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="value="):
        media_identifier(value)


def test_endless_nesting_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidArgumentError, match="nested deeper"):
        media_identifier(value)


def test_identities_are_the_same_in_every_process() -> None:
    code = "from prefixhash import media_identifier as m; print(m([b'a', {'k': 1.5, 'j': None}]))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == media_identifier([b"a", {"k": 1.5, "j": None}])


def test_no_collision_among_many() -> None:
    assert len({media_identifier(f"{i:04x}") for i in range(5000)}) == 5000


@pytest.mark.parametrize("suffix", ["bmp", "tiff", "png", "gif"])
def test_an_image_is_the_same_before_and_after_it_was_read(suffix: str, tmp_path: Any) -> None:
    path = tmp_path / f"image.{suffix}"
    palette_image([0, 0, 0, 255, 0, 0]).save(path)
    with Image.open(path) as image:
        assert media_identifier(image) == media_identifier(image)


def test_the_mode_of_a_palette_counts() -> None:
    colours = bytes([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    images = []
    for mode in ("RGB", "RGBA"):
        image = Image.new("P", (2, 2), 1)
        image.putpalette(colours, mode)
        images.append(image)
    assert images[0].palette.palette == images[1].palette.palette
    assert len({media_identifier(image) for image in images}) == 2
