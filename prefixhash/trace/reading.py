"""`read_trace`: a trace file, folder or pipe as a stream of requests that can be run repeatedly."""

from __future__ import annotations

import heapq
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prefixhash import _arguments
from prefixhash._source import BadRecordError, Source, checked_path, decode_json, without_bom
from prefixhash.errors import InvalidArgumentError, TraceFormatError
from prefixhash.trace.detection import AUTO, find_format, recognise
from prefixhash.trace.formats.base import TraceFormat
from prefixhash.trace.records import TraceRequest

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
        format: str = AUTO,
        block_size: int | None = None,
        skip_bad: bool = False,
        interleave: bool = False,
    ) -> None:
        kind = find_format(format)
        options = _options(block_size, skip_bad, interleave)
        self._wanted_block_size, self.skip_bad, self.interleave = options
        opened = isinstance(sources, list) and all(isinstance(s, Source) for s in sources)
        if not opened or not sources:
            raise InvalidArgumentError("sources", sources, "must be a list of opened sources")
        self.sources = sources
        self.skipped: list[SkippedLine] = []
        self.num_skipped = 0
        self.detected = kind is None
        self._kind = self._detect() if kind is None else kind
        parser = self._kind(self._wanted_block_size)
        if self._kind.states_block_size:
            next(iter(self._requests(self.sources[0], parser)), None)
        self.block_size = parser.block_size

    @property
    def format(self) -> str:
        """The name of the format."""
        return self._kind.name

    @property
    def records_tokens(self) -> bool:
        """Whether prompts come with their tokens: their blocks are made here, of any size."""
        return self._kind.records_tokens

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
        parser = self._kind(self._wanted_block_size)
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

    def _requests(self, source: Source, parser: TraceFormat) -> Iterator[TraceRequest]:
        for line, text in _units(source, self._kind):
            try:
                # All of a record's requests or none: a conversation with a bad request is bad.
                requests = list(parser.parse(decode_json(text)))
            except (BadRecordError, InvalidArgumentError) as error:
                self._skip(TraceFormatError(source.name, line, str(error)))
                continue
            yield from requests

    def _skip(self, error: TraceFormatError) -> None:
        if not self.skip_bad:
            raise error
        self.num_skipped += 1
        if len(self.skipped) < _KEPT_SKIPPED:
            self.skipped.append(SkippedLine(error.file, error.line, error.reason))

    def _detect(self) -> type[TraceFormat]:
        """The format of the first record that has one."""
        last = TraceFormatError(self.sources[0].name, None, "is empty")
        for source in self.sources:
            for line, text in _probe(source):
                found = _format_or_error(source, line, text)
                if not isinstance(found, TraceFormatError):
                    return found
                if not self.skip_bad:
                    raise found
                last = found
        raise last


def read_trace(
    path: str | os.PathLike[str],
    format: str = AUTO,
    *,
    block_size: int | None = None,
    skip_bad: bool = False,
    interleave: bool = False,
) -> Trace:
    """Opens a trace: a file, a folder of conversations, or `-` for standard input; plain or gzip.

    `format` is `auto` (from the first record) or the name of a format (`FORMATS` of
    `prefixhash.trace.formats`); `block_size` the tokens per block id where the format's usual one
    does not hold. `interleave`: the files of a folder run side by side, by their times, instead of
    one after the other; each file's requests must be in order of time.

    Raises `InvalidArgumentError` for an argument that cannot be, `TraceFormatError` (file, line,
    reason) for content that is no trace, and Python's own `OSError` for a file that is not there or
    may not be read.
    """
    find_format(format)  # all of them before anything, such as standard input, is read
    _options(block_size, skip_bad, interleave)
    sources = [Source(file) for file in _files(checked_path(path))]
    return Trace(sources, format, block_size, skip_bad, interleave)


def _options(
    block_size: int | None, skip_bad: bool, interleave: bool
) -> tuple[int | None, bool, bool]:
    return (
        _arguments.optional_integer("block_size", block_size, 1),
        _arguments.flag("skip_bad", skip_bad),
        _arguments.flag("interleave", interleave),
    )


def _format_or_error(
    source: Source, line: int | None, text: bytes
) -> type[TraceFormat] | TraceFormatError:
    try:
        return recognise(decode_json(text))
    except BadRecordError as error:
        return TraceFormatError(source.name, line, str(error))


def _by_time(files: list[Iterator[TraceRequest]]) -> Iterator[TraceRequest]:
    return heapq.merge(*files, key=lambda request: request.timestamp or 0.0)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    found = sorted(file for file in Path(path).iterdir() if file.name.endswith(_JSON_SUFFIXES))
    if not found:
        raise TraceFormatError(path, None, "is a folder without .json or .jsonl files")
    return list(map(str, found))


def _units(source: Source, kind: type[TraceFormat]) -> Iterable[tuple[int | None, bytes]]:
    """The records of a file: its lines, or the whole file where that is one JSON document."""
    if kind.whole_files and not _has_one_record_a_line(source):
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
