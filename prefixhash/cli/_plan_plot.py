"""The picture of one block as SVG, PNG or PDF; matplotlib is imported when one is asked for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from prefixhash.cli._outputs import check_writable
from prefixhash.cli._tables import size
from prefixhash.errors import InvalidArgumentError, PrefixHashError
from prefixhash.layout import KVCachePlan, ModelLayers
from prefixhash.layout.picture import Segment, block_runs, block_segments, layer_number

_FORMATS = (".svg", ".png", ".pdf")
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
# In inches: the figure, the part of it that the bars take beside their names, a digit, a row, and
# the page below which pages are drawn as one, since their borders would fill it.
_WIDTH, _DRAWN, _DIGIT, _ROW, _THINNEST = 10.0, 7.0, 0.075, 0.42, 0.03
# First and last byte, and labels, the longest first.
_Cell = tuple[int, int, tuple[str, ...]]
# Neighbouring pages differ in shade and in their border, unused bytes in hatching: no colours.
_SHADES = ("#d9d9d9", "#f7f7f7")


def check_picture(path: str) -> None:
    """What can be said before there is anything to draw.

    Raises `InvalidArgumentError` for another file type, `OSError` for a file that cannot be
    written, `PrefixHashError` without matplotlib.
    """
    if os.path.splitext(path)[1].lower() not in _FORMATS:
        problem = f"use a file name that ends in {', '.join(_FORMATS)}"
        raise InvalidArgumentError("--plot", path, problem)
    check_writable(path)
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        needed = "--plot needs matplotlib: pip install 'prefixhash[cli]'"
        raise PrefixHashError(needed) from error


def save_picture(path: str, model: ModelLayers, plans: Sequence[KVCachePlan]) -> None:
    """Writes one panel per pipeline stage that has layers, to a path that `check_picture` takes."""
    import matplotlib
    from matplotlib.figure import Figure

    shown = [(stage, plan) for stage, plan in enumerate(plans) if plan.bytes_per_block]
    if not shown:
        raise PrefixHashError("nothing to plot: the model caches nothing")
    # The same plan gives the same bytes: no time of day, no random ids.
    with matplotlib.rc_context({"svg.hashsalt": "prefixhash", "font.size": 9}):
        figure = make_figure(Figure, model, shown)
        no_date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        metadata = no_date.get(os.path.splitext(path)[1].lower())
        figure.savefig(path, dpi=150, metadata=metadata, bbox_inches="tight")


def make_figure(figure_type: Any, model: ModelLayers, shown: list[tuple[int, KVCachePlan]]) -> Any:
    heights = [len(plan.groups) * _ROW + 1.3 for _, plan in shown]
    figure = figure_type(figsize=(_WIDTH, sum(heights)), layout="constrained")
    axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)
    for (stage, plan), panel in zip(shown, axes[:, 0], strict=True):
        _draw(panel, plan)
        where = f", pipeline stage {stage}" if len(shown) > 1 else ""
        title = f"One KV-cache block of {model.model_type or 'the model'}{where}"
        sizes = f"{size(plan.bytes_per_block)}, {plan.num_blocks} blocks"
        panel.set_title(f"{title}: {sizes}", loc="left", fontsize=10)
    figure.get_layout_engine().set(hspace=0.06)
    _add_legend(figure, [plan for _, plan in shown])
    return figure


def _draw(panel: Any, plan: KVCachePlan) -> None:
    unit, name = next(
        (size, name) for size, name in _UNITS if plan.bytes_per_block >= 2 * size or size == 1
    )
    for row, segments in enumerate(block_segments(plan)):
        _draw_row(panel, row, segments, plan.bytes_per_block, unit)
        _write_labels(panel, row, segments, plan.bytes_per_block, unit)
    panel.set_xlim(0, plan.bytes_per_block / unit)
    panel.set_ylim(len(plan.groups) - 0.4, -0.6)
    panel.set_yticks(range(len(plan.groups)))
    names = [f"group {i}: {group.title}" for i, group in enumerate(plan.groups)]
    panel.set_yticklabels(names)
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel(f"bytes of the block ({name})" if unit > 1 else "bytes of the block")
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _draw_row(panel: Any, row: int, segments: Sequence[Segment], total: int, unit: int) -> None:
    rest = iter(segments)
    for run in block_runs(segments):
        count = max(len(run.layers), 1)
        parts = [next(rest) for _ in range(count)]
        if not run.layers:
            _bar(panel, row, run.start / unit, run.end / unit, "white", "////")
        elif (run.end - run.start) / count / total * _DRAWN < _THINNEST:
            _bar(panel, row, run.start / unit, run.end / unit, _SHADES[0], "|||||")
        else:
            _draw_pages(panel, row, parts, unit)


def _draw_pages(panel: Any, row: int, segments: Sequence[Segment], unit: int) -> None:
    for place, segment in enumerate(segments):
        end, used = segment.end / unit, (segment.start + segment.used) / unit
        _bar(panel, row, segment.start / unit, end, _SHADES[place % 2])
        if used < end:
            _bar(panel, row, used, end, "black")


def _bar(panel: Any, row: int, start: float, end: float, shade: str, hatch: str = "") -> None:
    style = {"facecolor": shade, "edgecolor": "black", "linewidth": 0.5, "clip_on": False}
    panel.barh(row, end - start, left=start, height=0.8, hatch=hatch, **style)


def _write_labels(panel: Any, row: int, segments: Sequence[Segment], total: int, unit: int) -> None:
    """Layer numbers if they all fit into their pages, otherwise a label per run of pages."""
    owned = [segment for segment in segments if segment.layer is not None]
    cells: list[_Cell] = [(s.start, s.end, (layer_number(s.layer or ""),)) for s in owned]
    if not all(_fitting(cell, total) for cell in cells):
        runs = [run for run in block_runs(segments) if run.layers]
        cells = [(r.start, r.end, (r.label, f"{r.repeats}x")) for r in runs]
    for cell in cells:
        text = _fitting(cell, total)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        middle = (cell[0] + cell[1]) / 2 / unit
        if text:
            panel.text(middle, row, text, ha="center", va="center", fontsize=8, bbox=box)


def _fitting(cell: _Cell, total: int) -> str:
    """The first of the labels that fits between the cell's bytes, or nothing."""
    start, end, labels = cell
    room = (end - start) / total * _DRAWN / _DIGIT
    return next((label for label in labels if len(label) + 0.4 < room), "")


def _add_legend(figure: Any, plans: Sequence[KVCachePlan]) -> None:
    from matplotlib.patches import Patch

    every = [s for plan in plans for segments in block_segments(plan) for s in segments]
    edge: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.5}
    label = "pages (layer number, or how many layers)"
    handles = [Patch(facecolor=_SHADES[0], label=label, **edge)]
    if any(segment.layer is None for segment in every):
        label = "unused by this group"
        handles.append(Patch(facecolor="white", hatch="////", label=label, **edge))
    if any(segment.layer and segment.used < segment.end - segment.start for segment in every):
        handles.append(Patch(facecolor="black", label="padding of a page"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
