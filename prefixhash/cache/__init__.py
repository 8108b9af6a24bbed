"""Attention types and the prefix cache that a scheduler embeds."""

from __future__ import annotations

from prefixhash._compiled import prefer_twins

prefer_twins(__path__, "cache")

from prefixhash.cache.groups import CacheGroup
from prefixhash.cache.interface import CachedRequest, CacheHit
from prefixhash.cache.options import CacheOptions
from prefixhash.cache.prefix_cache import PrefixCache
from prefixhash.cache.stats import CacheStats

__all__ = ["CacheGroup", "CacheHit", "CacheOptions", "CacheStats", "CachedRequest", "PrefixCache"]
