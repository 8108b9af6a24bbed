"""Bytes of a trace as numbered lines: plain or gzip, from a file or from standard input.

Memory: one line. A gzip file is known by its first bytes, not by its name, so that a pipe can carry
one, too.
"""

from __future__ import annotations

import codecs
import gzip
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from prefixhash.errors import TraceFormatError

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"


class Source:
    """One input file that can be read several times.

    `name` is what messages call it. `position` and `size` are bytes of the file as it lies on disk
    (compressed, if it is), for progress.
    """

    def __init__(self, path: str | Path) -> None:
        self.is_stdin = str(path) == STDIN
        self.name = "<stdin>" if self.is_stdin else str(path)
        self.position = 0
        self._spool: IO[bytes] | None = None
        self._path = Path(path)
        if self.is_stdin:
            # On disk, because a second pass (unique blocks, the optimal policy) cannot reread a
            # pipe, and memory shall not grow with the trace.
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object
            shutil.copyfileobj(sys.stdin.buffer, self._spool)
            self.size = self._spool.tell()
        else:
            self.size = self._path.stat().st_size

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields (line number from 1, line) of all lines that are not blank.

        Raises `TraceFormatError` where the compressed data is damaged or ends too early.
        """
        number = 0
        with self._open() as raw:
            stream = self._decompressed(raw)
            try:
                for number, line in enumerate(stream, 1):
                    self.position = raw.tell()
                    if line.strip():
                        yield number, line
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise TraceFormatError(self.name, number + 1, _gzip_problem(error)) from error

    def whole(self) -> bytes:
        """The whole content: for formats whose unit is a file, not a line."""
        with self._open() as raw:
            try:
                data = self._decompressed(raw).read()
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise TraceFormatError(self.name, None, _gzip_problem(error)) from error
        self.position = self.size
        return data

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _open(self) -> IO[bytes]:
        self.position = 0
        if not self.is_stdin:
            return open(self._path, "rb")
        if self._spool is None:
            raise TraceFormatError(self.name, None, "was read and closed already")
        self._spool.seek(0)
        # A second handle on the same file: closing it leaves the spool open for the next pass.
        return open(self._spool.fileno(), "rb", closefd=False)

    @staticmethod
    def _decompressed(raw: IO[bytes]) -> IO[bytes]:
        start = raw.read(2)
        raw.seek(0)
        return gzip.GzipFile(fileobj=raw) if start == _GZIP_MAGIC else raw  # type: ignore[return-value]


def without_bom(line: bytes) -> bytes:
    """A first line without the byte order mark and blanks that it may begin with."""
    return line.removeprefix(codecs.BOM_UTF8).lstrip()


def _gzip_problem(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the gzip data ends too early: the file is truncated"
    return f"the gzip data is damaged ({error})"
