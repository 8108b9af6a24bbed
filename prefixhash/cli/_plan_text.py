"""A plan as text: figures, groups, stages, and a picture of one block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefixhash.cli._tables import size
from prefixhash.layout import KVCachePlan, ModelLayers
from prefixhash.layout.picture import (
    Run,
    Segment,
    block_runs,
    block_segments,
    layer_number,
    number_ranges,
)

_WIDTH = 72
_UNUSED = "."


def plan_lines(model: ModelLayers, plans: Sequence[KVCachePlan]) -> Iterator[str]:
    """The whole report; `plans` holds one plan per pipeline stage."""
    yield from _summary(model, plans)
    yield ""
    yield from _columns(_group_rows(plans), left=(1,))
    yield ""
    yield from _columns(_stage_rows(model, plans), left=())
    for stage, plan in enumerate(plans):
        if plan.bytes_per_block:
            yield ""
            where = f" on stage {stage}" if len(plans) > 1 else ""
            yield f"One block{where}: {plan.bytes_per_block} bytes ({_arrangement(plan)})"
            yield from picture(plan)
            yield from _columns(_run_rows(plan), left=(1, 2, 3))


def picture(plan: KVCachePlan, width: int = _WIDTH) -> Iterator[str]:
    """A row per group, as wide as the block; layer numbers where they fit, dots where unused."""
    for index, segments in enumerate(block_segments(plan)):
        yield f"  group {index:<3}|{_bar(segments, plan.bytes_per_block, width)}|"


def _bar(segments: Sequence[Segment], total: int, width: int) -> str:
    cells = [
        (segment.start, segment.end, layer_number(segment.layer) if segment.layer else "")
        for segment in segments
    ]
    edges = [(start * width // total, end * width // total) for start, end, _ in cells]
    if any(
        end - start <= len(label) for (start, end), (_, _, label) in zip(edges, cells, strict=True)
    ):
        cells = [(r.start, r.end, r.label if r.layers else "") for r in block_runs(segments)]
    text = ""
    for number, (start, end, label) in enumerate(cells):
        room = end * width // total - start * width // total
        edge = "|" if number and room else ""
        fill = " " if label else _UNUSED
        text += edge + _fitting(label, room - len(edge)).center(room - len(edge), fill)
    return text


def _fitting(label: str, room: int) -> str:
    """The label, how many layers it stands for, or a mark that says that the bytes are owned."""
    short = label.partition(" ")[0] + "x"
    return next((text for text in (label, short) if len(text) <= room), "#" * room)


def _summary(model: ModelLayers, plans: Sequence[KVCachePlan]) -> Iterator[str]:
    plan = plans[0]
    name = model.model_type or "no model_type"
    layers = f"{len(model.layers)} caches in {model.num_hidden_layers} layers"
    yield f"{name}: {layers}, KV in {model.kv_dtype}, tensor parallel {model.tensor_parallel}"
    yield ""
    lowered = (model.max_model_len or 0) > plan.max_model_len
    of = f" (the model allows {model.max_model_len})" if lowered else ""
    needed = sum(plan.blocks_needed())
    reserved = plan.num_blocks - plan.usable_blocks
    yield from _columns(
        [
            ["longest length", f"{plan.max_model_len} tokens{of}"],
            ["blocks", f"{plan.num_blocks}{', 1 of them the null block' if reserved else ''}"],
            ["one request of it", f"{needed} blocks"],
            ["requests at a time", f"{plan.max_concurrency:.2f} of that length"],
            ["tokens at a time", f"{plan.capacity_tokens} in requests of that length"],
        ],
        left=(0, 1),
    )


def _group_rows(plans: Sequence[KVCachePlan]) -> list[list[str]]:
    several = f" (stage {'; '.join(map(str, range(len(plans))))})" if len(plans) > 1 else ""
    needs = plans[0].blocks_needed()
    rows = [["group", "kind", "layers", "tokens per block", "blocks per request"]]
    rows[0].append(f"unused bytes per block{several}")
    for index, group in enumerate(plans[0].groups):
        layers = sum(len(plan.groups[index].layer_names) for plan in plans)
        unused = [_share(plan.unused_bytes[index], plan.bytes_per_block) for plan in plans]
        rows.append([str(index), group.title, str(layers), str(group.block_size)])
        rows[-1] += [str(needs[index]), "; ".join(unused)]
    return rows


def _stage_rows(model: ModelLayers, plans: Sequence[KVCachePlan]) -> list[list[str]]:
    rows = [["stage", "ranks", "memory", "bytes per block", "allocated", "tensors", "one request"]]
    for stage, plan in enumerate(plans):
        rows.append([str(stage), str(model.tensor_parallel), size(plan.available_memory)])
        rows[-1] += [str(plan.bytes_per_block), size(plan.total_bytes)]
        rows[-1] += [str(len(plan.tensors)), size(plan.bytes_needed())]
    return rows


def _run_rows(plan: KVCachePlan) -> list[list[str]]:
    rows = [["group", "bytes", "pages", "layers"]]
    for index, segments in enumerate(block_segments(plan)):
        for run in block_runs(segments):
            pages = _pages_text(run) if run.layers else "unused"
            span = f"{run.start}-{run.end}"
            rows.append([str(index), span, pages, _layers_text(run)])
    return rows


def _layers_text(run: Run) -> str:
    if not run.layers:
        return ""
    return f"{'+'.join(run.parts)} {number_ranges(run.layers[:: len(run.parts)])}"


def _pages_text(run: Run) -> str:
    sizes = " + ".join(map(str, run.page_sizes))
    pages = f"{run.repeats} x {sizes if len(run.page_sizes) == 1 else f'({sizes})'}"
    padding = sum(run.page_sizes) - sum(run.used)
    return f"{pages} ({padding} padding)" if padding else pages


def _arrangement(plan: KVCachePlan) -> str:
    if plan.layout.packed:
        return "packed: all in one buffer"
    return f"page after page of {len(plan.layout.slots)} buffers"


def _share(unused: int, total: int) -> str:
    return f"{unused} ({unused / total:.1%})" if total else "-"


def _columns(rows: Sequence[Sequence[str]], left: Sequence[int]) -> Iterator[str]:
    """Aligned columns, numbers to the right, those in `left` to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()
