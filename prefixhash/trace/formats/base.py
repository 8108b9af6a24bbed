"""What every trace format says of itself, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from prefixhash import _arguments
from prefixhash._source import BadRecordError
from prefixhash.errors import shorten
from prefixhash.trace.fields import IdChecker, Record, check_length, count_field, lacking, meant
from prefixhash.trace.records import BlockId, TraceRequest

# Shorter keys are not looked at: `turns` may well be another thing than `turn`.
_SHORTEST = 6
_MOST_KEY_SETS = 256


class TraceFormat(ABC):
    """One way to write traces. An instance reads one of them: it holds what records must agree on.

    name: what `--format` calls it. summary: its keys, for people.
    default_block_size: tokens of a block id, unless said otherwise.
    seconds: length of its unit of time.
    recognised_by: keys that a record of this format, and of none further down the table, has.
    keys: the keys that are read; others are passed over, as they are somebody else's.
    signs, contents: a record with one of the first (mostly lengths) should have one of the second,
        which say what a prompt consists of.
    whole_files: whether a file may be one record over many lines.
    states_block_size: whether the records say the size of their blocks.
    records_tokens: whether prompts come with their tokens, so that blocks of any size can be made.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    default_block_size: ClassVar[int]
    seconds: ClassVar[float] = 1.0
    recognised_by: ClassVar[tuple[str, ...]]
    keys: ClassVar[tuple[str, ...]] = ()
    signs: ClassVar[tuple[str, ...]] = ()
    contents: ClassVar[tuple[str, ...]] = ()
    whole_files: ClassVar[bool] = False
    states_block_size: ClassVar[bool] = False
    records_tokens: ClassVar[bool] = False

    def __init__(self, block_size: int | None = None) -> None:
        given = _arguments.optional_integer("block_size", block_size, 1)
        self.block_size = given or self.default_block_size
        self._ids = IdChecker()
        self._spelt_well: set[tuple[tuple[str, ...], frozenset[str]]] = set()

    @classmethod
    def recognises(cls, record: Record) -> bool:
        """Whether a record is one of this format."""
        return all(key in record for key in cls.recognised_by)

    @abstractmethod
    def requests(self, record: Record) -> Iterable[TraceRequest]:
        """The requests of one record; raises `BadRecordError` or `InvalidArgumentError`."""

    def parse(self, record: object) -> Iterable[TraceRequest]:
        """The requests of one decoded line; raises as `requests`."""
        if not isinstance(record, dict):
            raise BadRecordError(f"{shorten(record)} is not an object")
        self.check_spelling(record, self.keys)
        return self.requests(record)

    def blocks(self, record: Record, ids: str, length: str) -> tuple[list[BlockId], int]:
        """The block ids under the key `ids` and the tokens under `length`, which must agree."""
        if record.get(ids) is None and record.get(length) is not None:
            raise BadRecordError(lacking(record, length, (ids,)))
        found = self._ids.ids(record, ids)
        num_tokens = count_field(record, length)
        check_length(len(found), num_tokens, self.block_size, ids)
        return found, num_tokens

    def check_spelling(self, record: Record, keys: tuple[str, ...]) -> None:
        """Raises for an unknown key that is almost one of `keys` which the record lacks.

        Passed over, it would change figures without a word.
        """
        seen = keys, frozenset(record)
        if seen in self._spelt_well:
            return
        absent = [key for key in keys if key not in record and len(key) >= _SHORTEST]
        for name in record:
            near = None if name in keys else meant(name, absent)
            if near is not None:
                raise BadRecordError(f"unknown key {shorten(name)}: did you mean {near!r}?")
        if len(self._spelt_well) < _MOST_KEY_SETS:
            self._spelt_well.add(seen)
