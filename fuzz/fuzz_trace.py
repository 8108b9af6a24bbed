"""Fuzz target: any bytes as a trace or a recording of events are read, or refused in one clear way.

The first byte picks the format and whether bad lines are skipped; the rest is the file. What is
read must be sound, must be the same when read again, and must get through curve and replay; request
lines must hash as `prefixhash hash` hashes them.

python fuzz/fuzz_trace.py fuzz/corpus/trace        # with atheris installed
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from prefixhash.cli.hash import hashed_requests
from prefixhash.errors import TraceFormatError
from prefixhash.events.checks import check_events
from prefixhash.events.recordings import read_messages
from prefixhash.hashing import BlockHasher
from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.detection import format_choices
from prefixhash.trace.engine import HashedTrace
from prefixhash.trace.reading import Trace, read_trace
from prefixhash.trace.replaying import replay
from prefixhash.trace.results import ReplayOptions

_MODES = (*format_choices(), "events")
# Prompts of any length may be named; tokens are made for the small ones only.
_MOST_TOKENS = 20_000


def TestOneInput(data: bytes) -> None:
    choice = data[0] if data else 0
    mode = _MODES[choice % len(_MODES)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(data[1:])
        try:
            if mode == "events":
                check_events(read_messages(path))
                return
            trace = read_trace(path, mode, skip_bad=choice >= 128)
            _check(trace)
            if trace.records_tokens and not trace.skip_bad:
                _check_hash(path, trace)
        except TraceFormatError as error:
            if error.file != str(path) or not error.reason or "\n" in str(error):
                raise AssertionError(f"an unclear error: {error}") from error


def _check(trace: Trace) -> None:
    requests = list(trace)
    skipped = trace.num_skipped
    if list(trace) != requests or trace.num_skipped != skipped:
        raise AssertionError("a second reading differs")
    for request in requests:
        size = trace.block_size
        whole = request.num_tokens // size, -(-request.num_tokens // size)
        if request.prompt is None and len(request.ids) not in whole:
            raise AssertionError("a length that does not fit was taken")
    hashed = list(HashedTrace(requests, trace.block_size))
    curve = hit_rate_curve(hashed, block_size=trace.block_size)
    if not 0 <= curve.ceiling <= 1:
        raise AssertionError(f"a hit rate of {curve.ceiling}")
    if sum(request.num_tokens for request in requests) <= _MOST_TOKENS:
        options = ReplayOptions(capacities=(3, 8))
        for result in replay(requests, trace_block_size=trace.block_size, options=options).results:
            if result.rate > curve.ceiling:
                raise AssertionError("a bounded cache beats the unbounded one")


def _check_hash(path: Path, trace: Trace) -> None:
    hashed = [list(request.ids) for request in HashedTrace(trace, 4)]
    try:
        lines = [request.block_hashes for request in hashed_requests(str(path), BlockHasher(4))]
    except TraceFormatError as error:
        raise AssertionError("hash refuses what replay reads") from error
    if lines != hashed:
        raise AssertionError("hash and replay read one file differently")


def main() -> None:
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv, TestOneInput)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
