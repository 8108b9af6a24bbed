"""Which format a trace is written in: by name, or from its first record."""

from __future__ import annotations

import prefixhash.trace.formats as table
from prefixhash import _arguments
from prefixhash._source import BadRecordError
from prefixhash.errors import shorten
from prefixhash.trace.fields import lacking
from prefixhash.trace.formats.base import TraceFormat

AUTO = "auto"


def format_names() -> tuple[str, ...]:
    """The names of all formats."""
    return tuple(kind.name for kind in table.FORMATS)


def format_choices() -> tuple[str, ...]:
    """What can be asked for: a name, or `auto`."""
    return (AUTO, *format_names())


def describe_formats() -> str:
    """One sentence for each format, for the help of a command."""
    return "; ".join(f"{kind.name}: {kind.summary}" for kind in table.FORMATS)


def find_format(name: str) -> type[TraceFormat] | None:
    """The format of this name; None for `auto`; `InvalidArgumentError` for an unknown one."""
    _arguments.choice("format", name, format_choices())
    return next((kind for kind in table.FORMATS if kind.name == name), None)


def recognise(record: object) -> type[TraceFormat]:
    """The format that `record` is written in.

    Raises `BadRecordError` for a record of no known format, with what it lacks.
    """
    if isinstance(record, dict):
        for kind in table.FORMATS:
            if kind.recognises(record):
                return kind
    raise BadRecordError(_what_it_is(record))


def _what_it_is(record: object) -> str:
    if _looks_like_event(record):
        return "this is a recording of KV events, not a trace: use `prefixhash check-events`"
    formats = f"formats are {', '.join(format_names())}"
    if not isinstance(record, dict):
        no_object = f"{shorten(record)[:40]} is no object (a trace has one JSON object a line)"
        return f"no known trace format: {no_object}; {formats}"
    for kind in table.FORMATS:
        for sign in kind.signs:
            if record.get(sign) is not None:
                return lacking(record, sign, _contents_beside(sign))
    seen = f"an object with {', '.join(list(record)[:8])}"
    return f"no known trace format: {seen[:160]}; {formats}"


def _contents_beside(sign: str) -> tuple[str, ...]:
    """What the formats that know a key would tell the prompt by, the most common first."""
    kinds = [kind for kind in reversed(table.FORMATS) if sign in kind.signs]
    return tuple(dict.fromkeys(key for kind in kinds for key in kind.contents))


def _looks_like_event(record: object) -> bool:
    if isinstance(record, dict):
        return "events" in record or record.get("type") in ("BlockStored", "BlockRemoved")
    return isinstance(record, list) and len(record) >= 2 and isinstance(record[1], list)
