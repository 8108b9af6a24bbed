"""Whatever is given to the trace room is used or refused by an error of the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from prefixhash import InvalidArgumentError, PrefixHashError
from prefixhash.trace import (
    DEFINITIONS,
    POLICIES,
    Definition,
    Future,
    HitRateCurve,
    Meter,
    ReplayOptions,
    ReplayReport,
    ReplayResult,
    Speed,
    Survey,
    Tally,
    TraceRequest,
    Workload,
    find_definition,
    hit_rate_curve,
    make_policy,
    replay,
    survey_trace,
    synthesize,
)
from prefixhash.trace.capacity import Capacity, parse_capacity
from prefixhash.trace.engine import HashedTrace, RequestHasher
from prefixhash.trace.metering import turn_label
from prefixhash.trace.page import html_page
from prefixhash.trace.plots import Mark, Picture, save_plot
from prefixhash.trace.policies import find_policy
from prefixhash.trace.report import curve_data, replay_data
from prefixhash.trace.series import RateOverTime, WorkingSetSamples
from prefixhash.trace.warmup import parse_warmup


class Unreadable:
    """Neither an index nor iterable, though it looks as if it were both."""

    __iter__ = None

    def __index__(self) -> int:
        raise RuntimeError("no index")


def bad_values() -> list[Any]:
    """Made anew for each call, so that one that was changed cannot hide a fault."""
    values: list[Any] = [None, True, 1.5, "x", b"x", [], {}, object(), -1, 10**30, math.nan]
    values += [0, 2, 10**400, math.inf, -math.inf, 0.0, 1e308, 5e-324, 1j, (), (1,), [None], [[]]]
    values += ["\ud800", "", "10%", "1e5", "inf", "tokens", ["lru"], ["x"], [1.5], {1}, {"a": 1}]
    values += [iter(()), int, len, Fraction(1, 3), range(3), b"", bytearray(b"a"), Unreadable()]
    return values


def numpy_values() -> list[Any]:
    numpy = pytest.importorskip("numpy")
    return [
        numpy.int64(3),
        numpy.float64(2.5),
        numpy.float32(1),
        numpy.bool_(True),
        numpy.array([1, 2]),
        numpy.array(3),
        numpy.array([]),
    ]


REQUESTS = [TraceRequest([0, 1, 2], 10, 3, float(i), session="a", kind="k") for i in range(4)]
LONG = [TraceRequest(list(range(50 * i, 50 * i + 50)), 200) for i in range(20)] * 2
CURVE = hit_rate_curve(REQUESTS, block_size=4)
SAMPLED = hit_rate_curve(LONG, block_size=4, sample=0.5)
REPORT = replay(REQUESTS, trace_block_size=4, capacities=(5,))
SURVEY = survey_trace(REQUESTS, 4)
SIZES = {"block_size": 4, "unique_blocks": 10, "bytes_per_block": 100}


def parts(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, as arguments to make another."""
    return {item.name: getattr(value, item.name) for item in fields(value)}


def future() -> Future:
    return Future([([0, 1], 2), ([0, 1], 2)])


def use_curve(curve: HitRateCurve) -> None:
    for capacity in (0, 3, math.inf):
        curve.rate_at(capacity)
        curve.error_at(capacity)
    curve_data(curve, [], None)


def use_policy(name: str, **arguments: Any) -> None:
    policy = make_policy(name, **{"capacity": 3, "future": future(), **arguments})
    policy.access([0, 1])
    policy.access([0, 1])


def access(name: str, ids: Any) -> None:
    policy = make_policy(name, 3, future=future())
    size = len(policy)
    try:
        policy.access(ids)
    except InvalidArgumentError:
        assert len(policy) == size
        raise


def replay_one(**field: Any) -> None:
    trace = [TraceRequest(**{**parts(REQUESTS[0]), **field}), *REQUESTS]
    hit_rate_curve(trace, block_size=4)
    options: tuple[dict[str, Any], ...]
    options = ({}, {"by_ids": True}, {"policies": ("optimal",)}, {"timed": True})
    for chosen in (*options, {"commit_output": True}, {"counts": ("requests", "tokens-tail")}):
        replay_data(replay(trace, trace_block_size=4, capacities=(6, "inf"), **chosen))


def replay_options(**options: Any) -> None:
    replay_data(replay(REQUESTS, trace_block_size=4, **options))


def with_id(block: Any) -> None:
    trace = [TraceRequest([block], 5)] * 3
    hit_rate_curve([*trace, *LONG], block_size=4, sample=0.5)
    replay(trace, trace_block_size=4, capacities=(6,))


