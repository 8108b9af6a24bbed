"""Layer specs: page bytes, padding, needs, identity."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from prefixhash.errors import InvalidArgumentError, UnsupportedCombinationError
from prefixhash.layout import (
    INT4_PER_TOKEN_HEAD,
    LATENT_584,
    LATENT_656,
    PER_TOKEN_HEAD,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    PlanOptions,
    RowFormat,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    slot_packed,
    storage_of,
)

FULL = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
SLIDE = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, window=1024)
STATE = MambaSpec(block_size=64, state_shapes=((4, 8),), state_dtypes=("float32",))
ALL_KINDS: list[LayerSpec] = [
    FULL,
    SLIDE,
    STATE,
    ChunkedLocalAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, chunk=512),
    CrossAttentionSpec(block_size=16, num_kv_heads=20, head_size=64),
    EncoderOnlyAttentionSpec(block_size=16, num_kv_heads=12, head_size=64),
    MLAAttentionSpec(block_size=64, head_size=576),
    HiddenStateSpec(block_size=16, num_kv_heads=3, head_size=1024),
    SlidingWindowMLASpec(block_size=64, head_size=512, dtype="uint8", window=128),
]


def test_page_of_full_attention() -> None:
    assert FULL.page_size_bytes == 16 * 8 * (128 + 128) * 2


def test_value_width_defaults_to_the_key_width() -> None:
    given = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, head_size_v=128)
    assert given == FULL
    assert hash(given) == hash(FULL)


@pytest.mark.parametrize("kind", [FullAttentionSpec, ChunkedLocalAttentionSpec, SlidingWindowSpec])
def test_four_bit_rows_halve_the_page_in_every_kind(kind: type) -> None:
    extra: dict[type, dict[str, int]] = {
        SlidingWindowSpec: {"window": 9},
        ChunkedLocalAttentionSpec: {"chunk": 9},
    }
    spec = kind(
        block_size=16,
        num_kv_heads=8,
        head_size=128,
        dtype="uint8",
        row=INT4_PER_TOKEN_HEAD,
        **extra.get(kind, {}),
    )
    assert spec.page_size_bytes == 16 * 8 * 2 * (64 + 4)
    assert spec.scale_size_bytes == 2 * 16 * 8 * 4


def test_latent_rows_carry_one_scale_each() -> None:
    spec = MLAAttentionSpec(
        block_size=64, head_size=576, dtype="uint8", compress_ratio=4, row=PER_TOKEN_HEAD
    )
    assert spec.page_size_bytes == 16 * (576 + 4)


def test_opaque_rows() -> None:
    v32 = MLAAttentionSpec(block_size=64, head_size=576, dtype="uint8", row=LATENT_656)
    v4 = MLAAttentionSpec(
        block_size=256,
        head_size=512,
        dtype="uint8",
        row=LATENT_584,
        compress_ratio=4,
        alignment=576,
    )
    turbo = FullAttentionSpec(
        block_size=16, num_kv_heads=4, head_size=256, dtype="uint8", row=slot_packed(388)
    )
    assert (v32.page_size_bytes, v4.page_size_bytes) == (64 * 656, 37440)
    assert (v4.rows_per_block, v4.content_size_bytes) == (64, 37376)
    assert turbo.page_size_bytes == 16 * 4 * 388


def test_padding_and_alignment_return_new_values() -> None:
    padded, aligned = FULL.padded_to(70000), FULL.aligned_to(1000)
    assert (padded.page_size_bytes, aligned.page_size_bytes) == (70000, 66000)
    assert FULL.page_size_bytes == FULL.content_size_bytes == 65536
    assert padded.with_block_size(32).page_size_bytes == 140000
    assert FULL.padded_to(65536) is FULL


def test_state_page_ignores_the_block_size_and_suits_every_element() -> None:
    odd = MambaSpec(
        block_size=64, state_shapes=((4, 6), (1, 1)), state_dtypes=("float32", "bfloat16")
    )
    assert STATE.with_block_size(640).page_size_bytes == STATE.page_size_bytes == 128
    assert odd.page_size_bytes == 100
    with pytest.raises(InvalidArgumentError, match="multiple of 4"):
        odd.padded_to(102)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("block_size", {"block_size": 0}),
        ("block_size", {"block_size": True}),
        ("num_kv_heads", {"num_kv_heads": -1}),
        ("page_size_padded", {"page_size_padded": 65535}),
        ("alignment", {"alignment": 0}),
        ("dtype", {"dtype": "int4"}),
        ("dtype", {"row": PER_TOKEN_HEAD}),
        ("recorded_window", {"recorded_window": 0}),
    ],
)
def test_bad_fields_are_named(argument: str, changes: dict[str, object]) -> None:
    fields = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, **changes}
    with pytest.raises(InvalidArgumentError) as error:
        FullAttentionSpec(**fields)  # type: ignore[arg-type]
    assert error.value.argument == argument


def test_a_ratio_must_divide_the_block() -> None:
    with pytest.raises(InvalidArgumentError, match="compress_ratio=128: must divide"):
        MLAAttentionSpec(block_size=100, head_size=512, compress_ratio=128)


def test_latent_rows_have_no_value_width() -> None:
    with pytest.raises(InvalidArgumentError, match="head_size_v"):
        MLAAttentionSpec(block_size=64, head_size=512, head_size_v=128)


def test_needs() -> None:
    options = PlanOptions(max_num_batched_tokens=64, max_encoder_tokens=1500)
    needs = [spec.block_need(options).at(1000) for spec in ALL_KINDS]
    assert needs == [63, 64, 1, 36, 94, 0, 16, 63, 4]


def test_the_window_reserve_is_capped_by_the_length() -> None:
    """PC-103: a window of 1024 reserves nothing for tokens past a maximal length of 128."""
    assert SLIDE.block_need(PlanOptions(max_num_batched_tokens=2048)).at(128) <= 9


def test_states_need_by_mode() -> None:
    spec = MambaSpec(
        block_size=100, state_shapes=((4,),), state_dtypes=("float32",), speculative_blocks=2
    )
    modes = ("none", "align", "all")
    needs = [spec.block_need(PlanOptions(state_cache_mode=mode)).at(1001) for mode in modes]
    assert needs == [3, 4, 13]


def test_sliding_windows_refuse_decode_context_parallelism() -> None:
    with pytest.raises(UnsupportedCombinationError, match="decode_context_parallel"):
        SLIDE.block_need(PlanOptions(decode_context_parallel=2))


def test_cross_attention_asks_for_the_encoder_length() -> None:
    with pytest.raises(InvalidArgumentError, match="max_encoder_tokens"):
        ALL_KINDS[4].block_need(PlanOptions())


@pytest.mark.parametrize("spec", ALL_KINDS, ids=lambda spec: spec.kind)
def test_specs_are_values(spec: LayerSpec) -> None:
    for twin in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert twin == spec
        assert hash(twin) == hash(spec)
    assert len(set(ALL_KINDS)) == len(ALL_KINDS)
    with pytest.raises(AttributeError):
        spec.block_size = 3  # type: ignore[misc]


def test_numpy_integers_are_kept_as_plain_ones() -> None:
    np = pytest.importorskip("numpy")
    window = SlidingWindowSpec(
        block_size=np.int32(16),
        num_kv_heads=np.uint8(8),
        head_size=np.int64(128),
        window=np.int8(9),
    )
    plain = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, window=9)
    assert (window, hash(window), repr(window)) == (plain, hash(plain), repr(plain))
    state = MambaSpec(
        block_size=np.int64(16), state_shapes=np.array([[4, 8]]), state_dtypes=["float32"]
    )
    assert repr(state.state_shapes) == "((4, 8),)"
    options = PlanOptions(max_model_len=np.int64(64), auto_fit=np.bool_(True))
    assert repr(options) == repr(PlanOptions(max_model_len=64, auto_fit=True))
    assert options.context_ranks * options.max_model_len == 64


def test_what_several_kinds_share_is_no_spec() -> None:
    with pytest.raises(UnsupportedCombinationError, match="FullAttentionSpec"):
        LayerSpec(block_size=16)


def test_a_pickled_spec_is_found_in_another_process() -> None:
    code = (
        "import pickle, sys; from prefixhash.layout import FullAttentionSpec;"
        "spec = pickle.loads(bytes.fromhex(sys.argv[1]));"
        "assert spec in {FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)}"
    )
    subprocess.run([sys.executable, "-c", code, pickle.dumps(FULL).hex()], check=True)


def test_storage_of_engine_types() -> None:
    assert storage_of("auto", "float16")[0] == "float16"
    assert storage_of("fp8")[0] == "uint8"
    assert storage_of("fp8_ds_mla")[1] == LATENT_656
    assert storage_of("float8_e4m3fn")[0] == "float8_e4m3fn"
    with pytest.raises(InvalidArgumentError, match="kv_dtype"):
        storage_of("fp3")


def test_row_formats_check_their_numbers() -> None:
    with pytest.raises(InvalidArgumentError, match="bits"):
        RowFormat(bits=3)
    with pytest.raises(InvalidArgumentError, match="fixed_bytes"):
        RowFormat(fixed_bytes=-1)


def test_planning_is_imported_on_first_use() -> None:
    code = (
        "import sys, prefixhash;"
        "assert not {'prefixhash.layout', 'torch', 'numpy'} & set(sys.modules);"
        "assert set(prefixhash.__all__) <= set(dir(prefixhash));"
        "assert all(getattr(prefixhash, name) is not None for name in prefixhash.__all__);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
