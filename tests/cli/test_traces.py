"""The commands replay, curve and synth: their output, exit status and one line for each error."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prefixhash.cli.main import main
from prefixhash.trace.definitions import DEFINITIONS
from prefixhash.trace.report import number
from prefixhash.trace.synth import make_workload, synthesize
from prefixhash.trace.synth_forms import record_of

LINE = {"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small chat trace with 64-token blocks."""
    path = tmp_path_factory.mktemp("traces") / "chat.jsonl"
    plan = make_workload("mixed", sessions=15)
    records = [record_of(r) for r in synthesize(plan, block_size=64, seed=4)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def ok(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(item) for item in argv]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def data_of(capsys: pytest.CaptureFixture[str], *argv: object) -> Any:
    return json.loads(ok(capsys, *argv, "--json"))


def test_replay_prints_rates_losses_types_and_turns(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ok(capsys, "replay", trace, "--trace-block-size", 64)
    assert "chat.jsonl: format mooncake (found from the first record)" in out
    for text in ("hit rate", "evictions", "never seen before", "by type", "by turn", "blocks/s"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 110


def test_replay_counts_by_every_definition(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_of(capsys, "replay", trace, "--trace-block-size", 64, "--count", "all")
    counts = [result["count"] for result in data["results"]]
    assert list(dict.fromkeys(counts)) == list(DEFINITIONS)
    assert "requests-full" in ok(
        capsys, "replay", trace, "--trace-block-size", 64, "--count", "all"
    )


def test_replay_runs_every_policy(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("replay", trace, "--trace-block-size", 64, "--capacity", "20%,inf")
    policies = "lru,fifo,lfu,s3fifo,optimal"
    data = data_of(capsys, *argv, "--policy", policies)
    assert [(r["policy"], r["level"]) for r in data["results"][:4]] == [
        ("lru", "pool"),
        ("lru", "cache"),
        ("fifo", "cache"),
        ("fifo", "cache"),
    ]
    assert "optimal" in ok(capsys, *argv, "--policy", policies)


@pytest.mark.parametrize("command", ["replay", "curve"])
def test_json_is_the_same_every_time_and_names_no_folder(
    trace: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / trace.name
    moved.write_bytes(trace.read_bytes())
    first = ok(capsys, command, trace, "--trace-block-size", 64, "--json")
    assert ok(capsys, command, moved, "--trace-block-size", 64, "--json") == first
    assert str(trace.parent) not in first
    target = tmp_path / "out.json"
    assert ok(capsys, command, trace, "--trace-block-size", 64, "--json", "--output", target) == ""
    assert target.read_text() == first


def test_numbers_of_a_report_have_nine_digits() -> None:
    assert (number(2 / 3), number(float("inf"))) == (0.666666667, None)
    assert repr(number(12.0)) == "12"


def test_curve_equals_replay(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (trace, "--trace-block-size", 64, "--count", "blocks")
    curve = data_of(capsys, "curve", *options, "--capacity", "20,60,inf")
    for order in ("tail-first", "head-first"):
        curve = data_of(capsys, "curve", *options, "--capacity", "20,60,inf", "--order", order)
        lru = data_of(capsys, "replay", *options, "--capacity", "inf", "--order", order)
        assert curve["capacities"][-1]["hit_rate"] == lru["results"][0]["hit_rate"]
    assert curve["exact"] is True


def test_curve_prints_knee_distances_and_working_set(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ok(capsys, "curve", trace, "--trace-block-size", 64)
    for text in ("99 % of the ceiling", "Reuse distance", "Working set", "By type", "vLLM"):
        assert text in out


def test_a_sampled_curve_states_its_error(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("curve", trace, "--trace-block-size", 64, "--sample", "0.5")
    out = ok(capsys, *options)
    assert "std. error" in out
    assert re.search(r"about [\d,]+ distinct, of which [\d,]+ were followed", out)
    data = data_of(capsys, *options)
    assert data["exact"] is False
    assert data["capacities"][0]["standard_error"] > 0


@pytest.mark.parametrize("command", ["replay", "curve"])
def test_a_warmup_is_a_number_or_a_share(
    trace: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (command, trace, "--trace-block-size", 64, "--capacity", "20,inf")
    requests = data_of(capsys, *argv)["requests"]
    share = data_of(capsys, *argv, "--warmup", "10%")
    assert share == data_of(capsys, *argv, "--warmup", requests // 10)
    assert share != data_of(capsys, *argv)


def test_a_sample_is_a_number_or_a_share(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("curve", trace, "--trace-block-size", 64, "--sample")
    assert data_of(capsys, *argv, "50%") == data_of(capsys, *argv, "0.5")
    with pytest.raises(SystemExit):
        main([str(item) for item in (*argv, "101%")])
    assert "must be at most 100%" in capsys.readouterr().err


def test_token_traces_replay_and_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.jsonl"
    assert ok(capsys, "synth", "mixed", "--form", "tokens", "--sessions", 5, "--output", path) == ""
    replayed = data_of(capsys, "replay", path, "--capacity", "inf", "--block-size", 32)
    curve = data_of(capsys, "curve", path, "--capacity", "inf", "--block-size", 32)
    assert replayed["block_size"] == curve["block_size"] == 32
    assert replayed["results"][0]["hit_rate"] == curve["ceiling"] > 0


def test_gib_are_blocks_of_a_model(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    fields = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}
    fields |= {"num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096}
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16"}
    config.write_text(json.dumps({**llama, **fields}))
    model = ("--trace-block-size", 64, "--model", config, "--capacity", "64MiB,inf")
    # K and V, 4 layers, 2 heads of 64 16-bit values, 64 tokens: 128 KiB a block.
    for command, key in (("curve", "capacities"), ("replay", "results")):
        data = data_of(capsys, command, trace, *model)
        first = data[key][0]
        assert first.get("blocks", first.get("capacity_blocks")) == 512
        assert "64.00 MiB" in ok(capsys, command, trace, *model)
    decimal = ("--trace-block-size", 64, "--model", config, "--capacity", "64MB,0.5 GB")
    for command, key in (("curve", "capacities"), ("replay", "results")):
        for result, size in zip(
            data_of(capsys, command, trace, *decimal)[key], (64 * 10**6, 5 * 10**8), strict=True
        ):
            blocks = result.get("blocks", result.get("capacity_blocks"))
            assert blocks == size // (128 << 10)
    halved = data_of(capsys, "curve", trace, *model, "--tp", 2)
    assert halved["bytes_per_block"] == 64 << 10
    assert main(["curve", str(trace), "--trace-block-size", "64", "--model", "no.json"]) == 1
    assert "no.json: no such file or directory" in capsys.readouterr().err


def test_a_model_with_other_layers_gets_a_note(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(__file__).parents[1] / "data" / "configs" / "gemma-3-27b-it.json"
    argv = ["curve", str(trace), "--trace-block-size", "64", "--model", str(config), "--json"]
    assert main(argv) == 0
    assert "note: the model has SlidingWindow layers" in capsys.readouterr().err


def test_synth_is_seeded(capsys: pytest.CaptureFixture[str]) -> None:
    first = ok(capsys, "synth", "--sessions", 3, "--turns", 2, "--seed", 7)
    assert ok(capsys, "synth", "--sessions", 3, "--turns", 2, "--seed", 7) == first
    assert json.loads(first.splitlines()[0])["hash_ids"][0] == 0


@pytest.mark.parametrize("command", ["replay", "curve"])
def test_pictures_and_page(
    trace: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [command, trace, "--trace-block-size", 64, "--capacity", "20,60,inf"]
    png, page = tmp_path / "a.png", tmp_path / "p.html"
    ok(capsys, *options, "--plot", png, "--html", page)
    assert png.read_bytes()[:4] == b"\x89PNG"
    html = page.read_text()
    assert html.count("<svg") == 4
    assert "<script" not in html
    assert not re.search(r'(?:src|href)="(?!#)', html), "the page fetches nothing"
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_bad_lines_are_skipped_counted_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(LINE) + "\nnonsense\n" + json.dumps(LINE) + "\n")
    assert main(["curve", str(path), "--skip-bad", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["trace"]["skipped_lines"] == 1
    assert captured.err.splitlines() == [
        f"skipped {path}:2: not JSON: Expecting value (column 1)",
        "skipped 1 bad lines",
    ]
    assert main(["replay", str(path), "--skip-bad", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trace"]["skipped_lines"] == 1


def _bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    good = json.dumps(LINE) + "\n"
    (folder / "empty.jsonl").write_text("")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "cut.gz").write_bytes(gzip.compress((good * 99).encode())[:-9])
    (folder / "wrong.jsonl").write_text(good + '{"a":\n')
    (folder / "other.jsonl").write_text('{"a": 1}\n')
    (folder / "mixed.jsonl").write_text(good + json.dumps({**LINE, "hash_ids": [1, "2"]}))
    (folder / "negative.jsonl").write_text(json.dumps({**LINE, "input_length": -4}))
    (folder / "folder").mkdir()
    return {
        "missing": (folder / "no-such-file", ": no such file or directory"),
        "folder": (folder / "folder", ": is a folder without .json or .jsonl files"),
        "binary": (folder / "binary", ":1: binary data, not JSON text"),
        "cut": (folder / "cut.gz", "the gzip data ends too early: the file is truncated"),
        "empty": (folder / "empty.jsonl", ": is empty"),
        "wrong": (folder / "wrong.jsonl", ":2: not JSON: Expecting value"),
        "other": (folder / "other.jsonl", ":1: no known trace format: an object with a"),
        "mixed": (folder / "mixed.jsonl", ":2: hash_ids mixes types: '2'"),
        "negative": (
            folder / "negative.jsonl",
            ":1: input_length=-4: must be an integer of at least 0",
        ),
    }


@pytest.mark.parametrize("command", ["replay", "curve"])
def test_bad_input_is_one_clear_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (path, message) in _bad_files(tmp_path).items():
        assert main([command, str(path)]) == 1, name
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith(f"prefixhash {command}: {path}")
        assert message in line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["replay"], "TRACE=None: is missing"),
        (["replay", "--demo", "x"], "name no other"),
        (["replay", "T", "--capacity", "few"], "capacity='few'"),
        (["replay", "T", "--capacity", "1GiB"], "--model config.json"),
        (["replay", "T", "--policy", "best"], "policy='best'"),
        (["replay", "T", "--count", "hits"], "count='hits'"),
        (["replay", "T", "--warmup", "most"], "warmup='most'"),
        (["replay", "T", "--plot", "x.bmp"], "must end in .png, .svg or .pdf"),
        (["replay", "T", "--decode-rate", "0"], "decode rate=0.0"),
        (["replay", "T", "--html", "/no/such/folder/x.html"], "no such file or directory"),
        (["replay", "T", "--plot", "/no/such/folder/x.png"], "no such file or directory"),
        (["curve", "T", "--html", "/"], "/: is a directory"),
        (["replay", "T", "--warmup", "1"], "leaves out all 1 requests"),
        (["curve", "T", "--output", "/no/such/folder/x"], "no such file or directory"),
        (["curve", "T", "--sample", "2"], "sample=2.0"),
        (["curve", "T", "--warmup", "most"], "warmup='most'"),
        (["curve", "T", "--warmup", "100%"], "warmup='100%'"),
        (["curve", "T", "--capacity", "40Gi"], "bytes (40GiB, 80GB)"),
        (["replay", "T", "--capacity", "40GB"], "--model config.json"),
        (["check-events", "no-such-file", "--output", "/"], "/: is a directory"),
        (["synth", "--output", "/no/such/folder/x"], "no such file or directory"),
        (["synth", "--sessions", "0"], "sessions=0"),
        (["synth", "--zipf", "nan"], "zipf=nan"),
    ],
)
def test_bad_arguments_are_one_clear_line(
    tmp_path: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(LINE))
    assert main([str(path) if item == "T" else item for item in argv]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert message in line
    assert captured.out == "", "refused before the work is done"


@pytest.mark.parametrize("option", ["--count", "--policy", "--capacity"])
def test_an_empty_list_is_a_usage_error(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        main(["replay", "--demo", option, " , "])
    assert info.value.code == 2
    assert "names nothing" in capsys.readouterr().err


def test_names_of_a_trace_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    kinds = ["[bold]x[/bold] [/]", "\x1b[31mred\n"]
    path.write_text("".join(json.dumps({**LINE, "type": kind}) + "\n" for kind in kinds))
    out = ok(capsys, "replay", path)
    assert kinds[0] in out
    assert "?[31mred?" in out
    assert "\x1b" not in out


def test_replay_says_how_requests_were_held_and_counted(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("replay", trace, "--trace-block-size", 64, "--capacity", "10%,inf", "--warmup", 9)
    alone = ok(capsys, *argv)
    assert "the first 9 requests are not counted (--warmup)" in alone
    assert "unbounded in a plain cache" in alone
    assert "at a time; in the tightest" not in alone
    timed = ok(capsys, *argv, "--timed", "--prefill-rate", 3000)
    assert "can be hit once its prefill is done (3,000 tokens/s" in timed
    several = ok(capsys, *argv, "--concurrency", 3, "--policy", "lru")
    assert "up to 3 requests ran at a time" in several
    assert "as soon as the next request starts" in several


def _process(*argv: object, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "prefixhash", *map(str, argv)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}, **options
    )


def test_a_closed_pipe_is_silent() -> None:
    process = _process("synth", "agents", "--sessions", 40)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (0, b"")


def test_a_trace_through_a_pipe(trace: Path) -> None:
    process = _process("curve", "-", "--trace-block-size", 64, "--json", stdin=subprocess.PIPE)
    out, errors = process.communicate(gzip.compress(trace.read_bytes()))
    assert (process.returncode, errors) == (0, b"")
    assert json.loads(out)["trace"]["name"] == "<stdin>"


def test_without_rich_json_works_and_tables_say_what_to_install(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rich", "rich.table", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    options = ["curve", str(trace), "--trace-block-size", "64"]
    assert main([*options, "--json"]) == 0
    capsys.readouterr()
    assert main(options) == 1
    assert "pip install 'prefixhash[cli]'" in capsys.readouterr().err
    assert main([*options, "--json", "--plot", "x.png"]) == 1
    assert "pip install 'prefixhash[cli]'" in capsys.readouterr().err