# Name -> (what is called, arguments that are fine); each argument in turn gets each bad value.
Call = tuple[Callable[..., Any], dict[str, Any]]
CALLS: dict[str, Call] = {
    "parse_capacity": (lambda value: parse_capacity(value).blocks(**SIZES), {"value": "5%"}),
    "parse_warmup": (lambda value: parse_warmup(value).requests(9), {"value": 5}),
    "Warmup.requests": (parse_warmup("10%").requests, {"num_requests": 5}),
    "find_definition": (find_definition, {"name": "tokens"}),
    "find_policy": (find_policy, {"name": "lru"}),
    "Definition": (Definition, parts(find_definition("blocks"))),
    "Future": (Future, {"requests": [([0, 1], 2)]}),
    "Future's requests": (lambda ids, limit: Future([(ids, limit)]), {"ids": [0], "limit": 1}),
    "Future.uses": (future().uses, {"index": 0, "num_ids": 2}),
    "ReplayOptions": (ReplayOptions, parts(ReplayOptions())),
    "replay": (
        lambda **kw: replay(kw.pop("trace"), **kw),
        {"trace": REQUESTS, "trace_block_size": 4, "options": ReplayOptions(), "survey": SURVEY},
    ),
    "Speed": (lambda **kw: Speed(**kw).times(REQUESTS[0], 3), {"prefill": 1.0, "decode": 2.0}),
    "Speed.times": (Speed().times, {"request": REQUESTS[0], "saved": 3}),
    "hit_rate_curve": (
        lambda **kw: use_curve(hit_rate_curve(kw.pop("trace"), **kw)),
        {
            "trace": REQUESTS,
            "block_size": 4,
            "count": "tokens",
            "order": "tail-first",
            "warmup": 0,
            "sample": 1.0,
        },
    ),
    "rate_at": (CURVE.rate_at, {"capacity": 3}),
    "rate_at of a sample": (SAMPLED.rate_at, {"capacity": 3}),
    "error_at": (SAMPLED.error_at, {"capacity": 3}),
    "capacity_for": (CURVE.capacity_for, {"share": 0.5}),
    "points": (CURVE.points, {"most": 10}),
    "points of a sample": (SAMPLED.points, {"most": 10}),
    "HitRateCurve": (lambda **kw: use_curve(HitRateCurve(**kw)), parts(SAMPLED)),
    "survey_trace": (survey_trace, {"trace": REQUESTS, "block_size": 4}),
    "Survey": (lambda **kw: Survey(**kw).most_blocks(4), parts(SURVEY)),
    "unique_blocks_of": (SURVEY.unique_blocks_of, {"block_size": 3, "trace_block_size": 4}),
    "most_blocks": (SURVEY.most_blocks, {"block_size": 3}),
    "HashedTrace": (
        lambda trace, block_size: list(HashedTrace(trace, block_size)),
        {"trace": REQUESTS, "block_size": 4},
    ),
    "RequestHasher": (RequestHasher, {"block_size": 4, "ids_block_size": 4}),
    "TraceRequest": (replay_one, parts(REQUESTS[0])),
    "a block id": (with_id, {"block": 1}),
    "a pair": (lambda first, second: with_id((first, second)), {"first": 1, "second": 1}),
    "Tally": (lambda **kw: (Tally(**kw).add(1, 2), Tally(**kw).rate), parts(Tally())),
    "Tally.add": (Tally().add, {"hits": 1.0, "total": 2.0}),
    "Meter": (lambda **kw: Meter(**kw).add(0, REQUESTS[0], 1, 1.0, 2.0), parts(Meter())),
    "Meter.add": (
        Meter().add,
        {"index": 1, "request": REQUESTS[0], "turn": 1, "hits": 1.0, "total": 2.0},
    ),
    "turn_label": (turn_label, {"first": 5}),
    "RateOverTime": (lambda width: RateOverTime(width).add(5, 1, 1, None), {"width": 1}),
    "merged": (REPORT.results[0].meter.over_time.merged, {"most": 1}),
    "WorkingSetSamples": (
        lambda **kw: WorkingSetSamples(**kw).wants(5),
        {"windows": (1,), "stride": 2},
    ),
    "ReplayResult": (lambda **kw: ReplayResult(**kw).rate, parts(REPORT.results[0])),
    "ReplayReport": (lambda **kw: replay_data(ReplayReport(**kw)), parts(REPORT)),
    "replay_data": (replay_data, {"report": REPORT}),
    "Mark": (Mark, parts(Mark("a", 3, 0.5))),
    "Picture": (Picture, parts(Picture("t", CURVE))),
    "save_plot": (save_plot, {"picture": Picture("t", CURVE), "path": "x.bmp"}),
    "html_page": (html_page, {"picture": Picture("t", CURVE), "tables": []}),
}
for _options in ({}, {"by_ids": True}, {"timed": True}, {"policies": ("optimal", "lru")}):
    _given = parts(ReplayOptions(capacities=(5,), **_options))  # type: ignore[arg-type]
    CALLS[f"replay, {_options}"] = (replay_options, _given)
for _unit in ("blocks", "share", "tokens", "bytes"):
    CALLS[f"Capacity of {_unit}"] = (
        lambda **kw: Capacity(**kw).blocks(**SIZES),
        {"text": "a", "unit": _unit, "value": 5},
    )
    CALLS[f"blocks of {_unit}"] = (Capacity("a", _unit, 5).blocks, {**SIZES, "least": 1})
