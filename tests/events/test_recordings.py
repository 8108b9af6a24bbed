"""Recordings of KV events: every form they come in, and what is found in them."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from prefixhash import BlockHasher, PrefixHashError, Request, TraceFormatError
from prefixhash.cache import PrefixCache
from prefixhash.cli.main import main
from prefixhash.events import Event
from prefixhash.events.checks import EventReport, check_events
from prefixhash.events.codec import encode_events
from prefixhash.events.recordings import message_end, read_messages


def stored(hashes: Sequence[Any], parent: Any = None, **fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": fields.pop("tokens", []),
        "block_size": fields.pop("size", 0),
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **fields,
    }


def removed(*hashes: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **fields}


CLEARED = {"type": "AllBlocksCleared"}


def check(tmp_path: Path, *events: dict[str, Any]) -> EventReport:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return check_events(read_messages(path))


def kinds(report: EventReport) -> dict[str, int]:
    return {finding.kind: finding.count for finding in report.findings}


def recorded_events() -> list[list[Event]]:
    """What a prefix cache reports while random requests share and evict blocks."""
    hasher = BlockHasher(4)
    cache = PrefixCache.single(14, 4, events=True, block_hasher=hasher)
    rng = random.Random(3)
    messages = []
    for number in range(60):
        tokens = [rng.randrange(2) for _ in range(rng.randrange(5, 30))]
        request = Request(f"r{number}", tokens, block_hasher=hasher)
        hit = cache.lookup(request)
        cache.allocate(request, request.num_tokens - hit.num_tokens, hit)
        cache.commit(request, request.num_tokens)
        cache.free(request)
        messages.append(cache.take_events())
    return messages


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_a_cache_reports_is_consistent(tmp_path: Path, as_bytes: bool, pack: Any) -> None:
    messages = recorded_events()
    path = tmp_path / "events.msgpack"
    wire = b"".join(encode_events(m, 1.5, 0, hashes_as_bytes=as_bytes) for m in messages)
    path.write_bytes(pack(wire))
    report = check_events(read_messages(path))
    assert report.findings == []
    assert report.messages == 60
    assert report.removed > 20
    assert report.most_resident == 13
    assert report.resident[0] == report.stored - report.removed


def test_the_forms_of_a_message(tmp_path: Path) -> None:
    event = stored(["0xab"])
    array = ["BlockStored", ["ab"], None, [], 0, None]
    forms: list[Any] = [
        [1.5, [event], 0],
        {"ts": 1.5, "events": [event], "seq": 4},
        {"timestamp": 2, "events": [array]},
        event,
        array,
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(form) + "\n" for form in forms))
    messages = list(read_messages(path))
    assert [m.place for m in messages] == [1, 2, 3, 4, 5]
    assert [m.ts for m in messages] == [1.5, 1.5, 2, None, None]
    assert messages[1].sequence == 4
    assert {m.events[0].block_hashes for m in messages} == {(b"\xab",)}  # type: ignore[union-attr]


def test_contradictions_are_found_and_shown(tmp_path: Path) -> None:
    report = check(
        tmp_path,
        stored([1, 2], tokens=[5, 6, 7, 8], size=2),
        stored([3], 99),
        removed(3, 77),
        stored([4], 1, tokens=[1, 2, 3], size=2),
        stored([5], 2, tokens=[7, 7], size=2, extra_keys=[None, None]),
        stored([1], tokens=[6, 6], size=2),
        stored([6], tokens=[5, 6], size=2),
    )
    assert kinds(report) == {
        "length": 1,
        "extra-keys": 1,
        "parent": 1,
        "removed": 1,
        "content": 1,
        "hash": 1,
    }
    assert report.findings[0].examples == ["4: 3 tokens for 1 x 2"]
    assert (report.stored, report.repeated, report.removed) == (6, 1, 1)


def test_an_orphan_is_linked_when_its_parent_comes(tmp_path: Path) -> None:
    orphan, child, parent = stored([3], 1), stored([4], 3), stored([1])
    before = check(tmp_path, orphan, child)
    assert (before.resident, before.orphans, kinds(before)) == ({0: 2}, {0: 1}, {"parent": 1})
    after = check(tmp_path, orphan, child, parent)
    assert (after.resident, after.orphans) == ({0: 3}, {0: 0})


def test_groups_are_apart(tmp_path: Path) -> None:
    report = check(
        tmp_path,
        stored([1], group_idx=0),
        stored([1], group_idx=1),
        removed(1, group_idx=1),
        stored([2], 1, group_idx=1),
    )
    assert report.resident == {0: 1, 1: 1}
    assert kinds(report) == {"parent": 1}


def test_clearing_forgets_what_is_resident(tmp_path: Path) -> None:
    report = check(tmp_path, stored([1, 2]), CLEARED, stored([3], 2))
    assert report.resident == {0: 1}
    assert kinds(report) == {"parent": 1}
    assert report.most_resident == 2


def test_gaps_in_the_sequence_are_found(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [{"ts": 0, "events": [], "seq": seq} for seq in (7, 8, 10, 11)]
    path.write_text("\n".join(map(json.dumps, lines)))
    report = check_events(read_messages(path))
    assert [(f.kind, f.examples) for f in report.findings] == [("sequence", ["3: 10 after 8"])]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", None, "is empty"),
        ('{"type": "BlockStored"\n', 1, "not JSON"),
        ('{"type": "BlockMoved", "block_hashes": []}\n', 1, "a type that is not known here"),
        ('{"type": "BlockStored", "token_ids": []}\n', 1, "needs a list of block_hashes"),
        ('{"ts": "now", "events": []}\n', 1, "is no time"),
        ('{"ts": 1, "events": 7}\n', 1, "is no list of events"),
        ("[]\n", 1, "is no message"),
        ('{"type": "BlockRemoved", "block_hashes": ["xyz"]}\n', 1, "is not hexadecimal"),
        ('{"type": "BlockRemoved", "block_hashes": [], "group_idx": []}\n', 1, "of type int"),
        (json.dumps(stored([])), 1, "without a block"),
        (json.dumps(stored([1], lora_name=[])), 1, "is not of type str"),
        (json.dumps(stored([1], tokens=[[]])), 1, "are not all integers"),
        (json.dumps(stored([1], size=-1)), 1, "is no number of tokens"),
    ],
)
def test_bad_recordings_are_one_clear_line(
    tmp_path: Path, text: str, line: int | None, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    with pytest.raises(TraceFormatError) as info:
        list(read_messages(path))
    assert info.value.line == line
    assert reason in info.value.reason
    assert main(["check-events", str(path)]) == 1
    (shown,) = capsys.readouterr().err.splitlines()
    assert shown.startswith(f"prefixhash check-events: {path}:")


def test_a_cut_or_foreign_binary_recording(tmp_path: Path) -> None:
    path = tmp_path / "events.msgpack"
    path.write_bytes(encode_events([], 1.0) + encode_events([], 1.0)[:-1])
    with pytest.raises(TraceFormatError, match="message 2: ends inside a message"):
        list(read_messages(path))
    path.write_bytes(b"\xc1\x00")
    with pytest.raises(TraceFormatError, match="message 1"):
        list(read_messages(path))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        200,
        -200,
        70_000,
        -70_000,
        2**40,
        -(2**40),
        2**64 - 1,
        1.5,
        "a",
        "b" * 40,
        "c" * 300,
        "d" * 70_000,
        b"x",
        b"y" * 300,
        b"z" * 70_000,
        [],
        list(range(20)),
        list(range(70_000)),
        {},
        {str(i): i for i in range(20)},
        {str(i): [i] for i in range(70_000)},
        [1, [2, {"a": [b"3", None]}], "four"],
    ],
)
def test_message_end_finds_the_end_of_any_object(value: object) -> None:
    packed = msgspec.msgpack.encode(value)
    assert message_end(b"??" + packed + b"\xc0\xc0", 2) == 2 + len(packed)


def test_message_end_knows_extensions() -> None:
    for size in (1, 2, 4, 8, 16, 17, 300, 70_000):
        packed = msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"e" * size))
        assert message_end(packed, 0) == len(packed)


def test_the_command_prints_and_tells_findings_by_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = "".join(json.dumps(event) + "\n" for event in (stored([1, 2]), removed(2)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(good.encode())))
    assert main(["check-events", "-"]) == 0
    out = capsys.readouterr().out
    assert "no contradiction found" in out
    assert "most blocks resident" in out
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(removed(5)))
    assert main(["check-events", str(path)]) == 2
    assert "1 removals of blocks that were not known\n  at 1: 5" in capsys.readouterr().out
    assert main(["check-events", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "removed"


def test_without_msgspec_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "prefixhash.events.codec", raising=False)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(PrefixHashError, match="prefixhash\\[events\\]"):
        list(read_messages(tmp_path / "any"))
