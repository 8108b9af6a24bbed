"""Run by an interpreter that has vLLM: its own encoder and decoder beside ours; prints JSON."""

from __future__ import annotations

import json

import msgspec
import vllm
from vllm.distributed import kv_events as theirs

from prefixhash.events import AllBlocksCleared, BlockRemoved, BlockStored
from prefixhash.events.codec import decode_events, encode_events

H = [bytes([i]) * 32 for i in range(1, 5)]
U = [int.from_bytes(h[-8:], "big") for h in H]

OURS = [
    [BlockStored((H[0],), None, (1, 2, 3, 4), 4, group_idx=0)],
    [
        BlockStored(
            (H[1], H[2]),
            H[0],
            tuple(range(8)),
            4,
            lora_name="adapter",
            extra_keys=(("adapter", ("image", -3)), None),
            group_idx=1,
            kv_cache_spec_kind="sliding_window",
            kv_cache_spec_sliding_window=128,
        )
    ],
    [BlockRemoved((H[0], H[1]), "GPU", 0), BlockRemoved((H[2],), "CPU")],
    [AllBlocksCleared()],
    [BlockStored((H[3],), session_id="s", locality="LOCAL", lookahead_token_ids=((1,),))],
    [],
]
S = theirs.BlockStored
THEIRS = [
    [S([U[0]], None, [1, 2, 3, 4], 4, None, "GPU", None, group_idx=0)],
    [
        S(
            [U[1], U[2]],
            U[0],
            list(range(8)),
            4,
            None,
            "GPU",
            "adapter",
            [("adapter", ("image", -3)), None],
            1,
            "sliding_window",
            128,
        )
    ],
    [theirs.BlockRemoved([U[0], U[1]], "GPU", 0), theirs.BlockRemoved([U[2]], "CPU")],
    [theirs.AllBlocksCleared()],
    [S([U[3]], None, [], 0, None, "GPU", None, None, None, None, None, "LOCAL", None, "s", [[1]])],
    [],
]


def main() -> None:
    encoder = msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(theirs.KVEventBatch)
    equal = 0
    for rank in (None, 3):
        for ours, batch in zip(OURS, THEIRS, strict=True):
            expected = encoder.encode(theirs.KVEventBatch(1.5, batch, rank))
            written = encode_events(ours, 1.5, rank)
            assert written == expected, (written, expected)
            decoder.decode(written)
            read = decode_events(expected)
            assert encode_events(read.events, read.ts, read.data_parallel_rank) == expected
            equal += 1
    print(json.dumps({"vllm": vllm.__version__, "equal": equal}))


main()
