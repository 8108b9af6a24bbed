"""KV events: what became findable in a cache and what ceased to be, told to others.

Records, the log that a pool keeps, the index on a consumer's side, recordings and their check.
`prefixhash.events.codec` (extra `events`) reads and writes vLLM's wire format.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from prefixhash.events.index import EventIndex
from prefixhash.events.records import (
    MEDIUM_CPU,
    MEDIUM_GPU,
    MEDIUM_STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    StoredTokens,
)

if TYPE_CHECKING:
    from prefixhash.events.checks import EventReport, check_events
    from prefixhash.events.recordings import Message, read_messages

__all__ = [
    "MEDIUM_CPU",
    "MEDIUM_GPU",
    "MEDIUM_STORAGE",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "EventIndex",
    "EventReport",
    "Message",
    "StoredTokens",
    "check_events",
    "read_messages",
]

# Imported when first used: a pool that keeps a log reads no files.
_LAZY = {
    "EventReport": "checks",
    "Message": "recordings",
    "check_events": "checks",
    "read_messages": "recordings",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
