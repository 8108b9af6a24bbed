"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from typing import Any

from prefixhash.trace.reading import Trace
from prefixhash.trace.records import TraceRequest

_EVERY = 64


class Watched:
    """A trace that shows how far each pass over it has come, with rate and remaining time."""

    def __init__(self, trace: Trace | list[TraceRequest], *labels: str) -> None:
        self._trace = trace
        self._labels = iter(labels)

    def __iter__(self) -> Iterator[TraceRequest]:
        label = next(self._labels, "reading")
        if not sys.stderr.isatty():
            return iter(self._trace)
        try:
            bar = _bar()
        except ImportError:
            return iter(self._trace)
        return self._watch(bar, label)

    def _watch(self, bar: Any, label: str) -> Iterator[TraceRequest]:
        trace = self._trace
        by_bytes = isinstance(trace, Trace)
        total = trace.size if isinstance(trace, Trace) else len(_sized(trace))
        with bar:
            task = bar.add_task(label, total=total, requests=0, rate=0.0)
            number = 0
            for number, request in enumerate(trace, 1):
                yield request
                if number % _EVERY == 0:
                    done = trace.position if isinstance(trace, Trace) else number
                    elapsed = bar.tasks[0].elapsed or 1e-9
                    bar.update(task, completed=done, requests=number, rate=number / elapsed)
            elapsed = bar.tasks[0].elapsed or 1e-9
            end = total if by_bytes else number
            bar.update(task, completed=end, requests=number, rate=number / elapsed)


def _sized(trace: Sized) -> Sized:
    return trace


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[requests]:,} requests, {task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
