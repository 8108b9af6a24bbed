"""Fuzz target: two requests share a strict hash exactly where their KV is computed from the same.

The second request is the first with some fields changed, so that near misses are common.

python fuzz/fuzz_extra_keys.py fuzz/corpus/extra_keys        # with atheris installed
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from reading import Source

from prefixhash import BlockHasher, HashProfile, InvalidRequestError, Request
from prefixhash.hashing import ALGORITHMS


def TestOneInput(data: bytes) -> None:
    source = Source(data)
    profile = HashProfile.strict(tuple(ALGORITHMS)[source.number() % 4], seed="fuzz")
    hasher = BlockHasher(source.number() % 8 + 1, profile)
    fields = source.fields()
    changed = {**fields, **_changes(source, fields)}
    try:
        one = Request("one", **fields, block_hasher=hasher)
        other = Request("other", **changed, block_hasher=hasher)
    except InvalidRequestError:
        return
    for index, (a, b) in enumerate(zip(one.block_hashes, other.block_hashes, strict=False)):
        end = (index + 1) * hasher.block_size
        if (a == b) != (_what_kv_depends_on(one, end) == _what_kv_depends_on(other, end)):
            raise AssertionError(f"block {index}: equal hashes are {a == b}")


def _changes(source: Source, fields: dict[str, Any]) -> dict[str, Any]:
    fresh = source.fields()
    changes = {name: fresh[name] for name in fields if source.number() % 3 == 0 and name in fresh}
    ids = list(fields["token_ids"])
    if ids and source.number() % 2:
        ids[source.number() % len(ids)] ^= 1
        changes["token_ids"] = ids
    return changes


def _what_kv_depends_on(request: Request, end: int) -> Any:
    """Position by position, as a model would read it."""
    lora = request.lora_request
    media = sorted(
        (item.mm_position.offset, item.mm_position.length, item.modality, item.identifier)
        for item in request.mm_features
        if item.mm_position.length and item.mm_position.offset < end
    )
    inputs = [_input(request, position) for position in range(end)]
    return lora, request.cache_salt or None, media, inputs


def _input(request: Request, position: int) -> Any:
    embeds, mask = request.prompt_embeds, request.prompt_is_token_ids
    if embeds is None or (mask and mask[position]):
        return request.all_token_ids[position]
    row = (str(embeds.dtype), *embeds[position].tolist())
    # Without a mask the ids given beside embeddings count, too: they may be what a kernel reads.
    return row if mask else (row, request.all_token_ids[position])


if __name__ == "__main__":
    import atheris

    atheris.Setup(sys.argv, TestOneInput)
    atheris.Fuzz()
