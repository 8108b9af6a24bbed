"""Comparisons with vLLM run in its own interpreter, named by PREFIXHASH_VLLM_PYTHON."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def run_with_vllm(script: Path, *arguments: str, version: str = "0.33.0") -> dict[str, Any]:
    """Run the script there and return the JSON of its last line; skip where vLLM is absent."""
    python = os.environ.get("PREFIXHASH_VLLM_PYTHON")
    if not python:
        pytest.skip("PREFIXHASH_VLLM_PYTHON names no interpreter that has vLLM")
    done = subprocess.run(
        [python, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if report["vllm"] != version:
        pytest.skip(f"vLLM {report['vllm']} is installed, {version} is what this was recorded with")
    return report
