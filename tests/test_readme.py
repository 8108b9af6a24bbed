"""The README's Python examples run, and its generated tables are what the code gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import collision_table

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_run(number: int) -> None:
    exec(compile(EXAMPLES[number], f"README example {number}", "exec"), {"__name__": "readme"})


def test_the_collision_table_is_the_computed_one() -> None:
    assert collision_table.markdown() in README


@pytest.mark.parametrize("pair", collision_table.PAIRS)
def test_nothing_collides_under_the_strict_profile(pair: str) -> None:
    assert not collision_table.collides(pair, "strict")
