"""Residency sampling: lifetime, idle time, reuse gaps of evicted blocks."""

from __future__ import annotations

import pytest

from prefixhash import InvalidArgumentError
from prefixhash.pool import BlockPool, Residency, ResidencySampler


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def sampled(rate: float = 1.0) -> tuple[BlockPool, ResidencySampler, Clock]:
    clock = Clock()
    sampler = ResidencySampler(rate, seed=1, clock=clock)
    return BlockPool(4, residency=sampler), sampler, clock


def test_lifetime_idle_and_gaps() -> None:
    pool, sampler, clock = sampled()
    (block,) = pool.allocate(1)
    pool.cache([block], [b"a"])
    pool.free([block])
    for clock.now in (2.0, 3.0, 7.0):
        pool.touch([block])
        pool.free([block])
    clock.now = 20.0
    pool.allocate(3)
    assert sampler.take() == [Residency(20.0, 13.0, (1.0, 4.0))]
    assert sampler.take() == []


def test_block_that_was_never_cached_has_no_residency() -> None:
    pool, sampler, clock = sampled()
    pool.free(pool.allocate(3))
    clock.now = 5.0
    pool.allocate(3)
    assert sampler.take() == []


def test_explicit_eviction_counts_and_reset_does_not() -> None:
    pool, sampler, clock = sampled()
    blocks = pool.allocate(2)
    pool.cache(blocks, [b"a", b"b"])
    clock.now = 1.0
    pool.evict(blocks[:1])
    pool.free(blocks)
    pool.reset()
    assert sampler.take() == [Residency(1.0, 1.0, ())]


def test_gaps_of_a_hot_block_are_bounded() -> None:
    pool, sampler, clock = sampled()
    (block,) = pool.allocate(1)
    pool.cache([block], [b"a"])
    for clock.now in range(100):
        pool.touch([block])
    pool.evict([block])
    assert sampler.take()[0].reuse_gaps == (1.0, 1.0, 1.0)


def test_sample_rate() -> None:
    clock = Clock()
    sampler = ResidencySampler(0.25, seed=7, clock=clock)
    pool = BlockPool(2001, residency=sampler)
    blocks = pool.allocate(2000)
    pool.cache(blocks, blocks)
    pool.evict(blocks)
    assert 400 < len(sampler.take()) < 600


@pytest.mark.parametrize("rate", [0, -0.1, 1.1])
def test_bad_rate(rate: float) -> None:
    with pytest.raises(InvalidArgumentError, match="sample_rate"):
        ResidencySampler(rate)
