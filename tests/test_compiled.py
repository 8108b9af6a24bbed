"""Which kernels run: the switch, the reasons, and what must not be absent unnoticed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefixhash._compiled import KERNEL, NATIVE, SWITCH, WHY_NOT, why_no_twins
from prefixhash._compiled.twins import TWINS

ROOT = Path(__file__).parents[1]
REPORT = (
    "import json\n"
    "from prefixhash._compiled import KERNEL, WHY_NOT\n"
    "from prefixhash.hashing._chain import HashChain\n"
    "print(json.dumps([KERNEL, WHY_NOT, HashChain.__module__]))\n"
)
HIDE = "import sys; sys.modules['prefixhash._compiled.native'] = None\n"


def run(code: str, switch: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != SWITCH}
    if switch is not None:
        environment[SWITCH] = switch
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_native_kernel_is_there_when_it_is_expected() -> None:
    expected = os.environ.get(SWITCH) == "0" or os.environ.get("PREFIXHASH_BUILD") == "native"
    if not expected:
        pytest.skip(f"{SWITCH}=0 or PREFIXHASH_BUILD=native expects it")
    assert KERNEL == "native", WHY_NOT


@pytest.mark.parametrize("room", TWINS)
def test_twins_are_there_when_they_are_expected_and_of_the_present_source(room: str) -> None:
    package = importlib.import_module(f"prefixhash.{room}")
    for name in TWINS[room]:
        source = ROOT / "prefixhash" / room / f"{name}.py"
        assert source.exists()
        module = importlib.import_module(f"{package.__name__}.{name}")
        assert module.__file__ is not None
        if why_no_twins(room):
            assert Path(module.__file__) == source
        else:
            assert Path(module.__file__).parent == ROOT / "prefixhash" / "_compiled" / room
            newer = source.stat().st_mtime > Path(module.__file__).stat().st_mtime
            assert not newer, "build again: python setup.py build_ext --inplace"


def test_pure_takes_the_reference() -> None:
    done = run(REPORT, "1")
    assert json.loads(done.stdout) == ["python", f"{SWITCH}=1", "prefixhash.hashing._chain_py"]


@pytest.mark.skipif(NATIVE is None, reason="the compiled kernel is not in use")
@pytest.mark.parametrize("switch", [None, "", "0"])
def test_the_kernel_is_taken_where_it_is(switch: str | None) -> None:
    done = run(REPORT, switch)
    assert json.loads(done.stdout) == ["native", "", "prefixhash.hashing._chain_native"]


def test_a_missing_kernel_is_quiet_unless_it_is_asked_for() -> None:
    kernel, why_not, module = json.loads(run(HIDE + REPORT, None).stdout)
    assert (kernel, module) == ("python", "prefixhash.hashing._chain_py")
    assert "PREFIXHASH_BUILD=native" in why_not
    required = run(HIDE + REPORT, "0")
    assert required.returncode == 1
    assert f"ImportError: {SWITCH}=0 asks for the compiled kernels" in required.stderr


def test_an_unknown_state_of_the_switch_is_named() -> None:
    done = run(REPORT, "yes")
    assert f"{SWITCH}=yes: must be unset, 0 or 1" in done.stderr


LEAKS = """
import resource
from array import array
from prefixhash import InvalidRequestError
from prefixhash.hashing import ALGORITHMS
from prefixhash.request.tokens import token_array
from prefixhash.hashing._chain import HashChain

ids = list(range(10**6, 10**6 + 4096))
chains = [HashChain(algorithm) for algorithm in ALGORITHMS.values()]
extras = [("lora", "n" * 200, ("mm", "image", -5))] * 256

def resident_kib():
    # Not getrusage: its maximum is that of the process that started this one.
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024

def once():
    for chain in chains:
        chain.hash_tokens(b"p" * 32, ids, 16)
        chain(b"p" * 32, array("q", ids), 16, extras)
        chain(b"p" * 32, array("q", ids[:16]), 16, [("x" * 70_000,)])
        for held in (ids, tuple(ids), array("i", ids), array("q", ids)):
            token_array(held, "ids")
        for bad in ([*ids, -1], [*ids, 1.5], array("q", [*ids, -1]), memoryview(b"12").cast("c")):
            for call in (lambda: chain.hash_tokens(b"p", bad, 16), lambda: token_array(bad, "ids")):
                try:
                    call()
                except InvalidRequestError:
                    pass

for _ in range(5):
    once()
before = resident_kib()
for _ in range(100):
    once()
print(resident_kib() - before)
"""


@pytest.mark.skipif(NATIVE is None, reason="the compiled kernel is not in use")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_hashing_leaks_no_memory() -> None:
    done = run(LEAKS, "0")
    assert done.returncode == 0, done.stderr
    # In 100 rounds even the smallest piece of working memory, the digests, comes to over 3 MiB.
    assert int(done.stdout) < 2_000
