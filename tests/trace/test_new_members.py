"""A new policy is one class and its entry in the table, and no member's name stands elsewhere."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import prefixhash
from prefixhash import InvalidArgumentError
from prefixhash.cli.main import main
from prefixhash.trace import DEFINITIONS, POLICIES, Policy, TraceRequest, make_policy, replay
from prefixhash.trace.future import Future
from prefixhash.trace.policies import leading_hits

PACKAGE = Path(prefixhash.__file__).parent


class Pinned(Policy):
    """Keeps what came first and takes in nothing more."""

    name = "toy"

    def __init__(self, capacity: float, head_first: bool, future: Future | None = None) -> None:
        super().__init__(capacity, head_first)
        self.future = future
        self._kept: set[int] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, ids: Sequence[int]) -> int:
        hits = leading_hits(self._kept, ids)
        for block in self._in_order(ids):
            if len(self._kept) < self.capacity:
                self._kept.add(block)
        return hits


class Foreseeing(Pinned):
    """The same, but it wants to know the whole trace."""

    needs_future = True
    overhead = 1

    def __init__(self, capacity: float, head_first: bool, future: Future | None = None) -> None:
        super().__init__(capacity, head_first, future)
        assert isinstance(future, Future)


REQUESTS = [TraceRequest([0, 1], 9), TraceRequest([2], 5), TraceRequest([0, 1], 9)] * 2


@pytest.fixture(params=[Pinned, Foreseeing])
def toy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Policy]:
    policy: type[Policy] = request.param
    monkeypatch.setitem(POLICIES, policy.name, policy)
    return policy


def test_a_new_policy_is_replayed(toy: type[Policy]) -> None:
    report = replay(REQUESTS, trace_block_size=4, policies=("toy",), capacities=(1, "1%", 2))
    # Of two blocks the first request's tail goes in first; a prefix needs its head, too.
    assert [result.meter.overall.hits for result in report.results] == [
        0,
        toy.overhead * 24,
        24,
    ]
    assert {(result.policy, result.level) for result in report.results} == {("toy", "cache")}


def test_a_new_policy_holds_no_blocks(toy: type[Policy]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"policy='toy': holds no blocks: .* need lru"):
        replay(REQUESTS, trace_block_size=4, policies=("toy",), timed=True)


@pytest.mark.parametrize("orders", ["tail-first", "head-first"])
def test_a_new_policy_is_on_the_command_line(
    toy: type[Policy], orders: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    lines = [
        {"timestamp": 0, "input_length": r.num_tokens, "output_length": 1, "hash_ids": r.ids}
        for r in REQUESTS
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [
        "replay",
        str(path),
        "--trace-block-size",
        "4",
        "--policy",
        "toy",
        "--capacity",
        "2,inf",
    ]
    assert main([*argv, "--order", orders, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(r["policy"], r["hits"]) for r in results] == [("toy", 24), ("toy", 28)]
    assert main([*argv, "--order", orders]) == 0
    assert "Hit rate (tokens), toy, one request at a time" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    assert "optimal, toy" in " ".join(capsys.readouterr().out.split())


def test_a_new_policy_is_made_and_listed(toy: type[Policy]) -> None:
    policy = make_policy("toy", 2, future=Future([([0, 1], 2)] * 2))
    assert [policy.access([0, 1]), policy.access([0, 1]), len(policy)] == [0, 2, 2]
    with pytest.raises(InvalidArgumentError, match="optimal, toy"):
        make_policy("mru", 2)


def test_a_member_is_named_in_its_table_only() -> None:
    named = dict.fromkeys(POLICIES, PACKAGE / "trace" / "policies.py")
    # Names such as "blocks" are words of many tables.
    telling = (name for name in DEFINITIONS if "-" in name)
    named |= dict.fromkeys(telling, PACKAGE / "trace" / "definitions.py")
    found: dict[str, set[Path]] = {name: set() for name in named}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value in found
            ):
                found[node.value].add(path)
    assert found == {name: {home} for name, home in named.items()}
