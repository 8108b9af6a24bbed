"""Feeds every corpus file, and some random bytes, to its fuzz target, without the fuzzer."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz"
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py"))


def target(name: str) -> Callable[[bytes], None]:
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FUZZ / f"fuzz_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run: Callable[[bytes], None] = module.TestOneInput
    return run


@pytest.mark.parametrize("name", TARGETS)
def test_every_corpus_file_passes(name: str) -> None:
    files = sorted((FUZZ / "corpus" / name).iterdir())
    assert files, "a target without seeds"
    run = target(name)
    for file in files:
        run(file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_random_bytes_pass(name: str) -> None:
    rng = random.Random(name)
    run = target(name)
    for _ in range(200):
        run(rng.randbytes(rng.choice((1, 10, 100, 400))))
