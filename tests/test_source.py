"""Sources of lines: files, pipes and standard input, plain or gzip, read once or several times."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from prefixhash import InvalidArgumentError, TraceFormatError
from prefixhash._source import BadRecordError, Source, decode_json

TEXT = b"one\n\ntwo\nthree"
LINES = [(1, b"one\n"), (3, b"two\n"), (4, b"three")]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("once", [False, True])
def test_lines_of_a_file(tmp_path: Path, pack: Any, once: bool) -> None:
    path = tmp_path / "f"
    path.write_bytes(pack(TEXT))
    source = Source(path, once=once)
    assert list(source.lines()) == LINES
    assert source.position == source.size == path.stat().st_size
    assert source.whole() == TEXT


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("wrap", [io.BytesIO, lambda data: io.BufferedReader(io.BytesIO(data))])
def test_lines_of_standard_input(
    monkeypatch: pytest.MonkeyPatch, pack: Any, once: bool, wrap: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(wrap(pack(TEXT))))
    source = Source("-", once=once)
    assert source.name == "<stdin>"
    assert list(source.lines()) == LINES
    if not once:
        assert list(source.lines()) == LINES
    source.close()
    assert not sys.stdin.buffer.closed, "standard input is not ours to close"


def test_standard_input_that_is_text_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("ä\n"))
    assert list(Source("-", once=True).lines()) == [(1, "ä\n".encode())]
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(TraceFormatError, match="<stdin>: is closed"):
        Source("-")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_named_pipe_can_be_read_twice_or_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(TEXT,))
    writer.start()
    source = Source(path)
    writer.join()
    assert [list(source.lines()), list(source.lines())] == [LINES, LINES]
    source.close()

    # Opened for both, so that opening does not wait for the other side.
    end = os.open(path, os.O_RDWR)
    os.write(end, b"first\n")
    lines = Source(path, once=True).lines()
    assert next(lines) == (1, b"first\n"), "the writer is still there"
    os.write(end, b"second\n")
    assert next(lines) == (2, b"second\n")
    lines.close()  # type: ignore[attr-defined]
    os.close(end)


@pytest.mark.parametrize("path", [None, 7, True, b"x", [], object(), "", "a\0b", "\ud800"])
def test_what_no_file_can_be_called(path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="path="):
        Source(path)


def test_files_that_cannot_be_opened_are_errors_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Source(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        next(Source(tmp_path).lines())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "one object has the key 'c' twice"),
        (b'{"a": 1, "a": null}', "one object has the key 'a' twice"),
        (b"[1,", r"not JSON: Expecting value \(column 4\)"),
        (b"\xff", "not UTF-8 text"),
        (b"{\0}", "binary data"),
        (b"[" * 100_000, "not usable JSON"),
    ],
)
def test_json_that_cannot_be_used(line: bytes, reason: str) -> None:
    with pytest.raises(BadRecordError, match=reason):
        decode_json(line)


def test_json_with_a_byte_order_mark() -> None:
    assert decode_json(b'\xef\xbb\xbf {"a": [1, 2.5, null]} \r\n') == {"a": [1, 2.5, None]}
