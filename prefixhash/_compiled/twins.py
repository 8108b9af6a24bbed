"""Which modules are compiled as they stand; read by setup.py, too."""

from __future__ import annotations

# Room -> its modules that have a compiled twin, in the folder of that name beside this file.
TWINS: dict[str, tuple[str, ...]] = {
    "cache": (
        "allocation",
        "cache_state",
        "checks",
        "managers",
        "prefix_cache",
        "publish",
        "scheduling",
        "search",
        "state_managers",
        "tables",
    ),
    "pool": ("block_pool", "index", "pool_state", "refusals"),
    "request": ("request",),
    "trace": ("_stack",),
}
