"""Every public callable, given a bad value in place of each of its arguments, raises errors of the
package's own tree or takes it, and one that raises has changed nothing."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from prefixhash import InvalidArgumentError, PrefixHashError
from prefixhash._arguments import choice, flag, integer, is_integer, nearest, number, text

from .arguments import CALLS
from .bad_values import BAD_VALUES

# Values that the package itself makes: their users check them.
RESULTS = {
    "AlignedBlocks", "AllBlocksCleared", "BlockLayout", "BlockNeed", "BlockRemoved", "BlockSizes",
    "BlockStored", "CacheHit", "CacheStats", "CachedRequest", "Definition", "EventReport",
    "HitRateCurve", "KVCacheBuffers", "KVCachePlan", "KVCacheTensor", "KernelLayout", "MediaSpan",
    "Message", "Meter", "ModelLayer", "ModelLayers", "NeedCurve", "ReplayReport", "ReplayResult",
    "Residency", "RowFormat", "SkippedLine", "Slot", "StoredTokens", "Survey", "Tally",
    "TensorView", "TokenIds", "TokenPrompt", "Trace", "TraceRequest", "HashProfile",
    "CollisionRiskWarning", "AttentionSpec", "LayerSpec", "Policy",
}  # fmt: skip
ALL = [(room, name) for room, calls in CALLS.items() for name in calls]


def spoil(call: Any, name: str, value: object) -> None:
    """Call with `value` in place of one argument; other errors than the package's fail the test."""
    before = call.state()
    arguments = {**call.arguments, name: value}
    refused = (PrefixHashError, OSError) if name in ("path", "config") else PrefixHashError
    with suppress(refused):
        call.function(**arguments)
        return
    assert call.state() == before, f"{name}={value!r} was refused, but changed something"


@contextmanager
def naming(call: str) -> Iterator[None]:
    """Says which call raised an error that it must not."""
    try:
        yield
    except Exception as error:
        pytest.fail(f"{call} raised {type(error).__name__}: {error}")


@pytest.mark.parametrize(("room", "name"), ALL)
def test_bad_values_get_errors_of_the_package_and_change_nothing(room: str, name: str) -> None:
    make = CALLS[room][name]
    good = make()
    good.function(**good.arguments)  # else nothing below means anything
    for argument in make().arguments:
        for value in BAD_VALUES:
            if callable(value) and callable(make().arguments[argument]):
                continue  # a function of the caller's own raises what it likes
            with naming(f"{name}({argument}={value!r})"):
                spoil(make(), argument, value)


@pytest.mark.parametrize(("room", "name"), ALL)
def test_an_integer_is_numpys_too_and_no_bool_float_or_text(room: str, name: str) -> None:
    make = CALLS[room][name]
    given = make().arguments
    for argument in (key for key, value in given.items() if type(value) is int):
        call = make()
        call.function(**{**call.arguments, argument: np.int64(given[argument])})
        for value in (True, np.bool_(True), float(given[argument]), str(given[argument]), 1.5):
            call = make()
            if isinstance(value, (float, str)) and argument in ("capacity", "warmup", "seed"):
                continue  # these take a number, or a text
            before = call.state()
            with (
                naming(f"{name}({argument}={value!r})"),
                pytest.raises(PrefixHashError, match=argument),
            ):
                call.function(**{**call.arguments, argument: value})
            assert call.state() == before


@pytest.mark.parametrize("room", CALLS)
def test_every_public_name_is_called_here(room: str) -> None:
    public = importlib.import_module(f"prefixhash.{room}")
    called = {name.split(".")[0].split(" ")[0] for calls in CALLS.values() for name in calls}
    for name in public.__all__:
        value = getattr(public, name)
        if callable(value) and name not in RESULTS and name != "known_profiles":
            assert name in called, name
        if inspect.isclass(value) and name in called and not name.endswith("Spec"):
            methods = {
                f"{name}.{key}" for key, item in vars(value).items() if _is_public(key, item)
            }
            known = {call for calls in CALLS.values() for call in calls}
            assert methods <= known | UNCALLED, methods - known


# Callbacks of the pool, given what it checked itself.
UNCALLED = {
    f"ResidencySampler.{name}" for name in ("take", "allocated", "touched", "evicted", "cleared")
} | {"PlanOptions.with_max_model_len", "KVCacheGroup.project", "Speed.times"}


def _is_public(name: str, value: object) -> bool:
    return not name.startswith("_") and (
        inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod))
    )


def test_what_an_integer_is() -> None:
    for good in (0, 5, np.int64(5), np.uint8(5), np.array(5)):
        assert is_integer(good)
        assert type(integer("n", good)) is int
    for bad in (True, np.bool_(True), 1.0, np.float64(1), "1", b"1", None, [1], np.array([1, 2])):
        assert not is_integer(bad)
        with pytest.raises(InvalidArgumentError, match=r"^n="):
            integer("n", bad)
    with pytest.raises(InvalidArgumentError, match="from 1 to 3"):
        integer("n", 4, 1, 3)
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        integer("n", 0, 1)


def test_what_a_number_a_flag_a_text_a_choice_is() -> None:
    assert number("x", np.float32(0.5), 0.0, 1.0) == 0.5
    for bad in (True, "1", None, float("nan"), 1.0, -0.1, 2**2000, [0.5]):
        with pytest.raises(InvalidArgumentError, match=r"^x="):
            number("x", bad, 0.0, 1.0)
    assert flag("f", np.bool_(True)) is True
    for bad in (0, 1, "false", None, [], np.array([True])):
        with pytest.raises(InvalidArgumentError, match=r"^f="):
            flag("f", bad)
    assert text("t", "ü") == "ü"
    for bad in (b"x", None, 5, "\ud800"):
        with pytest.raises(InvalidArgumentError, match=r"^t="):
            text("t", bad)
    with pytest.raises(InvalidArgumentError, match="non-empty"):
        text("t", "", empty=False)
    with pytest.raises(InvalidArgumentError, match=r"did you mean 'lru'.*fifo, lru"):
        choice("policy", "lru2", ("fifo", "lru"))
    assert nearest(5, ("a",)) == ""
