"""Requests: tokens, adapter, media, embeddings, salt, and the hashes of their full blocks."""

from __future__ import annotations

from prefixhash._compiled import prefer_twins

prefer_twins(__path__, "request")

from prefixhash.request.fields import LoRARequest, MultiModalFeature, PlaceholderRange
from prefixhash.request.lines import RequestLine, read_request_lines
from prefixhash.request.request import Request, TokenIds

__all__ = [
    "LoRARequest",
    "MultiModalFeature",
    "PlaceholderRange",
    "Request",
    "RequestLine",
    "TokenIds",
    "read_request_lines",
]
