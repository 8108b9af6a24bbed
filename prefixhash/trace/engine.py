"""Replay through the engine: tokens, hashes, lookup, allocation, commit, free."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from prefixhash import _arguments
from prefixhash.cache import PrefixCache
from prefixhash.errors import InvalidArgumentError
from prefixhash.hashing import BlockHasher
from prefixhash.request import Request
from prefixhash.trace.caches import CLIP, REJECT, Admission, Prepared, check_pool
from prefixhash.trace.incoming import checked_requests
from prefixhash.trace.records import TokenPrompt, TraceRequest

# Above every token that a trace can name by its dense block numbers.
_UNRECORDED = 1 << 40
_OUTPUT = 1 << 41
_MOST_TOKENS = 1 << 28
# No prompt fills a larger block, and hashers and pools count in 64 bits.
_LARGEST_BLOCK = 1 << 40


class RequestHasher:
    """Makes hashed requests; `seconds` and `num_blocks` add up what hashing took."""

    def __init__(self, block_size: int, ids_block_size: int | None = None) -> None:
        block_size = _arguments.integer("block_size", block_size, 1)
        self._hasher = BlockHasher(min(block_size, _LARGEST_BLOCK))
        given = _arguments.optional_integer("ids_block_size", ids_block_size, 1)
        self._ids_block_size = block_size if given is None else given
        self.seconds = 0.0
        self.num_blocks = 0

    def request(self, prepared: Prepared) -> Request:
        """The request of one place of the trace; as hashed on reading, where it was."""
        hashed: Request | None = prepared.source.hashed
        return hashed if hashed is not None else self.fresh(prepared)

    def fresh(self, prepared: Prepared) -> Request:
        """A request of one's own, which may be cut or appended to."""
        name = f"r{prepared.index}"
        source = prepared.source
        if source.prompt is not None:
            return self.recorded(name, source.prompt)
        tokens = tokens_of_blocks(
            prepared.ids, source.num_tokens, self._ids_block_size, prepared.index
        )
        begin = perf_counter()
        return self._counted(Request(name, tokens, block_hasher=self._hasher), begin)

    def recorded(self, name: str, prompt: TokenPrompt) -> Request:
        """A request as it was recorded: tokens, adapter, media and salt."""
        begin = perf_counter()
        request = Request(
            name,
            prompt.token_ids,
            block_hasher=self._hasher,
            lora_request=prompt.lora,
            mm_features=prompt.media,
            cache_salt=prompt.cache_salt,
        )
        return self._counted(request, begin)

    def _counted(self, request: Request, begin: float) -> Request:
        self.seconds += perf_counter() - begin
        self.num_blocks += len(request.block_hashes)
        return request


def tokens_of_blocks(
    numbers: list[int], num_tokens: int, block_size: int, index: int
) -> array[int]:
    """Tokens of a prompt whose blocks have these dense numbers: each block repeats its own number.

    Different ids give different tokens and equal ids equal ones, which is all that matters to a
    cache. A last block that was not recorded is unknown, so it is taken to be this request's own
    (`index`).

    Raises `InvalidArgumentError` above 2^28 tokens (2 GiB): more than any model reads.
    """
    if num_tokens > _MOST_TOKENS:
        raise InvalidArgumentError(
            "num_tokens", num_tokens, f"of request {index} are too many to make: use --ids"
        )
    tokens = array("q")
    whole = num_tokens // block_size
    for number in numbers[:whole]:
        tokens.extend(array("q", [number]) * block_size)
    # The partial last block, or all that was not recorded.
    last = numbers[whole] if len(numbers) > whole else _UNRECORDED + index
    tokens.extend(array("q", [last]) * (num_tokens - len(tokens)))
    return tokens


