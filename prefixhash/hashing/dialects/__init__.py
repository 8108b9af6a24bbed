"""The ways to hash that are known: one class each, in this table and nowhere else."""

from __future__ import annotations

from prefixhash.hashing.dialects.base import Dialect
from prefixhash.hashing.dialects.strict import Strict
from prefixhash.hashing.dialects.vllm import Vllm

DIALECTS: tuple[type[Dialect], ...] = (Strict, Vllm)
