"""What a replay can run against: how much of the engine takes part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """One way to run a cache: `holds_blocks` tells whether its running requests do."""

    name: str
    meaning: str
    holds_blocks: bool


ENGINE = Level("engine", "the engine (tokens hashed, looked up, allocated, committed, freed)", True)
POOL = Level("pool", "the engine's pool, with the trace's ids as hashes", True)
CACHE = Level("cache", "a plain cache of the trace's ids", False)
LEVELS = {level.name: level for level in (ENGINE, POOL, CACHE)}
