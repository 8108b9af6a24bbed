"""Fuzz target: any request, cut and grown in any way, hashes as if made at once.

python fuzz/fuzz_hash.py fuzz/corpus/hash        # with atheris installed
"""

from __future__ import annotations

import sys

from prefixhash import (
    BlockHasher,
    HashProfile,
    InvalidRequestError,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)
from prefixhash.hashing import ALGORITHMS

_NAMES = ("strict", "vllm:0.25", "vllm:0.30", "vllm:0.33")


class _Bytes:
    """Small decisions read off the input; zeros when it is used up."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def __bool__(self) -> bool:
        return bool(self._data)

    def number(self, size: int = 1) -> int:
        taken, self._data = self._data[:size], self._data[size:]
        return int.from_bytes(taken, "little", signed=True)

    def token_id(self) -> int:
        size = self.number() % 18
        # Negative ids, which must be refused, only now and then.
        return -size if size > 16 else self.number(size % 9) & (2**63 - 1)

    def text(self) -> str:
        size = self.number() % 4
        taken, self._data = self._data[:size], self._data[size:]
        return bytes(taken).decode("latin-1")


def TestOneInput(data: bytes) -> None:
    source = _Bytes(data)
    algorithm = tuple(ALGORITHMS)[source.number() % 4]
    profile = HashProfile.parse(_NAMES[source.number() % 4], algorithm, "0")
    hasher = BlockHasher(source.number() % 8 + 1, profile)
    try:
        request = _request(source, hasher)
    except InvalidRequestError:
        return
    if request.block_hashes != _made_at_once(request, hasher).block_hashes:
        raise AssertionError("a request differs from its copy")
    while source:
        _change(source, request)
        fresh = _made_at_once(request, hasher)
        if len(request.block_hashes) != len(fresh.block_hashes):
            raise AssertionError("a block was left out or hashed too early")
        # A vLLM profile follows its engine, whose keys of media depend on when they were asked.
        comparable = profile.schema.is_strict or not request.mm_features
        if comparable and request.block_hashes != fresh.block_hashes:
            raise AssertionError("a request differs from one that was made at once")


def _request(source: _Bytes, hasher: BlockHasher) -> Request:
    ids = [source.token_id() for _ in range(source.number() % 40)]
    media = [
        MultiModalFeature(
            "m" + source.text(), PlaceholderRange(source.number() % 30, source.number() % 12)
        )
        for _ in range(source.number() % 4)
    ]
    lora = LoRARequest("l" + source.text(), source.text()) if source.number() % 2 else None
    return Request(
        "fuzz",
        ids,
        block_hasher=hasher,
        lora_request=lora,
        mm_features=media,
        cache_salt=source.text(),
    )


def _change(source: _Bytes, request: Request) -> None:
    before = (list(request.all_token_ids), list(request.block_hashes))
    try:
        if source.number() % 2:
            request.append_token_ids([source.token_id() for _ in range(source.number() % 9)])
        else:
            request.truncate(source.number())
    except InvalidRequestError:
        if before != (list(request.all_token_ids), list(request.block_hashes)):
            raise AssertionError("a refused change left a trace") from None


def _made_at_once(request: Request, hasher: BlockHasher) -> Request:
    return Request(
        "copy",
        list(request.all_token_ids),
        block_hasher=hasher,
        lora_request=request.lora_request,
        mm_features=request.mm_features,
        cache_salt=request.cache_salt,
    )


if __name__ == "__main__":
    import atheris

    atheris.Setup(sys.argv, TestOneInput)
    atheris.Fuzz()
