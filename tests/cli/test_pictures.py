"""Series, pictures and progress: what is drawn and printed while it runs."""

from __future__ import annotations

import io
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prefixhash.cli._progress import Watched
from prefixhash.trace import TraceRequest, hit_rate_curve, read_trace
from prefixhash.trace.page import PageTable, html_page
from prefixhash.trace.plots import Mark, Picture, _label_marks, _panels, save_plot
from prefixhash.trace.series import RateOverTime


def test_bins_merge_and_keep_every_hit() -> None:
    series = RateOverTime()
    for request in range(3, 1000):
        series.add(request, request % 2, 1, float(request))
    assert 64 <= len(series.bins) <= 128
    assert {later.first - item.first for item, later in pairwise(series.bins)} == {series.width}
    assert sum(item.hits for item in series.bins) == 499
    assert sum(item.total for item in series.bins) == 997
    assert series.bins[-1].last == 999
    assert all(item.first % series.width == 0 for item in series.bins)
    merged = series.merged(10)
    assert 5 <= len(merged) <= 10
    assert sum(item.hits for item in merged) == 499
    assert len(series.bins) > 10


def picture(**changes: Any) -> Picture:
    requests = [TraceRequest([i % 7, 10 + i % 13], 9, timestamp=float(i)) for i in range(300)]
    sample = changes.pop("sample", 1.0)
    curve = hit_rate_curve(requests, block_size=4, sample=sample)
    marks = [Mark("a", 5, curve.rate_at(5)), Mark("inf", float("inf"), curve.ceiling)]
    return Picture("a <trace>", curve, marks, **changes)


def test_a_page_escapes_what_it_is_given() -> None:
    table = PageTable("<t>", ["<c>"], [["<x>"]])
    page = html_page(picture(notes=("<n>",)), [table])
    assert "<trace>" not in page
    for name in ("t", "c", "x", "n"):
        assert f"<{name}>" not in page
        assert f"&lt;{name}&gt;" in page


def test_a_sampled_curve_has_no_panel_over_time(tmp_path: Path) -> None:
    assert list(_panels(picture())) == [
        "curve",
        "over_time",
        "reuse_distances",
        "working_set",
    ]
    assert list(_panels(picture(sample=0.9))) == ["curve", "reuse_distances"]
    save_plot(picture(sample=0.9, bytes_per_block=1 << 20), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


def test_pictures_of_an_empty_trace_can_be_drawn() -> None:
    empty = Picture("empty", hit_rate_curve([], block_size=4))
    assert "over_time" not in html_page(empty, [])


@pytest.mark.parametrize(("rate", "above"), [(0.01, True), (0.4, False)])
def test_a_marks_label_stays_off_the_axis(rate: float, above: bool) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    axes.set_ylim(0, 50)
    _label_marks(axes, [Mark("m", 10, rate)])
    (label,) = axes.texts
    assert (label.xyann[1] > 0) == above


def test_a_picture_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_plot(picture(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_on_a_terminal_only(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.jsonl"
    record = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}
    path.write_text((json.dumps(record) + "\n") * 200)
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    for trace in (read_trace(path), [TraceRequest([1], 3)] * 200):
        assert len(list(Watched(trace, "survey"))) == 200  # type: ignore[arg-type]
    shown = screen.getvalue()
    assert ("survey" in shown) == terminal
    assert ("200 requests" in shown) == terminal
