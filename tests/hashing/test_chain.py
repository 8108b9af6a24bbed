"""`HashChain` and the reading of token ids: every test on both kernels, and both compared."""

from __future__ import annotations

import pickle
import sys
import threading
from array import array
from collections.abc import Callable
from typing import Any

import cbor2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefixhash import InvalidRequestError
from prefixhash._compiled import NATIVE
from prefixhash.hashing import _chain_py
from prefixhash.hashing.algorithms import ALGORITHMS, Algorithm
from prefixhash.request.tokens import reference_token_array, with_kernel

KERNELS = ["python"]
if NATIVE is not None:
    from prefixhash.hashing import _chain_native

    KERNELS.append("native")

Chain = _chain_py.HashChain
needs_native = pytest.mark.skipif(NATIVE is None, reason="the compiled kernel is not in use")
EDGES = [0, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1]
IDS = st.lists(st.sampled_from(EDGES) | st.integers(0, 2**63 - 1), max_size=70)
# Short texts meet the single objects that CPython keeps for them.
LEAF = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3) | st.text(max_size=300)
    | st.binary(max_size=300)
)  # fmt: skip
EXTRA = st.none() | st.lists(
    st.recursive(LEAF, lambda inner: st.lists(inner, max_size=5).map(tuple)), max_size=5
).map(tuple)


@pytest.fixture(params=KERNELS, scope="module")
def kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make_chain(kernel: str) -> Callable[[Algorithm], Chain]:
    return Chain if kernel == "python" else _chain_native.HashChain


@pytest.fixture(scope="module")
def read_ids(kernel: str) -> Callable[[Any, str], array[int]]:
    if kernel == "python" or NATIVE is None:
        return reference_token_array
    return with_kernel(NATIVE.token_array)


@pytest.fixture(params=ALGORITHMS, scope="module")
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    return ALGORITHMS[request.param]


