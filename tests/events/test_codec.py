"""The wire format: what is written, and everything that engines in the field write."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import InvalidArgumentError
from prefixhash.events import AllBlocksCleared, BlockRemoved, BlockStored, EventIndex

from ..vllm import run_with_vllm

msgspec = pytest.importorskip("msgspec")
codec = pytest.importorskip("prefixhash.events.codec")

H = bytes(range(32))
U = int.from_bytes(H[-8:], "big")


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)  # type: ignore[no-any-return]


def test_encode_is_what_vllm_writes() -> None:
    report = run_with_vllm(Path(__file__).with_name("vllm_events.py"))
    assert report["equal"] == 12


def test_encode_stored_has_a_map16_header_and_the_type_first() -> None:
    payload = codec.encode_events([BlockStored((H,), None, (1, 2), 2, group_idx=0)], 2.5)
    # array of 3, float64 2.5, array of 1, map16 of 9 keys, a string of 4
    assert payload[:15] == b"\x93\xcb\x40\x04" + bytes(6) + b"\x91\xde\x00\x09" + b"\xa4"
    message = msgspec.msgpack.decode(payload)
    assert message[1][0] == {
        "type": "BlockStored",
        "block_hashes": [U],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
    }


def test_encode_hashes_as_bytes() -> None:
    payload = codec.encode_events([BlockRemoved((H,))], 0.0, 1, hashes_as_bytes=True)
    message = msgspec.msgpack.decode(payload)
    assert message == [0.0, [{"type": "BlockRemoved", "block_hashes": [H], "medium": "GPU"}], 1]


@pytest.mark.parametrize("bad", ["text", 1 << 64, -(1 << 63) - 1, 1.5])
def test_encode_refuses_other_hashes(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="64-bit"):
        codec.encode_events([BlockRemoved((bad,))], 0.0)


def test_encode_refuses_what_messagepack_lacks() -> None:
    event = BlockStored((H,), extra_keys=((object(),),))
    with pytest.raises(InvalidArgumentError, match="cannot be encoded"):
        codec.encode_events([event], 0.0)


V092 = ["BlockStored", [7, 8], 6, [1, 2, 3, 4], 2, None]


@pytest.mark.parametrize(
    ("wire", "fields"),
    [
        (V092, {"medium": None}),
        ([*V092, "GPU"], {"medium": "GPU"}),
        ([*V092, "GPU", "x"], {"medium": "GPU", "lora_name": "x"}),
        ([*V092, "GPU", None, [["k"], None]], {"medium": "GPU", "extra_keys": (("k",), None)}),
        (
            [*V092, "GPU", None, None, 1, "mamba", None],
            {"medium": "GPU", "group_idx": 1, "kv_cache_spec_kind": "mamba"},
        ),
        ([*V092, "CPU_PINNED", {"cache_salt": "s"}], {"medium": "CPU_PINNED"}),
    ],
)
def test_decode_arrays_of_every_release(wire: list[Any], fields: dict[str, Any]) -> None:
    batch = codec.decode_events(encode([1.0, [wire], 0]))
    assert batch.events == [BlockStored((7, 8), 6, (1, 2, 3, 4), 2, **fields)]
    assert (batch.ts, batch.data_parallel_rank) == (1.0, 0)


def test_decode_maps_with_unknown_and_missing_fields() -> None:
    wire = {
        "type": "BlockStored",
        "block_hashes": [-1, H],
        "parent_block_hash": -2,
        "token_ids": [1],
        "block_size": 1,
        "colour": "blue",
        "lookahead_token_ids": [[4, 5]],
    }
    batch = codec.decode_events(encode([1.0, [wire, {"type": "AllBlocksCleared"}]]))
    stored, cleared = batch.events
    assert stored == BlockStored(
        (2**64 - 1, H),
        2**64 - 2,
        (1,),
        1,
        medium=None,
        lookahead_token_ids=((4, 5),),
    )
    assert cleared == AllBlocksCleared()
    assert batch.data_parallel_rank is None


def test_decode_removed_in_both_forms() -> None:
    wire = [["BlockRemoved", [1], "GPU", 2], {"type": "BlockRemoved", "block_hashes": [1]}]
    first, second = codec.decode_events(encode([0.0, wire])).events
    assert first == BlockRemoved((1,), "GPU", 2)
    assert second == BlockRemoved((1,), None)
    assert codec.decode_events(encode([0.0, [["AllBlocksCleared"]]])).events == [AllBlocksCleared()]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode(5),
        encode([1.0]),
        encode([1.0, "events"]),
        encode([1.0, [5]]),
        encode([1.0, [[]]]),
        encode([1.0, [{"type": "BlockMoved", "block_hashes": []}]]),
        encode([1.0, [{"type": "BlockStored"}]]),
        encode([1.0, [["BlockStored", [1], None, 5]]]),
        encode([1.0, [["BlockStored", 1]]]),
        encode([1.0, [{"type": "BlockRemoved", "block_hashes": ["text"]}]]),
        b"\x91" * 100_000,
        None,
        "text",
    ],
)
def test_decode_refuses_what_is_no_message(payload: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"payload|block_hash"):
        codec.decode_events(payload)


text = st.none() | st.text(max_size=5)
hashes = st.integers(0, 2**64 - 1)
scalars = st.none() | st.text(max_size=3) | st.integers(-5, 5) | st.binary(max_size=3)
extras = st.none() | st.tuples(scalars, st.tuples(scalars))
stored = st.builds(
    BlockStored,
    st.lists(hashes, min_size=1, max_size=3).map(tuple),
    st.none() | hashes,
    st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    st.integers(0, 64),
    st.none() | st.integers(0, 9),
    text,
    text,
    st.none() | st.lists(extras, max_size=3).map(tuple),
    st.none() | st.integers(0, 5),
    text,
    st.none() | st.integers(1, 9),
    text,
    text,
    text,
    st.none() | st.lists(st.tuples(st.integers(0, 9)), max_size=2).map(tuple),
)
removed = st.builds(
    BlockRemoved,
    st.lists(hashes, max_size=3).map(tuple),
    text,
    st.none() | st.integers(0, 5),
    text,
    text,
)
events = st.lists(stored | removed | st.just(AllBlocksCleared()), max_size=5)


@given(events, st.floats(allow_nan=False, allow_infinity=False), st.none() | st.integers(0, 9))
def test_round_trip(batch: list[Any], ts: float, rank: int | None) -> None:
    decoded = codec.decode_events(codec.encode_events(batch, ts, rank))
    assert decoded == (ts, batch, rank)
    assert EventIndex(decoded.events).keys() == EventIndex(batch).keys()


@given(st.binary(max_size=40))
def test_decode_of_any_bytes_refuses_or_reads(payload: bytes) -> None:
    with contextlib.suppress(InvalidArgumentError):
        codec.decode_events(payload)
