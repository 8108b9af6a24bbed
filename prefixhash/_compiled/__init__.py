"""The compiled kernels, where they were built, and whether they are used.

Two kinds: `native` is written in C beside a Python reference (the hash chain, the reading of token
ids); the twins are Python modules of the package as they stand, compiled by Cython (TWINS names the
rooms). The environment variable PREFIXHASH_PURE decides when the package is imported: unset takes
what is there, `1` the Python code alone, `0` all compiled ones or raises ImportError.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, MutableSequence
from functools import partial
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from operator import mul
from pathlib import Path
from types import ModuleType

from prefixhash._compiled.twins import TWINS

SWITCH = "PREFIXHASH_PURE"
_HOME = Path(__file__).parent
_HINT = "PREFIXHASH_BUILD=native says at install time what fails"


def _switch() -> str:
    switch = os.environ.get(SWITCH, "")
    if switch not in ("", "0", "1"):
        raise ImportError(f"{SWITCH}={switch}: must be unset, 0 or 1")
    return switch


def _missing(what: str) -> str:
    """The reason why the Python code runs; an error if that is not allowed."""
    if _switch() == "0":
        raise ImportError(
            f"{SWITCH}=0 asks for the compiled kernels, which this installation lacks ({what}): "
            f"{_HINT}"
        )
    return f"{what}; {_HINT}"


def _load() -> tuple[ModuleType | None, str]:
    """The C kernel, or None and the reason."""
    if _switch() == "1":
        return None, f"{SWITCH}=1"
    try:
        return import_module("prefixhash._compiled.native"), ""
    except ModuleNotFoundError:
        return None, _missing("the C kernel is not built")
    except ImportError as error:  # built, but a library that it needs is not here
        return None, _missing(str(error))


def why_no_twins(room: str) -> str:
    """Why the modules of a room run interpreted; empty if they are compiled."""
    if _switch() == "1":
        return f"{SWITCH}=1"
    for module in TWINS[room]:
        if not any((_HOME / room / f"{module}{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
            return _missing(f"{room}/{module}.py is not built")
    return ""


def prefer_twins(path: MutableSequence[str], room: str) -> None:
    """Put the folder of the compiled modules before the sources on the path of a package.

    All of a room or none: they share C types.
    """
    if not why_no_twins(room):
        path.insert(0, str(_HOME / room))


def flat_type(module_file: str, typecode: str) -> Callable[[Iterable[int]], MutableSequence[int]]:
    """What holds many integers best: a list for interpreted code, C integers for compiled code."""
    return list if module_file.endswith(".py") else partial(array, typecode)


def flat_zeros(module_file: str, typecode: str) -> Callable[[int], MutableSequence[int]]:
    """The same, given how many zeros it shall hold."""
    if module_file.endswith(".py"):
        return partial(mul, [0])
    return lambda n: array(typecode, bytes(n * array(typecode).itemsize))


NATIVE, WHY_NOT = _load()
KERNEL = "python" if NATIVE is None else "native"


def kernel_features() -> dict[str, str]:
    """What computes each part, or why it is not compiled; for `prefixhash info` and benchmarks."""
    features = {"chain": f"python ({WHY_NOT})", "sha256": "hashlib", "xxh3_128": "xxhash package"}
    if NATIVE is not None:
        features = {
            "chain": "native",
            "sha256": NATIVE.SHA256_SOURCE,
            "xxh3_128": NATIVE.XXH3_SOURCE,
        }
    for room in TWINS:
        reason = why_no_twins(room)
        features[room] = f"python ({reason})" if reason else "compiled"
    return features
