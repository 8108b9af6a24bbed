"""The canonical CBOR of block keys, held against cbor2 in both directions."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixhash.hashing import _cbor

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64 - 1),
    st.binary(max_size=300),
    st.text(max_size=300),
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=30).map(tuple), max_leaves=60)


@given(VALUES)
def test_bytes_are_those_of_cbor2_and_decode_to_the_value(value: Any) -> None:
    data = _cbor.encode(value)
    assert data == _cbor.Encoder().encode(value)
    assert data == cbor2.dumps(value, canonical=True)
    assert as_tuples(cbor2.loads(data)) == value


@pytest.mark.parametrize("bits", [0, 5, 8, 16, 32, 64])
def test_integers_take_the_shortest_form_at_every_border(bits: int) -> None:
    for value in (2**bits - 2, 2**bits - 1, 2**bits, 23, 24, -24, -25, -(2**bits)):
        if value < 2**64:
            assert _cbor.encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.parametrize("value", [1.0, {1: 2}, {1}, object()])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="a block key cannot hold"):
        _cbor.encode(("tag", value))


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value
