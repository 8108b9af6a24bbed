"""Digests computed by vLLM 0.25.0 and 0.33.0 themselves, all four algorithms."""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.conftest import DATA
from tests.golden_hashes import compare, main

GOLDEN = DATA / "block_hashes.json"
ROWS = {
    key: list(rows)
    for key, rows in groupby(compare(GOLDEN), key=lambda row: f"{row.engine}, {row.algorithm}")
}


@pytest.mark.parametrize("key", ROWS)
def test_every_digest_equals_the_engines(key: str) -> None:
    differing = [row.case for row in ROWS[key] if row.ours != row.expected]
    assert not differing
    assert len(ROWS[key]) == 48


def test_the_command_counts_and_exits_by_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["golden_hashes", str(GOLDEN)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "matched 480 of 480"
