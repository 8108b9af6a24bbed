"""Model configs: every golden plan of a real model, what fields mean, and what errors say."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash.errors import (
    InvalidArgumentError,
    ModelConfigError,
    NotEnoughMemoryError,
    UnknownArchitectureError,
    UnsupportedCombinationError,
)
from prefixhash.layout import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    bytes_per_block,
    known_model_types,
    plan_kv_cache,
    read_model_config,
    specs_from_model_config,
    split_layers,
)

from .realistic_models import CASES, CONFIGS, MORE_CASES, Case, golden_plans, planned, row, table

GOLDEN = golden_plans()
ALL_CASES = (*CASES, *MORE_CASES)
GENERIC = {
    "model_type": "novel",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": 4096,
}


def config(name: str, **changes: Any) -> dict[str, Any]:
    """A config of tests/data/configs with fields replaced; None removes one."""
    fields = json.loads((CONFIGS / f"{name}.json").read_text())
    fields.update(changes)
    return {key: value for key, value in fields.items() if value is not ...}


def kinds(specs: dict[str, LayerSpec]) -> str:
    """F full, S sliding, C chunked, L latent, M state, one letter per layer."""
    letters = {
        FullAttentionSpec: "F",
        SlidingWindowSpec: "S",
        ChunkedLocalAttentionSpec: "C",
        MLAAttentionSpec: "L",
        MambaSpec: "M",
    }
    return "".join(letters[type(spec)] for spec in specs.values())


def only(specs: dict[str, LayerSpec]) -> Any:
    """The spec that all layers share."""
    assert len(set(specs.values())) == 1
    return next(iter(specs.values()))


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.golden)
def test_config_gives_the_golden_plan(case: Case) -> None:
    golden = GOLDEN[case.golden]["output"]
    plans = planned(case, GOLDEN[case.golden], count_null=True)
    assert [p.bytes_per_block for p in plans] == [w["bytes_per_block"] for w in golden["workers"]]
    assert {p.num_blocks for p in plans} == {golden["num_blocks"]}
    assert plans[0].max_model_len == golden["max_model_len"]
    wanted = golden["workers"][0]["blocks_needed_for_one_request"]
    assert list(plans[0].blocks_needed()) == wanted
    layers = [sum(len(p.groups[i].layer_names) for p in plans) for i in range(len(wanted))]
    ranks = len(plans) // (len(case.partition) or 1)
    assert layers == [len(g["layers"]) * ranks for g in golden["global_groups"]]


def test_golden_case_that_does_not_fit_does_not_fit_here() -> None:
    specs = specs_from_model_config(CONFIGS / "qwen3-8b.json")
    case = GOLDEN["plan/qwen3_8b_too_small"]
    options = read_model_config(config("qwen3-8b")).options(max_model_len=40960)
    with pytest.raises(NotEnoughMemoryError) as caught:
        plan_kv_cache(specs, case["input"]["workers"][0]["available_memory"], options)
    assert caught.value.needed == case["error"]["per_worker"][0]["bytes_needed"]


def test_table_has_a_row_per_case_and_ours_equals_the_reference() -> None:
    assert table().count("\n") == len(CASES) + 1
    for case in CASES:
        cells = row(case, GOLDEN[case.golden])
        for cell in cells[3:5]:
            ours, reference = cell.rstrip(")").split(" (")
            assert ours == reference


@pytest.mark.parametrize(
    ("name", "kv_dtype", "expected"),
    [
        ("llama-3.1-8b", "auto", 2097152),
        ("llama-3.1-8b", "float16", 2097152),
        ("llama-3.1-8b", "float32", 4194304),
        ("llama-3.1-8b", "fp8_e5m2", 1048576),
        ("llama-3.1-8b", "nvfp4", 32 * 16 * 8 * 2 * (64 + 8)),
        ("llama-3.1-8b", "int8_per_token_head", 32 * 16 * 8 * 2 * (128 + 4)),
        ("deepseek-v3", "fp8", 61 * 64 * 576),
        ("deepseek-v3.2", "auto", 61 * 64 * (1152 + 132)),
        ("deepseek-v3.2", "fp8_ds_mla", 61 * 64 * (656 + 132)),
        # One block id in each of 6 groups of 5 layers with windows and one of 5 without.
        ("gemma-3-4b-it", "auto", 7 * 5 * 16 * 4 * 256 * 4),
        ("whisper-large-v3", "auto", 32 * 16 * 20 * 64 * 4),
        ("qwen3-next-80b-a3b", "auto", 4 * 12 * 544 * 2 * 256 * 4),
    ],
)
def test_bytes_per_block(name: str, kv_dtype: str, expected: int) -> None:
    assert bytes_per_block(CONFIGS / f"{name}.json", kv_dtype=kv_dtype) == expected


def test_bytes_of_a_block_need_one_size_of_blocks() -> None:
    fields = config("qwen3-next-80b-a3b")
    # 512 is taken as a unit, as engines do.
    with pytest.raises(UnsupportedCombinationError, match="use block_size=1024"):
        bytes_per_block(fields, 512)
    assert bytes_per_block(fields, 544) == bytes_per_block(fields)
    assert bytes_per_block(config("llama-3.1-8b"), 512) == 32 * 2097152
    assert bytes_per_block(config("llama-3.1-70b"), tensor_parallel=8) == 655360
    with pytest.raises(UnsupportedCombinationError, match="one block has no size"):
        bytes_per_block(config("deepseek-v4-pro"))


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [("llama-3.1-8b", "fp8_ds_mla"), ("deepseek-v3", "fp8_ds_mla"), ("deepseek-v3", "nvfp4")],
)
def test_kv_dtype_without_a_kernel_is_refused(name: str, kv_dtype: str) -> None:
    with pytest.raises(UnsupportedCombinationError, match=kv_dtype):
        read_model_config(config(name), kv_dtype=kv_dtype)


def test_unknown_kv_dtype_names_the_argument() -> None:
    with pytest.raises(InvalidArgumentError, match="kv_dtype='fp7'"):
        read_model_config(config("llama-3.1-8b"), kv_dtype="fp7")


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "bfloat16"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
    ],
)
def test_auto_honours_the_checkpoints_kv_scheme(quantization: Any, expected: str) -> None:
    fields = config("llama-3.1-8b", quantization_config=quantization)
    assert read_model_config(fields).kv_dtype == expected
    assert read_model_config(fields, kv_dtype="bfloat16").kv_dtype == "bfloat16"


def test_unknown_kv_scheme_is_not_guessed() -> None:
    fields = config("llama-3.1-8b", quantization_config={"kv_cache_scheme": {"num_bits": 3}})
    with pytest.raises(ModelConfigError, match="pass kv_dtype"):
        read_model_config(fields)
    assert read_model_config(fields, kv_dtype="fp8").kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("named", "expected"),
    [("float16", "float16"), ("torch.bfloat16", "bfloat16"), ("float32", "bfloat16")],
)
def test_model_dtype(named: str, expected: str) -> None:
    fields = config("llama-3.1-8b", torch_dtype=named)
    assert only(specs_from_model_config(fields)).dtype == expected


def test_dtype_is_found_in_either_part_and_may_be_overridden() -> None:
    fields = config("gemma-3-27b-it", torch_dtype=...)
    fields["text_config"]["dtype"] = "float16"
    assert read_model_config(fields).kv_dtype == "float16"
    assert read_model_config(fields, model_dtype="float32").kv_dtype == "float32"
    with pytest.raises(ModelConfigError, match="unknown dtype"):
        read_model_config(config("llama-3.1-8b", torch_dtype="int3"))


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_kv_heads_are_shared_then_replicated(ranks: int, heads: int) -> None:
    specs = specs_from_model_config(config("llama-3.1-70b"), tensor_parallel=ranks)
    assert only(specs).num_kv_heads == heads


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("llama-3.1-8b", 3),
        ("llama-3.1-8b", 12),
        # 32 query heads: KV heads alone could be replicated.
        ("llama-3.1-8b", 64),
        ("deepseek-v3", 3),
        ("whisper-large-v3", 8),
        ("jamba-v0.1", 3),
    ],
)
def test_uneven_ranks_are_refused(name: str, ranks: int) -> None:
    with pytest.raises(UnsupportedCombinationError, match=f"tensor_parallel={ranks}"):
        read_model_config(config(name), tensor_parallel=ranks)


def test_latent_rows_are_the_same_on_every_rank() -> None:
    alone = specs_from_model_config(config("deepseek-v3.2"))
    assert specs_from_model_config(config("deepseek-v3.2"), tensor_parallel=16) == alone


def test_groups_of_a_state_are_replicated_where_ranks_do_not_divide_them() -> None:
    fields = config("nemotron-nano-9b-v2")
    heads, head, state = (
        fields[name] for name in ("mamba_num_heads", "mamba_head_dim", "ssm_state_size")
    )
    assert fields["n_groups"] == 8
    shapes = {}
    for ranks in (8, 16):
        specs = specs_from_model_config(
            {**fields, "num_attention_heads": 64}, tensor_parallel=ranks
        )
        spec = next(spec for spec in specs.values() if isinstance(spec, MambaSpec))
        shapes[ranks] = spec.state_shapes
    assert shapes[8] == ((3, heads * head // 8 + 2 * state), (heads // 8, head, state))
    assert shapes[16] == ((3, heads * head // 16 + 2 * state), (heads // 16, head, state))


def test_an_indexer_key_has_a_scale_for_each_128_elements() -> None:
    specs = specs_from_model_config(config("deepseek-v3.2", index_head_dim=256))
    assert specs["layers.0.indexer"].page_size_bytes == 64 * (256 + 2 * 4)


def test_states_are_shared_between_ranks() -> None:
    specs = specs_from_model_config(config("qwen3-next-80b-a3b"), tensor_parallel=2)
    state = specs["layers.0.state"]
    assert isinstance(state, MambaSpec)
    assert state.state_shapes == ((3, 4096), (16, 128, 128))


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("mistral-7b-v0.1", {}, "S" * 32),
        ("mistral-7b-v0.1", {"sliding_window": ...}, "S" * 32),
        ("mistral-7b-v0.1", {"sliding_window": None}, "F" * 32),
        ("mistral-7b-v0.1", {"sliding_window": 0}, "F" * 32),
        ("mistral-nemo-12b", {}, "F" * 40),
        ("mixtral-8x7b", {}, "F" * 32),
        ("phi-3-mini-4k", {}, "S" * 32),
        ("qwen2.5-7b-instruct", {}, "F" * 28),
        ("qwen2.5-7b-instruct", {"use_sliding_window": True}, "F" * 28),
        (
            "qwen2.5-7b-instruct",
            {"use_sliding_window": True, "max_window_layers": 20},
            "F" * 20 + "S" * 8,
        ),
        ("qwen3-30b-a3b", {}, "F" * 48),
        ("llama-3.1-8b", {"sliding_window": 4096}, "S" * 32),
        ("llama-3.1-8b", {"sliding_window": 0}, "F" * 32),
        ("llama-3.1-8b", {"sliding_window": 4096, "use_sliding_window": False}, "F" * 32),
        ("gemma-2-27b", {}, "SF" * 23),
        ("gemma-3-4b-it", {}, ("SSSSSF" * 6)[:34]),
        ("gpt-oss-20b", {}, "SF" * 12),
        ("gpt-oss-20b", {"layer_types": ...}, "SF" * 12),
        ("gpt-oss-20b", {"layer_types": ["full_attention"] * 24}, "F" * 24),
        ("llama-4-scout", {}, "CCCF" * 12),
        ("deepseek-v3", {}, "L" * 61),
        ("qwen3-next-80b-a3b", {}, "MMMF" * 12),
        ("jamba-v0.1", {}, "MMMMFMMM" * 4),
        ("nemotron-nano-9b-v2", {}, "MMMMMMMMFMMMFMMMMFMMMMFMMMMMMMM"),
        ("falcon-mamba-7b", {}, "M" * 64),
        ("kimi-linear-48b-a3b", {}, "MMML" * 6 + "MML"),
    ],
)
def test_kinds_of_layers(name: str, changes: dict[str, Any], expected: str) -> None:
    assert kinds(specs_from_model_config(config(name, **changes))) == expected


def test_layers_that_share_kv_keep_nothing() -> None:
    fields = {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 30,
        "hidden_size": 2048,
        "num_kv_shared_layers": 10,
    }
    assert kinds(specs_from_model_config(fields)) == "SSSSF" * 4


def test_indexer_layers_that_reuse_a_choice_have_no_keys() -> None:
    fields = config("deepseek-v3.2", index_topk_freq=4)
    names = [name for name in specs_from_model_config(fields) if name.endswith("indexer")]
    assert [int(name.split(".")[1]) for name in names] == [0, 1, *range(5, 61, 4)]
    fields = config("deepseek-v3.2", index_topk_pattern="FS" * 30)
    names = [name for name in specs_from_model_config(fields) if name.endswith("indexer")]
    assert [int(name.split(".")[1]) for name in names] == [*range(0, 60, 2), 60]


def test_attention_block_grows_to_hold_a_state() -> None:
    fields = config("qwen3-next-80b-a3b")
    assert specs_from_model_config(fields)["layers.3.attn"].block_size == 544
    wide = specs_from_model_config(fields, state_dtype="float32")
    assert wide["layers.3.attn"].block_size == 1056
    assert {spec.page_size_bytes for spec in wide.values()} == {1056 * 2048}
    nemotron = config("nemotron-nano-9b-v2")
    specs = specs_from_model_config(nemotron, state_dtype="bfloat16")
    assert specs["layers.14.attn"].block_size == 672


def test_state_blocks_follow_the_mode() -> None:
    fields = config("jamba-v0.1")
    none = specs_from_model_config(fields, max_model_len=5000)
    assert none["layers.0.state"].block_size == 5000
    align = specs_from_model_config(fields, state_cache_mode="align")
    assert align["layers.0.state"].block_size == align["layers.4.attn"].block_size == 80
    alone = specs_from_model_config(config("falcon-mamba-7b"), state_cache_mode="align")
    assert only(alone).block_size == 16


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_scaling": {"type": "linear", "factor": float("nan")},
            },
            4096,
        ),
        ({"n_positions": 1024}, 1024),
        ({"max_sequence_length": 1024}, 1024),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default"},
                    "full_attention": {"rope_type": "linear", "factor": 8.0},
                },
            },
            32768,
        ),
        ({}, None),
    ],
)
def test_longest_length(fields: dict[str, Any], expected: int | None) -> None:
    base = {key: value for key, value in GENERIC.items() if key != "max_position_embeddings"}
    assert read_model_config({**base, **fields}).max_model_len == expected


def test_config_without_a_length_asks_for_one() -> None:
    model = read_model_config(config("falcon-mamba-7b"))
    with pytest.raises(InvalidArgumentError, match="max_model_len=None"):
        model.options()
    assert model.options(max_model_len=100).max_model_len == 100
    assert bytes_per_block(config("falcon-mamba-7b")) == 19922944


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (32, 1, [32]),
        (32, 4, [8, 8, 8, 8]),
        (61, 2, [31, 30]),
        (62, 4, [15, 16, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
        (5, 3, [2, 2, 1]),
    ],
)
def test_pipeline_split(layers: int, stages: int, expected: list[int]) -> None:
    assert split_layers(layers, stages) == expected


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_pipeline_split_is_even(sizes: tuple[int, int]) -> None:
    shares = split_layers(*sizes)
    assert sum(shares) == sizes[0]
    assert len(shares) == sizes[1]
    assert max(shares) - min(shares) <= 1


def test_stages_keep_order_and_lose_no_layer() -> None:
    model = read_model_config(config("nemotron-nano-9b-v2"))
    stages = model.stages(4)
    assert {name: spec for stage in stages for name, spec in stage.items()} == model.specs
    assert [len(stage) for stage in model.stages(56)].count(0) == 25
    assert len(read_model_config(config("llama-3.1-8b"), tensor_parallel=4).workers(2)) == 8


@pytest.mark.parametrize("partition", [(31, 30, 2), (60, 1), (62, 0, 0)])
def test_partition_must_add_up(partition: tuple[int, ...]) -> None:
    model = read_model_config(config("gemma-3-27b-it"))
    with pytest.raises(InvalidArgumentError, match="partition"):
        model.stages(2, partition)
    with pytest.raises(InvalidArgumentError, match="stages=63"):
        model.stages(63)


@pytest.mark.parametrize("part", ["text_config", "llm_config", "language_config"])
def test_decoder_part_of_multimodal_configs(part: str) -> None:
    wrapped = {"model_type": "novel_vision", part: config("llama-3.1-8b")}
    assert specs_from_model_config(wrapped) == specs_from_model_config(config("llama-3.1-8b"))
    nested = {"model_type": "novel_omni", "thinker_config": wrapped}
    assert specs_from_model_config(nested) == specs_from_model_config(config("llama-3.1-8b"))


def test_decoder_part_without_a_type_takes_it_from_the_whole() -> None:
    fields = config("gemma-3-27b-it")
    whole = specs_from_model_config(fields)
    del fields["text_config"]["model_type"]
    assert specs_from_model_config(fields) == whole


def test_unknown_architecture_with_plain_fields_is_read_and_marked() -> None:
    model = read_model_config(GENERIC)
    assert model.generic
    assert (only(model.specs).num_kv_heads, only(model.specs).head_size) == (2, 64)
    listed = {**GENERIC, "layer_types": ["sliding_attention", "full_attention"] * 2}
    assert kinds(specs_from_model_config({**listed, "sliding_window": 128})) == "SFSF"
    unused = {"use_sliding_window": False, "sliding_window": 4096, "compression_config": {"a": 1}}
    assert kinds(specs_from_model_config({**GENERIC, **unused, "q_lora_rank": 8})) == "FFFF"


def test_old_spellings() -> None:
    fields = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
    spec = only(specs_from_model_config(fields))
    assert (spec.num_kv_heads, spec.head_size) == (12, 64)
    chatglm = {"num_layers": 28, "multi_query_group_num": 2, "kv_channels": 128}
    spec = only(specs_from_model_config({"model_type": "chatglm", **chatglm, "seq_length": 8192}))
    assert (spec.num_kv_heads, spec.head_size) == (2, 128)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"num_key_value_heads": None}, ("num_key_value_heads",)),
        (
            {"num_hidden_layers": None, "hidden_size": None},
            ("num_hidden_layers", "head_dim"),
        ),
        ({"sliding_window": 4096}, ("sliding_window",)),
        ({"sliding_window": 4096, "use_sliding_window": True}, ("sliding_window",)),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, ("kv_lora_rank", "qk_rope_head_dim")),
        ({"mamba_d_state": 16}, ("mamba_d_state",)),
        ({"is_encoder_decoder": True}, ("is_encoder_decoder",)),
        ({"num_kv_shared_layers": 2}, ("num_kv_shared_layers",)),
        ({"multi_query": True}, ("multi_query",)),
        ({"model_type": None, "global_head_dim": 512}, ("global_head_dim",)),
    ],
)
def test_unknown_architecture_with_doubtful_fields_is_refused(
    changes: dict[str, Any], fields: tuple[str, ...]
) -> None:
    with pytest.raises(UnknownArchitectureError, match="unknown architecture") as caught:
        read_model_config({**GENERIC, **changes})
    assert caught.value.fields == fields
    assert all(name in str(caught.value) for name in fields)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.fields) == (str(caught.value), fields)


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("llama-3.1-8b", {"num_hidden_layers": ...}, "num_hidden_layers"),
        ("llama-3.1-8b", {"hidden_size": ...}, "hidden_size"),
        ("llama-3.1-8b", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama-3.1-8b", {"num_hidden_layers": "32"}, "num_hidden_layers"),
        ("llama-3.1-8b", {"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ("llama-3.1-8b", {"num_key_value_heads": True}, "num_key_value_heads"),
        ("llama-3.1-8b", {"hidden_size": 4100}, "head_dim"),
        ("llama-3.1-8b", {"num_key_value_heads": -8}, "num_key_value_heads"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"] * 23}, "layer_types"),
        ("gpt-oss-20b", {"layer_types": ["novel"] * 24}, "layer_types"),
        ("gpt-oss-20b", {"layer_types": "full_attention"}, "layer_types"),
        ("gpt-oss-20b", {"layer_types": [1] * 24}, "layer_types"),
        ("gpt-oss-20b", {"sliding_window": None}, "sliding_window"),
        ("deepseek-v3", {"kv_lora_rank": None}, "kv_lora_rank"),
        ("deepseek-v4-pro", {"compress_ratios": [128]}, "compress_ratios"),
        ("deepseek-v4-pro", {"compress_ratios": [16] * 61}, "compress_ratios"),
        ("nemotron-nano-9b-v2", {"hybrid_override_pattern": "M?"}, "hybrid_override_pattern"),
        ("nemotron-nano-9b-v2", {"hybrid_override_pattern": ...}, "hybrid_override_pattern"),
        ("nemotron-nano-9b-v2", {"hybrid_override_pattern": "--"}, "num_hidden_layers"),
        ("nemotron-nano-9b-v2", {"hybrid_override_pattern": -1}, "hybrid_override_pattern"),
        ("deepseek-v3.2", {"index_topk_pattern": 3}, "index_topk_pattern"),
        ("kimi-linear-48b-a3b", {"linear_attn_config": None}, "linear_attn_config"),
        ("whisper-large-v3", {"d_model": 1281}, "d_model"),
        ("jamba-v0.1", {"hidden_size": ...}, "hidden_size"),
    ],
)
def test_bad_field_is_named(name: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        read_model_config(config(name, **changes))
    assert field in caught.value.fields
    assert field in str(caught.value)


def test_all_missing_fields_are_named_at_once() -> None:
    with pytest.raises(ModelConfigError) as caught:
        read_model_config({"model_type": "whisper", "decoder_layers": 4})
    assert caught.value.fields == ("decoder_attention_heads", "d_model")


def test_config_is_read_from_file_folder_or_object(tmp_path: Any) -> None:
    fields = config("llama-3.1-8b")
    (tmp_path / "config.json").write_text(json.dumps(fields))

    class Loaded:
        def to_dict(self) -> dict[str, Any]:
            return fields

    sources = (fields, str(tmp_path), tmp_path / "config.json", Loaded())
    assert len({only(specs_from_model_config(source)) for source in sources}) == 1
    with pytest.raises(InvalidArgumentError, match="config=7"):
        read_model_config(7)


@pytest.mark.parametrize("text", ["{", "[]", "\ufeff{}", "[" * 100_000, '{"a": \n}'])
def test_text_that_is_no_config_is_an_error_with_its_place(tmp_path: Any, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelConfigError, match=r"config\.json"):
        read_model_config(path)


def test_reading_changes_nothing() -> None:
    for path in CONFIGS.glob("*.json"):
        fields = json.loads(path.read_text())
        read_model_config(fields)
        assert fields == json.loads(path.read_text())


def test_every_known_type_is_read_or_says_what_it_lacks() -> None:
    assert len(known_model_types()) > 50
    for model_type in known_model_types():
        with pytest.raises(ModelConfigError) as caught:
            read_model_config({"model_type": model_type})
        assert caught.value.fields


_FUZZED_FIELDS = (
    "num_hidden_layers num_key_value_heads head_dim sliding_window layer_types hidden_size "
    "num_attention_heads compress_ratios hybrid_override_pattern text_config rope_scaling dtype "
    "quantization_config kv_lora_rank"
)


@given(
    st.dictionaries(
        st.sampled_from(_FUZZED_FIELDS.split()),
        st.none()
        | st.booleans()
        | st.integers(-2, 64)
        | st.floats()
        | st.text(max_size=4)
        | st.lists(st.integers(-1, 4) | st.sampled_from(["full_attention", "mamba"]), max_size=3)
        | st.dictionaries(st.sampled_from(["factor", "type", "kv_cache_scheme"]), st.integers()),
        max_size=8,
    ),
    st.sampled_from([*known_model_types(), "novel", ""]),
)
def test_any_config_is_read_or_refused_by_a_value_error(
    fields: dict[str, Any], model_type: str
) -> None:
    try:
        model = read_model_config({**fields, "model_type": model_type})
    except ValueError:
        return
    assert model.layers


def test_fields_of_other_architectures_do_no_harm() -> None:
    fields = config("falcon-mamba-7b", hybrid_override_pattern=-1)
    assert len(specs_from_model_config(fields)) == 64
