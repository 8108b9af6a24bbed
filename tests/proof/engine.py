"""A serving loop over `PrefixCache` and the plan's tensors that checks every logit it computes.

Blocks are filled with NaN when they are handed out and K and V are read through block tables only,
so that reading a position that this request, or the owner of a shared block, has not written shows
in the logits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from prefixhash import BlockHasher, PrefixCache, Request
from prefixhash.layout import FullAttentionSpec, SlidingWindowSpec, plan_kv_cache
from prefixhash.layout.kernel_layouts import Layouts
from prefixhash.layout.options import PlanOptions
from tests.proof.model import HEAD_SIZE, LAYERS, Contiguous, Model

BLOCK_SIZE, CHUNK, MAX_RUNNING = 4, 24, 8


@dataclass
class Job:
    """A request, how many tokens it generates, and its computation from scratch."""

    request: Request
    num_output_tokens: int
    scratch: Contiguous = field(default_factory=Contiguous)
    logits: list[Any] = field(default_factory=list)
    num_computed: int = 0

    def expected(self, model: Model, position: int) -> Any:
        """Logits of a position, computed without any reuse."""
        while len(self.logits) <= position:
            place = len(self.logits)
            self.logits.append(model.forward(self.request, place, self.scratch))
        return self.logits[position]

    @property
    def is_finished(self) -> bool:
        request = self.request
        return request.num_tokens - request.num_prompt_tokens >= self.num_output_tokens


@dataclass
class Report:
    """What a run did, and the positions whose logits differ from those computed from scratch."""

    computed: int = 0
    reused: int = 0
    preemptions: int = 0
    evictions: int = 0
    differing: list[tuple[str, int]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


class Paged:
    """The store of a running request: its block tables over the plan's tensors."""

    def __init__(self, tensors: Any, tables: dict[str, list[int]]) -> None:
        self._tensors = tensors
        self._tables = tables

    def write(self, layer: str, position: int, key: Any, value: Any) -> None:
        block, slot = self._tables[layer][position // BLOCK_SIZE], position % BLOCK_SIZE
        self._tensors[layer][block, 0, slot, 0] = key
        self._tensors[layer][block, 1, slot, 0] = value

    def read(self, layer: str, start: int, stop: int) -> tuple[Any, Any]:
        first = start // BLOCK_SIZE
        ids = self._tables[layer][first : -(-stop // BLOCK_SIZE)]
        rows = self._tensors[layer][ids]  # (blocks, key or value, slots, heads, HEAD_SIZE)
        rows = rows.transpose(0, 1).reshape(2, -1, HEAD_SIZE)
        places = slice(start - first * BLOCK_SIZE, stop - first * BLOCK_SIZE)
        return rows[0, places], rows[1, places]


class Engine:
    """Admits, computes in chunks, decodes greedily, preempts when blocks run out."""

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        *,
        layouts: Layouts = None,
        packed: bool = False,
        publish_early: bool = False,
        rng: random.Random,
    ) -> None:
        self._model, self._rng, self._publish_early = model, rng, publish_early
        page = 2 * BLOCK_SIZE * HEAD_SIZE * 8
        geometry: dict[str, Any] = {
            "block_size": BLOCK_SIZE,
            "num_kv_heads": 1,
            "head_size": HEAD_SIZE,
            "dtype": "float64",
        }
        specs = {
            name: FullAttentionSpec(**geometry)
            if window is None
            else SlidingWindowSpec(**geometry, window=window)
            for name, window in LAYERS.items()
        }
        options = PlanOptions(
            max_model_len=1, max_num_batched_tokens=CHUNK, cross_layer_packing=packed
        )
        plan = plan_kv_cache(specs, num_blocks * 2 * page, options)
        if plan.num_blocks != num_blocks:
            raise AssertionError(f"two groups of two layers share a block: {plan}")
        self._group_of = {
            name: index for index, group in enumerate(plan.groups) for name in group.layer_names
        }
        self._tensors = plan.allocate("cpu", layouts)
        self._poison = torch.full((plan.bytes_per_block,), 255, dtype=torch.uint8)
        for name in LAYERS:
            self._tensors[name].fill_(float("nan"))
        self._owner: dict[int, str | None] = {}
        self._running: list[Job] = []
        self._report = Report()
        self.cache = PrefixCache(plan.groups, plan.num_blocks)

    def run(self, jobs: list[Job]) -> Report:
        """Serves all jobs to their end."""
        waiting = list(jobs)
        while waiting or self._running:
            while waiting and len(self._running) < MAX_RUNNING and self._admit(waiting[0]):
                self._running.append(waiting.pop(0))
            for job in list(self._running):
                if job in self._running:
                    self._step(job, waiting)
            self.cache.check()
        self._report.evictions = self.cache.stats.evictions
        return self._report

    def _admit(self, job: Job) -> bool:
        request = job.request
        hit = self.cache.lookup(request)
        chunk = min(CHUNK, request.num_tokens - hit.num_tokens)
        new = self.cache.allocate(request, chunk, hit)
        if new is None:
            return False
        for ids in hit.block_ids:
            if any(self._owner[block] != request.cache_salt for block in ids if block):
                self._report.foreign.append(request.request_id)
        self._hand_out(request, new)
        self._report.reused += hit.num_tokens
        job.num_computed = hit.num_tokens
        self._compute(job, chunk)
        return True

    def _step(self, job: Job, waiting: list[Job]) -> None:
        request = job.request
        if job.num_computed == request.num_tokens:
            if job.is_finished:
                self._running.remove(job)
                self.cache.free(request)
                return
            request.append_token_ids(int(job.expected(self._model, job.num_computed - 1).argmax()))
        chunk = min(CHUNK, request.num_tokens - job.num_computed)
        while (new := self.cache.allocate(request, chunk)) is None:
            victim = self._running.pop()
            self.cache.preempt(victim.request)
            waiting.insert(0, victim)
            self._report.preemptions += 1
            if victim is job:
                return
        self._hand_out(request, new)
        self._compute(job, chunk)

    def _hand_out(self, request: Request, new: tuple[list[int], ...]) -> None:
        for block in (block for ids in new for block in ids if block):
            self._tensors.load_block(block, self._poison)
            self._owner[block] = request.cache_salt

    def _compute(self, job: Job, chunk: int) -> None:
        request, start = job.request, job.num_computed
        if self._publish_early:
            self.cache.commit(request, start + chunk)
        tables = {
            name: self.cache.block_table(request, group) for name, group in self._group_of.items()
        }
        store = Paged(self._tensors, tables)
        if self._publish_early and self._rng.random() < 0.2:
            return self._abandon(job, start)
        for position in range(start, start + chunk):
            logits = self._model.forward(request, position, store)
            if not torch.equal(logits, job.expected(self._model, position)):
                self._report.differing.append((request.request_id, position))
        job.num_computed = start + chunk
        self._report.computed += chunk
        if not self._publish_early:
            self.cache.commit(request, job.num_computed)
        return None

    def _abandon(self, job: Job, start: int) -> None:
        """An abort between allocation and computation, seen by an engine that publishes early."""
        job.num_computed = job.request.num_tokens
        job.num_output_tokens = 0


Hash = Callable[[Any], list[bytes]]


class Blind:
    """A hasher that does not see some of a request's fields: what forgetting their keys does."""

    def __init__(self, hasher: BlockHasher, *hidden: str) -> None:
        self._hasher, self._hidden = hasher, hidden
        self.block_size = hasher.block_size
        self.num_full_blocks = hasher.num_full_blocks

    def __call__(self, request: Request, /) -> list[bytes]:
        return self._hasher(_Without(request, self._hidden))


class _Without:
    def __init__(self, request: Request, hidden: tuple[str, ...]) -> None:
        self._request, self._hidden = request, hidden

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._request, name)
