"""Request lines: one table of keys, one meaning in every command; anything else is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixhash import (
    BlockHasher,
    InvalidArgumentError,
    InvalidRequestError,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
    TraceFormatError,
)
from prefixhash.cli.hash import hashed_requests
from prefixhash.request import RequestLine, read_request_lines
from prefixhash.request.lines import (
    KEYS,
    LORA_KEYS,
    MEDIA_KEYS,
    read_request_line,
    write_request_line,
)
from prefixhash.trace.engine import HashedTrace
from prefixhash.trace.reading import read_trace
from prefixhash.trace.synth import WORKLOADS, make_workload, synthesize
from prefixhash.trace.synth_forms import record_of

TOKENS = list(range(8))
# A line that has every key, by its first name.
FULL: dict[str, Any] = {
    "token_ids": TOKENS,
    "lora": {"name": "sql", "path": "/sql", "revision": "2"},
    "mm_features": [{"identifier": "img", "offset": 1, "length": 2, "modality": "video"}],
    "cache_salt": "tenant",
    "request_id": "r",
    "timestamp": 1.5,
    "input_length": 8,
    "output_length": 3,
    "session_id": "s",
    "turn": 2,
    "type": "chat",
}


def refused(record: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as info:
        read_request_line(record)
    return info.value


def test_a_line_with_every_key() -> None:
    assert set(FULL) == {key.names[0] for key in KEYS}
    line = read_request_line(FULL)
    assert list(line.token_ids) == TOKENS
    assert line.lora_request == LoRARequest("sql", "/sql", "2")
    assert line.mm_features == (MultiModalFeature("img", PlaceholderRange(1, 2), "video"),)
    assert (line.cache_salt, line.request_id, line.timestamp) == ("tenant", "r", 1.5)
    assert (line.output_tokens, line.session, line.turn, line.kind) == (3, "s", 2, "chat")


@pytest.mark.parametrize("key", KEYS, ids=lambda key: str(key.field))
def test_a_synonym_means_the_same_and_stands_alone(key: Any) -> None:
    first, *others = key.names
    for name in others:
        renamed = {(name if k == first else k): v for k, v in FULL.items()}
        assert read_request_line(renamed) == read_request_line(FULL)
        error = refused({**FULL, name: FULL[first]})
        assert f"says the same as {first!r}" in error.problem
        assert read_request_line({**FULL, name: None}) == read_request_line(FULL)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: str(key.field))
def test_null_means_absent(key: Any) -> None:
    without = {name: value for name, value in FULL.items() if name != key.names[0]}
    if key.field == "token_ids":
        assert "lacks the field 'token_ids' or 'prompt_token_ids'" in refused(without).problem
        assert "lacks the field 'token_ids'" in refused({**FULL, "token_ids": None}).problem
    else:
        with_null = {**FULL, key.names[0]: None}
        assert read_request_line(with_null) == read_request_line(without)


@pytest.mark.parametrize("name", [name for key in KEYS for name in key.names])
def test_a_misspelt_key_is_refused_and_the_meant_one_named(name: str) -> None:
    misspelt = name[:-2] + name[-1] + name[-2]
    record = {"token_ids": TOKENS, **{misspelt: "x"}}
    error = refused({misspelt: TOKENS} if name == "token_ids" else record)
    assert error.value == misspelt
    assert f"did you mean {name!r}" in error.problem


@pytest.mark.parametrize(
    ("value", "key", "near"),
    [
        ({"lora": {"name": "a", "pth": "/a"}}, "pth", "path"),
        ({"lora": {"name": "a", "revison": "1"}}, "revison", "revision"),
        ({"lora": {"name": "a", "lora_int_id": 3}}, "lora_int_id", ""),
        ({"mm_features": [{**FULL["mm_features"][0], "modalty": "x"}]}, "modalty", "modality"),
        (
            {
                "mm_features": [
                    {"identifier": "a", "mm_position": {"offset": 1, "length": 1, "lengt": 2}}
                ]
            },
            "lengt",
            "length",
        ),
    ],
)
def test_unknown_keys_inside_are_refused(value: dict[str, Any], key: str, near: str) -> None:
    error = refused({"token_ids": TOKENS, **value})
    assert error.value == key
    assert "unknown field" in error.problem
    assert near in error.problem


def test_adapters_by_name_or_as_an_object_of_either_spelling() -> None:
    def lora(value: Any) -> LoRARequest | None:
        return read_request_line({"token_ids": [], "lora": value}).lora_request

    assert lora("a") == lora({"name": "a"}) == lora({"lora_name": "a"}) == LoRARequest("a")
    engine = {"lora_name": "a", "lora_path": "/a", "revision": "7"}
    assert lora(engine) == lora({"name": "a", "path": "/a", "revision": "7"})
    assert lora({"name": "a", "path": None}) == LoRARequest("a")
    assert lora(None) is None
    assert "says the same" in refused({**FULL, "lora": {"name": "a", "lora_name": "a"}}).problem
    assert [name for key in LORA_KEYS for name in key.names] == [
        "name", "lora_name", "path", "lora_path", "revision",
    ]  # fmt: skip


def test_media_flat_or_with_a_position() -> None:
    flat = read_request_line(FULL)
    item = {"identifier": "img", "modality": "video", "mm_position": {"offset": 1, "length": 2}}
    assert read_request_line({**FULL, "mm_features": [item]}) == flat
    assert read_request_line({**FULL, "mm_features": [{**item, "offset": None}]}) == flat
    for name in ("offset", "length"):
        error = refused({**FULL, "mm_features": [{**item, name: 1}]})
        assert "stands beside offset or length" in error.problem
    assert {key.field for key in MEDIA_KEYS} > set(item)


BAD_VALUES: list[tuple[str, Any, str]] = [
    ("token_ids", [1, True], "token_ids[1]=True"),
    ("token_ids", [1.0], "token_ids[0]=1.0"),
    ("token_ids", [-1], "token_ids[0]=-1"),
    ("token_ids", [1 << 63], "token_ids[0]="),
    ("token_ids", ["1"], "token_ids[0]='1'"),
    ("token_ids", "12", "must be a list of integers"),
    ("token_ids", {"a": 1}, "must be a list of integers"),
    ("cache_salt", 5, "cache_salt=5: must be a string"),
    ("cache_salt", True, "cache_salt=True: must be a string"),
    ("cache_salt", "\ud800", "lone surrogate"),
    ("lora", 3, "lora=3: must be a non-empty string, or an object with name, path and revision"),
    ("lora", "", "lora='': must be a non-empty string"),
    ("lora", ["a"], "lora=['a']: must be"),
    ("lora", {"path": "/a"}, "lacks the field 'name' or 'lora_name'"),
    ("lora", {"name": 3}, "lora.name=3: must be a non-empty string"),
    ("lora", {"name": "a", "revision": 3}, "lora.revision=3: must be a string"),
    ("mm_features", {}, "mm_features={}: must be a list of objects"),
    ("mm_features", ["img"], "mm_features[0]='img': must be a JSON object"),
    ("mm_features", [{"offset": 0, "length": 1}], "lacks the field 'identifier'"),
    ("mm_features", [{"identifier": "i", "offset": 0}], "lacks the field 'length'"),
    ("mm_features", [{"identifier": 7, "offset": 0, "length": 1}], "mm_features[0].identifier=7"),
    (
        "mm_features",
        [{"identifier": "i", "offset": 0, "length": 1.0}],
        "mm_features[0].length=1.0: must be an integer of at least 0",
    ),
    (
        "mm_features",
        [{"identifier": "i", "mm_position": {"offset": True, "length": 1}}],
        "mm_features[0].mm_position.offset=True",
    ),
    (
        "mm_features",
        [{"identifier": "i", "mm_position": {"offset": 1}}],
        "lacks the field 'length'",
    ),
    ("mm_features", [{"identifier": "i", "offset": 7, "length": 2}], "within the 8 tokens"),
    ("input_length", 9, "input_length=9: but there are 8 token ids"),
    ("input_length", 8.0, "input_length=8.0: must be an integer"),
    ("output_length", -1, "output_length=-1: must be an integer of at least 0"),
    ("output_length", True, "output_length=True: must be an integer"),
    ("timestamp", "5", "timestamp='5': must be a number"),
    ("timestamp", float("nan"), "timestamp=nan: must be a number"),
    ("timestamp", float("-inf"), "timestamp=-inf: must be finite"),
    ("session_id", [], "session_id=[]: must be a string or an integer"),
    ("turn", "1", "turn='1': must be an integer"),
    ("type", 1.5, "type=1.5: must be a string or an integer"),
    ("request_id", False, "request_id=False: must be a string or an integer"),
]


@pytest.mark.parametrize(("key", "value", "reason"), BAD_VALUES)
def test_a_bad_value_is_named(key: str, value: Any, reason: str) -> None:
    assert reason in str(refused({**FULL, key: value}))


def test_labels_may_be_integers() -> None:
    line = read_request_line({**FULL, "request_id": 7, "session_id": 8, "type": 9})
    assert (line.request_id, line.session, line.kind) == ("7", "8", "9")


@pytest.mark.parametrize("record", [None, [], "x", 3, True])
def test_a_line_is_an_object(record: Any) -> None:
    assert "must be a JSON object" in refused(record).problem


def test_lines_of_a_file_have_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('\n{"token_ids": [1]}\n\n{"token_ids": [2], "request_id": "x"}\n')
    assert [(n, line.request_id) for n, line in read_request_lines(path)] == [(2, None), (4, "x")]
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert [n for n, _ in read_request_lines(path)] == [2, 4]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"token_ids": [1], "cache_salt": "a", "cache_salt": null}', "key 'cache_salt' twice"),
        ('{"token_ids": [1], "lora": {"name": "a", "name": "b"}}', "the key 'name' twice"),
        ('{"token_ids": [1], "cache_slat": "a"}', "did you mean 'cache_salt'?"),
        ('{"token_ids": [NaN]}', "token_ids[0]=nan"),
        ("{", "not JSON"),
    ],
)
def test_bad_lines_name_file_and_line_in_every_reader(
    line: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"token_ids": [1]}\n' + line)
    for read in (
        read_request_lines,
        read_trace,
        lambda path: hashed_requests(str(path), BlockHasher(16)),
    ):
        with pytest.raises(TraceFormatError) as info:
            list(read(path))
        assert (info.value.file, info.value.line) == (str(path), 2)
        assert reason in info.value.reason


@pytest.mark.parametrize("path", [None, 7, b"x", "", "a\0b", "\ud800", [], object()])
def test_a_path_that_is_none_is_refused_at_once(path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="path="):
        read_request_lines(path)


@pytest.mark.parametrize("field", RequestLine.__dataclass_fields__)
def test_a_line_made_in_python_is_checked_as_one_that_is_read(field: str) -> None:
    for value in (True, b"x", {"a": 1}, object(), float("nan"), [None]):
        with pytest.raises(InvalidRequestError):
            RequestLine(**{"token_ids": [1], field: value})


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
names = texts.filter(bool)


@st.composite
def lines(draw: st.DrawFn) -> RequestLine:
    ids = draw(st.lists(st.integers(0, 3) | st.integers(0, 2**63 - 1), max_size=20))
    media = []
    for _ in range(draw(st.integers(0, 2)) if ids else 0):
        offset = draw(st.integers(0, len(ids)))
        place = PlaceholderRange(offset, draw(st.integers(0, len(ids) - offset)))
        media.append(MultiModalFeature(draw(names), place, draw(names)))
    return RequestLine(
        ids,
        draw(st.none() | st.builds(LoRARequest, names, texts, texts)),
        tuple(media),
        draw(st.none() | texts),
        draw(st.none() | texts),
        draw(st.none() | st.floats(-1e9, 1e9)),
        draw(st.integers(0, 10**6)),
        draw(st.none() | texts),
        draw(st.none() | st.integers(0, 99)),
        draw(st.none() | texts),
    )


@given(lines())
def test_what_is_written_is_read_as_it_was(line: RequestLine) -> None:
    assert read_request_line(json.loads(json.dumps(write_request_line(line)))) == line


@settings(max_examples=40)
@given(st.lists(lines(), min_size=1, max_size=6))
def test_hash_and_replay_hash_the_same_lines_alike(
    tmp_path_factory: pytest.TempPathFactory, requests: list[RequestLine]
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_text("".join(json.dumps(write_request_line(line)) + "\n" for line in requests))
    hasher = BlockHasher(4)
    expected = [
        Request(
            "r",
            list(line.token_ids),
            block_hasher=hasher,
            lora_request=line.lora_request,
            mm_features=line.mm_features,
            cache_salt=line.cache_salt,
        ).block_hashes
        for line in requests
    ]
    assert [r.block_hashes for r in hashed_requests(str(path), hasher)] == expected
    assert [list(r.ids) for r in HashedTrace(read_trace(path), 4)] == expected


@pytest.mark.parametrize("field", ["cache_salt", "lora", "path", "revision", "mm_features"])
def test_whatever_changes_the_kv_changes_every_hash_in_both(field: str, tmp_path: Path) -> None:
    plain = {"token_ids": TOKENS, "lora": {"name": "a", "path": "/a", "revision": "1"}}
    changes: dict[str, Any] = {
        "cache_salt": {"cache_salt": "x"},
        "lora": {"lora": None},
        "path": {"lora": {**plain["lora"], "path": "/b"}},  # type: ignore[dict-item]
        "revision": {"lora": {**plain["lora"], "revision": "2"}},  # type: ignore[dict-item]
        "mm_features": {"mm_features": [{"identifier": "i", "offset": 0, "length": 1}]},
    }
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(plain) + "\n" + json.dumps({**plain, **changes[field]}))
    one, other = (r.block_hashes for r in hashed_requests(str(path), BlockHasher(4)))
    assert not set(one) & set(other)
    assert [list(r.ids) for r in HashedTrace(read_trace(path), 4)] == [one, other]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_synth_writes_every_reader_reads(workload: str, tmp_path: Path) -> None:
    plan = make_workload(workload, sessions=3, system_tokens=100)
    made = list(synthesize(plan, form="tokens", seed=1))
    path = tmp_path / "t.jsonl.gz"
    text = "".join(json.dumps(record_of(request)) + "\n" for request in made)
    path.write_bytes(gzip.compress(text.encode()))
    hasher = BlockHasher(16)
    hashes = [request.block_hashes for request in hashed_requests(str(path), hasher)]
    assert hashes == [list(r.ids) for r in HashedTrace(read_trace(path), 16)]
    assert hashes == [list(r.ids) for r in HashedTrace(made, 16)]
    assert [r.prompt for r in read_trace(path)] == [r.prompt for r in made]
