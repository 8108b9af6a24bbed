"""Equality with vLLM 0.33.0's own pool; skipped unless PREFIXHASH_VLLM_PYTHON names one."""

from __future__ import annotations

from pathlib import Path

from ..vllm import run_with_vllm

SCRIPT = Path(__file__).with_name("vllm_block_pool.py")


def test_100_000_operations_give_the_same_blocks() -> None:
    report = run_with_vllm(SCRIPT, "100000")
    assert report["steps"] == 100_000
    # The script compared something, in every kind of operation.
    assert report["allocations"] > 20_000
    assert report["hits"] > 10_000
    assert report["evictions"] > 1_000
    assert report["copies"] > 1_000
