"""Equality with vLLM 0.33.0's KVCacheManager; skipped unless PREFIXHASH_VLLM_PYTHON names one.

The exceptions are listed in vllm_kv_cache_manager.py, which does the comparing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..vllm import run_with_vllm

SCRIPT = Path(__file__).with_name("vllm_kv_cache_manager.py")


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_same_hits_and_same_blocks_at_every_step(pure: bool) -> None:
    report = run_with_vllm(SCRIPT, "300", pure=pure)
    if not pure and report["cache"] != "compiled":
        pytest.skip(f"the cache is not compiled: {report['cache']}")
    assert (report["cache"] == "compiled") is not pure
    assert len(report["cases"]) == 13
    for name, counts in report["cases"].items():
        # The script compared something in every case.
        assert counts["steps"] > 300, name
        assert counts["hits"] > 10, name
        assert counts["batches"] > 100, name
    assert sum(counts["refused"] for counts in report["cases"].values()) > 100
    assert sum(counts["preempted"] for counts in report["cases"].values()) > 30
