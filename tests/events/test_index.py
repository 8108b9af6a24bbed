"""The consumer's index: chains, orphans, groups; and equality with the pool's after any history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import InvalidArgumentError
from prefixhash.events import AllBlocksCleared, BlockRemoved, BlockStored, EventIndex
from prefixhash.pool import BlockPool


def test_parents_of_a_run() -> None:  # PC-114
    index = EventIndex([BlockStored(("h1", "h2", "h3"), "P")])
    assert [index.parent(key) for key in ("h1", "h2", "h3")] == ["P", "h1", "h2"]


def test_blocks_of_an_unknown_parent_are_kept_and_linked_later() -> None:  # PC-117
    index = EventIndex([BlockStored(("h0",)), AllBlocksCleared()])
    index.apply([BlockStored(("h3",), "h1"), BlockStored(("h4",), "h3")])
    assert index.keys() == {(0, "h3"), (0, "h4")}
    assert index.orphans() == {"h3"}
    assert index.resident_prefix(["h1", "h3", "h4"]) == 0
    index.apply([BlockStored(("h1",))])
    assert index.orphans() == set()
    assert index.resident_prefix(["h1", "h3", "h4"]) == 3


def test_a_parent_that_becomes_known_later_links_the_block() -> None:
    index = EventIndex([BlockStored(("h0", "h1")), BlockStored(("h3", "h4"))])
    assert index.parent("h3") is None
    index.apply([BlockStored(("h2", "h3"), "h1")])
    assert index.parent("h3") == "h2"
    assert index.resident_prefix(["h0", "h1", "h2", "h3", "h4"]) == 5
    index.apply([BlockStored(("h3",)), BlockStored(("h3",), "other")])  # the first parent stays
    assert index.resident_prefix(["h0", "h1", "h2", "h3", "h4"]) == 5


@pytest.mark.parametrize(
    "bad", [5, [5], ["x"], [BlockStored(([],))], [BlockStored(("a",), group_idx="x")]]
)
def test_what_is_no_event_changes_nothing(bad: Any) -> None:
    index = EventIndex([BlockStored(("h0",))])
    with pytest.raises(InvalidArgumentError, match="events"):
        index.apply([BlockStored(("h1",)), *bad] if isinstance(bad, list) else bad)
    assert index.keys() == {(0, "h0")}


def test_windows_are_no_prefix() -> None:  # PC-120
    index = EventIndex(
        [
            BlockStored(tuple(f"f{i}" for i in range(4)), None, (), 256, group_idx=0),
            BlockStored(("w14", "w15"), "w13", (), 64, group_idx=1),
        ]
    )
    assert index.resident_prefix([f"f{i}" for i in range(6)], 0) == 4
    assert index.resident_prefix([f"w{i}" for i in range(16)], 1) == 0
    assert index.resident_prefix(["w14", "w15"], 1) == 0
    assert "w14" in index
    assert "w13" not in index


def test_removed_in_the_middle_leaves_orphans() -> None:
    index = EventIndex([BlockStored(("a", "b", "c"))])
    index.apply([BlockRemoved(("b",)), BlockRemoved(("unknown",))])
    assert index.resident_prefix(["a", "b", "c"]) == 1
    assert index.orphans() == {"c"}
    index.apply([BlockStored(("b",), "a")])
    assert index.resident_prefix(["a", "b", "c"]) == 3


def test_no_events() -> None:
    index = EventIndex()
    assert index.keys() == index.orphans(3) == set()
    assert index.resident_prefix(["a"]) == 0
    assert index.parent("a") is None


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5), st.booleans()), max_size=30))
def test_equals_the_pool_after_any_history(requests: list[tuple[int, int, bool]]) -> None:
    pool = BlockPool(9, events=True)
    index = EventIndex()
    for length, start, cut in requests:
        keys = [f"{start}-{i}" for i in range(length)]
        hit = pool.longest_prefix(keys)
        pool.touch(hit)
        new = pool.allocate(min(length - len(hit), pool.num_free_blocks))
        blocks = hit + new
        pool.cache(blocks, keys[: len(blocks)])
        pool.free(blocks[::-1])
        if cut:
            pool.evict(blocks[:1])
        index.apply(pool.take_events())
        assert index.keys() == pool.cached_hashes()
        assert index.resident_prefix(keys) == len(pool.longest_prefix(keys))
