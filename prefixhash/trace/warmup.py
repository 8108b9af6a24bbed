"""Requests to leave out of the counts while the cache fills: so many, or a share of all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from prefixhash import _arguments
from prefixhash._units import parse_share
from prefixhash.errors import InvalidArgumentError

_DIGITS = re.compile(r"[0-9]{1,40}", re.ASCII)


@dataclass(frozen=True)
class Warmup:
    """The first `number` requests, or the first `share` of all; `given` is how it was written."""

    given: int | str
    number: int = 0
    share: Fraction | None = None

    def requests(self, num_requests: int) -> int:
        """How many of `num_requests` are left out.

        Raises `InvalidArgumentError` where nothing is left to count.
        """
        num_requests = _arguments.integer("num_requests", num_requests)
        warmup = self.number if self.share is None else int(self.share * num_requests)
        if 0 < num_requests <= warmup:
            problem = f"leaves out all {num_requests} requests"
            raise InvalidArgumentError("warmup", self.given, problem)
        return warmup


def parse_warmup(value: int | str) -> Warmup:
    """Reads a number of requests (5, "5") or a share below all ("10%").

    Raises `InvalidArgumentError`.
    """
    if _arguments.is_integer(value):
        return Warmup(value, _arguments.integer("warmup", value))
    what = "a number of requests, or a share of them (10%)"
    text = _arguments.text("warmup", value, meaning=f" or an integer: {what}").strip()
    if _DIGITS.fullmatch(text):
        return Warmup(text, int(text))
    if not text.endswith("%"):
        raise InvalidArgumentError("warmup", value, f"write {what}")
    share = parse_share("warmup", text)
    if share == 1:
        raise InvalidArgumentError("warmup", value, "leaves out all requests")
    return Warmup(text, share=share)