def published(
    algorithm: Algorithm, parent: bytes, ids: list[int], size: int, extras: list[Any] | None
) -> list[bytes]:
    """The rule, with other people's serialisers."""
    digests: list[bytes] = []
    for i in range(len(ids) // size):
        key = (parent, tuple(ids[i * size : (i + 1) * size]), extras[i] if extras else None)
        cbor = algorithm.serialisation == "cbor"
        data = cbor2.dumps(key, canonical=True) if cbor else pickle.dumps(key, protocol=5)
        parent = algorithm.digest(data)
        digests.append(parent)
    return digests


@given(ids=IDS, size=st.integers(1, 20), parent=st.binary(max_size=40), data=st.data())
def test_call_is_the_published_rule(
    make_chain: Any, algorithm: Algorithm, ids: list[int], size: int, parent: bytes, data: Any
) -> None:
    count = len(ids) // size
    extras = data.draw(st.none() | st.lists(EXTRA, min_size=count, max_size=count))
    held = array("q", ids)
    chain = make_chain(algorithm)
    got = chain(parent, held, size, extras, 0, count * size)
    assert got == published(algorithm, parent, ids, size, extras)
    assert held.tolist() == ids


@given(ids=IDS, size=st.integers(1, 9), start=st.integers(0, 70), blocks=st.integers(0, 9))
def test_call_hashes_the_slice(
    make_chain: Any, algorithm: Algorithm, ids: list[int], size: int, start: int, blocks: int
) -> None:
    start = min(start, len(ids))
    stop = start + min(blocks, (len(ids) - start) // size) * size
    expected = published(algorithm, b"p", ids[start:stop], size, None)
    assert make_chain(algorithm)(b"p", array("q", ids), size, None, start, stop) == expected


@pytest.mark.parametrize("count", [63, 64, 200])  # the GIL is released from 64 blocks on
def test_long_prompts_hash_alike(make_chain: Any, algorithm: Algorithm, count: int) -> None:
    ids = [(i * 7919) % 151_936 for i in range(count * 16)]
    expected = published(algorithm, b"\0" * 32, ids, 16, None)
    assert make_chain(algorithm).hash_tokens(b"\0" * 32, ids, 16) == expected


_LATE = "one object, twice"
ODD_EXTRAS = [
    ("s" * 70_000,),  # a pickle of several frames
    (b"b" * 65_536,),
    tuple("t" * 300 for _ in range(400)),
    tuple(str(i) for i in range(300)),  # more memo entries than the kernel keeps
    tuple("u" * 700 + str(i) for i in range(100)),  # several frames of short texts
    ("first", *(f"text {i}" for i in range(300)), *[_LATE] * 2),  # a back reference past 255
    (True, False),
    (2**63, -(2**63) - 1),
    ((((((((((((((((((("deep",),),),),),),),),),),),),),),),),),),),
]


@pytest.mark.parametrize("extra", ODD_EXTRAS, ids=lambda extra: repr(extra)[:12])
def test_unusual_extras_hash_by_the_rule(
    make_chain: Any, algorithm: Algorithm, extra: tuple[Any, ...]
) -> None:
    extras = [None, extra, extra]
    expected = published(algorithm, b"p", [1, 2, 3], 1, extras)
    assert make_chain(algorithm)(b"p", array("q", [1, 2, 3]), 1, extras) == expected


def test_a_pickle_is_cut_into_frames_where_the_pickler_cuts_it(make_chain: Any) -> None:
    algorithm = ALGORITHMS["sha256"]
    chain = make_chain(algorithm)
    for length in range(35_400, 35_520):  # the key passes 64 KiB in between
        extras = [("a" * 30_000, "b" * length, "c")]
        expected = published(algorithm, b"p" * 32, [1], 1, extras)
        assert chain(b"p" * 32, array("q", [1]), 1, extras) == expected


def test_an_object_that_occurs_twice_is_written_as_pickle_does(make_chain: Any) -> None:
    parent = b"parent and extra are one object"
    text, pair = "a text of its own", ("a", "pair")
    extras = [(parent, text, text, pair, pair, (), (), "", ""), (parent, text, pair)]
    algorithm = ALGORITHMS["sha256"]
    expected = published(algorithm, parent, [1, 2], 1, extras)
    assert make_chain(algorithm)(parent, array("q", [1, 2]), 1, extras) == expected


def test_an_extra_that_cannot_be_in_a_key_is_refused(make_chain: Any, algorithm: Algorithm) -> None:
    if algorithm.serialisation == "pickle":
        return
    with pytest.raises(TypeError, match="a block key cannot hold a float"):
        make_chain(algorithm)(b"p", array("q", [1]), 1, [(1.5,)])


def buffers(ids: list[int]) -> dict[str, Any]:
    data = np.array(ids, dtype=np.int64)
    spread = np.zeros((len(ids), 3), dtype=np.int32)
    spread[:, 1] = ids
    odd_address = bytearray(8 * len(ids) + 1)
    odd_address[1:] = data.tobytes()
    forms = {code: array(code, ids) for code in "bBhHiIlLqQ"}
    forms |= {np.dtype(code).name: data.astype(code) for code in ("i1", "u2", "i4", "u4", "u8")}
    return forms | {
        "list": ids,
        "tuple": tuple(ids),
        "numpy reversed": data[::-1][::-1],
        "numpy column": spread[:, 1],
        "numpy big-endian": data.astype(">i8"),
        "numpy read-only": np.frombuffer(data.tobytes(), dtype=np.int64),
        "memoryview": memoryview(data),
        "memoryview at an odd address": memoryview(odd_address)[1:].cast("q"),
        "tensor": torch.tensor(ids),
        "tensor column": torch.from_numpy(spread)[:, 1],
        "tensor int32": torch.tensor(ids, dtype=torch.int32),
        "masked array without a mask": np.ma.array(data),
    }


@pytest.mark.parametrize("form", buffers([1]))
def test_hash_tokens_takes_any_form(make_chain: Any, read_ids: Any, form: str) -> None:
    ids = list(range(1, 120))
    held = buffers(ids)[form]
    expected = published(ALGORITHMS["sha256_cbor"], b"", ids, 16, None)
    assert make_chain(ALGORITHMS["sha256_cbor"]).hash_tokens(b"", held, 16) == expected
    got = read_ids(held, "ids")
    assert (type(got), got.typecode, got.tolist()) == (array, "q", ids)


REFUSED = {
    "negative": [1, -1],
    "too large": [1, 2**63],
    "bool": [1, True],
    "float": [1, 2.0],
    "text": "12",
    "bytes": b"12",
    "bytearray": bytearray(b"12"),
    "nothing": None,
    "generator": (i for i in [1, 2]),
    "negative behind the last full block": [*range(16), -1],
    "negative int8": array("b", [1, -1]),
    "negative array": array("q", [1, -1]),
    "high uint64": np.array([1, 2**63], dtype=np.uint64),
    "float array": np.array([1.0]),
    "bool array": np.array([True]),
    "two dimensions": np.array([[1, 2]]),
    "no dimension": np.array(1),
    "characters": memoryview(b"12").cast("c"),
    "masked": np.ma.array([1, 2], mask=[False, True]),
    "negative tensor": torch.tensor([1, -1]),
    "half tensor": torch.tensor([1.0], dtype=torch.float16),
    "bfloat16 tensor": torch.tensor([1.0], dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hash_tokens_refuses_what_is_no_token_id(make_chain: Any, name: str) -> None:
    value = REFUSED[name]
    with pytest.raises(InvalidRequestError) as expected:
        reference_token_array(value, "token_ids")
    chain = make_chain(ALGORITHMS["sha256_cbor"])
    with pytest.raises(InvalidRequestError) as caught:
        chain.hash_tokens(b"", value, 16)
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("name", REFUSED)
def test_token_array_refuses_what_is_no_token_id(read_ids: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError) as expected:
        reference_token_array(REFUSED[name], "ids")
    with pytest.raises(InvalidRequestError) as caught:
        read_ids(REFUSED[name], "ids")
    assert str(caught.value) == str(expected.value)


def test_token_array_copies_nothing_that_is_good(read_ids: Any) -> None:
    good = array("q", [1, 2])
    assert read_ids(good, "ids") is good
    good.append(3)  # no view of it was kept
    other = array("l", [1, 2])
    assert read_ids(other, "ids") is not other
    assert len(read_ids([], "ids")) == len(read_ids(array("q"), "ids")) == 0


def test_a_released_view_is_refused(make_chain: Any, read_ids: Any) -> None:
    view = memoryview(array("q", [1]))
    view.release()
    with pytest.raises(ValueError, match="released memoryview"):
        make_chain(ALGORITHMS["sha256"]).hash_tokens(b"", view, 1)
    with pytest.raises(ValueError, match="released memoryview"):
        read_ids(view, "ids")


def test_threads_hash_different_prompts_at_once(make_chain: Any, algorithm: Algorithm) -> None:
    chain = make_chain(algorithm)
    prompts = [[(i * k) % 150_000 for i in range(2_048)] for k in range(1, 9)]
    alone = [chain.hash_tokens(b"", ids, 16) for ids in prompts]
    together: list[Any] = [None] * len(prompts)

    def work(k: int) -> None:
        held = np.array(prompts[k], dtype=np.int32)
        together[k] = [chain.hash_tokens(b"", held, 16) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [[hashes] * 5 for hashes in alone]


# --- what only the compiled kernel can get wrong --------------------------------------------------


@needs_native
@given(ids=IDS, size=st.integers(1, 20), data=st.data())
def test_kernels_agree_on_any_extras(
    algorithm: Algorithm, ids: list[int], size: int, data: Any
) -> None:
    count = len(ids) // size
    given_extras = data.draw(st.lists(EXTRA, min_size=count, max_size=count))
    arguments = (b"\1" * 32, array("q", ids), size, given_extras, 0, count * size)
    native = _chain_native.HashChain(algorithm)
    assert native(*arguments) == Chain(algorithm)(*arguments)


@needs_native
def test_the_kernel_itself_answers_what_schedulers_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def defer(*_: Any, **__: Any) -> Any:
        raise AssertionError("the reference was asked")

    monkeypatch.setattr(Chain, "__call__", defer)
    monkeypatch.setattr(Chain, "hash_tokens", defer)
    ids = list(range(200_000, 200_064))
    extras: list[Any] = [(("lora", "n", "/p"), ("mm", "img", -3), b"digest"), None, (5, "s"), ()]
    for algorithm in ALGORITHMS.values():
        chain = _chain_native.HashChain(algorithm)
        for form in ("list", "tuple", "i", "I", "q", "uint32", "numpy column", "tensor"):
            assert len(chain.hash_tokens(b"r" * 32, buffers([1] * 64)[form], 16)) == 4
        assert len(chain(b"r" * 32, array("q", ids), 16, extras)) == 4


@needs_native
def test_a_failing_digest_is_passed_on() -> None:
    calls = []

    def fail(message: bytes) -> bytes:
        calls.append(message)
        raise MemoryError("no digest")

    if NATIVE is None or not NATIVE.XXH3_SOURCE.startswith("xxhash package"):
        pytest.skip("this build hashes XXH3-128 itself")
    with pytest.raises(MemoryError, match="no digest"):
        NATIVE.hash_blocks(16, fail, b"", [1, 2], 1, None, 0, None)
    assert len(calls) == 1


@needs_native
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (32, None, b"", [1], 1, None, 0),
        ("32", None, b"", [1], 1, None, 0, None),
        (32, None, b"", [1], "1", None, 0, None),
        (32, None, b"", [1], 1, None, "0", None),
        (32, None, b"", [1], 2**70, None, 0, None),
    ],
)
def test_wrong_arguments_are_errors(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        NATIVE.hash_blocks(*arguments)  # type: ignore[union-attr]


@needs_native
@pytest.mark.parametrize(
    "changed",
    [{2: bytearray(b"")}, {3: object()}, {4: 0}, {4: -1}, {5: (None,)}, {5: []}, {6: 2}, {6: -1},
     {7: 5}],
    ids=str,
)  # fmt: skip
def test_odd_arguments_are_left_to_the_reference(changed: dict[int, Any]) -> None:
    arguments: list[Any] = [32, None, b"", [1], 1, None, 0, 1]
    for position, value in changed.items():
        arguments[position] = value
    assert NATIVE.hash_blocks(*arguments) is None  # type: ignore[union-attr]


@needs_native
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="small objects are immortal since then")
def test_no_reference_is_lost_or_kept() -> None:
    objects: list[Any] = ["text of its own", b"bytes of their own", 2**40, ("tuple", "of", "two")]
    ids, parent = [2**41 + i for i in range(64)], b"parent of its own..............."
    watched = [*objects, *ids, parent, ids]
    before = [sys.getrefcount(item) for item in watched]
    for name in ALGORITHMS:
        chain = _chain_native.HashChain(ALGORITHMS[name])
        chain.hash_tokens(parent, ids, 16)
        chain(parent, array("q", ids), 16, [tuple(objects), None, (*objects, 1.5)[:4], None])
        with pytest.raises(InvalidRequestError):
            chain.hash_tokens(parent, [*ids, -1], 16)
    assert [sys.getrefcount(item) for item in watched] == before
