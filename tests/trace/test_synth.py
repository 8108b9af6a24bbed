"""Synthetic traces: reproducible, the same content in both forms, shared where they say so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixhash import InvalidArgumentError, LoRARequest
from prefixhash.trace.curve import hit_rate_curve
from prefixhash.trace.demo import demo_trace
from prefixhash.trace.engine import HashedTrace
from prefixhash.trace.reading import read_trace
from prefixhash.trace.records import TokenPrompt, TraceRequest
from prefixhash.trace.synth import WORKLOADS, make_workload, synthesize
from prefixhash.trace.synth_forms import record_of


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("form", ["mooncake", "tokens"])
def test_a_trace_is_written_read_and_the_same_again(
    tmp_path: Path, workload: str, form: str
) -> None:
    plan = make_workload(workload, sessions=4, tool_calls=1, system_tokens=200)
    first, second = (
        [json.dumps(record_of(r)) for r in synthesize(plan, form=form, seed=5)] for _ in range(2)
    )
    assert first == second
    assert first != [json.dumps(record_of(r)) for r in synthesize(plan, form=form, seed=6)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(first))
    trace = read_trace(path)
    assert trace.format == form
    assert len(list(trace)) == len(first)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_both_forms_share_the_same_blocks(workload: str) -> None:
    plan = make_workload(workload, sessions=8, tool_calls=0.5)
    ids = hit_rate_curve(synthesize(plan, block_size=16, seed=2), block_size=16)
    tokens = HashedTrace(synthesize(plan, form="tokens", seed=2), 16)
    hashed = hit_rate_curve(tokens, block_size=16)
    assert (ids.total, ids.hits) == (hashed.total, hashed.hits)
    assert ids.chained
    assert hashed.chained


def test_requests_come_in_the_order_of_time_and_sessions_grow() -> None:
    requests = list(synthesize(make_workload("agents", sessions=6, tool_calls=2), seed=1))
    times = [r.timestamp or 0.0 for r in requests]
    assert times == sorted(times)
    by_session: dict[Any, int] = {}
    for request in requests:
        assert request.num_tokens > by_session.get(request.session, 0)
        by_session[request.session] = request.num_tokens
    assert len(by_session) == 6


def test_what_separates_tenants_and_adapters_leaves_nothing_to_share() -> None:
    plan = make_workload(system_tokens=2000, system_prompts=1, turns=1, sessions=60)
    alone = hit_rate_curve(synthesize(plan, block_size=16), block_size=16).ceiling
    parted = make_workload(
        system_tokens=2000, system_prompts=1, turns=1, sessions=60, tenants=30, zipf=0
    )
    assert hit_rate_curve(synthesize(parted, block_size=16), block_size=16).ceiling < alone - 0.2


def test_a_steeper_zipf_shares_more() -> None:
    flat, steep = (
        hit_rate_curve(
            synthesize(
                make_workload("documents", documents=100, sessions=80, turns=1, zipf=zipf),
                block_size=16,
            ),
            block_size=16,
        ).ceiling
        for zipf in (0.0, 2.0)
    )
    assert steep > flat + 0.1


def test_images_are_media_of_the_prompt() -> None:
    plan = make_workload(sessions=10, image_share=1.0, image_tokens=64)
    for request in synthesize(plan, form="tokens"):
        assert request.prompt is not None
        assert request.prompt.media
        for item in request.prompt.media:
            first = item.mm_position.offset
            assert set(request.prompt.token_ids[first : first + 64]) == {128_000}


def test_the_demo_has_something_of_everything() -> None:
    requests = demo_trace()
    found = [r.prompt for r in requests if r.prompt is not None]
    assert len(found) == len(requests) > 100
    assert len({p.lora for p in found}) == 3
    assert len({p.cache_salt for p in found}) == 3
    assert any(p.media for p in found)
    assert len({r.kind for r in requests}) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"sessions": 0},
        {"sessions": 1.5},
        {"turns": 0.5},
        {"image_share": 1.5},
        {"zipf": float("nan")},
        {"session_rate": 0},
        {"think_seconds": float("inf")},
        {"tenants": True},
    ],
)
def test_bad_parameters_are_named(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(changes))):
        make_workload(**changes)


def test_bad_names_are_listed() -> None:
    with pytest.raises(InvalidArgumentError, match="chat, agents, documents, mixed"):
        make_workload("web")
    with pytest.raises(InvalidArgumentError, match="form="):
        synthesize("chat", form="csv")
    with pytest.raises(InvalidArgumentError, match="block_size="):
        synthesize("chat", block_size=0)


BAD_VALUES = [True, 1.5, "x", b"x", {"a": 1}, object(), -1, float("nan"), [None], "\ud800"]


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
@pytest.mark.parametrize("name", ["workload", "form", "block_size", "seed"])
def test_bad_arguments_are_refused_by_name(name: str, value: Any) -> None:
    if (name, value) == ("seed", -1):
        assert next(iter(synthesize(seed=-1))).num_tokens > 0
        return
    with pytest.raises(InvalidArgumentError, match=f"{name}="):
        synthesize(**{name: value})


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_only_what_can_be_read_again_is_written(value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        record_of(value)
    named, tokens = TraceRequest([1], 4), TraceRequest((), 2, prompt=TokenPrompt([1, 2]))
    for request in (named, tokens):
        for field in ("ids", "num_tokens", "output_tokens", "timestamp", "session", "prompt"):
            changed = replace(request, **{field: value})
            try:
                record = record_of(changed)
            except InvalidArgumentError:
                continue
            json.dumps(record)
    for field in ("token_ids", "lora", "media"):
        with pytest.raises(InvalidArgumentError):
            record_of(replace(tokens, prompt=replace(tokens.prompt, **{field: value})))  # type: ignore[type-var]


def test_an_adapter_is_written_whole() -> None:
    lora = LoRARequest("a", "/a", "2")
    record = record_of(TraceRequest((), 1, prompt=TokenPrompt([1], lora)))
    assert record["lora"] == {"name": "a", "path": "/a", "revision": "2"}
