"""Tables and notes of `prefixhash replay`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefixhash.cli import _tables
from prefixhash.cli._tables import count, percent, seconds, short
from prefixhash.trace.definitions import find_definition
from prefixhash.trace.levels import LEVELS
from prefixhash.trace.metering import Tally, turn_label
from prefixhash.trace.page import PageTable
from prefixhash.trace.policies import find_policy
from prefixhash.trace.results import ReplayReport, ReplayResult

_MOST_COLUMNS = 8


def sizes_of(report: ReplayReport) -> str:
    survey = report.survey
    return (
        f"{count(survey.num_requests)} requests, {short(survey.prompt_tokens)} prompt tokens, "
        f"{count(survey.unique_blocks)} unique blocks of {report.trace_block_size} tokens"
    )


def tables_of(
    report: ReplayReport, bytes_per_block: int | None, *, timings: bool
) -> list[PageTable]:
    tables = [_result_table(report, bytes_per_block, timings), _loss_table(report)]
    compared = compared_results(report)
    tables.extend(filter(None, (_kind_table(compared), _turn_table(compared))))
    return tables


def compared_results(report: ReplayReport) -> list[ReplayResult]:
    """The results to show side by side: by the first definition, the capacities of the first
    policy, or the policies where there is one capacity."""
    options = report.options
    results = [r for r in report.results if r.count == options.counts[0]]
    if len(options.capacities) > 1:
        results = [r for r in results if r.policy == options.policies[0]]
    return results


def _result_table(report: ReplayReport, bytes_per_block: int | None, timings: bool) -> PageTable:
    options = report.options
    shown = _Shown(len(options.policies) > 1, len(options.counts) > 1, bytes_per_block, timings)
    names = "by definition" if shown.counts else options.counts[0]
    title = f"Hit rate ({names}), {', '.join(options.policies)}, {_running(report)}"
    rows = [_result_row(result, shown) for result in report.results]
    return PageTable(title, _result_columns(report.results[0].unit, shown), rows)


@dataclass(frozen=True)
class _Shown:
    """Which of the columns of the result table there are."""

    policies: bool
    counts: bool
    bytes_per_block: int | None
    timings: bool


def _result_columns(unit: str, shown: _Shown) -> list[str]:
    columns = ["policy"] * shown.policies + ["count"] * shown.counts
    columns += ["capacity", "blocks"]
    if shown.bytes_per_block is not None:
        columns.append("KV cache")
    columns += ["hit rate", "hit" if shown.counts else f"{unit} hit", "of"]
    columns += ["unit"] * shown.counts + ["evictions"] + ["cache time"] * shown.timings
    return columns


def _result_row(result: ReplayResult, shown: _Shown) -> list[str]:
    overall = result.meter.overall
    row = [result.policy] * shown.policies + [result.count] * shown.counts
    row += [result.label, count(result.capacity)]
    if shown.bytes_per_block is not None:
        bounded = math.isfinite(result.capacity)
        weight = result.capacity * shown.bytes_per_block
        row.append(_tables.size(weight) if bounded else "unbounded")
    row += [percent(result.rate), short(overall.hits), short(overall.total)]
    row += [result.unit] * shown.counts + [count(result.evictions)]
    if shown.timings:
        row.append(seconds(result.seconds))
    return row


def _running(report: ReplayReport) -> str:
    options = report.options
    if options.timed:
        return "requests by their times"
    if options.concurrency > 1:
        return f"{options.concurrency} requests at a time"
    return "one request at a time"


def _loss_table(report: ReplayReport) -> PageTable:
    losses = report.losses
    parts = [
        ("never seen before", losses.prompt - losses.shared),
        (f"shared, but in no full block of {report.block_size}", losses.rounding),
        ("reused by an unbounded cache", losses.shared - losses.rounding),
    ]
    whole = losses.prompt or 1
    rows = [[label, count(tokens), percent(tokens / whole)] for label, tokens in parts]
    known = f" (known to {losses.grain} tokens)" if losses.grain > 1 else ""
    return PageTable(f"Where the prompt tokens go{known}", ["", "tokens", "share"], rows)


def _kind_table(results: Sequence[ReplayResult]) -> PageTable | None:
    return _split_table("type", results, [r.meter.by_kind for r in results], str)


def _turn_table(results: Sequence[ReplayResult]) -> PageTable | None:
    return _split_table("turn", results, [r.meter.by_turn for r in results], turn_label)


def _split_table(
    name: str, results: Sequence[ReplayResult], groups: Sequence[dict[Any, Tally]], label: Any
) -> PageTable | None:
    """A row for each group, a column for each result (the first eight)."""
    if not groups or not groups[0]:
        return None
    several = len({result.policy for result in results}) > 1
    heads = [r.policy if several else r.label for r in results[:_MOST_COLUMNS]]
    rows = []
    for key in sorted(groups[0]):
        first = groups[0][key]
        rates = [percent(group[key].rate) for group in groups[:_MOST_COLUMNS]]
        rows.append([label(key), count(first.requests), short(first.total), *rates])
    unit = results[0].unit
    return PageTable(f"Hit rate by {name}", [name, "requests", unit, *heads], rows)


def notes_of(report: ReplayReport, *, timings: bool) -> list[str]:
    notes = []
    for name in report.options.counts:
        definition = find_definition(name)
        notes.append(f"{name}: {definition.meaning} ({definition.used_by})")
    notes.extend(_level_notes(report))
    if report.warmup:
        notes.append(f"the first {count(report.warmup)} requests are not counted (--warmup)")
    notes.extend(_holding_notes(report))
    if timings and report.hashing_seconds:
        rate = report.hashed_blocks / report.hashing_seconds
        notes.append(
            f"hashing took {seconds(report.hashing_seconds)} for {count(report.hashed_blocks)} "
            f"blocks ({short(rate)} blocks/s), once for all capacities"
        )
    oversize = max((r.oversize for r in report.results), default=0)
    what = "prompts and outputs" if report.options.commit_output else "prompts"
    if oversize:
        notes.append(
            f"up to {count(oversize)} {what} were larger than the pool "
            f"(--oversize {report.options.oversize})"
        )
    return notes


def _level_notes(report: ReplayReport) -> list[str]:
    """Which part of the engine the results come from."""
    levels = [LEVELS[name] for name in dict.fromkeys(result.level for result in report.results)]
    notes = [f"ran in {level.meaning}" for level in levels if level.holds_blocks]
    for level in levels:
        if not level.holds_blocks:
            ran = [result for result in report.results if result.level == level.name]
            notes.append(f"{_which(ran) if notes else 'ran'} in {level.meaning}")
    return notes


def _which(results: Sequence[ReplayResult]) -> str:
    """What these results are among all, in words."""
    unbounded = any(math.isinf(result.capacity) for result in results)
    others = not all(find_policy(result.policy).in_pool for result in results)
    return " and ".join(["unbounded"] * unbounded + ["the other policies"] * others)


def _holding_notes(report: ReplayReport) -> list[str]:
    """How many requests ran side by side, and when their prompts could be hit."""
    options = report.options
    held = [result for result in report.results if LEVELS[result.level].holds_blocks]
    if not held or (not options.timed and options.concurrency == 1):
        return []
    when = "as soon as the next request starts"
    if options.timed:
        when = f"once its prefill is done ({count(options.speed.prefill)} tokens/s, --prefill-rate)"
    waits = max(result.waits for result in held)
    return [
        f"up to {count(max(result.most_running for result in held))} requests ran at a time; in "
        f"the tightest pool {count(waits)} had to end before another could start",
        f"a prompt can be hit {when}; unbounded shows the ceiling",
    ]