class HashedTrace:
    """A trace whose token prompts have got the hashes of their full blocks as ids.

    Requests that have ids pass through. `hasher` holds the counts of the latest pass. Iterating
    raises `InvalidArgumentError` for what is no request.
    """

    def __init__(self, trace: Iterable[TraceRequest], block_size: int) -> None:
        self._trace = trace
        self._block_size = _arguments.integer("block_size", block_size, 1)
        self.hasher = RequestHasher(block_size)

    def __iter__(self) -> Iterator[TraceRequest]:
        self.hasher = RequestHasher(self._block_size)
        for index, request in enumerate(checked_requests(self._trace, self._block_size)):
            if request.prompt is None:
                yield request
                continue
            hashed = self.hasher.recorded(f"r{index}", request.prompt)
            yield replace(request, ids=tuple(hashed.block_hashes), hashed=hashed)


@dataclass(frozen=True, slots=True)
class ClippedRequest:
    """The beginning of a request that is larger than the pool, with the hashes it has already."""

    request_id: str
    all_token_ids: Sequence[int]
    block_hashes: list[bytes]

    @classmethod
    def of(cls, request: Request, num_tokens: int, block_size: int) -> ClippedRequest:
        """The first `num_tokens` tokens."""
        hashes = request.block_hashes[: num_tokens // block_size]
        return cls(request.request_id, request.all_token_ids[:num_tokens], hashes)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.all_token_ids)


@dataclass(slots=True)
class _Running:
    """A request that holds blocks, and the output tokens that it has yet to write."""

    request: Request | ClippedRequest
    num_output: int
    index: int


class EngineCache:
    """A `PrefixCache` of one full-attention group, driven as a scheduler would.

    A request's output, where it is committed, has its blocks reserved on admission, so that a
    request that runs can always finish.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        hasher: RequestHasher,
        *,
        commit_output: bool = False,
        oversize: str = CLIP,
    ) -> None:
        check_pool(num_blocks, oversize)
        self._cache = PrefixCache.single(num_blocks, min(block_size, _LARGEST_BLOCK))
        self._hasher = hasher
        self._commit_output = commit_output
        self._reject = oversize == REJECT
        self._block_size = block_size
        # What a request can hold: all but the null block.
        self._most_tokens = (num_blocks - 1) * block_size
        # What is cached of a larger one: all but the null block and its tail.
        self._clipped_tokens = (num_blocks - 2) * block_size + 1
        self.seconds = 0.0

    @property
    def evictions(self) -> int:
        return self._cache.stats.evictions

    def start(self, prepared: Prepared) -> Admission | None:
        request: Request | ClippedRequest = prepared.request
        num_output = prepared.source.output_tokens if self._commit_output else 0
        oversize = request.num_tokens + num_output > self._most_tokens
        if oversize and self._reject:
            return Admission(0.0, None, True)
        if oversize:
            num_output = 0
            cut = min(self._clipped_tokens, request.num_tokens)
            request = ClippedRequest.of(prepared.request, cut, self._block_size)
        elif num_output:
            # Shared with the other caches as it is; appending needs one of its own.
            request = self._hasher.fresh(prepared)
        if request.num_tokens == 0:
            return Admission(0.0, None, oversize)
        begin = perf_counter()
        admission = self._admit(prepared.index, request, num_output, oversize)
        self.seconds += perf_counter() - begin
        return admission

    def computed(self, handle: _Running) -> None:
        begin = perf_counter()
        self._cache.commit(handle.request, handle.request.num_tokens)
        self.seconds += perf_counter() - begin

    def end(self, handle: _Running) -> None:
        request = handle.request
        begin = perf_counter()
        if handle.num_output and isinstance(request, Request):
            request.append_token_ids([_OUTPUT + handle.index] * handle.num_output)
            self._cache.allocate(request, handle.num_output)
            self._cache.commit(request, request.num_tokens)
        self._cache.free(request)
        self.seconds += perf_counter() - begin

    def _admit(
        self, index: int, request: Request | ClippedRequest, num_output: int, oversize: bool
    ) -> Admission | None:
        cache = self._cache
        hit = cache.lookup(request)
        new = request.num_tokens - hit.num_tokens
        if cache.allocate(request, new, hit, num_output) is None:
            return None
        handle = _Running(request, num_output, index)
        return Admission(hit.num_tokens, handle, oversize, hit.num_tokens)
