"""Values of every kind, for any argument: it takes them or raises an error of the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from prefixhash import PrefixHashError

BAD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, math.nan, math.inf, 10**30, -(10**30), 2**63, 1j,
    "", "x", "\ud800", b"", b"x", bytearray(b"x"), memoryview(b"abc"), bytes(32),
    [], [1], [None], ["x"], (), {}, {"a": 1}, set(), range(3), range(10**30), object(), int,
    SimpleNamespace(), SimpleNamespace(shape=(2, 2), dtype="f"), slice(None), ...,
    np.int64(3), np.float32(1.5), np.bool_(True), np.str_("x"), np.array(5), np.array([1, 2]),
    np.array([True]), np.array([None]), np.zeros((2, 2)), np.datetime64("2020"),
    torch.tensor(3), torch.tensor([1, 2]), torch.ones(2, 2), torch.ones(2, 2, device="meta"),
)  # fmt: skip


def raised(call: Callable[[Any], Any]) -> list[str]:
    """What the call raises for those values beside the package's own errors."""
    return [problem for value in BAD_VALUES if (problem := _foreign_error(call, value))]


def _foreign_error(call: Callable[[Any], Any], value: Any) -> str:
    try:
        call(value)
    except PrefixHashError:
        return ""
    except Exception as error:
        return f"{type(value).__name__}: {error!r}"
    return ""
