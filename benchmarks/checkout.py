"""What every benchmark stands on; import it before the package.

Importing this module puts the checkout first on the path and loads the package with its compiled
kernels, or, where the command line says `--pure`, without any. A checkout whose kernels are not
built is not measured by mistake: that, and a module that an interpreter lacks, ends in one line.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
_PEER = "PREFIXHASH_PEER"  # what the interpreter that was handed over to must have


def cpu_name() -> str:
    """The processor's name, or its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pure", action="store_true", help="measure the Python code, uncompiled")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    return parser


def hand_over(variable: str, peer: str) -> int | None:
    """The exit status of the same command in the interpreter that the variable names, if it does.

    There both sides are measured; `peer` is the module that it must have.
    """
    interpreter = os.environ.pop(variable, None)
    if not interpreter:
        return None
    environment = {
        **os.environ,
        _PEER: peer,
        "PYTHONHASHSEED": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    try:
        return subprocess.run([interpreter, *sys.argv], env=environment).returncode
    except OSError as error:
        raise SystemExit(f"{variable}={interpreter}: {error.strerror}") from None


def _say_in_one_line(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, ImportError):
        print(f"{sys.executable}: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _load() -> None:
    sys.excepthook = _say_in_one_line
    sys.path.insert(0, str(ROOT))
    pure = "--pure" in sys.argv
    if not pure and os.environ.get("PREFIXHASH_PURE") == "1":
        raise SystemExit("PREFIXHASH_PURE=1 is set: give --pure to measure the Python code")
    os.environ["PREFIXHASH_PURE"] = "1" if pure else "0"
    peer = os.environ.pop(_PEER, None)
    if peer is not None and importlib.util.find_spec(peer) is None:
        raise SystemExit(f"{sys.executable} has no {peer}: install it there")
    try:
        importlib.import_module("prefixhash")
    except ImportError as error:
        if pure or error.name is not None:  # a module is lacking
            raise
        raise SystemExit(
            f"{error}\nThis checkout is what is measured, not what is installed: build its kernels "
            "(PREFIXHASH_BUILD=native pip install -e .), or give --pure to measure the Python code"
        ) from None


_load()
