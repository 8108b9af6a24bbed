"""`read_trace`: a trace file, folder or pipe as a stream of requests that can be run repeatedly."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prefixhash._source import Source, without_bom
from prefixhash.errors import InvalidArgumentError, TraceFormatError
from prefixhash.trace.fields import BadRecordError
from prefixhash.trace.formats import Parser, recognise
from prefixhash.trace.records import TraceRequest

AUTO = "auto"
_KEPT_SKIPPED = 10
_JSON_SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")


@dataclass(frozen=True)
class SkippedLine:
    """A line that could not be used: where it stands and why."""

    file: str
    line: int | None
    reason: str


class Trace:
    """The requests of a trace in the order of the file; iterate as often as needed.

    `format`, `block_size` (tokens per block id) and `detected` (whether the format was found from
    the first record) describe it. After a pass `num_skipped` and `skipped` (the first ten) tell
    which lines were left out; without `skip_bad` the first bad line raises `TraceFormatError`.

    Memory: one record, whatever the length of the file (`interleave`: one of each file).
    """

    def __init__(
        self,
        sources: list[Source],
        format: str,
        block_size: int | None,
        skip_bad: bool,
        interleave: bool = False,
    ) -> None:
        self.sources = sources
        self.skip_bad = skip_bad
        self.interleave = interleave
        self.skipped: list[SkippedLine] = []
        self.num_skipped = 0
        self.detected = format == AUTO
        self._wanted_block_size = block_size
        self.format = self._detect() if self.detected else Parser(format, block_size).name
        self.block_size = Parser(self.format, block_size).block_size
        if self.format == "weka":
            self._read_block_size()

    @property
    def name(self) -> str:
        """The file's name without its folder, so that reports do not depend on where it lies."""
        first = self.sources[0]
        if len(self.sources) > 1:
            return Path(first.name).parent.name or "."
        return first.name if first.is_stdin else Path(first.name).name

    @property
    def size(self) -> int:
        """Bytes of all files on disk, for progress."""
        return sum(source.size for source in self.sources)

    @property
    def position(self) -> int:
        """Bytes read in this pass."""
        return sum(source.position for source in self.sources)

    def __iter__(self) -> Iterator[TraceRequest]:
        self.skipped, self.num_skipped = [], 0
        for source in self.sources:
            source.position = 0
        parser = Parser(self.format, self._wanted_block_size)
        files = [self._requests(source, parser) for source in self.sources]
        found = False
        for request in _by_time(files) if self.interleave else itertools.chain(*files):
            found = True
            yield request
        if not found and not self.num_skipped:
            raise TraceFormatError(self.sources[0].name, None, "holds no request")

    def close(self) -> None:
        for source in self.sources:
            source.close()

    def _requests(self, source: Source, parser: Parser) -> Iterator[TraceRequest]:
        for line, text in _units(source, self.format):
            try:
                # All of a record's requests or none: a conversation with a bad request is bad.
                requests = list(parser.parse(_decode(text)))
            except BadRecordError as error:
                self._skip(TraceFormatError(source.name, line, str(error)))
                continue
            yield from requests

    def _skip(self, error: TraceFormatError) -> None:
        if not self.skip_bad:
            raise error
        self.num_skipped += 1
        if len(self.skipped) < _KEPT_SKIPPED:
            self.skipped.append(SkippedLine(error.file, error.line, error.reason))

    def _detect(self) -> str:
        """The format of the first record that has one."""
        last = TraceFormatError(self.sources[0].name, None, "is empty")
        for source in self.sources:
            for line, text in _probe(source):
                found = _format_or_error(source, line, text)
                if isinstance(found, str):
                    return found
                if not self.skip_bad:
                    raise found
                last = found
        raise last

    def _read_block_size(self) -> None:
        """A weka file carries its block size."""
        parser = Parser(self.format, self._wanted_block_size)
        next(iter(self._requests(self.sources[0], parser)), None)
        self.block_size = parser.block_size


def read_trace(
    path: str | Path,
    format: str = AUTO,
    *,
    block_size: int | None = None,
    skip_bad: bool = False,
    interleave: bool = False,
) -> Trace:
    """Opens a trace: a file, a folder of conversations, or `-` for standard input; plain or gzip.

    `format` is `auto` (from the first record) or one of `mooncake`, `bailian`, `weka`, `lmcache`,
    `tokens`; `block_size` the tokens per block id where the format's usual one does not hold.
    `interleave`: the files of a folder run side by side, by their times, instead of one after the
    other; each file's requests must be in order of time.

    Raises `TraceFormatError` (file, line, reason) and `OSError`.
    """
    if not isinstance(path, (str, Path)):
        raise InvalidArgumentError("path", path, "is neither a string nor a Path")
    sources = [Source(file) for file in _files(Path(path))]
    return Trace(sources, format, block_size, skip_bad, interleave)


def _by_time(files: list[Iterator[TraceRequest]]) -> Iterator[TraceRequest]:
    return heapq.merge(*files, key=lambda request: request.timestamp or 0.0)


def _format_or_error(source: Source, line: int | None, text: bytes) -> str | TraceFormatError:
    try:
        return recognise(_decode(text))
    except BadRecordError as error:
        return TraceFormatError(source.name, line, str(error))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(_JSON_SUFFIXES))
    if not found:
        raise TraceFormatError(str(path), None, "is a folder without .json or .jsonl files")
    return found


def _units(source: Source, format: str) -> Iterable[tuple[int | None, bytes]]:
    """The records of a file: its lines, or the whole file where that is one JSON document."""
    if format == "weka" and not _has_one_record_a_line(source):
        return [(None, source.whole())]
    return source.lines()


def _probe(source: Source) -> Iterable[tuple[int | None, bytes]]:
    """Records to find the format from; a pretty-printed document has no record on line 1."""
    if _has_one_record_a_line(source):
        return source.lines()
    first = next(iter(source.lines()), None)
    if first is None:
        return []
    if without_bom(first[1])[:1] not in (b"{", b"["):
        return source.lines()
    text = source.whole()
    return [(None, text)] if _is_json(text) else source.lines()


def _has_one_record_a_line(source: Source) -> bool:
    first = next(iter(source.lines()), None)
    return first is None or _is_json(first[1])


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _decode(text: bytes) -> object:
    if b"\0" in text:
        raise BadRecordError("binary data, not JSON text")
    try:
        # Decoded here: from bytes, json would guess UTF-16 or UTF-32 in binary data.
        return json.loads(text.decode("utf-8-sig").strip())
    except UnicodeDecodeError as error:
        raise BadRecordError("not UTF-8 text: is this a binary file?") from error
    except json.JSONDecodeError as error:
        raise BadRecordError(f"not JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        # An integer of thousands of digits, or lists nested thousands deep.
        raise BadRecordError(f"not usable JSON: {error}") from error
