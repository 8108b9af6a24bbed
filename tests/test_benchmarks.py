"""Benchmarks measure what they say: never the Python code by mistake, never half a comparison."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "benchmarks").glob("*.py"))
QUICK = ("benchmarks/bench_hash.py", "--tokens", "64", "--rounds", "1")


def run(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PREFIXHASH_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env={**clean, "PYTHONPATH": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which nothing is built."""
    root = tmp_path_factory.mktemp("clone")
    for folder in ("benchmarks", "prefixhash"):
        shutil.copytree(
            ROOT / folder, root / folder, ignore=shutil.ignore_patterns("*.so", "*.pyd")
        )
    return root


def test_the_uncompiled_source_is_measured_only_when_asked_for(clone: Path) -> None:
    refused = run(clone, *QUICK)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "--pure" in refused.stderr
    measured = run(clone, *QUICK, "--pure")
    assert measured.returncode == 0, measured.stderr
    assert "kernel python" in measured.stdout
    switched = run(clone, *QUICK, PREFIXHASH_PURE="1")
    assert switched.returncode == 1
    assert "--pure" in switched.stderr


def test_a_peer_that_lacks_a_module_is_said_in_one_line(clone: Path, tmp_path: Path) -> None:
    lacking = run(clone, *QUICK, "--pure", PREFIXHASH_VLLM_PYTHON=sys.executable)
    assert lacking.returncode == 1
    assert lacking.stderr.splitlines() == [f"{sys.executable} has no vllm: install it there"]
    absent = run(clone, *QUICK, "--pure", PREFIXHASH_VLLM_PYTHON=str(tmp_path / "python"))
    assert absent.returncode == 1
    assert len(absent.stderr.splitlines()) == 1
    # A module that a benchmark needs and the interpreter has not.
    (clone / "broken.py").write_text("import checkout\nimport no_such_module\n", encoding="utf-8")
    broken = run(
        clone,
        "-c",
        "import sys; sys.path.insert(0, 'benchmarks'); sys.argv.append('--pure'); import broken",
    )
    assert broken.stderr.splitlines() == [f"{sys.executable}: No module named 'no_such_module'"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_benchmark_loads_the_checkout_first(script: Path) -> None:
    if script.name == "checkout.py":
        return
    lines = script.read_text(encoding="utf-8").splitlines()
    loads = ("from checkout import", "import checkout")
    first = next(i for i, line in enumerate(lines) if line.startswith(loads))
    package = [i for i, line in enumerate(lines) if "prefixhash" in line and "import" in line]
    assert all(i > first for i in package if lines[i].startswith(("import ", "from ")))


def test_a_leak_is_told_by_the_exit_status(clone: Path) -> None:
    flat = run(clone, "benchmarks/bench_steps.py", "--pure", "--leak", "640")
    assert flat.returncode == 0, flat.stdout + flat.stderr
    lines = flat.stdout.splitlines()
    assert lines[1].startswith("start: ")
    assert len(lines) == 13
    nothing_allowed = (
        "import sys; sys.path.insert(0, 'benchmarks'); sys.argv.append('--pure'); import leak; "
        "leak.ALLOWED = -(1 << 40); sys.exit(leak.watch(640))"
    )
    assert run(clone, "-c", nothing_allowed).returncode == 1
    refused = run(clone, "benchmarks/bench_steps.py", "--pure", "--leak", "1")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
