"""Shared by all tests: deterministic hypothesis, the folders of golden data and traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of the real traces; the test is skipped where it is absent."""
    folder = SHARED / "traces"
    if not folder.is_dir():
        pytest.skip("the real traces are not on this machine")
    return folder
