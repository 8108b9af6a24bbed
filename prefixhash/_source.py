"""Lines of a file or of standard input, plain or gzip, and the JSON that stands in them.

Memory: one line. A gzip file is known by its first bytes, not by its name, so that a pipe can carry
one, too.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from prefixhash.errors import InvalidArgumentError, TraceFormatError, shorten

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"


class BadRecordError(ValueError):
    """A line or record that cannot be used; whoever reads the file adds its name and the line."""


class Source:
    """One input: a file, a named pipe, or standard input (`-`).

    `name` is what messages call it. `position` and `size` are bytes of the file as it lies on disk
    (compressed, if it is), for progress. It can be read several times: what cannot be rewound is
    copied to disk first, since a second pass (unique blocks, the optimal policy) shall not cost
    memory. With `once=True` nothing is copied, lines of a pipe come as they are written, and there
    is one pass.

    Raises `InvalidArgumentError` for a path that is none, `OSError` for one that cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, once: bool = False) -> None:
        text = checked_path(path)
        self.is_stdin = text == STDIN
        self.name = "<stdin>" if self.is_stdin else text
        self.position = 0
        self.size = 0
        self._path = Path(text)
        self._spool: io.BufferedRandom | None = None
        status = None if self.is_stdin else self._path.stat()
        self._is_stream = status is None or not (
            stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        )
        self._once = once
        if status is not None and not self._is_stream:
            self.size = status.st_size
        elif not once:
            self._spool, self.size = self._copied()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields (line number from 1, line) of all lines that are not blank.

        Raises `TraceFormatError` where the compressed data is damaged or ends too early.
        """
        number = 0
        with self._open() as raw:
            can_tell = raw.seekable()
            try:
                for number, line in enumerate(_decompressed(raw), 1):
                    if can_tell:
                        self.position = raw.tell()
                    if line.strip():
                        yield number, line
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise TraceFormatError(self.name, number + 1, _gzip_problem(error)) from error

    def whole(self) -> bytes:
        """The whole content: for formats whose unit is a file, not a line."""
        with self._open() as raw:
            try:
                data = _decompressed(raw).read()
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise TraceFormatError(self.name, None, _gzip_problem(error)) from error
        self.position = self.size
        return data

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _copied(self) -> tuple[io.BufferedRandom, int]:
        with self._stream() as stream:
            spool = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
            shutil.copyfileobj(stream, spool)
        return spool, spool.tell()

    def _open(self) -> AbstractContextManager[io.BufferedReader]:
        self.position = 0
        if not self._is_stream:
            return open(self._path, "rb")
        if self._once:
            return self._stream()
        if self._spool is None:
            raise TraceFormatError(self.name, None, "was read and closed already")
        self._spool.seek(0)
        # A second handle on the same file: closing it leaves the spool open for the next pass.
        return open(self._spool.fileno(), "rb", closefd=False)

    def _stream(self) -> AbstractContextManager[io.BufferedReader]:
        return nullcontext(_standard_input()) if self.is_stdin else open(self._path, "rb")


def checked_path(path: str | os.PathLike[str], name: str = "path") -> str:
    """`path` as text; raises `InvalidArgumentError` for what no file can be called."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text:
        raise InvalidArgumentError(name, path, "must be the path of a file: a string or a Path")
    try:
        # Not as UTF-8: names that are no text come from the system as surrogates of their bytes.
        usable = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise InvalidArgumentError(name, text, "holds a character that no file name can")
    return text


def decode_json(line: bytes) -> Any:
    """The JSON value of a line; `BadRecordError` says why there is none.

    Refuses an object that has one key twice: the last would win, and hide, say, a cache salt.
    """
    if b"\0" in line:
        raise BadRecordError("binary data, not JSON text")
    try:
        # Decoded here: from bytes, json would guess UTF-16 or UTF-32 in binary data.
        return _DECODER.decode(line.decode("utf-8-sig").strip())
    except UnicodeDecodeError as error:
        raise BadRecordError("not UTF-8 text: is this a binary file?") from error
    except json.JSONDecodeError as error:
        raise BadRecordError(f"not JSON: {error.msg} (column {error.colno})") from error
    except BadRecordError:
        raise
    except (ValueError, RecursionError) as error:
        # An integer of thousands of digits, or lists nested thousands deep.
        raise BadRecordError(f"not usable JSON: {error}") from error


def without_bom(line: bytes) -> bytes:
    """A first line without the byte order mark and blanks that it may begin with."""
    return line.removeprefix(codecs.BOM_UTF8).lstrip()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise BadRecordError(f"one object has the key {shorten(twice)} twice")
    return found


# Made once: `json.loads` would make one for every line.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None:
        raise TraceFormatError("<stdin>", None, "is closed: name a file")
    binary: Any = getattr(sys.stdin, "buffer", None)
    if binary is None:  # a text stream put in its place
        binary = io.BytesIO(sys.stdin.read().encode("utf-8", "surrogatepass"))
    return binary if hasattr(binary, "peek") else io.BufferedReader(_Unclosed(binary))


class _Unclosed(io.RawIOBase):
    """A stream that a reader on top may drop without closing it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _decompressed(raw: io.BufferedReader) -> io.BufferedIOBase:
    start = raw.peek(2)[:2]
    # A pipe may have written one byte only; JSON never begins with this one.
    is_gzip = bool(start) and _GZIP_MAGIC.startswith(start)
    return gzip.GzipFile(fileobj=raw) if is_gzip else raw


def _gzip_problem(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the gzip data ends too early: the file is truncated"
    return f"the gzip data is damaged ({error})"
