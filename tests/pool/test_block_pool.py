"""BlockPool, method by method; known faults by number (PC-...: tests/data/known_faults.jsonl)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from prefixhash import InvalidArgumentError, InvalidBlockError, InvariantError, OutOfBlocksError
from prefixhash.events import BlockRemoved, BlockStored, StoredTokens
from prefixhash.pool import BlockPool


def snapshot(pool: BlockPool) -> Any:
    """Everything that a refused call must leave alone."""
    blocks = range(pool.num_blocks)
    return (
        pool.free_block_ids(),
        [pool.ref_count(b) for b in blocks],
        [pool.block_hashes(b) for b in blocks],
        pool.cached_hashes(),
        pool.num_evictions,
    )


def chain(name: str, n: int) -> list[bytes]:
    return [f"{name}{i}".encode() for i in range(n)]


def cached(pool: BlockPool, name: str, n: int) -> list[int]:
    """A finished request: n blocks, cached, freed tail first."""
    blocks = pool.allocate(n)
    pool.cache(blocks, chain(name, n))
    pool.free(blocks[::-1])
    return blocks


# -- construction ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [0, -1, 2.0, "8"])
def test_init_refuses(num_blocks: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks"):
        BlockPool(num_blocks)


def test_init_null_block_only() -> None:
    pool = BlockPool(1)
    assert (pool.num_free_blocks, pool.usage, pool.null_block_id) == (0, 0.0, 0)
    assert pool.allocate(0) == []
    with pytest.raises(OutOfBlocksError):
        pool.allocate(1)
    pool.check()


# -- allocate -------------------------------------------------------------------------------


def test_allocate_in_order_of_ids_at_first() -> None:
    pool = BlockPool(6)
    assert pool.allocate(2) == [1, 2]
    assert pool.allocate(3) == [3, 4, 5]
    assert pool.usage == 1.0


@pytest.mark.parametrize("n", [-1, -5, 1.5, None, "2"])
def test_allocate_refuses_negative_amounts(n: Any) -> None:  # PX-012
    pool = BlockPool(6)
    before = snapshot(pool)
    with pytest.raises(InvalidArgumentError):
        pool.allocate(n)
    assert snapshot(pool) == before
    assert pool.num_free_blocks == 5


def test_allocate_out_of_blocks_says_how_many() -> None:
    pool = BlockPool(6)
    with pytest.raises(OutOfBlocksError, match="6 blocks needed, 5 free") as caught:
        pool.allocate(6)
    assert (caught.value.needed, caught.value.free) == (6, 5)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_allocate_failure_keeps_the_order_of_reuse() -> None:  # PC-049
    pool = BlockPool(6)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(9)
    assert pool.allocate(2) == [1, 2]


def test_allocate_failure_keeps_what_a_request_holds() -> None:  # PC-048
    pool = BlockPool(6)
    own = pool.allocate(2)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(4)
    assert pool.num_free_blocks == 3
    assert [pool.ref_count(b) for b in own] == [1, 1]
    pool.free(own)
    assert pool.num_free_blocks == 5


def test_allocate_forgets_the_old_hash_at_once() -> None:  # PC-040
    pool = BlockPool(4)
    cached(pool, "a", 1)
    other = pool.allocate(3)
    assert pool.lookup(b"a0") is None
    pool.cache(other, chain("b", 3))
    assert pool.num_cached_hashes <= pool.num_blocks
    assert pool.lookup(b"a0") is None
    assert [pool.lookup(key) for key in chain("b", 3)] == other


def test_allocate_evicts_whatever_is_cached_and_free() -> None:  # PC-127
    pool = BlockPool(6)
    blocks = cached(pool, "a", 5)
    assert len(pool.allocate(3)) == 3
    assert (pool.num_cached_hashes, pool.num_evictions) == (2, 3)
    pool = BlockPool(6)
    blocks = cached(pool, "a", 5)
    pool.touch(blocks[:2])
    before = snapshot(pool)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(4)
    assert snapshot(pool) == before
    assert [pool.ref_count(b) for b in blocks[:2]] == [1, 1]
    assert pool.longest_prefix(chain("a", 2)) == blocks[:2]


def test_allocate_takes_the_tail_of_a_chain_first() -> None:  # PC-051
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    pool.cache(blocks[:2], chain("a", 2))
    pool.cache(blocks[2:], [b"a2"])
    pool.free(blocks[::-1])
    assert pool.allocate(1) == [blocks[2]]
    assert pool.longest_prefix(chain("a", 3)) == blocks[:2]


# -- free -----------------------------------------------------------------------------------


def test_free_order_plain_first_then_unused_then_cached() -> None:
    pool = BlockPool(8)
    a, b, c, d = pool.allocate(4)
    pool.cache([a, c], [b"a", b"c"])
    pool.free([d, c, b, a])
    assert pool.free_block_ids() == [d, b, 5, 6, 7, c, a]
    assert pool.allocate(3) == [d, b, 5]


@pytest.mark.parametrize("bad", [[1, 1, 2], [1, 2, 1], [3], [1, 3]])
def test_free_refuses_a_double_free(bad: list[int]) -> None:  # PC-043
    pool = BlockPool(6)
    assert pool.allocate(2) == [1, 2]
    before = snapshot(pool)
    with pytest.raises(InvalidBlockError, match="double free"):
        pool.free(bad)
    assert snapshot(pool) == before
    pool.check()


def test_free_refuses_a_second_free() -> None:  # PC-043
    pool = BlockPool(6)
    blocks = pool.allocate(2)
    pool.free(blocks)
    with pytest.raises(InvalidBlockError, match="free already") as caught:
        pool.free(blocks)
    assert caught.value.value == blocks[0]
    assert pool.num_free_blocks == 5
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]


def test_free_twice_what_is_held_twice() -> None:
    pool = BlockPool(6)
    (block,) = pool.allocate(1)
    pool.touch([block, block])
    pool.free([block, block, block])
    assert (pool.ref_count(block), pool.num_free_blocks) == (0, 5)
    pool.check()


@pytest.mark.parametrize("call", ["free", "touch", "cache"])
@pytest.mark.parametrize("bad", [0, -1, -5, 6, 10**30, 1.0, "1", None])
def test_bad_ids_change_nothing(call: str, bad: Any) -> None:  # PX-012
    pool = BlockPool(6)
    cached(pool, "z", 1)
    good = pool.allocate(2)
    pool.cache(good[:1], [b"a"])
    before = snapshot(pool)
    arguments = ([*good, bad],) if call != "cache" else ([*good, bad], chain("b", 3))
    with pytest.raises(InvalidBlockError) as caught:
        getattr(pool, call)(*arguments)
    assert caught.value.value == bad
    assert snapshot(pool) == before
    pool.check()


@pytest.mark.parametrize("bad", [-1, -6, 6, 7, 1.5, None, [1]])
def test_evict_refuses_foreign_ids(bad: Any) -> None:  # PX-012
    pool = BlockPool(6)
    cached(pool, "a", 5)
    before = snapshot(pool)
    with pytest.raises(InvalidBlockError):
        pool.evict([1, bad])
    assert snapshot(pool) == before


@pytest.mark.parametrize("bad", [None, 5, object()])
@pytest.mark.parametrize("call", ["free", "touch", "cache", "evict", "carries"])
def test_what_is_no_list_of_ids_changes_nothing(call: str, bad: Any) -> None:
    pool = BlockPool(6)
    cached(pool, "a", 2)
    before = snapshot(pool)
    arguments = (bad, [b"b"]) if call in ("cache", "carries") else (bad,)
    with pytest.raises(InvalidArgumentError, match="block_ids"):
        getattr(pool, call)(*arguments)
    assert snapshot(pool) == before


@pytest.mark.parametrize("bad", [[], {}])
def test_what_is_no_key_is_no_hash(bad: Any) -> None:
    pool = BlockPool(6)
    cached(pool, "a", 2)
    with pytest.raises(InvalidArgumentError, match="block_hash"):
        pool.lookup(bad)
    with pytest.raises(InvalidArgumentError, match="block_hash"):
        pool.longest_prefix([b"a0", bad])
    with pytest.raises(InvalidArgumentError, match="block_hash"):
        pool.longest_prefix(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="group"):
        pool.lookup(b"a0", bad)


@pytest.mark.parametrize("bad", [-1, 6, "x"])
def test_questions_refuse_foreign_ids(bad: Any) -> None:
    pool = BlockPool(6)
    for question in (pool.ref_count, pool.block_hash, pool.block_hashes):
        with pytest.raises(InvalidBlockError):
            question(bad)


def test_numpy_ids() -> None:
    numpy = pytest.importorskip("numpy")
    pool = BlockPool(6)
    blocks = pool.allocate(3)
    pool.cache(numpy.array(blocks), chain("a", 3))
    pool.free(numpy.array(blocks[::-1]))
    assert all(type(block) is int for block in pool.allocate(5))


def test_usage_returns_to_zero() -> None:  # PC-046
    pool = BlockPool(9)
    for i in range(100):
        blocks = pool.allocate(2)
        pool.cache(blocks, chain(f"r{i}-", 2))
        assert pool.usage <= 1.0
        pool.free(blocks[::-1])
        assert pool.usage == 0.0


# -- touch ----------------------------------------------------------------------------------


def test_touch_takes_a_block_out_of_the_middle() -> None:
    pool = BlockPool(6)
    blocks = cached(pool, "a", 5)
    pool.touch([blocks[2]])
    assert pool.free_block_ids() == [5, 4, 2, 1]
    pool.free([blocks[2]])
    assert pool.free_block_ids() == [5, 4, 2, 1, 3]


def test_touch_refuses_a_free_block_without_hash() -> None:
    pool = BlockPool(6)
    cached(pool, "a", 2)
    before = snapshot(pool)
    with pytest.raises(InvalidBlockError, match="nobody"):
        pool.touch([1, 5])
    assert snapshot(pool) == before


# -- cache, lookup --------------------------------------------------------------------------


def test_cache_twice_changes_nothing() -> None:  # PC-057
    pool = BlockPool(4, events=True)
    blocks = pool.allocate(1)
    pool.cache(blocks, [b"a"])
    assert len(pool.take_events()) == 1
    before = snapshot(pool)
    pool.cache(blocks, [b"a"])
    assert pool.take_events() == []
    assert snapshot(pool) == before


def test_cache_copies_serve_the_first_then_the_next() -> None:  # PC-054
    pool = BlockPool(6)
    one, two, three = pool.allocate(3)
    for block in (one, two, three):
        pool.cache([block], [b"a"])
    assert (pool.num_cached_hashes, pool.num_cached_blocks) == (1, 3)
    assert pool.lookup(b"a") == one
    pool.evict([one])
    assert pool.lookup(b"a") == two
    pool.evict([three])
    assert pool.lookup(b"a") == two
    pool.evict([two])
    assert pool.lookup(b"a") is None
    assert (pool.num_cached_hashes, pool.num_cached_blocks) == (0, 0)


def test_cache_a_second_hash_of_a_block() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.cache([block], [b"part"])
    pool.cache([block], [b"full"])
    assert pool.lookup(b"part") == pool.lookup(b"full") == block
    assert pool.block_hashes(block) == [(0, b"part"), (0, b"full")]
    assert pool.num_cached_blocks == 1
    pool.evict([block])
    assert pool.lookup(b"part") is pool.lookup(b"full") is None
    pool.check()


def test_cache_after_the_partial_entry_was_dropped() -> None:  # PC-085
    pool = BlockPool(4, events=True)
    (block,) = pool.allocate(1)
    pool.cache([block], [b"first 4 tokens"])
    pool.evict([block])
    pool.cache([block], [b"all 8 tokens"])
    pool.take_events()
    pool.cache([block], [b"all 8 tokens"])
    assert pool.lookup(b"first 4 tokens") is None
    assert pool.take_events() == []


def test_cache_after_evict_of_a_held_block() -> None:  # PC-042
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.cache([block], [b"a"])
    pool.evict([block])
    assert pool.block_hash(block) is None
    pool.free([block])
    assert pool.allocate(1) == [block]
    pool.cache([block], [b"b"])
    assert pool.lookup(b"a") is None
    assert pool.lookup(b"b") == block


def test_groups_are_apart() -> None:
    pool = BlockPool(4)
    one, two = pool.allocate(2)
    pool.cache([one], [b"a"], group=0)
    pool.cache([two], [b"a"], group=7)
    assert (pool.lookup(b"a"), pool.lookup(b"a", 7), pool.lookup(b"a", 1)) == (one, two, None)
    assert pool.longest_prefix([b"a"], 7) == [two]
    assert pool.longest_prefix([b"a"], 3) == []
    with pytest.raises(InvalidArgumentError, match="group"):
        pool.cache([one], [b"b"], group=-1)


@pytest.mark.parametrize(
    "hashes", [[b"a"], [b"a", None], [b"a", []], [b"a", b"b", b"c"], 5, None, b"ab", "ab"]
)
def test_cache_refuses_bad_hashes(hashes: Any) -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    before = snapshot(pool)
    with pytest.raises(InvalidArgumentError, match="block_hashes"):
        pool.cache(blocks, hashes)
    assert snapshot(pool) == before


def test_caching_disabled_finds_nothing_and_reuses_the_last_freed() -> None:
    pool = BlockPool(6, enable_caching=False)
    blocks = pool.allocate(2)
    pool.cache(blocks, chain("a", 2))
    assert pool.lookup(b"a0") is None
    pool.free(blocks)
    assert pool.free_block_ids() == [1, 2, 3, 4, 5]


def test_longest_prefix_stops_at_the_first_miss() -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(3)
    keys = chain("a", 4)
    pool.cache([blocks[0], blocks[1], blocks[2]], [keys[0], keys[1], keys[3]])
    assert pool.longest_prefix(keys) == blocks[:2]
    assert pool.longest_prefix(iter(keys[3:])) == blocks[2:]
    assert pool.longest_prefix([]) == []


def test_carries_sees_a_reused_block() -> None:
    pool = BlockPool(4)
    (block, *_) = cached(pool, "a", 2)
    assert pool.carries([block], [b"a0"])
    assert not pool.carries([block], [b"a0"], 1)
    pool.allocate(3)
    assert not pool.carries([block], [b"a0"])
    with pytest.raises(InvalidArgumentError, match="one per block"):
        pool.carries([block], [])
    for foreign in (99, -1, -4):
        with pytest.raises(InvalidBlockError):
            pool.carries([foreign], [b"a0"])
    pool = BlockPool(3)
    pool.cache(pool.allocate(2), chain("a", 2))
    with pytest.raises(InvalidBlockError):
        pool.carries([-1], [b"a1"])  # the last block, counted from the end
    assert not pool.carries([0], [b"a1"])


# -- evict, reset ---------------------------------------------------------------------------


def test_evict_keeps_the_place_of_a_free_block() -> None:
    pool = BlockPool(6)
    blocks = cached(pool, "a", 3)
    order = pool.free_block_ids()
    pool.evict([blocks[1], blocks[1], 0, 5])
    assert pool.free_block_ids() == order
    assert pool.longest_prefix(chain("a", 3)) == blocks[:1]


def test_reset_waits_for_held_blocks() -> None:  # PC-058
    pool = BlockPool(4, events=True)
    blocks = pool.allocate(1)
    pool.cache(blocks, [b"a"])
    pool.take_events()
    assert pool.reset() is False
    assert pool.lookup(b"a") == blocks[0]
    assert pool.take_events() == []
    pool.free(blocks)
    assert pool.reset() is True
    assert pool.lookup(b"a") is None
    assert [type(event).__name__ for event in pool.take_events()] == ["AllBlocksCleared"]
    assert [pool.block_hash(b) for b in range(4)] == [None] * 4


def test_reset_by_force_forgets_the_hashes_of_held_blocks() -> None:
    pool = BlockPool(4, events=True)
    blocks = pool.allocate(2)
    pool.cache(blocks, chain("a", 2))
    assert pool.reset(force=True) is True
    assert pool.longest_prefix(chain("a", 2)) == []
    assert [pool.ref_count(b) for b in blocks] == [1, 1]
    pool.free(blocks)
    pool.check()


# -- events ---------------------------------------------------------------------------------


def about(n: int, size: int = 4, parent: bytes | None = None) -> StoredTokens:
    return StoredTokens(parent, range(n * size), size, extra_keys=[(i,) for i in range(n)])


@pytest.mark.parametrize(
    "bad",
    [
        5,
        (None, range(4), 4),
        about(1),
        about(3),
        about(2)._replace(block_size=0),
        about(2)._replace(block_size=None),  # type: ignore[arg-type]
        about(2)._replace(token_ids=range(9)),
        about(2)._replace(extra_keys=[(1,)]),
    ],
)
def test_events_refuse_the_tokens_of_other_blocks(bad: Any) -> None:
    pool = BlockPool(6, events=True)
    blocks = pool.allocate(2)
    before = snapshot(pool)
    with pytest.raises(InvalidArgumentError, match="about"):
        pool.cache(blocks, chain("a", 2), about=bad)
    with pytest.raises(InvalidArgumentError, match="about"):
        pool.report_reuse(chain("a", 2), 0, bad)
    assert (snapshot(pool), pool.take_events()) == (before, [])
    pool.check()


def test_events_removed_with_the_last_copy_only() -> None:  # PC-109
    pool = BlockPool(4, events=True)
    (one,) = pool.allocate(1)
    (two,) = pool.allocate(1)
    pool.cache([one], [b"a"], about=about(1))
    pool.cache([two], [b"a"], about=about(1))
    assert len(pool.take_events()) == 1
    pool.free([one])
    assert pool.allocate(2) == [3, one]
    assert pool.take_events() == []
    assert pool.lookup(b"a") == two
    pool.free([two])
    pool.allocate(1)
    assert pool.take_events() == [BlockRemoved((b"a",), "GPU", 0)]


def test_events_runs_have_the_right_parent_and_tokens() -> None:  # PC-115
    pool = BlockPool(12, events=True)
    keys = chain("h", 5)
    pool.cache(pool.allocate(2), keys[1:3], about=about(2))
    pool.take_events()
    pool.cache(pool.allocate(5), keys, about=about(5))
    first, second = pool.take_events()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (first.block_hashes, first.parent_block_hash) == ((keys[0],), None)
    assert first.token_ids == (0, 1, 2, 3)
    assert (second.block_hashes, second.parent_block_hash) == (tuple(keys[3:]), keys[2])
    assert second.token_ids == tuple(range(12, 20))
    assert second.extra_keys == ((3,), (4,))
    assert second.parents() == (keys[2], keys[3])


def test_events_every_block_has_the_block_before_as_parent() -> None:  # PC-114
    event = BlockStored((b"h1", b"h2", b"h3"), b"P")
    assert event.parents() == (b"P", b"h1", b"h2")


def test_events_partial_block_names_a_reported_parent() -> None:  # PC-111
    pool = BlockPool(4, events=True)
    full, part = pool.allocate(2)
    pool.cache([full], [b"@16"], about=StoredTokens(None, range(16), 16))
    pool.cache([part], [b"@28"], about=StoredTokens(b"@16", range(16, 28), 12))
    stored, partial = pool.take_events()
    assert isinstance(partial, BlockStored)
    assert isinstance(stored, BlockStored)
    assert partial.parent_block_hash in stored.block_hashes
    assert partial.token_ids == tuple(range(16, 28))


def test_events_of_bare_ids() -> None:
    pool = BlockPool(4, events=True)
    pool.cache(pool.allocate(2), ["x", "y"], 3)
    (event,) = pool.take_events()
    assert event == BlockStored(("x", "y"), None, group_idx=3)


def test_events_off_costs_and_gives_nothing() -> None:
    pool = BlockPool(4)
    pool.cache(pool.allocate(1), [b"a"], about=about(1))
    pool.report_reuse([b"a"], 0, about(1))
    assert pool.take_events() == []
    assert not pool.events_enabled


# -- check ----------------------------------------------------------------------------------


def test_check_finds_damage() -> None:
    def damage(name: str, block: int, value: Any) -> None:
        pool = BlockPool(6, events=True)
        pool.cache(pool.allocate(3), chain("a", 3))
        pool.check()
        target = getattr(pool, name, None) or getattr(pool._index, name)
        target[block] = value
        with pytest.raises(InvariantError):
            pool.check()

    damage("_refs", 4, 1)
    damage("_refs", 1, 0)
    damage("_refs", 1, -1)
    damage("_next", 4, 4)
    damage("_next", 4, 0)
    damage("_prev", 0, 4)
    damage("hash_of", 0, b"x")
    damage("hash_of", 1, b"x")
    damage("hash_of", 5, b"x")
    damage("group_of", 1, 1)


def test_check_finds_a_missing_event() -> None:
    pool = BlockPool(6, events=True)
    pool._index.add(pool.allocate(1), [b"a"], 0, None)
    with pytest.raises(InvariantError, match="events"):
        pool.check()
