"""Pictures of curves and replays. Matplotlib is imported when a picture is drawn.

Lines differ in style and marks as well as in colour, so that they can be told apart in black and
white. Figures are drawn without pyplot: no global state, no display.
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError, PrefixHashError
from prefixhash.trace.checks import blocks_or_inf, instance_of, items_of
from prefixhash.trace.definitions import find_definition
from prefixhash.trace.hit_curve import HitRateCurve
from prefixhash.trace.series import RateOverTime

_STYLES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Okabe and Ito's colours: distinct for colour-blind readers, and in brightness.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MOST_LINES = len(_STYLES)
_MOST_POINTS = 40
_SUFFIXES = (".png", ".svg", ".pdf")
_SUFFIXES_TEXT = ".png, .svg or .pdf"
_RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    # The same picture gives the same bytes.
    "svg.hashsalt": "prefixhash",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Mark:
    """A capacity shown on the curve. `series`: marks of one policy share a symbol."""

    label: str
    blocks: float
    rate: float
    series: str = "marked capacities"

    def __post_init__(self) -> None:
        _arguments.text("label", self.label)
        _arguments.text("series", self.series)
        blocks_or_inf("blocks", self.blocks, 1)
        _arguments.number("rate", self.rate)


@dataclass(frozen=True)
class Picture:
    """What a picture or page shows of one trace."""

    title: str
    curve: HitRateCurve
    marks: Sequence[Mark] = ()
    over_time: Sequence[tuple[str, RateOverTime]] = ()
    # Blocks of the picture's unit for each block of the curve (a pool with smaller blocks).
    blocks_scale: float = 1.0
    bytes_per_block: int | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        _arguments.text("title", self.title)
        instance_of("curve", self.curve, HitRateCurve)
        for place, mark in enumerate(items_of("marks", self.marks, "marks")):
            instance_of(f"marks[{place}]", mark, Mark)
        for place, line in enumerate(items_of("over_time", self.over_time, "(label, series)")):
            if not isinstance(line, tuple) or len(line) != 2:
                raise InvalidArgumentError(f"over_time[{place}]", line, "must be (label, series)")
            _arguments.text(f"over_time[{place}][0]", line[0])
            instance_of(f"over_time[{place}][1]", line[1], RateOverTime)
        if _arguments.number("blocks_scale", self.blocks_scale) == 0:
            raise InvalidArgumentError("blocks_scale", self.blocks_scale, "must be above 0")
        _arguments.optional_integer("bytes_per_block", self.bytes_per_block, 1)
        for place, note in enumerate(items_of("notes", self.notes, "texts")):
            _arguments.text(f"notes[{place}]", note)


def save_plot(picture: Picture, path: str | Path) -> None:
    """Draws the panels that there is data for, one below the other, into a picture file.

    Raises `InvalidArgumentError` for a name that no kind of picture has, and `OSError`.
    """
    instance_of("picture", picture, Picture)
    check_picture_name("path", path)
    with _matplotlib_rc():
        panels = _panels(picture)
        figure = _figure(8.0, 3.2 * len(panels))
        for draw, axes in zip(panels.values(), figure.subplots(len(panels), 1), strict=True):
            draw(axes, picture)
        figure.suptitle(picture.title, fontsize=11)
        metadata: dict[str, Any] = {"Date": None} if str(path).lower().endswith(".svg") else {}
        figure.savefig(path, dpi=150, metadata=metadata)


def svg_panels(picture: Picture) -> dict[str, str]:
    """The drawings as SVG elements, by name, for a page."""
    instance_of("picture", picture, Picture)
    svgs = {}
    with _matplotlib_rc():
        for name, draw in _panels(picture).items():
            figure = _figure(8.0, 3.4)
            axes = figure.subplots()
            draw(axes, picture)
            # The page has a heading of its own above each.
            axes.set_title("", loc="left")
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None})
            text = buffer.getvalue()
            svgs[name] = _prefixed(text[text.index("<svg") :], name)
    return svgs


def _panels(picture: Picture) -> dict[str, Callable[[Any, Picture], None]]:
    """What there is to draw; a sampled curve knows nothing of single requests."""
    panels: dict[str, Callable[[Any, Picture], None]] = {
        "curve": draw_curve,
        "over_time": draw_over_time,
        "reuse_distances": draw_reuse_distances,
        "working_set": draw_working_set,
    }
    if not picture.curve.working_set.samples:
        del panels["working_set"]
    if not any(series.bins for _, series in _lines(picture)):
        del panels["over_time"]
    return panels


def _lines(picture: Picture) -> list[tuple[str, RateOverTime]]:
    return list(picture.over_time) or [("unbounded", picture.curve.unbounded.over_time)]


def draw_curve(axes: Any, picture: Picture) -> None:
    """Hit rate against capacity (logarithmic), the ceiling, and the marked capacities."""
    curve = picture.curve
    scale = picture.blocks_scale
    points = curve.points(400)
    x = [blocks * scale for blocks, _ in points]
    axes.step(
        x,
        [100 * rate for _, rate in points],
        where="post",
        color=_COLOURS[0],
        label=f"LRU, {curve.order}",
    )
    if curve.standard_error is not None:
        low = [100 * (rate - 2 * (curve.error_at(b) or 0)) for b, rate in points]
        high = [100 * (rate + 2 * (curve.error_at(b) or 0)) for b, rate in points]
        axes.fill_between(x, low, high, step="post", alpha=0.2, color=_COLOURS[0], label="±2 s.e.")
    axes.axhline(
        100 * curve.ceiling,
        linestyle=":",
        color="0.4",
        label=f"ceiling {100 * curve.ceiling:.2f} %",
    )
    _draw_marks(axes, picture)
    axes.set_xscale("log")
    axes.set_ylim(0, None)
    axes.set_xlabel(f"capacity (blocks of {round(curve.block_size / scale)} tokens)")
    axes.set_ylabel(f"hit rate, {curve.count} (%)")
    axes.set_title("Hit rate by capacity", loc="left")
    _add_legend(axes)
    if picture.bytes_per_block is not None:
        _add_gib_axis(axes, picture.bytes_per_block)


def _draw_marks(axes: Any, picture: Picture) -> None:
    finite = [mark for mark in picture.marks if math.isfinite(mark.blocks)]
    for place, name in enumerate(list(dict.fromkeys(m.series for m in finite))[:_MOST_LINES]):
        marks = [mark for mark in finite if mark.series == name]
        axes.plot(
            [m.blocks for m in marks],
            [100 * m.rate for m in marks],
            linestyle="none",
            marker=_MARKERS[place],
            markersize=6,
            markerfacecolor="white",
            markeredgecolor=_COLOURS[(place + 1) % len(_COLOURS)],
            markeredgewidth=1.5,
            label=name,
        )
        if place == 0:
            _label_marks(axes, marks)


def _label_marks(axes: Any, marks: Sequence[Mark]) -> None:
    """Writes each mark's rate beside it, leaving out what would run into its neighbour.

    The curve rises, so that there is room below and to the right of a mark, or above and to the
    left of one that lies close to the axis.
    """
    last = -math.inf
    low = 0.15 * axes.get_ylim()[1]
    for mark in sorted(marks, key=lambda m: m.blocks):
        place = math.log10(mark.blocks)
        if place - last < 0.28:
            continue
        last = place
        above = 100 * mark.rate < low
        axes.annotate(
            f"{100 * mark.rate:.1f}",
            (mark.blocks, 100 * mark.rate),
            textcoords="offset points",
            xytext=(-4, 6) if above else (6, -11),
            horizontalalignment="right" if above else "left",
            fontsize=8,
        )


def _add_legend(axes: Any) -> None:
    # Beside the axes, where it covers no line.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)


def _add_gib_axis(axes: Any, bytes_per_block: int) -> None:
    per_gib = (1 << 30) / bytes_per_block
    top = axes.secondary_xaxis(
        "top", functions=(lambda blocks: blocks / per_gib, lambda gib: gib * per_gib)
    )
    top.set_xlabel("KV cache (GiB)")


def draw_over_time(axes: Any, picture: Picture) -> None:
    """Hit rate in the course of the trace, a line for each capacity."""
    lines = [(label, series.merged(_MOST_POINTS)) for label, series in _lines(picture)]
    timed = all(item.start is not None for _, bins in lines for item in bins)
    for place, (label, bins) in enumerate(lines[:_MOST_LINES]):
        # The last bin reaches to its own end, the others to the next one's start.
        ends = [bins[-1]] if bins else []
        x = [(item.start or 0.0) / 60 if timed else item.first for item in bins]
        x += [(item.end or 0.0) / 60 if timed else item.last for item in ends]
        axes.plot(
            x,
            [100 * item.rate for item in (*bins, *ends)],
            linestyle=_STYLES[place],
            color=_COLOURS[place],
            linewidth=1.3,
            drawstyle="steps-post",
            label=label,
        )
    highest = max((item.rate for _, bins in lines for item in bins), default=0)
    axes.set_ylim(0, min(100, 115 * highest) or 100)
    axes.set_xlabel("time (minutes)" if timed else "request")
    axes.set_ylabel(f"hit rate, {picture.curve.count} (%)")
    axes.set_title("Hit rate over time", loc="left")
    _add_legend(axes)


def draw_reuse_distances(axes: Any, picture: Picture) -> None:
    """Hits by the capacity that they need, in powers of two."""
    curve = picture.curve
    bins = curve.reuse_distances()
    axes.bar(
        range(len(bins)),
        [hits for _, _, hits in bins],
        color="0.75",
        edgecolor="black",
        linewidth=0.8,
    )
    step = max(1, -(-len(bins) // 9))
    axes.set_xticks(
        range(0, len(bins), step),
        [f"{round(low * picture.blocks_scale):,}" for low, _, _ in bins[::step]],
    )
    axes.set_xlabel("reuse distance (blocks; each bar reaches to twice its left edge)")
    axes.set_ylabel(f"hits ({find_definition(curve.count).unit})")
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    axes.grid(axis="x", visible=False)
    axes.set_title("Reuse distances: the capacity that a hit needs", loc="left")


def draw_working_set(axes: Any, picture: Picture) -> None:
    """Distinct blocks in use: among the last requests, and since the start."""
    working_set = picture.curve.working_set
    samples = working_set.samples
    timed = all(sample.timestamp is not None for sample in samples)
    x = [(s.timestamp or 0.0) / 60 if timed else s.request for s in samples]
    lines = [
        (f"last {window:,} requests", [s.recent[place] for s in samples])
        for place, window in enumerate(working_set.windows)
    ]
    lines.append(("all requests so far", [s.distinct for s in samples]))
    for place, (label, blocks) in enumerate(lines):
        axes.plot(
            x,
            [n * picture.blocks_scale for n in blocks],
            linestyle=_STYLES[place],
            color=_COLOURS[place],
            linewidth=1.3,
            label=label,
        )
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    axes.set_xlabel("time (minutes)" if timed else "request")
    axes.set_ylabel("distinct blocks")
    axes.set_title("Working set", loc="left")
    _add_legend(axes)


def _short(value: float) -> str:
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def check_picture_name(name: str, path: str | Path) -> None:
    """Raises `InvalidArgumentError` unless `path` ends as the name of a picture does."""
    text = _arguments.text(name, str(path) if isinstance(path, Path) else path)
    if Path(text).suffix.lower() not in _SUFFIXES:
        raise InvalidArgumentError(name, path, f"must end in {_SUFFIXES_TEXT}")


def check_matplotlib() -> None:
    """Raises `PrefixHashError` that says what to install, where matplotlib is absent."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PrefixHashError("pictures need matplotlib: pip install 'prefixhash[cli]'")


def _matplotlib_rc() -> Any:
    check_matplotlib()
    import matplotlib

    return matplotlib.rc_context(_RC)


def _prefixed(svg: str, name: str) -> str:
    """`svg` with its ids made unique, so that several can stand in one page."""
    for attribute in ('id="', 'href="#', "url(#"):
        svg = svg.replace(attribute, f"{attribute}{name}-")
    return svg
