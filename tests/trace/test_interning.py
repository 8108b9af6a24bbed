"""Dense numbers for opaque ids, and whether these are prefix hashes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefixhash.trace.interning import Interner


def naive_is_chained(requests: list[list[int]]) -> bool:
    parents: dict[int, int | None] = {}
    for ids in requests:
        before: int | None = None
        for block in ids:
            if parents.setdefault(block, before) != before:
                return False
            before = block
    return True


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=8))
def test_chained_is_exactly_one_predecessor_for_each_id(requests: list[list[int]]) -> None:
    interner = Interner()
    for ids in requests:
        interner.intern(ids)
    assert interner.chained == naive_is_chained(requests)


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_prefixes_are_a_chain_and_have_their_depths(paths: list[list[int]]) -> None:
    interner = Interner()
    seen: dict[tuple[int, ...], int] = {}
    for path in paths:
        keys = [tuple(path[: i + 1]) for i in range(len(path))]
        numbers = interner.intern([repr(key) for key in keys])
        assert all(seen.setdefault(k, n) == n for k, n in zip(keys, numbers, strict=True))
    assert interner.chained
    assert interner.depths() == [len(key) - 1 for key in seen]
    assert list(seen.values()) == list(range(len(interner)))


def test_ids_of_any_size_and_kind_are_distinct() -> None:
    interner = Interner()
    assert interner.intern([2**90, -1, "1", (0, 1), (1, 1), b"1", -1]) == [0, 1, 2, 3, 4, 5, 1]
