"""Reused blocks give the same answers: logits with reuse equal logits computed from scratch,
bitwise, through the plan's tensors and the cache's block tables; and forgetting a key shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from prefixhash import BlockHasher
from prefixhash.layout.kernel_layouts import HEAD_MAJOR, TOKEN_MAJOR, Layouts
from tests.proof.engine import BLOCK_SIZE, Blind, Engine, Report
from tests.proof.model import Model
from tests.proof.workload import jobs


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """The model, on one thread: its tensors are too small to be worth more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Model()
    torch.set_num_threads(threads)


def serve(
    model: Model, hasher: Any, *, num_blocks: int = 1_500, num_kinds: int = 30, **options: Any
) -> Report:
    rng = random.Random(7)
    return Engine(model, num_blocks, rng=rng, **options).run(jobs(rng, 60, hasher, num_kinds))


@pytest.mark.parametrize(
    ("layouts", "packed"), [(TOKEN_MAJOR, False), (HEAD_MAJOR, False), (TOKEN_MAJOR, True)]
)
@pytest.mark.parametrize(("num_blocks", "num_kinds"), [(64, 6), (1_500, 30)])
def test_reuse_changes_no_logit(
    model: Model, layouts: Layouts, packed: bool, num_blocks: int, num_kinds: int
) -> None:
    report = serve(
        model,
        BlockHasher(BLOCK_SIZE),
        num_blocks=num_blocks,
        num_kinds=num_kinds,
        layouts=layouts,
        packed=packed,
    )
    assert report.differing == []
    assert report.foreign == []
    # What was proved about: reuse, and in the small pool blocks that change hands all the time.
    assert report.computed > 1_000
    assert report.reused > 400
    if num_blocks == 64:
        assert report.evictions > 300
        assert report.preemptions > 5


@pytest.mark.parametrize(
    "hidden",
    [("lora_request",), ("mm_features",), ("prompt_embeds",), ("prompt_is_token_ids",)],
    ids=lambda names: names[0],
)
def test_a_forgotten_key_changes_logits(model: Model, hidden: tuple[str, ...]) -> None:
    report = serve(model, Blind(BlockHasher(BLOCK_SIZE), *hidden))
    assert report.differing


def test_a_forgotten_salt_shares_blocks_between_tenants(model: Model) -> None:
    hasher = Blind(BlockHasher(BLOCK_SIZE), "cache_salt")
    report = serve(model, hasher)
    assert report.foreign
    assert report.differing == []  # a salt separates tenants, it changes no KV


def test_publishing_before_computing_changes_logits(model: Model) -> None:
    report = serve(model, BlockHasher(BLOCK_SIZE), publish_early=True)
    assert report.differing
