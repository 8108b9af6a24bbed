"""The compiled kernels, where they were built, and whether they are used.

A kernel is a twin of a Python module that stays the reference. The environment variable
PREFIXHASH_PURE decides when the package is imported: unset takes the compiled kernels where they
are, `1` the Python ones, `0` the compiled ones or raises ImportError. `native` is the hash chain
and the reading of token ids.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

SWITCH = "PREFIXHASH_PURE"


def _load() -> tuple[ModuleType | None, str]:
    """The kernel, or None and the reason."""
    switch = os.environ.get(SWITCH, "")
    if switch not in ("", "0", "1"):
        raise ImportError(f"{SWITCH}={switch}: must be unset, 0 or 1")
    if switch == "1":
        return None, f"{SWITCH}=1"
    try:
        return import_module("prefixhash._compiled.native"), ""
    except ImportError as error:
        if switch == "0":
            raise ImportError(
                f"{SWITCH}=0 asks for the compiled kernels, which this installation lacks "
                f"({error}): install again with PREFIXHASH_BUILD=native to see why"
            ) from error
        return None, f"{error}; PREFIXHASH_BUILD=native says at install time what fails"


NATIVE, WHY_NOT = _load()
KERNEL = "python" if NATIVE is None else "native"


def kernel_features() -> dict[str, str]:
    """What computes each part, or why it is not compiled; for `prefixhash info` and benchmarks."""
    if NATIVE is None:
        return {"chain": f"python ({WHY_NOT})", "sha256": "hashlib", "xxh3_128": "xxhash package"}
    return {"chain": "native", "sha256": NATIVE.SHA256_SOURCE, "xxh3_128": NATIVE.XXH3_SOURCE}
