"""LMCache's lookup events: the chunks that were looked up for a prompt."""

from __future__ import annotations

from collections.abc import Iterable

from prefixhash.trace.fields import Record, time_field
from prefixhash.trace.formats.base import TraceFormat
from prefixhash.trace.records import TraceRequest


class LMCache(TraceFormat):
    """Lookups with `chunk_hashes`; times are in seconds."""

    name = "lmcache"
    summary = "timestamp (s), seq_len, chunk_hashes (lookup events)"
    default_block_size = 256
    recognised_by = ("chunk_hashes",)
    keys = ("timestamp", "seq_len", "chunk_hashes")
    signs = ("seq_len",)
    contents = ("chunk_hashes",)

    def requests(self, record: Record) -> Iterable[TraceRequest]:
        ids, num_tokens = self.blocks(record, "chunk_hashes", "seq_len")
        when = time_field(record, "timestamp", self.seconds)
        yield TraceRequest(ids, num_tokens, timestamp=when)
