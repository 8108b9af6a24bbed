"""Compares this library with a golden file of vLLM's planner, case by case.

    python -m tests.golden_layout tests/data/kv_layout.json [--verbose | --markdown]

A case matches plainly, matches when the null block is counted as the reference counts it, or
differs by a rule of this project; such differences are listed rule by rule. Exit status 2 if a
difference has no rule.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .layout.golden_convert import Data
from .layout.golden_ops import Answers
from .layout.golden_rules import RULES, Explainer
from .layout.golden_walk import Difference, matches

PLAIN = "plainly"
NULL_BLOCK = "with the null block counted"


@dataclass
class Result:
    """What became of one case: how it matches, or its differences."""

    case_id: str
    how: str | None
    differences: list[Difference] = field(default_factory=list)

    @property
    def rules(self) -> set[int | None]:
        return {difference.rule for difference in self.differences}


def compare(golden: Data) -> list[Result]:
    """Results of all cases of a golden file, in its order."""
    default = Answers(golden, count_null=False)
    counted = Answers(golden, count_null=True)
    return [_compare(case, default, counted) for case in golden["cases"]]


def _compare(case: Data, default: Answers, counted: Answers) -> Result:
    expected = default.expected(case)
    ours = default.answer(case)
    if matches(expected, ours):
        return Result(case["id"], PLAIN)
    ours = counted.answer(case)
    if matches(expected, ours):
        return Result(case["id"], NULL_BLOCK)
    return Result(case["id"], None, Explainer(counted, case).differences(expected, ours))


def report(results: Sequence[Result], *, verbose: bool = False) -> Iterable[str]:
    matched = [result for result in results if result.how]
    yield f"matched {len(matched)} of {len(results)}"
    for how in (PLAIN, NULL_BLOCK):
        names = [result.case_id for result in matched if result.how == how]
        yield f"  {len(names)} {how}" + (f": {', '.join(names)}" if verbose else "")
    for rule, text in [*RULES.items(), (None, "NO RULE")]:
        found = [result for result in results if rule in result.rules]
        if found:
            yield f"rule {rule}: {text}: {len(found)} cases"
        for result in found:
            yield from _lines(result, rule, verbose)


def markdown(results: Sequence[Result]) -> str:
    """The table of the README."""
    rows = [
        (f"equal{'' if how == PLAIN else ' ' + how}", sum(result.how == how for result in results))
        for how in (PLAIN, NULL_BLOCK)
    ]
    for rule, text in RULES.items():
        count = sum(rule in result.rules for result in results)
        rows += [(f"differ by rule {rule}: {text}", count)] if count else []
    lines = [f"| {len(results)} cases | count |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {count} |" for name, count in rows)])


def _lines(result: Result, rule: int | None, verbose: bool) -> Iterable[str]:
    chosen = [d for d in result.differences if d.rule == rule]
    shown = chosen if verbose or rule is None else chosen[:2]
    for difference in shown:
        ours, theirs = _short(difference.ours), _short(difference.theirs)
        yield f"  {result.case_id} {difference.path}: ours {ours}, reference {theirs}"
    if len(chosen) > len(shown):
        yield f"  {result.case_id} and {len(chosen) - len(shown)} more values"


def _short(value: Any, limit: int = 90) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("golden", type=Path, help="a golden file")
    parser.add_argument("--markdown", action="store_true", help="only a table of the counts")
    parser.add_argument("--verbose", action="store_true", help="every value, every case")
    args = parser.parse_args(argv)
    results = compare(json.loads(args.golden.read_text(encoding="utf-8")))
    lines = [markdown(results)] if args.markdown else report(results, verbose=args.verbose)
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing more to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 2 if any(None in result.rules for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
