"""Fuzz target: a request that is cut and grown in any way hashes as if it was made at once.

python fuzz/fuzz_hash_chain.py fuzz/corpus/hash_chain        # with atheris installed
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from reading import Source

from prefixhash import BlockHasher, HashProfile, InvalidRequestError, Request
from prefixhash.hashing import ALGORITHMS

_NAMES = ("strict", "vllm:0.25", "vllm:0.30", "vllm:0.33")


def TestOneInput(data: bytes) -> None:
    source = Source(data)
    algorithm = tuple(ALGORITHMS)[source.number() % 4]
    name, ahead = _NAMES[source.number() % 4], source.number() % 3
    if name == "vllm:0.33":
        profile = HashProfile.vllm("0.33", algorithm, "0", lookahead_tokens=ahead)
    else:
        profile = HashProfile.parse(name, algorithm, "0")
    hasher = BlockHasher(source.number() % 8 + 1, profile)
    try:
        request = Request("fuzz", **source.fields(), block_hasher=hasher)
    except InvalidRequestError:
        return
    if request.block_hashes != _made_at_once(request, hasher).block_hashes:
        raise AssertionError("a request differs from its copy")
    while source:
        _change(source, request)
        fresh = _made_at_once(request, hasher)
        if len(request.block_hashes) != len(fresh.block_hashes):
            raise AssertionError("a block was left out or hashed too early")
        # A vLLM profile follows its engine, whose keys of media and embeddings depend on what was
        # the prompt when they were asked for.
        comparable = name == "strict" or not request.mm_features
        if comparable and request.block_hashes != fresh.block_hashes:
            raise AssertionError("a request differs from one that was made at once")


def _change(source: Source, request: Request) -> None:
    before = (list(request.all_token_ids), list(request.block_hashes), request.mm_features)
    try:
        if source.number() % 2:
            request.append_token_ids([source.token_id() for _ in range(source.number() % 9)])
        else:
            request.truncate(source.number())
    except InvalidRequestError:
        after = (list(request.all_token_ids), list(request.block_hashes), request.mm_features)
        if before != after:
            raise AssertionError("a refused change left a trace") from None


def _made_at_once(request: Request, hasher: BlockHasher) -> Request:
    """The same prompt, and the same tokens behind it in one piece."""
    length = request.num_prompt_tokens
    copy = Request(
        "copy",
        list(request.all_token_ids)[:length],
        block_hasher=hasher,
        lora_request=request.lora_request,
        mm_features=request.mm_features,
        prompt_embeds=request.prompt_embeds,
        prompt_is_token_ids=request.prompt_is_token_ids,
        cache_salt=request.cache_salt,
    )
    copy.append_token_ids(list(request.all_token_ids)[length:])
    return copy


if __name__ == "__main__":
    import atheris

    atheris.Setup(sys.argv, TestOneInput)
    atheris.Fuzz()
