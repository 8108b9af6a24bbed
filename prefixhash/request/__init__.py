"""Requests: tokens, adapter, media, embeddings, salt, and the hashes of their full blocks."""

from __future__ import annotations

from prefixhash.request.fields import LoRARequest, MultiModalFeature, PlaceholderRange
from prefixhash.request.request import Request, TokenIds

__all__ = ["LoRARequest", "MultiModalFeature", "PlaceholderRange", "Request", "TokenIds"]
