"""Sizes and shares: what people write is what is counted, exactly, or an error that says how."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash._units import parse_bytes, parse_share
from prefixhash.errors import InvalidArgumentError

GIB = 1 << 30
NOT_TEXT = [None, True, 1, 1.5, b"1", [], {}, object(), "\ud800"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60GiB", 60 * GIB),
        ("1.5 TB", 1_500_000_000_000),
        ("512mib", 512 << 20),
        (" 1024 ", 1024),
        ("7B", 7),
        (".5KiB", 512),
        ("2.tib", 2 << 40),
        ("0.1GB", 100_000_000),  # as a float it may be a byte less
        ("1.9", 1),
    ],
)
def test_bytes(text: str, expected: int) -> None:
    assert parse_bytes("--memory", text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1GiB",
        "1e9",
        "inf",
        "nan",
        "0.1",
        "0",
        "1 2GiB",
        "60G",
        "10%",
        "٣GiB",
        "9" * 5000,
    ],
)
def test_text_that_is_no_size(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"--memory=.*: (write 60GiB|must be at least)"):
        parse_bytes("--memory", text)


@given(st.integers(1, 1 << 60), st.sampled_from(["", "KiB", "MiB", "kB", "TB"]))
def test_sizes_are_exact(count: int, unit: str) -> None:
    factors = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "kB": 1000, "TB": 10**12}
    assert parse_bytes("size", f"{count}{unit}") == count * factors[unit]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10%", Fraction(1, 10)),
        ("0%", Fraction(0)),
        ("100 %", Fraction(1)),
        (" 2.5%", Fraction(1, 40)),
        (".1%", Fraction(1, 1000)),
    ],
)
def test_share(text: str, expected: Fraction) -> None:
    assert parse_share("capacity", text) == expected


@pytest.mark.parametrize("text", ["", "%", "10", "nan%", "inf%", "-1%", "+1%", "1e1%", "100.1%"])
def test_text_that_is_no_share(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"capacity=.*: (write a share|must be at most)"):
        parse_share("capacity", text)


@pytest.mark.parametrize("value", NOT_TEXT)
def test_what_is_no_text(value: Any) -> None:
    for parse in (parse_bytes, parse_share):
        with pytest.raises(InvalidArgumentError, match="size="):
            parse("size", value)


def test_a_share_may_have_another_bound_or_none() -> None:
    assert parse_share("capacity", "150%", most=2) == Fraction(3, 2)
    assert parse_share("capacity", "1000%", most=None) == 10
    with pytest.raises(InvalidArgumentError, match="must be at most 200%"):
        parse_share("capacity", "200.1%", most=2)
