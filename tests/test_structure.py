"""docs/structure.md says what the architecture test holds, and names places that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .test_architecture import ROOMS, ROOT

TEXT = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w./]+)` \| .* \| ([\w, -]+) \|$", TEXT, re.MULTILINE)
PLACES = sorted(set(re.findall(r"`([a-z_]+/[\w./]+)`", TEXT)))


def test_the_table_of_rooms_is_the_one_that_is_tested() -> None:
    said = {
        name.rstrip("/").removesuffix(".py"): set() if below == "-" else set(below.split(", "))
        for name, below in ROWS
    }
    assert said == ROOMS


@pytest.mark.parametrize("place", PLACES)
def test_every_place_exists(place: str) -> None:
    if "NAME" in place:
        place = str(Path(place).parent)
    assert any((base / place).exists() for base in (ROOT, ROOT / "prefixhash")), place