for _name in POLICIES:
    CALLS[f"access of {_name}"] = (lambda ids, name=_name: access(name, ids), {"ids": [0, 1]})
    CALLS[f"make_policy, {_name}"] = (
        lambda name=_name, **kw: use_policy(name, **kw),
        {"capacity": 3, "order": "tail-first", "future": None},
    )
for _name in DEFINITIONS:
    CALLS[f"weigh, {_name}"] = (
        find_definition(_name).weigh,
        {"num_tokens": 10, "num_ids": 3, "block_size": 4},
    )


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("values", [bad_values, numpy_values])
def test_only_errors_of_the_package_are_raised(
    name: str,
    values: Callable[[], list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # some values name a file that is written
    call, arguments = CALLS[name]
    for argument in arguments:
        for value in values():
            # Anything else that is raised fails the test with its traceback.
            with suppress(PrefixHashError):
                call(**{**arguments, argument: value})


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    three, one = numpy.int64(3), numpy.float32(1)
    options = ReplayOptions(capacities=(three,), block_size=three, concurrency=numpy.uint8(2))
    assert (options.block_size, options.concurrency) == (3, 2)
    assert {type(options.block_size), type(options.concurrency)} == {int}
    assert parse_capacity(three) == Capacity("3", "blocks", 3)
    assert parse_warmup(three).requests(9) == 3
    assert CURVE.rate_at(three) == CURVE.rate_at(3)
    assert CURVE.capacity_for(one) == CURVE.capacity_for(1)
    requests = [TraceRequest(numpy.arange(3), numpy.int64(10))] * 2
    assert hit_rate_curve(requests, block_size=numpy.int64(4), sample=one).hits[-1] == 8
    assert make_policy("lru", three).access(numpy.arange(3)) == 0


@pytest.mark.parametrize("flag", [True, False])
def test_a_bool_is_no_number(flag: bool) -> None:
    for call in (
        lambda: parse_capacity(flag),
        lambda: parse_warmup(flag),
        lambda: CURVE.rate_at(flag),
        lambda: CURVE.points(flag),
        lambda: make_policy("lru", flag),
        lambda: Speed(prefill=flag),
        lambda: ReplayOptions(concurrency=flag),
        lambda: make_policy("lru", 3).access([flag]),
        lambda: survey_trace([TraceRequest([flag], 4)], 4),
        lambda: survey_trace([TraceRequest([0], flag)], 4),
    ):
        with pytest.raises(InvalidArgumentError, match=f"={flag}: must be"):
            call()  # type: ignore[no-untyped-call]


def test_the_argument_is_named_as_it_was_given() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^trace_block_size=0: must be"):
        replay(REQUESTS, trace_block_size=0)
    with pytest.raises(InvalidArgumentError, match=r"^block_size=0: must be"):
        hit_rate_curve(REQUESTS, block_size=0)


def test_a_bad_request_is_named_by_its_place() -> None:
    for fields_, name in (
        ({"num_tokens": "9"}, "num_tokens"),
        ({"ids": [0, None]}, r"ids\[1\]"),
        ({"ids": [0, 1, 2, 3]}, "ids"),
        ({"timestamp": math.nan}, "timestamp"),
        ({"duration": -1}, "duration"),
        ({"kind": 3}, "kind"),
        ({"prompt": "abc"}, "prompt"),
        ({"hashed": "abc"}, "hashed"),
    ):
        trace = [REQUESTS[0], TraceRequest(**{**parts(REQUESTS[0]), **fields_})]
        for call in (lambda t: replay(t, trace_block_size=4), lambda t: survey_trace(t, 4)):
            with pytest.raises(InvalidArgumentError, match=rf"^trace\[1\]\.{name}="):
                call(trace)  # type: ignore[no-untyped-call]


def test_an_iterator_is_refused_where_it_would_have_to_be_run_again() -> None:
    for call in (
        lambda trace: replay(trace, trace_block_size=4),
        lambda trace: replay(trace, trace_block_size=4, survey=SURVEY, policies=("optimal",)),
        lambda trace: hit_rate_curve(trace, block_size=4, warmup="10%"),
    ):
        left = iter(REQUESTS)
        with pytest.raises(InvalidArgumentError, match="is an iterator"):
            call(left)  # type: ignore[no-untyped-call]
        assert len(list(left)) == len(REQUESTS), "nothing was taken from it"
    assert hit_rate_curve(iter(REQUESTS), block_size=4, warmup=1) == hit_rate_curve(
        REQUESTS, block_size=4, warmup=1
    )
    (result,) = replay(iter(REQUESTS), trace_block_size=4, survey=SURVEY, capacities=(5,)).results
    assert result.meter == REPORT.results[0].meter


def test_a_workload_that_no_machine_can_write_is_refused_at_once() -> None:
    for name, value in (("turns", 1e30), ("sessions", 10**30), ("output_tokens", 1e308)):
        with pytest.raises(InvalidArgumentError, match=rf"^{name}=.*must be at most"):
            synthesize(Workload(**{name: value}))
