"""`prefixhash plan`: figures, JSON, pictures, and how it fails."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prefixhash.cli.main import main
from prefixhash.layout import KVCachePlan, known_model_types, plan_workers, read_model_config
from prefixhash.layout.picture import block_runs, block_segments, number_ranges

from ..layout.realistic_models import CASES, CONFIGS, Case, golden_plans, planned, table

GOLDEN = golden_plans()
GIB = 1 << 30


def path(name: str) -> str:
    return str(CONFIGS / f"{name}.json")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    status = main(["plan", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def record(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    plan: dict[str, Any] = json.loads(out)
    return plan


def plans_of(case: Case) -> tuple[KVCachePlan, ...]:
    return planned(case, GOLDEN[case.golden], count_null=False)


def test_json_has_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    got = record(capsys, path("gemma-3-27b-it"), "--memory", "60GiB")
    reference = GOLDEN["plan/gemma3_27b"]["output"]
    assert (got["model_type"], got["known_architecture"]) == ("gemma3_text", True)
    assert got["num_blocks"] == got["usable_blocks"] + 1 == reference["num_blocks"]
    assert [group["layers"] for group in got["groups"]] == [
        group["layers"] for group in reference["global_groups"]
    ]
    needed = [group["blocks_needed"] for group in got["groups"]]
    assert needed == reference["workers"][0]["blocks_needed_for_one_request"]
    assert got["max_concurrency"] == round(got["usable_blocks"] / sum(needed), 6)
    assert got["scheduler_block_size"] == 16
    (stage,) = got["stages"]
    assert stage["bytes_per_block"] == 1310720
    assert stage["unused_bytes_per_block"] == [131072] * 4 + [262144] * 2 + [0]
    assert stage["tensors"] == reference["workers"][0]["tensors"]


def test_json_is_the_same_every_time_and_names_no_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--memory", "30GiB", "--json")
    first = run(capsys, path("deepseek-v4-pro"), *arguments)[1]
    (tmp_path / "config.json").write_text(Path(path("deepseek-v4-pro")).read_text())
    assert run(capsys, str(tmp_path), *arguments)[1] == first
    monkeypatch.setattr("sys.stdin", io.StringIO((tmp_path / "config.json").read_text()))
    assert run(capsys, "-", *arguments)[1] == first
    assert run(capsys, str(tmp_path), *arguments, "--output", str(tmp_path / "plan.json"))[1] == ""
    assert (tmp_path / "plan.json").read_text() == first


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("llama-3.1-8b", ["--memory", "60GiB"], (30720, 2097152, 131072)),
        ("llama-3.1-8b", ["--memory", "60GiB", "--kv-dtype", "fp8"], (61440, 1048576, 131072)),
        ("llama-3.1-8b", ["--memory", "60GiB", "--block-size", "32"], (15360, 4194304, 131072)),
        ("llama-3.1-8b", ["--memory", "60GiB", "--dtype", "float32"], (15360, 4194304, 131072)),
        ("llama-3.1-70b", ["--memory", "55GiB", "--tp", "8"], (90112, 655360, 131072)),
        ("qwen3-8b", ["--memory", "40GiB"], (18204, 2359296, 40960)),
        ("gpt-oss-20b", ["--memory", "50GiB"], (136533, 393216, 131072)),
        ("gpt-oss-20b", ["--memory", "1GiB"], (2730, 393216, 35328)),
        ("deepseek-v3", ["--memory", "30GiB"], (7162, 4497408, 163840)),
        ("deepseek-v3.2", ["--memory", "30GiB", "--kv-dtype", "fp8"], (10470, 3076352, 163840)),
        ("deepseek-v4-flash", ["--memory", "30GiB"], (30982, 1039680, 1048576)),
        ("jamba-v0.1", ["--memory", "40GiB"], (32768, 1310720, 262144)),
        (
            "qwen3-next-80b-a3b",
            ["--memory", "40GiB", "--state-cache-mode", "align"],
            (3212, 13369344, 262144),
        ),
        (
            "nemotron-nano-9b-v2",
            ["--memory", "40GiB", "--state-dtype", "bfloat16"],
            (3900, 11010048, 131072),
        ),
        ("whisper-large-v3", ["--memory", "10GiB"], (4096, 2621440, 448)),
        (
            "falcon-mamba-7b",
            ["--memory", "10GiB", "--max-model-len", "8192"],
            (538, 19922944, 8192),
        ),
        (
            "gemma-3-27b-it",
            ["--memory", "60GiB", "--max-model-len", "1000"],
            (49152, 1310720, 1000),
        ),
    ],
)
def test_realistic_models(
    capsys: pytest.CaptureFixture[str],
    name: str,
    arguments: list[str],
    expected: tuple[int, int, int],
) -> None:
    got = record(capsys, path(name), *arguments)
    assert (
        got["num_blocks"],
        got["stages"][0]["bytes_per_block"],
        got["max_model_len"],
    ) == expected


def test_stages_have_their_own_memory_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    config = path("gemma-3-27b-it")
    got = record(capsys, config, "--memory", "60GiB,50GiB", "--pp", "2")
    assert got["num_blocks"] == GOLDEN["plan/gemma3_27b_pp2"]["output"]["num_blocks"]
    assert [stage["available_memory"] for stage in got["stages"]] == [60 * GIB, 50 * GIB]
    split = record(capsys, config, "--memory", "20GiB", "--pp", "4", "--pp-layers", "16,16,16,14")
    owned = [{name for t in s["tensors"] for name in t["shared_by"]} for s in split["stages"]]
    assert [len(names) for names in owned] == [16, 16, 16, 14]


def test_null_block_may_be_counted(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (path("gpt-oss-20b"), "--memory", "1GiB")
    assert record(capsys, *arguments)["max_model_len"] == 35328
    assert record(capsys, *arguments, "--count-null-block")["max_model_len"] == 35344


def test_packing_puts_all_layers_into_one_buffer(capsys: pytest.CaptureFixture[str]) -> None:
    got = record(capsys, path("gemma-3-27b-it"), "--memory", "60GiB", "--pack")
    reference = GOLDEN["plan/gemma3_27b_packed"]["output"]["workers"][0]["tensors"]
    assert got["stages"][0]["packed"]
    assert got["stages"][0]["tensors"] == reference


def test_text_names_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, path("gemma-3-27b-it"), "--memory", "60GiB")
    assert (status, err) == (0, "")
    for figure in ("49152, 1 of them the null block", "11654 blocks", "4.22", "131072 tokens"):
        assert figure in out
    assert "sliding window 1024" in out
    assert "131072 (10.0%)" in out
    assert "14.23 GiB" in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_text_says_when_the_length_is_lowered(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, path("gpt-oss-20b"), "--memory", "1GiB")[1]
    assert "35328 tokens (the model allows 131072)" in out


def test_picture_shows_who_owns_which_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, path("gemma-3-27b-it"), "--memory", "60GiB")[1]
    bars = [line for line in out.splitlines() if line.startswith("  group ") and "|" in line]
    assert [bar.count("|") for bar in bars] == [11, 11, 11, 11, 10, 10, 11]
    assert len({len(bar) for bar in bars}) == 1
    cells = [cell.strip() for cell in bars[0].split("|")[1:10]]
    assert " ".join(cells) == "0 7 14 21 28 36 43 50 57"
    assert set(bars[4].split("|")[-2]) == {"."}
    assert "4  0-1048576" in out
    assert "attn 4, 12, 19 ... 40, 48, 55" in out


def test_picture_joins_what_is_too_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    assert "32 x attn" in run(capsys, path("llama-3.1-8b"), "--memory", "60GiB")[1]
    out = run(capsys, path("deepseek-v3.2"), "--memory", "30GiB", "--kv-dtype", "fp8")[1]
    assert "61 x attn+indexer" in out
    assert "61 x (41984 + 8448)" in out
    out = run(capsys, path("deepseek-v4-pro"), "--memory", "30GiB")[1]
    assert "31 x 37440 (4672 padding)" in out
    assert "indexer_state 2, 4 ... 60" in out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.golden)
def test_segments_cover_the_block_of_every_group(case: Case) -> None:
    plan = plans_of(case)[0]
    for group, segments, unused in zip(
        plan.groups, block_segments(plan), plan.unused_bytes, strict=True
    ):
        edges = [0, *(segment.end for segment in segments)]
        assert [segment.start for segment in segments] == edges[:-1]
        assert edges[-1] == plan.bytes_per_block
        names = [segment.layer for segment in segments if segment.layer]
        assert sorted(names) == sorted(group.layer_names)
        assert plan.bytes_per_block - sum(segment.used for segment in segments) == unused
        runs = block_runs(segments)
        assert [name for run in runs for name in run.layers] == names
        assert [runs[0].start, runs[-1].end] == [0, plan.bytes_per_block]


def test_packed_segments_lie_at_their_offsets() -> None:
    plan = plans_of(Case("", "plan/v4_pro", "deepseek-v4-pro"))[0]
    for segments in block_segments(plan):
        for segment in segments:
            if segment.layer:
                assert segment.start == plan.slot(segment.layer).offset


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["layers.3.attn"], "3"),
        ([f"layers.{i}.attn" for i in (0, 1, 2, 7, 9, 11, 13)], "0-2, 7, 9 ... 13"),
        ([f"layers.{i}.attn" for i in (0, 1, 3, 4)], "0-1, 3-4"),
        ([f"layers.{i}.attn" for i in (5, 3, 3, 8)], "5, 3, 3, 8"),
        (["draft", "layers.0.attn", "layers.1.attn"], "draft, 0-1"),
    ],
)
def test_number_ranges(names: list[str], expected: str) -> None:
    assert number_ranges(names) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gemma-3-27b-it", "svg"),
        ("gemma-3-27b-it", "png"),
        ("gemma-3-27b-it", "pdf"),
        ("deepseek-v4-pro", "svg"),
    ],
)
def test_plot_is_written_and_repeats(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, kind: str
) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"{number}.{kind}" for number in (1, 2)]
    for file in files:
        status, _, err = run(capsys, path(name), "--memory", "30GiB", "--plot", str(file))
        assert (status, err) == (0, "")
    first, second = (file.read_bytes() for file in files)
    assert first == second
    assert first.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[kind])


def test_plot_labels_fit_their_cells(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from prefixhash.cli._plan_plot import make_figure

    for name in ("gemma-3-27b-it", "deepseek-v4-pro", "jamba-v0.1", "llama-3.1-8b"):
        model = read_model_config(path(name))
        plans = plan_workers(model.stages(2), [40 * GIB] * 2, model.options())
        figure = make_figure(Figure, model, list(enumerate(plans)))
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
        for panel in figure.axes:
            boxes = sorted(
                (round(text.get_position()[1]), box.x0, box.x1)
                for text in panel.texts
                for box in [text.get_window_extent(renderer)]
            )
            assert boxes
            for (row, _, end), (next_row, start, _) in itertools.pairwise(boxes):
                assert row != next_row or end <= start, f"labels of {name} overlap"


def test_readme_shows_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert table() in readme
    out = run(capsys, path("gemma-3-27b-it"), "--memory", "60GiB")[1]
    shown, _, _ = out.partition("  group  bytes")
    assert f"```text\n{shown}```" in readme


def test_list_prints_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--list")
    assert status == 0
    assert out.split() == list(known_model_types())


def test_unknown_model_type_is_noted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fields = json.loads(Path(path("llama-3.1-8b")).read_text()) | {"model_type": "novel"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    status, out, err = run(capsys, str(tmp_path), "--memory", "60GiB", "--json")
    assert status == 0
    assert "unknown model_type 'novel'" in err
    assert not json.loads(out)["known_architecture"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{llama}"], "--memory=None"),
        (["--memory", "1GiB"], "config=None"),
        (["{missing}", "--memory", "1GiB"], "No such file"),
        (["{llama}", "--memory", "1XB"], "write 60GiB"),
        (["{llama}", "--memory", "0"], "at least one byte"),
        (["{llama}", "--memory", "1GiB,2GiB,3GiB", "--pp", "2"], "one for each of 2 stages"),
        (["{llama}", "--memory", "1GiB", "--tp", "0"], "tensor_parallel=0"),
        (["{llama}", "--memory", "1GiB", "--tp", "3"], "tensor_parallel=3"),
        (["{llama}", "--memory", "1GiB", "--pp", "33"], "stages=33"),
        (["{llama}", "--memory", "1GiB", "--pp", "2", "--pp-layers", "1,1"], "partition"),
        (["{llama}", "--memory", "1GiB", "--pp", "2", "--pp-layers", "1,x"], "--pp-layers='x'"),
        (["{llama}", "--memory", "1GiB", "--block-size", "x"], "--block-size='x'"),
        (["{llama}", "--memory", "1GiB", "--block-size", "0"], "block_size=0"),
        (["{llama}", "--memory", "1GiB", "--max-model-len", "-1"], "max_model_len=-1"),
        (["{llama}", "--memory", "1GiB", "--kv-dtype", "fp7"], "kv_dtype='fp7'"),
        (["{llama}", "--memory", "1GiB", "--plot", "x.gif"], "--plot='x.gif'"),
        (["{falcon}", "--memory", "1GiB"], "max_model_len=None"),
        (["{llama}", "--memory", "1MiB"], "not even one token fits"),
        (
            ["{llama}", "--memory", "1GiB", "--max-model-len", "131072"],
            "the longest length that fits is 8176",
        ),
    ],
)
def test_errors_are_one_line_with_the_way_out(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    names = {"llama": path("llama-3.1-8b"), "falcon": path("falcon-mamba-7b"), "missing": "nowhere"}
    status, out, err = run(capsys, *(argument.format(**names) for argument in arguments))
    assert (status, out) == (1, "")
    assert err.startswith("prefixhash plan: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("option", ["--output", "--plot"])
@pytest.mark.parametrize(
    ("file", "reason"), [("no/such.svg", "No such file"), ("folder.svg", "Is a directory")]
)
def test_files_that_cannot_be_written_are_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, file: str, reason: str
) -> None:
    (tmp_path / "folder.svg").mkdir()
    status, out, err = run(capsys, "nowhere", "--memory", "1GiB", option, str(tmp_path / file))
    assert (status, out) == (1, "")
    assert reason in err
    assert "nowhere" not in err  # the config, which is not there, was not looked at


@pytest.mark.parametrize("text", ["{", "[1]", "nul"])
def test_standard_input_that_is_no_config(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    status, _, err = run(capsys, "-", "--memory", "1GiB")
    assert status == 1
    assert "standard input" in err


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from prefixhash.cli.main import main; "
        f"main(['plan', {path('llama-3.1-8b')!r}, '--memory', '1GiB']); "
        "bad = {'torch', 'numpy', 'matplotlib', 'rich'} & set(sys.modules); sys.exit(bool(bad))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
