"""The trace formats: one class for each, most telling first (a bailian record is a mooncake record
with more keys)."""

from __future__ import annotations

from prefixhash.trace.formats.bailian import Bailian
from prefixhash.trace.formats.base import TraceFormat
from prefixhash.trace.formats.lmcache import LMCache
from prefixhash.trace.formats.mooncake import Mooncake
from prefixhash.trace.formats.tokens import Tokens
from prefixhash.trace.formats.weka import Weka

FORMATS: tuple[type[TraceFormat], ...] = (Weka, LMCache, Tokens, Bailian, Mooncake)
