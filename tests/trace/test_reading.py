"""Trace formats, their detection, and what happens to lines that cannot be used."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from prefixhash import (
    InvalidArgumentError,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    TraceFormatError,
)
from prefixhash.trace.fields import fitting_block_sizes
from prefixhash.trace.reading import Trace, read_trace

MOONCAKE = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}
BAILIAN = {
    "chat_id": 159,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 33,
    "output_length": 2,
    "type": "text",
    "turn": 2,
    "hash_ids": [1089, 1090, 6326],
}
LMCACHE = {"timestamp": 3.5, "seq_len": 600, "chunk_hashes": ["0xab", "0xcd"]}
TOKENS = {
    "token_ids": [1, 2, 3],
    "lora": "sql",
    "cache_salt": "t1",
    "mm_features": [{"identifier": "img", "mm_position": {"offset": 1, "length": 2}}],
    "output_length": 4,
}


def weka(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "c1",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [*requests],
        **fields,
    }


def call(t: float, ids: list[int], **fields: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": 64 * len(ids) + 3, "out": 5, "hash_ids": ids, **fields}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def failure(trace_path: Path | str, **options: Any) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as info:
        list(read_trace(trace_path, **options))
    return info.value


@pytest.mark.parametrize(
    ("record", "format", "block_size"),
    [
        (MOONCAKE, "mooncake", 512),
        (BAILIAN, "bailian", 16),
        (LMCACHE, "lmcache", 256),
        (TOKENS, "tokens", 16),
        (weka(call(0, [1, 2])), "weka", 64),
        (
            weka(call(0, [1, 2]), block_size=32, requests=[{"in": 64, "hash_ids": [1, 2]}]),
            "weka",
            32,
        ),
    ],
)
def test_the_first_record_tells_the_format(
    tmp_path: Path, record: object, format: str, block_size: int
) -> None:
    trace = read_trace(write(tmp_path / "t.jsonl", record, record))
    assert (trace.format, trace.block_size, trace.detected) == (format, block_size, True)
    assert len(list(trace)) == 2
    assert len(list(trace)) == 2, "a trace can be read again"


def test_mooncake_times_are_milliseconds(tmp_path: Path) -> None:
    (request,) = read_trace(write(tmp_path / "t", {**MOONCAKE, "session_id": "0001"}))
    assert (request.timestamp, request.session) == (1.5, "0001")
    assert (request.num_tokens, request.output_tokens, request.ids) == (600, 7, [0, 1])


def test_bailian_carries_turn_and_type(tmp_path: Path) -> None:
    (request,) = read_trace(write(tmp_path / "t", BAILIAN))
    assert (request.timestamp, request.turn, request.kind) == (61.114, 2, "text")


def test_tokens_carry_what_their_kv_depends_on(tmp_path: Path) -> None:
    (request,) = read_trace(write(tmp_path / "t", TOKENS))
    prompt = request.prompt
    assert prompt is not None
    assert (list(prompt.token_ids), prompt.cache_salt) == ([1, 2, 3], "t1")
    assert prompt.lora == LoRARequest("sql")
    assert prompt.media == (MultiModalFeature("img", PlaceholderRange(1, 2)),)


def test_a_partial_last_block_may_be_recorded_or_not(tmp_path: Path) -> None:
    with_tail = {**MOONCAKE, "input_length": 1025, "hash_ids": [0, 1, 2]}
    without = {**MOONCAKE, "input_length": 1025, "hash_ids": [0, 1]}
    assert [len(r.ids) for r in read_trace(write(tmp_path / "t", with_tail, without))] == [3, 2]


def test_ids_are_opaque(tmp_path: Path) -> None:
    large = {**MOONCAKE, "hash_ids": [2**70, -1]}
    assert next(iter(read_trace(write(tmp_path / "a", large)))).ids == [2**70, -1]
    text = {**MOONCAKE, "hash_ids": ["a", "b"]}
    assert next(iter(read_trace(write(tmp_path / "b", text)))).ids == ["a", "b"]


def test_weka_local_ids_stay_within_their_conversation(tmp_path: Path) -> None:
    write(tmp_path / "a.json", weka(call(0, [1])))
    write(tmp_path / "b.json", weka(call(0, [1])))
    first, second = read_trace(tmp_path)
    assert first.ids != second.ids
    write(tmp_path / "a.json", weka(call(0, [1]), hash_id_scope="global"))
    write(tmp_path / "b.json", weka(call(0, [1]), hash_id_scope="global"))
    first, second = read_trace(tmp_path)
    assert first.ids == second.ids == [1]


@pytest.mark.parametrize("inner_start", [0, 10])
def test_sub_agents_run_when_they_were_started(tmp_path: Path, inner_start: float) -> None:
    # Times inside a sub-agent are relative in raw recordings, absolute in published ones.
    inner = [call(inner_start, [1, 7]), call(inner_start + 3, [1, 7, 8])]
    agent = {"t": 10, "type": "subagent", "agent_id": "x", "requests": inner}
    path = write(tmp_path / "c.json", weka(call(0, [1, 2]), agent, call(12, [1, 2, 3])))
    requests = list(read_trace(path))
    assert [(r.timestamp, r.kind) for r in requests] == [
        (0, "main"),
        (10, "subagent"),
        (12, "main"),
        (13, "subagent"),
    ]
    assert requests[0].ids[0] == requests[1].ids[0], "a sub-agent shares its conversation's ids"


def test_conversations_of_a_folder_run_in_turn_or_side_by_side(tmp_path: Path) -> None:
    write(tmp_path / "a.json", weka(call(0, [1]), call(9, [1, 2]), id="a"))
    write(tmp_path / "b.json", weka(call(1, [1]), call(2, [1, 2]), id="b"))
    assert [r.session for r in read_trace(tmp_path)] == ["a", "a", "b", "b"]
    side_by_side = read_trace(tmp_path, interleave=True)
    for _ in range(2):
        assert [r.session for r in side_by_side] == ["a", "b", "b", "a"]
    assert len({r.ids[0] for r in side_by_side}) == 2


def test_weka_as_one_pretty_document_or_one_conversation_a_line(tmp_path: Path) -> None:
    pretty = tmp_path / "p.json"
    pretty.write_text(json.dumps(weka(call(0, [1]), call(1, [1, 2])), indent=1))
    assert len(list(read_trace(pretty))) == 2
    lines = write(tmp_path / "l.jsonl", weka(call(0, [1])), weka(call(0, [1])))
    assert len(list(read_trace(lines))) == 2


@pytest.mark.parametrize("indent", [None, 1])
def test_a_byte_order_mark_is_no_content(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "t.json"
    text = json.dumps(weka(call(0, [1])), indent=indent).replace("\n", "\r\n")
    path.write_bytes(text.encode("utf-8-sig"))
    assert len(list(read_trace(path))) == 1


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(gzip.compress(json.dumps(MOONCAKE).encode()))
    assert len(list(read_trace(path))) == 1


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_can_be_read_twice(pack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack((json.dumps(MOONCAKE) + "\n").encode() * 3)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    trace = read_trace("-")
    assert trace.name == "<stdin>"
    assert [len(list(trace)), len(list(trace))] == [3, 3]
    trace.close()
    with pytest.raises(TraceFormatError, match="closed already"):
        list(trace)


def test_the_name_leaves_out_the_folder(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path / "t.jsonl", MOONCAKE)).name == "t.jsonl"


BAD_RECORDS: list[tuple[object, str]] = [
    ({**MOONCAKE, "input_length": -5}, "input_length=-5: must be an integer of at least 0"),
    ({**MOONCAKE, "output_length": -1}, "output_length=-1: must be an integer of at least 0"),
    ({**MOONCAKE, "input_length": 1.5}, "input_length=1.5: must be an integer"),
    ({**MOONCAKE, "input_length": True}, "input_length=True: must be an integer"),
    ({**MOONCAKE, "input_length": None}, "input_length is missing"),
    ({**MOONCAKE, "hash_ids": None}, "has input_length but no hash_ids: block ids or tokens are"),
    ({"timestamp": 1, "type": "x"}, "hash_ids is missing"),
    ({**MOONCAKE, "hash_ids": [0, "1"]}, "mixes types: '1' among ids that are integers"),
    ({**MOONCAKE, "hash_ids": ["0", "1"]}, "mixes types: '0' among ids that are integers"),
    ({**MOONCAKE, "hash_ids": [0, 1.0]}, "hash_ids holds 1.0: ids are integers or strings"),
    ({**MOONCAKE, "hash_ids": [0, None]}, "hash_ids holds None"),
    ({**MOONCAKE, "hash_ids": 7}, "hash_ids=7 is not a list"),
    ({**MOONCAKE, "timestamp": "now"}, "timestamp='now': must be a number"),
    ({**MOONCAKE, "timestamp": 10**400}, "timestamp=10000000"),
    ({**MOONCAKE, "type": []}, "type=[] is neither a string nor an integer"),
    (
        {**MOONCAKE, "input_length": 6758},
        "2 hash_ids for 6758 tokens, but blocks of 512 tokens make 13 or 14; "
        "block size 4096 would fit (--trace-block-size 4096)",
    ),
    ([1, 2], "[1, 2] is not an object"),
    ("x", "'x' is not an object"),
]


@pytest.mark.parametrize(("record", "reason"), BAD_RECORDS)
def test_a_bad_line_names_file_line_and_reason(tmp_path: Path, record: object, reason: str) -> None:
    path = write(tmp_path / "t.jsonl", MOONCAKE, record)
    error = failure(path)
    assert (error.file, error.line) == (str(path), 2)
    assert reason in error.reason
    assert str(error) == f"{path}:2: {error.reason}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"input_length": 3', "not JSON: Expecting ',' delimiter (column 19)"),
        (b"\x00\x01\x02", "binary data"),
        (b"\xff\xfe{}", "not UTF-8 text"),
        (b"[" * 100_000, "not usable JSON"),
        (b'{"hash_ids": [' + b"9" * 5000 + b"]}", "not usable JSON"),
    ],
)
def test_a_line_that_is_no_json(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(MOONCAKE).encode() + b"\n" + line + b"\n")
    error = failure(path)
    assert error.line == 2
    assert reason in error.reason


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            {**TOKENS, "token_ids": [1, -2]},
            "token_ids[1]=-2: a token id is an integer in [0, 2**63)",
        ),
        ({**TOKENS, "token_ids": [1, True]}, "token_ids[1]=True: a token id"),
        ({**TOKENS, "token_ids": [1 << 63]}, "token_ids[0]=9223372036854775808: a token id"),
        ({**TOKENS, "mm_features": [3]}, "mm_features[0]=3: must be a JSON object"),
        ({**TOKENS, "mm_features": [{"offset": 0, "length": 1}]}, "lacks the field 'identifier'"),
        (
            {**TOKENS, "mm_features": [{"identifier": "i", "mm_position": 1}]},
            "mm_features[0].mm_position=1: must be a JSON object",
        ),
        (
            {**TOKENS, "mm_features": [{"identifier": "i", "offset": 2, "length": 2}]},
            "must lie within the 3 tokens of the prompt",
        ),
        (weka(block_size=0), "block_size=0"),
        (weka(call(0, [1], api_time=-2)), "api_time=-2 is negative"),
        (weka(1), "requests holds 1"),  # type: ignore[arg-type]
    ],
)
def test_bad_fields_of_the_other_formats(tmp_path: Path, record: object, reason: str) -> None:
    error = failure(write(tmp_path / "t.jsonl", record))
    assert error.line == 1
    assert reason in error.reason


def test_conversations_of_different_block_sizes_do_not_mix(tmp_path: Path) -> None:
    other = weka({"in": 64, "hash_ids": [1, 2]}, block_size=32)
    assert (
        "block_size=32 after 64" in failure(write(tmp_path / "t", weka(call(0, [1])), other)).reason
    )


def test_skip_bad_counts_and_shows_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = json.dumps(MOONCAKE)
    path.write_text("\n".join(["{", good, *["nonsense"] * 20, good]))
    trace = read_trace(path, skip_bad=True)
    assert trace.format == "mooncake"
    for _ in range(2):
        assert len(list(trace)) == 2
        assert trace.num_skipped == 21
        assert len(trace.skipped) == 10
        assert (trace.skipped[0].line, trace.skipped[1].line) == (1, 3)


def test_a_conversation_with_a_bad_request_is_skipped_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "t", weka(call(0, [1]), {"in": -1, "hash_ids": []}), weka(call(0, [1])))
    trace = read_trace(path, skip_bad=True)
    assert len(list(trace)) == 1
    assert trace.num_skipped == 1


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"\n\n")
    assert failure(empty).reason == "is empty"
    assert failure(tmp_path).reason == "is a folder without .json or .jsonl files"
    assert (
        "no known trace format: an object with a" in failure(write(tmp_path / "o", {"a": 1})).reason
    )
    assert "check-events" in failure(write(tmp_path / "e", [0.5, [["BlockStored"]], 0])).reason
    assert "check-events" in failure(write(tmp_path / "f", {"ts": 1, "events": []})).reason
    array = failure(write(tmp_path / "a", [MOONCAKE] * 9)).reason
    assert "is no object (a trace has one JSON object a line)" in array
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)) * 10)
    assert failure(binary).line == 1
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "missing")


@pytest.mark.parametrize("cut", [5, 40])
def test_damaged_gzip(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress("".join(json.dumps(MOONCAKE) + "\n" for _ in range(50)).encode())
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(packed[:-cut])
    assert "truncated" in failure(path).reason
    path.write_bytes(packed[:20] + b"\xff" * 30 + packed[50:])
    assert "damaged" in failure(path).reason


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t", MOONCAKE)
    with pytest.raises(InvalidArgumentError, match="format='csv'"):
        read_trace(path, "csv")
    with pytest.raises(InvalidArgumentError, match="block_size=0"):
        read_trace(path, block_size=0)
    with pytest.raises(InvalidArgumentError, match="path=7"):
        read_trace(7)  # type: ignore[arg-type]


def test_the_block_size_of_ids_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "t", {**MOONCAKE, "input_length": 33, "hash_ids": [1, 2, 3]})
    assert "would fit" in failure(path).reason
    trace = read_trace(path, block_size=16)
    assert isinstance(trace, Trace)
    assert [r.num_tokens for r in trace] == [33]


def test_fitting_block_sizes() -> None:
    assert fitting_block_sizes(3, 33) == [16]
    assert fitting_block_sizes(2, 33) == [32]
    assert fitting_block_sizes(50, 33) == []


def test_real_traces_are_recognised(traces: Path) -> None:
    sizes = {
        "mooncake/conversation_trace.jsonl": ("mooncake", 512),
        "weka-coding-agents/weka_cc_512tok_sample.jsonl": ("mooncake", 512),
        "weka-coding-agents/raw": ("weka", 64),
        "weka-coding-agents/raw/trace_0120.json": ("weka", 64),
    }
    for path, expected in sizes.items():
        trace = read_trace(traces / path)
        assert (trace.format, trace.block_size) == expected
        next(iter(trace))
    assert len(list(read_trace(traces / "weka-coding-agents/raw"))) == 31
