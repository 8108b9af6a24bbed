"""The README's figures of hit rates are what the code gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prefixhash.cli.main import main
from prefixhash.trace import DEFINITIONS, hit_rate_curve, read_trace

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
DEFINED = README.partition("### Six hit rates")[2]


def test_the_six_definitions_are_the_codes() -> None:
    for item in DEFINITIONS.values():
        (row,) = re.findall(rf"^\| `{item.name}`(?: \(default\))? \|.*$", DEFINED, re.MULTILINE)
        assert item.used_by in row


@pytest.mark.parametrize(("name", "column"), [("conversation", 0), ("synthetic", 1)])
def test_the_six_hit_rates_are_the_computed_ones(traces: Path, name: str, column: int) -> None:
    trace = read_trace(traces / f"mooncake/{name}_trace.jsonl")
    requests = list(trace)
    for item in DEFINITIONS.values():
        (row,) = re.findall(rf"^\| `{item.name}`.*$", DEFINED, re.MULTILINE)
        shown = re.findall(r"([\d.]+) %", row)[column]
        ceiling = hit_rate_curve(requests, block_size=512, count=item.name).ceiling
        assert f"{100 * ceiling:.2f}" == shown


def test_the_first_command_is_the_demo_and_prints_what_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = re.search(r"```sh\n(.*?)\n```", README, re.DOTALL)
    assert first is not None
    install, _, command = first[1].partition(" && ")
    assert install == "pip install '.[cli]'"
    assert command.split()[0] == "prefixhash"
    assert main(command.split()[1:]) == 0
    printed = capsys.readouterr().out
    shown = re.search(r"```\n(329 requests.*?)```", README, re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines():
        if line.strip() and "─" not in line:
            # The time, in the last column, is another on every machine.
            assert line.rstrip() in printed
