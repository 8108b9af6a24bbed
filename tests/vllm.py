"""Comparisons with vLLM run in its own interpreter, named by an environment variable:
PREFIXHASH_VLLM_PYTHON for 0.33.0, PREFIXHASH_VLLM025_PYTHON for 0.25.0."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from prefixhash._compiled import SWITCH

VARIABLES = {"0.33.0": "PREFIXHASH_VLLM_PYTHON", "0.25.0": "PREFIXHASH_VLLM025_PYTHON"}
ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parents[1]),
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Seeds the root of vLLM's hash chains; before 0.29 it is random without one.
    "PYTHONHASHSEED": "7",
}


def run_with_vllm(
    script: Path, *arguments: str, version: str = "0.33.0", pure: bool | None = None
) -> dict[str, Any]:
    """Run the script there and return the JSON of its last line; skip where vLLM is absent.

    `pure`: with our Python code alone, or with what was compiled; None: as this process does.
    """
    variable = VARIABLES[version]
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no interpreter that has vLLM")
    switch = {} if pure is None else {SWITCH: "1" if pure else ""}
    done = subprocess.run(
        [python, str(script), *arguments],
        env={**os.environ, **ENVIRONMENT, **switch},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if report["vllm"] != version:
        pytest.skip(f"vLLM {report['vllm']} is installed, {version} is what this was recorded with")
    return report
