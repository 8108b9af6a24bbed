"""Attention types and the prefix cache that a scheduler embeds."""

from __future__ import annotations

from prefixhash.cache.groups import CacheGroup
from prefixhash.cache.options import CacheOptions
from prefixhash.cache.prefix_cache import PrefixCache
from prefixhash.cache.stats import CacheStats
from prefixhash.cache.tables import CachedRequest, CacheHit

__all__ = ["CacheGroup", "CacheHit", "CacheOptions", "CacheStats", "CachedRequest", "PrefixCache"]
