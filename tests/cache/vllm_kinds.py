"""Run by an interpreter that has vLLM 0.33.0: the name that its events give each layer spec.

Prints one line of JSON: for each of our kinds the wire name of ours and vLLM's, and the window.
"""

from __future__ import annotations

import json

import torch
import vllm
from vllm.v1 import kv_cache_interface as theirs

from prefixhash.cache import CacheGroup

HEAD = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
SPECS = {
    "full_attention": theirs.FullAttentionSpec(16, **HEAD),
    "sink_full_attention": theirs.SinkFullAttentionSpec(16, sink_len=16, **HEAD),
    "mla": theirs.MLAAttentionSpec(16, **HEAD),
    "hidden_state": theirs.HiddenStateCacheSpec(16, **HEAD),
    "sliding_window": theirs.SlidingWindowSpec(16, sliding_window=40, **HEAD),
    "sliding_window_mla": theirs.SlidingWindowMLASpec(16, sliding_window=40, **HEAD),
    "chunked_local": theirs.ChunkedLocalAttentionSpec(16, attention_chunk_size=64, **HEAD),
    "mamba": theirs.MambaSpec(16, shapes=((4,),), dtypes=(torch.float32,)),
    "cross_attention": theirs.CrossAttentionSpec(16, **HEAD),
    "encoder_only": theirs.EncoderOnlyAttentionSpec(16, **HEAD),
}


def names(kind: str) -> list[object]:
    group = CacheGroup(kind, 16, window=40, chunk=64)
    spec = SPECS[kind]
    return [
        [group.row.wire_name, group.window],
        [
            theirs.get_kv_cache_spec_kind(spec).value,
            theirs.get_kv_cache_spec_sliding_window(spec),
        ],
    ]


print(json.dumps({"vllm": vllm.__version__, "names": {kind: names(kind) for kind in SPECS}}))
