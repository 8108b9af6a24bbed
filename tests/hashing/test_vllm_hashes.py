"""Equality with the hashers of vLLM 0.33.0 and 0.25.0 on random requests; skipped without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm import run_with_vllm

SCRIPT = Path(__file__).with_name("vllm_hashes.py")


@pytest.mark.parametrize("version", ["0.33.0", "0.25.0"])
def test_500_random_requests_hash_as_the_engine_hashes_them(version: str) -> None:
    report = run_with_vllm(SCRIPT, "500", version=version)
    assert report["requests"] == 500
    assert min(report["blocks"].values()) > 5_000
    assert report["differing"] == []
