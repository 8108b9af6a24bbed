"""Random models beside vLLM 0.25.0's planner; skipped unless PREFIXHASH_VLLM025_PYTHON is set."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ..golden_layout import compare
from ..vllm import run_with_vllm

SCRIPT = Path(__file__).with_name("vllm_planner.py")


def test_plans_match_or_differ_by_a_rule() -> None:
    golden = run_with_vllm(SCRIPT, "150", "11", version="0.25.0")["golden"]
    results = compare(golden)
    assert not [result for result in results if None in result.rules]
    matched = Counter(result.case_id.split("/")[0] for result in results if result.how)
    assert len(matched) == 8
    # Most random mixtures of layers are such as vLLM plans as it means to.
    assert all(count > 70 for count in matched.values()), matched
