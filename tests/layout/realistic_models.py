"""The golden plans of real models, planned here from their `config.json`.

`python -m tests.layout.realistic_models` prints the table as Markdown. The reference counts the
null block as usable, so that its requests at a time (over its own sum of blocks) are slightly
higher.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prefixhash.layout import (
    FullAttentionSpec,
    KVCachePlan,
    LayerSpec,
    plan_workers,
    read_model_config,
)

DATA = Path(__file__).parents[1] / "data"
CONFIGS = DATA / "configs"
GIB = 1 << 30


class Case(NamedTuple):
    """A golden plan and how its model is read: config, arguments, pipeline, a draft layer."""

    title: str
    golden: str
    config: str
    serving: Mapping[str, Any] = {}
    partition: tuple[int, ...] = ()
    draft: bool = False


# Plans that are in the table, then those that only the tests look at.
CASES = (
    Case("Llama-3.1-8B", "plan/llama31_8b", "llama-3.1-8b"),
    Case("Llama-3.1-8B, FP8 KV", "plan/llama31_8b_fp8", "llama-3.1-8b", {"kv_dtype": "fp8"}),
    Case("Llama-3.1-70B, TP 8", "plan/llama31_70b_tp8", "llama-3.1-70b", {"tensor_parallel": 8}),
    Case("gpt-oss-20b, longest length", "autofit/gpt_oss_20b", "gpt-oss-20b"),
    Case("gpt-oss-20b and a draft layer", "plan/gpt_oss_20b_draft", "gpt-oss-20b", draft=True),
    Case("Gemma-3-27B", "plan/gemma3_27b", "gemma-3-27b-it"),
    Case("Gemma-3-27B, PP 2", "plan/gemma3_27b_pp2", "gemma-3-27b-it", {}, (31, 31)),
    Case("Llama-4-Scout", "plan/llama4_scout_hybrid", "llama-4-scout"),
    Case("DeepSeek-V3", "plan/deepseek_v3", "deepseek-v3"),
    Case("DeepSeek-V3.2, FP8 KV", "plan/deepseek_v32", "deepseek-v3.2", {"kv_dtype": "fp8"}),
    Case("DeepSeek-V4-Pro", "plan/v4_pro", "deepseek-v4-pro"),
    Case("DeepSeek-V4-Flash", "plan/v4_flash", "deepseek-v4-flash"),
    Case("Jamba-v0.1", "plan/jamba", "jamba-v0.1"),
    Case(
        "Qwen3-Next-80B-A3B",
        "plan/qwen3_next_align",
        "qwen3-next-80b-a3b",
        {"state_cache_mode": "align"},
    ),
    Case(
        "Nemotron-Nano-9B-v2, BF16 states",
        "plan/nemotron_nano",
        "nemotron-nano-9b-v2",
        {"state_dtype": "bfloat16"},
    ),
    Case("Kimi-Linear-48B-A3B", "plan/kimi_linear", "kimi-linear-48b-a3b"),
    Case("Whisper-large-v3", "plan/whisper", "whisper-large-v3"),
    Case("Falcon-Mamba-7B", "plan/falcon_mamba", "falcon-mamba-7b", {"max_model_len": 8192}),
)
MORE_CASES = (
    Case("", "plan/llama31_8b_block_32", "llama-3.1-8b", {"block_size": 32}),
    Case("", "plan/gemma3_27b_pp4", "gemma-3-27b-it", {}, (16, 16, 16, 14)),
    Case("", "plan/gemma4_31b_like", "gemma-4-31b-like"),
    Case("", "plan/deepseek_v32_pp2", "deepseek-v3.2", {"kv_dtype": "fp8"}, (31, 30)),
    Case("", "plan/v4_flash_pp2", "deepseek-v4-flash", {}, (22, 21)),
    Case("", "plan/qwen3_next_all", "qwen3-next-80b-a3b", {"state_cache_mode": "all"}),
    Case(
        "",
        "plan/qwen3_next_align_spec2",
        "qwen3-next-80b-a3b",
        {"state_cache_mode": "align", "speculative_tokens": 2},
    ),
    Case("", "autofit/qwen3_next", "qwen3-next-80b-a3b", {"state_cache_mode": "align"}),
    Case("", "autofit/deepseek_v32", "deepseek-v3.2", {"kv_dtype": "fp8"}),
    Case("", "autofit/whisper", "whisper-large-v3"),
    Case("", "autofit/llama8b_8gib", "llama-3.1-8b"),
)


def golden_plans() -> dict[str, Any]:
    """The golden plan cases by id."""
    golden = json.loads((DATA / "kv_layout.json").read_text(encoding="utf-8"))
    return {case["id"]: case for case in golden["cases"] if case["op"] == "plan"}


def planned(case: Case, golden: Mapping[str, Any], *, count_null: bool) -> tuple[KVCachePlan, ...]:
    """Our plans of a golden case's workers, from the model's config."""
    model = read_model_config(CONFIGS / f"{case.config}.json", **case.serving)
    given = golden["input"]["options"]
    options = model.options(
        max_model_len=given["max_model_len"],
        auto_fit=given.get("auto_fit", False),
        count_null_block=count_null,
    )
    stages = model.stages(len(case.partition) or 1, case.partition or None)
    workers: list[dict[str, LayerSpec]] = [s for s in stages for _ in range(model.tensor_parallel)]
    memory = [worker["available_memory"] for worker in golden["input"]["workers"]]
    if case.draft:
        workers[0]["draft.0.attn"] = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=64)
    return plan_workers(workers[: len(memory)], memory, options)


def group_sizes(groups: list[int]) -> str:
    """`6x9+2x8` for nine-layer and eight-layer groups, in their order."""
    text: list[str] = []
    for index, size in enumerate(groups):
        if index and groups[index - 1] == size:
            continue
        run = next((i for i, s in enumerate(groups[index:]) if s != size), len(groups) - index)
        text.append(f"{run}x{size}" if run > 1 else str(size))
    return " + ".join(text)


def reference_concurrency(golden: Mapping[str, Any]) -> float:
    """Requests at a time by the reference's blocks and per-group needs."""
    output = golden["output"]
    return float(output["num_blocks"] / sum(output["workers"][0]["blocks_needed_for_one_request"]))


def row(case: Case, golden: Mapping[str, Any]) -> list[str]:
    """One row of the table: ours, then the reference's in brackets where a column has both."""
    plan = planned(case, golden, count_null=False)[0]
    output = golden["output"]
    groups = [len(group["layers"]) for group in output["global_groups"]]
    memory = golden["input"]["workers"][0]["available_memory"]
    return [
        case.title,
        f"{memory / GIB:g} GiB",
        group_sizes(groups),
        f"{plan.bytes_per_block} ({output['workers'][0]['bytes_per_block']})",
        f"{plan.num_blocks} ({output['num_blocks']})",
        f"{plan.max_model_len} ({output['max_model_len']})",
        f"{plan.max_concurrency:.2f} ({reference_concurrency(golden):.2f})",
    ]


def table() -> str:
    """All rows as Markdown."""
    golden = golden_plans()
    header = ["Model", "Memory", "Layers per group", "Bytes per block", "Blocks"]
    header += ["Longest length", "Requests at a time"]
    rows = [header, ["---"] * len(header), *(row(case, golden[case.golden]) for case in CASES)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


if __name__ == "__main__":
    print(table())
