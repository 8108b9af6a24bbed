"""The golden planning cases: what matches, what differs by which rule, and our value there."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ..conftest import DATA
from ..golden_layout import NULL_BLOCK, PLAIN, Result, compare, main, markdown

GOLDEN = DATA / "kv_layout.json"

# Case, rule, where, our value. Blocks of the latent models: 1473408 bytes (61 layers), 1039680.
OURS: list[tuple[str, int, str, Any]] = [
    # Rule 2: bytes of a block times blocks over all groups.
    ("plan/v4_pro", 2, "output.workers.0.bytes_needed_for_one_request", 1473408 * 3866),
    ("plan/v4_pro", 2, "output.workers.0.max_concurrency", 21862 / 3866),
    ("plan/v4_pro", 2, "output.scheduler.max_concurrency", 21862 / 3866),
    ("plan/v4_pro", 2, "output.scheduler.capacity_tokens", 21862 * 131072 // 3866),
    ("plan/v4_pro_mtp", 2, "output.workers.0.bytes_needed_for_one_request", 1473408 * 3866),
    ("plan/v4_pro_mtp", 2, "output.scheduler.max_concurrency", 21862 / 3866),
    ("plan/v4_flash", 2, "output.workers.0.bytes_needed_for_one_request", 1039680 * 3866),
    ("plan/v4_flash", 2, "output.workers.0.max_concurrency", 30982 / 3866),
    ("plan/v4_mini", 2, "output.workers.0.bytes_needed_for_one_request", 141696 * 250),
    ("plan/v4_mini", 2, "output.workers.0.max_concurrency", 7577 / 250),
    ("plan/v4_mini_override", 2, "output.workers.0.max_concurrency", 400 / 250),
    ("plan/v4_flash_pp2", 2, "output.workers.0.bytes_needed_for_one_request", 515520 * 3610),
    ("plan/v4_flash_pp2", 2, "output.workers.1.bytes_needed_for_one_request", 524160 * 3610),
    ("plan/v4_flash_pp2", 2, "output.workers.0.max_concurrency", 36873 / 3610),
    ("plan/v4_flash_pp2", 2, "output.workers.1.max_concurrency", 36873 / 3610),
    ("autofit/v4_flash", 2, "output.workers.0.bytes_needed_for_one_request", 1039680 * 7450),
    ("autofit/v4_flash", 2, "output.scheduler.max_concurrency", 20655 / 7450),
    ("estimate/gemma3_27b", 2, "output.per_layer.1", 10144),
    ("estimate/gemma3_27b", 2, "output.needed_per_layer", 15275130880),
    ("estimate/v4_flash", 2, "output.from_groups.0", 2500),
    ("estimate/v4_flash", 2, "output.needed_from_groups", 1039680 * 7450),
    # Rule 3.
    ("groups/padded_layer_needs_scaling", 3, "outcome.groups.1.specs.0.page_size_bytes", 65536),
    ("tuples/one_spec_object_for_two_layers", 3, "outcome.groups.1.layers", ["s0", "s1"]),
    # Rule 4.
    ("merge/full_head_v_differs", 4, "outcome", "IncompatibleLayersError: layers of one spec must "
     "be equal (head_size_v: 0: 192, 1: 128)"),
    ("merge/mla_rows_differ", 4, "outcome", "IncompatibleLayersError: layers of one spec must be "
     "equal (head_size: 0: 576, 1: 132)"),
    ("merge/mla_alignment_dropped", 4, "output.merged.alignment", 576),
    ("merge/swmla_same", 4, "output.merged.alignment", 576),
    ("uniform/swmla_slide_order2", 4, "output.uniform_type", True),
    ("groups/mla_two_rows_same_labels", 4, "output.groups.0.per_layer", True),
    ("groups/mla_two_rows_same_labels", 4, "output.groups.0.specs.1.page_size_bytes", 16896),
    # Rule 5.
    ("plan/pp_empty_stage", 5, "outcome.num_blocks", (4 << 30) // (48 * 32768)),
    ("plan/pp_empty_stage", 5, "outcome.workers.1.tensors", []),
    ("plan/pp_empty_stage_uniform_type", 5, "outcome.num_blocks", 1396),
    ("plan/pp_empty_stage_uniform_type", 5, "outcome.workers.1.bytes_per_block", 0),
    ("plan/pp_empty_stage_packed", 5, "outcome.num_blocks", 7577),
    ("plan/pp_empty_stage_packed", 5, "outcome.workers.1.tensors", []),
    ("project/uniform_type_none", 5, "output.groups.0.page_size_bytes", 0),
    ("project/draft_flag", 5, "output.groups.5.specs", []),
    ("project/draft_flag_lost", 5, "output.groups.1.specs", []),
    ("packed/all_empty", 5, "outcome.num_blocks", 1),
    ("packed/no_groups", 5, "outcome.tensors", []),
    ("layout/empty_group_only", 5, "outcome.num_blocks", 1),
    # Rule 6.
    ("groups/qwen3_next_big_draft", 6, "outcome.groups.0.specs.0.page_size_bytes", 2 * 1114112),
    ("view/states_misaligned", 6, "output.num_blocks", 4),
    ("view/states_odd_page", 6, "output.views.m.0.stride.0", 25),
    ("view/states_odd_page", 6, "output.views.m.1.stride.0", 50),
    ("view/states_packed", 6, "output.views.m1.0.stride.0", 1024),
    ("view/states_packed", 6, "output.views.m1.1.storage_offset", 256 + 12),
    # Rule 7: tokens before heads in the logical shape, heads outside in memory.
    ("view/hybrid_packed_hnd", 7, "output.views.f1.0.shape.2", 16),
    ("view/hybrid_packed_hnd", 7, "output.views.f1.0.shape.3", 2),
    ("view/hybrid_packed_hnd", 7, "output.views.f1.0.stride.3", 16 * 8),
    # Rule 8.
    ("page/slide_int4_per_token_head", 8, "output.page_size_bytes", 16 * 8 * 2 * (64 + 4)),
    ("page/slide_int4_per_token_head", 8, "output.unpadded_page_size_bytes", 16 * 8 * 2 * 64),
    ("page/mla_656_with_compress_ratio", 8, "output.page_size_bytes", 64 * 656),
    ("view/mla_656_unlabelled", 8, "output.views.a.0.shape", [2, 64, 656]),
    # Rule 10.
    ("groups/gpt_oss_hidden_state_too_wide", 10, "outcome", "IncompatiblePageSizesError: one token "
     "of the hidden states exceeds the common page: use larger blocks (bytes per page: "
     "{'hs': 138240, 'others': 32768})"),
    ("plan/cross_only_zero_encoder", 10, "outcome", "NotEnoughMemoryError: worker 0: one request "
     "of max_model_len=8192 tokens does not fit in available_memory: 81920 bytes needed, 100 "
     "available, 0 of them for the null block; not even one token fits"),
    ("plan/v4_mini_with_ordinary_layer", 10, "outcome.workers.0.group_layers.5", ["x"]),
    ("plan/v4_mini_with_ordinary_layer", 10, "outcome.workers.0.bytes_per_block", 141696),
    ("plan/v4_mini_with_hidden_state", 10, "output.num_blocks", 42949672960 // 141696),
    ("plan/v4_mini_with_hidden_state", 10, "output.workers.0.bytes_per_block", 141696),
    # Rule 11.
    ("page/mla_compress_not_dividing", 11, "outcome", "InvalidArgumentError: compress_ratio=128: "
     "must divide block_size=100"),
    *(
        (f"plan/one_layer_override_{name}", 11, "outcome", "InvalidArgumentError: "
         f"num_blocks_override={value}: must be an integer of at least 1, or None")
        for name, value in [("zero", 0), ("negative", -1)]
    ),
    *(
        (name, 11, "outcome", f"InvalidArgumentError: available_memory={value}: must be an "
         "integer of at least 1: give the bytes that are left for the KV cache")
        for name, value in [
            ("packed/zero_memory", 0),
            ("packed/negative_memory", -1),
            ("layout/one_group_zero", 0),
            ("layout/one_group_negative", -1),
            ("layout/uniform_type_single_negative", -1),
        ]
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def golden() -> Any:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def results(golden: Any) -> dict[str, Result]:
    return {result.case_id: result for result in compare(golden)}


def test_every_case_matches_or_has_a_rule(results: dict[str, Result]) -> None:
    assert Counter(result.how for result in results.values()) == {
        PLAIN: 298,
        NULL_BLOCK: 70,
        None: 46,
    }
    assert not [result for result in results.values() if None in result.rules]


def test_every_difference_has_an_asserted_value(results: dict[str, Result]) -> None:
    differing = {(name, rule) for name, result in results.items() for rule in result.rules}
    assert {(name, rule) for name, rule, _, _ in OURS} == differing


@pytest.mark.parametrize(("name", "rule", "path", "value"), OURS)
def test_our_value(
    results: dict[str, Result], name: str, rule: int, path: str, value: object
) -> None:
    found = [
        _at(difference.ours, path.removeprefix(difference.path).strip("."))
        for difference in results[name].differences
        if difference.rule == rule and f"{path}.".startswith(f"{difference.path}.")
    ]
    assert found == [value]


def test_names_of_cases_decide_nothing(golden: Any, results: dict[str, Result]) -> None:
    renamed = copy.deepcopy(golden)
    for index, case in enumerate(renamed["cases"]):
        case["id"], case["title"], case["tags"] = str(index), "", []
        case.pop("note", None)
    again = compare(renamed)
    assert [(r.how, r.differences) for r in again] == [
        (r.how, r.differences) for r in results.values()
    ]


def test_a_difference_without_a_rule_is_shown(
    golden: Any, results: dict[str, Result], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runner has teeth: a wrong number of the reference is found, whatever the operation."""
    changed: dict[str, Any] = copy.deepcopy(golden)
    cases = {c["op"]: c for c in changed["cases"] if "output" in c and results[c["id"]].how}
    changed["cases"] = [_spoilt(case) for case in cases.values()]
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(changed), encoding="utf-8")
    assert main([str(path)]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith(f"matched 0 of {len(cases)}\n")
    assert f"rule None: NO RULE: {len(cases)} cases" in shown


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(GOLDEN)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == [
        "matched 368 of 414",
        "  298 plainly",
        "  70 with the null block counted",
    ]


def test_the_readme_has_the_counts(results: dict[str, Result]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert markdown(list(results.values())) in readme


def _spoilt(case: Any) -> Any:
    """A copy of a case in whose output one name, or every number and truth value, is wrong."""

    def change(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: change(v) for key, v in item.items()}
        if isinstance(item, list):
            return [change(v) for v in item]
        if isinstance(item, bool):
            return not item
        return item + 7 if isinstance(item, (int, float)) else item

    output = copy.deepcopy(case["output"])
    groups = output.get("groups") or output.get("global_groups")
    if groups:
        groups[0]["layers"][0] += "x"
    elif "merged" in output:
        output["merged"]["page_size_bytes"] += 7
    else:
        output = change(output)
    return {**case, "output": output}


def _at(value: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value
