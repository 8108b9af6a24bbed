"""Fuzz target: any JSON is planned, or refused by one of this package's `ValueError`s.

python fuzz/fuzz_model_config.py fuzz/corpus/model_config        # with atheris installed

Input: a byte that picks the serving options, then the text of a config.json. A plan must fit its
memory, and each group's pages must fit the block.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from prefixhash.errors import InvalidArgumentError, PlanningError
from prefixhash.layout import plan_workers, read_model_config
from prefixhash.layout.picture import block_segments

_SERVING: tuple[dict[str, Any], ...] = (
    {},
    {"tensor_parallel": 2},
    {"kv_dtype": "fp8", "block_size": 32},
    {"state_cache_mode": "align", "speculative_tokens": 1},
)
# Larger numbers only cost time: a plan is linear in layers.
_LARGEST = 4096


def TestOneInput(data: bytes) -> None:
    if not data:
        return
    try:
        config = json.loads(data[1:])
    except (ValueError, RecursionError):
        return
    if not isinstance(config, dict) or _has_large_numbers(config):
        return
    memory = 1 << 30
    try:
        model = read_model_config(config, **_SERVING[data[0] % len(_SERVING)])
        stages = model.stages(min(2, model.num_hidden_layers))
        plans = plan_workers(stages, [memory] * len(stages), model.options(max_model_len=100))
    except (InvalidArgumentError, PlanningError):
        return
    for plan in plans:
        assert plan.total_bytes <= memory
        for segments in block_segments(plan):
            assert sum(s.end - s.start for s in segments) == plan.bytes_per_block


def _has_large_numbers(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_large_numbers, value.values()))
    if isinstance(value, list):
        return len(value) > _LARGEST or any(map(_has_large_numbers, value))
    return isinstance(value, (int, float)) and not abs(value) <= _LARGEST


if __name__ == "__main__":
    import atheris

    atheris.Setup(sys.argv, TestOneInput)
    atheris.Fuzz()
