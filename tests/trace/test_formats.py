"""Trace formats are classes in a table: what each lacks, misspelt keys, and adding one."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import prefixhash.trace.formats as table
from prefixhash import InvalidArgumentError, TraceFormatError
from prefixhash.cli.main import main
from prefixhash.trace.detection import AUTO, describe_formats, format_choices, format_names
from prefixhash.trace.fields import Record, count_field, time_field
from prefixhash.trace.formats import FORMATS
from prefixhash.trace.formats.base import TraceFormat
from prefixhash.trace.reading import read_trace
from prefixhash.trace.records import TraceRequest

PACKAGE = Path(table.__file__).parents[2]
MOONCAKE = {"timestamp": 1, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}
BAILIAN = {**MOONCAKE, "input_length": 20, "chat_id": 1, "parent_chat_id": -1, "turn": 1}
LMCACHE = {"timestamp": 3.5, "seq_len": 600, "chunk_hashes": ["a", "b", "c"]}
ENTRY = {"t": 0, "type": "n", "in": 64, "out": 5, "hash_ids": [1], "api_time": 2.0}
WEKA = {"id": "c", "block_size": 64, "hash_id_scope": "local", "requests": [ENTRY]}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def reason_of(path: Path, **options: Any) -> str:
    with pytest.raises(TraceFormatError) as info:
        list(read_trace(path, **options))
    assert info.value.line is not None
    return info.value.reason


class Toy(TraceFormat):
    """Prompts as words; times are in minutes."""

    name = "toy"
    summary = "minute, words, size"
    default_block_size = 4
    seconds = 60.0
    recognised_by = ("words",)
    keys = ("minute", "words", "size")
    signs = ("size",)
    contents = ("words",)

    def requests(self, record: Record) -> Iterable[TraceRequest]:
        ids, num_tokens = self.blocks(record, "words", "size")
        when = time_field(record, "minute", self.seconds)
        yield TraceRequest(ids, num_tokens, count_field(record, "answer", 0), when)


def test_a_format_is_a_class_and_a_place_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"minute": 2, "words": ["a", "b"], "size": 8}] * 2
    path = write(tmp_path / "t.jsonl", *records)
    assert "no known trace format" in reason_of(path)
    monkeypatch.setattr(table, "FORMATS", (*FORMATS, Toy))

    for format in (AUTO, "toy"):
        trace = read_trace(path, format)
        assert (trace.format, trace.block_size, trace.records_tokens) == ("toy", 4, False)
        assert [(r.ids, r.num_tokens, r.timestamp) for r in trace] == [(["a", "b"], 8, 120.0)] * 2
    for command in ("replay", "curve"):
        assert main([command, str(path), "--format", "toy", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["trace"]["format"] == "toy"
    assert main(["curve", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trace"]["format"] == "toy"
    with pytest.raises(SystemExit):
        main(["curve", "--help"])
    assert "toy: minute, words, size" in " ".join(capsys.readouterr().out.split())

    lacking = write(tmp_path / "u.jsonl", {"size": 8})
    assert "has size but no words" in reason_of(lacking)
    assert "toy" in reason_of(write(tmp_path / "v.jsonl", {"a": 1}))
    assert "did you mean 'minute'?" in reason_of(
        write(tmp_path / "w.jsonl", {"minutee": 1, "words": ["a"], "size": 4})
    )


def test_every_format_says_what_it_is() -> None:
    assert len(set(format_names())) == len(FORMATS)
    assert format_choices() == (AUTO, *format_names())
    for kind in FORMATS:
        assert kind.__doc__
        assert kind.default_block_size > 0
        assert kind.seconds > 0
        assert kind.name in describe_formats()
        assert set(kind.recognised_by) <= {*kind.keys} or kind.records_tokens


def test_a_name_stands_in_its_class_alone() -> None:
    # `tokens` is also a unit and a hit rate.
    names = set(format_names()) - {"tokens"}
    for path in PACKAGE.rglob("*.py"):
        found = {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        } & names
        homes = {kind.__module__.rpartition(".")[2] for kind in FORMATS if kind.name in found}
        assert homes <= {path.stem}, path


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"input_length": 5}, "has input_length but no hash_ids or token_ids: block ids or tokens"),
        ({"output_length": 5, "timestamp": 1}, "has output_length but no hash_ids or token_ids"),
        ({"seq_len": 5}, "has seq_len but no chunk_hashes: block ids or tokens are needed"),
        ({"t": 0, "in": 5, "out": 1}, "has in but no hash_ids"),
        ({"cache_salt": "x"}, "has cache_salt but no token_ids"),
        (
            {"input_length": 5, "hash_idz": [1]},
            "(key 'hash_idz': did you mean 'hash_ids'?)",
        ),
        ({"input_length": 5, "token_id": [1]}, "(key 'token_id': did you mean 'token_ids'?)"),
        ({**WEKA, "requests": [{"in": 64}]}, "has in but no hash_ids: block ids"),
        ({**MOONCAKE, "hash_ids": None}, "has input_length but no hash_ids: block ids"),
        ({"prompt": "a"}, "no known trace format: an object with prompt; formats are weka"),
    ],
)
def test_a_record_without_contents_says_what_it_lacks(
    tmp_path: Path, record: object, reason: str
) -> None:
    assert reason in reason_of(write(tmp_path / "t", record))


@pytest.mark.parametrize(
    ("format", "record", "reason"),
    [
        ("mooncake", {"input_length": 5}, "has input_length but no hash_ids: "),
        ("bailian", {"input_length": 5, "chat_id": 1}, "has input_length but no hash_ids: "),
        ("lmcache", {"seq_len": 5}, "has seq_len but no chunk_hashes: "),
        ("tokens", {"input_length": 5}, "lacks the field 'token_ids' or 'prompt_token_ids'"),
        ("weka", {"requests": []}, "block_size is missing"),
    ],
)
def test_a_named_format_says_what_it_lacks(
    tmp_path: Path, format: str, record: object, reason: str
) -> None:
    assert reason in reason_of(write(tmp_path / "t", record), format=format)


@pytest.mark.parametrize(
    ("record", "wrong", "right"),
    [
        (MOONCAKE, "output_lenght", "output_length"),
        (MOONCAKE, "time_stamp", "timestamp"),
        ({**MOONCAKE, "session_id": "a"}, "sesion_id", "session_id"),
        (BAILIAN, "timestmp", "timestamp"),
        (LMCACHE, "Timestamp", "timestamp"),
        (WEKA, "hash_id_scop", "hash_id_scope"),
    ],
)
def test_an_optional_key_that_is_misspelt_is_not_passed_over(
    tmp_path: Path, record: dict[str, Any], wrong: str, right: str
) -> None:
    misspelt = {(wrong if key == right else key): value for key, value in record.items()}
    path = write(tmp_path / "t", record, misspelt)
    assert reason_of(path) == f"unknown key {wrong!r}: did you mean {right!r}?"


def test_a_misspelt_key_of_a_request_inside_a_conversation(tmp_path: Path) -> None:
    entry = {("api_tim" if key == "api_time" else key): value for key, value in ENTRY.items()}
    path = write(tmp_path / "t", {**WEKA, "requests": [ENTRY, entry]})
    assert reason_of(path) == "unknown key 'api_tim': did you mean 'api_time'?"


@pytest.mark.parametrize(
    "record",
    [
        {**MOONCAKE, "delay": 3, "priority": 1, "text_input": "a", "turns": 4, "types": []},
        {**MOONCAKE, "timestamps": [1], "output_lengths": [7]},
        BAILIAN,
        {**LMCACHE, "model": "m", "chunk_size": 256, "seq_lens": [600]},
        {**WEKA, "models": [], "tool_tokens": 1, "system_tokens": 2, "totals": {}},
        {**WEKA, "requests": [{**ENTRY, "ttft": 1, "think_time": 2, "input_types": []}]},
    ],
)
def test_keys_of_others_are_passed_over(tmp_path: Path, record: object) -> None:
    assert len(list(read_trace(write(tmp_path / "t", record, record)))) == 2


def test_request_lines_keep_to_their_keys_in_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t", *[{"token_ids": [1] * 40, "cache_slat": c} for c in "ab"])
    for command in ("hash", "replay", "curve"):
        assert main([command, str(path)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"prefixhash {command}: {path}:1: key of line='cache_slat'")
        assert "did you mean 'cache_salt'?" in captured.err


@pytest.mark.parametrize("value", [None, True, 1.5, b"x", [], {}, object(), -1, 10**30, "csv"])
@pytest.mark.parametrize("name", ["path", "format", "block_size", "skip_bad", "interleave"])
def test_bad_arguments_are_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    fine: dict[str, tuple[Any, ...]] = {
        "block_size": (None,),
        "skip_bad": (True,),
        "interleave": (True,),
    }
    arguments: dict[str, Any] = {"path": write(tmp_path / "t", MOONCAKE), name: value}
    if (name, value) == ("path", "csv"):
        with pytest.raises(FileNotFoundError):
            read_trace(**arguments)
    elif value in fine.get(name, ()) or (name, value) == ("block_size", 10**30):
        assert read_trace(**arguments).format == "mooncake"
    else:
        with pytest.raises(InvalidArgumentError, match=f"{name}="):
            read_trace(**arguments)
