"""`prefixhash hash` and `prefixhash info`: what they print, and how they fail."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prefixhash import (
    BlockHasher,
    HashProfile,
    LoRARequest,
    MultiModalFeature,
    PlaceholderRange,
    Request,
    __version__,
)
from prefixhash.cli.main import main

RECORD = {
    "request_id": "a",
    "token_ids": list(range(40)),
    "lora": {"name": "sql", "path": "/sql", "revision": "2"},
    "mm_features": [{"identifier": "img", "offset": 4, "length": 20, "modality": "video"}],
    "cache_salt": "tenant",
    "timestamp": 5,
    "output_length": 7,
}


def request_of(hasher: BlockHasher) -> Request:
    return Request(
        "a",
        range(40),
        block_hasher=hasher,
        lora_request=LoRARequest("sql", "/sql", "2"),
        mm_features=[MultiModalFeature("img", PlaceholderRange(4, 20), "video")],
        cache_salt="tenant",
    )


def write(tmp_path: Path, *records: Any) -> str:
    path = tmp_path / "requests.jsonl"
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_a_line_per_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, RECORD, "", {"token_ids": [1] * 16, "lora": "x"})
    assert main(["hash", path]) == 0
    out, err = capsys.readouterr()
    first, second = map(json.loads, out.splitlines())
    hasher = BlockHasher(16)
    assert first == {
        "request_id": "a",
        "block_hashes": [digest.hex() for digest in request_of(hasher).block_hashes],
    }
    by_name = Request("r", [1] * 16, block_hasher=hasher, lora_request=LoRARequest("x"))
    assert second["request_id"] == "3"  # the number of its line
    assert second["block_hashes"] == [by_name.block_hashes[0].hex()]
    assert err == ""


def test_an_engines_hashes_as_64_bit_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = HashProfile.vllm("0.33", "sha256_cbor", "0")
    digests = request_of(BlockHasher(8, profile)).block_hashes
    options = ["--profile", "vllm:0.33", "--algorithm", "sha256_cbor", "--seed", "0"]
    for int64, part in (("low", slice(24, 32)), ("high", slice(0, 8))):
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(RECORD)))
        assert main(["hash", *options, "--block-size", "8", "--int64", int64]) == 0
        numbers = json.loads(capsys.readouterr().out)["block_hashes"]
        assert numbers == [int.from_bytes(digest[part], "big") for digest in digests]


def test_the_namespace_changes_every_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, RECORD)
    outputs = []
    for options in ([], ["--namespace", "llama"], ["--seed", "s"]):
        assert main(["hash", path, *options]) == 0
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ("[1]", "must be a JSON object"),
        ("{}", "lacks the field 'token_ids'"),
        ('{"token_ids": "abc"}', "must be a list of integers"),
        ('{"token_ids": [1, -1]}', r"token_ids[1]=-1"),
        ('{"token_ids": [1.0]}', "token_ids[0]=1.0"),
        ('{"token_ids": [true]}', "token_ids[0]=True"),
        ('{"token_ids": [1], "salt": "x"}', "'salt': unknown field"),
        ('{"token_ids": [1], "cache_salt": 5}', "cache_salt=5"),
        ('{"token_ids": [1], "lora": {"path": "/a"}}', "lacks the field 'name'"),
        ('{"token_ids": [1], "lora": {"name": "a", "id": 3}}', "'id': unknown field"),
        ('{"token_ids": [1], "mm_features": [{"identifier": "a"}]}', "lacks the field"),
        (
            '{"token_ids": [1], "mm_features": [{"identifier": "a", "offset": 0, "length": 9}]}',
            "mm_features[0].mm_position=",
        ),
        ('{"token_ids": [1], "mm_features": 5}', "mm_features=5: must be a list"),
        ("[" * 100_000, "recursion"),
        ('{"token_ids": [1], "cache_slat": "x"}', "did you mean 'cache_salt'?"),
        ('{"token_ids": [1], "prompt_token_ids": [1]}', "says the same as 'token_ids'"),
        ('{"token_ids": [1], "cache_salt": "x", "cache_salt": null}', "'cache_salt' twice"),
        ('{"input_length": 4, "hash_ids": [1]}', "lacks the field 'token_ids'"),
    ],
)
def test_a_bad_line_is_one_line_with_its_place(
    line: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, {"token_ids": [1]}, line)
    assert main(["hash", path]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"prefixhash hash: {path}:2: ")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--profile", "vllm:0.18"], "keys are known for vLLM 0.19"),
        (["--profile", "vllm:0.25"], "PYTHONHASHSEED"),
        (["--profile", "sglang"], "known: strict"),
        (["--profile", "vllm:0.33", "--namespace", "m"], "use strict"),
        (["--algorithm", "xxhash"], "every run gives other hashes"),
        (["--block-size", "0"], "block_size=0"),
    ],
)
def test_options_that_cannot_be_are_one_line(
    options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hash", write(tmp_path, RECORD), *options]) == 1
    err = capsys.readouterr().err
    assert reason in err.splitlines()[-1]
    assert "Traceback" not in err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b'{"token_ids": [1]}\n\xff\xfe')
    cases = {str(tmp_path): "Is a directory", str(tmp_path / "none"): "No such file"}
    for path, reason in {**cases, str(binary): "not UTF-8"}.items():
        assert main(["hash", path]) == 1
        assert reason in capsys.readouterr().err


def test_synth_through_a_pipe_plain_or_gzip(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    command = [sys.executable, "-m", "prefixhash"]
    synth = [*command, "synth", "mixed", "--form", "tokens", "--sessions", "2"]
    subprocess.run([*synth, "--output", str(lines)], check=True)
    data = lines.read_bytes()
    plain, packed, named = (
        subprocess.run([*command, "hash", *file], input=given, capture_output=True, check=True)
        for given, file in ((data, []), (gzip.compress(data), ["-"]), (b"", [str(lines)]))
    )
    assert plain.stdout == packed.stdout == named.stdout
    assert len(plain.stdout.splitlines()) == len(data.splitlines())


def test_a_warning_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, RECORD)
    command = [sys.executable, "-m", "prefixhash", "hash", path]
    run = subprocess.run(
        [*command, "--algorithm", "xxhash_cbor", "--seed", "s"], capture_output=True, text=True
    )
    assert run.returncode == 0
    assert run.stderr.startswith("prefixhash: warning: xxhash_cbor is not collision resistant")
    assert run.stderr.count("\n") == 1


def test_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    path = write(tmp_path, *[{"token_ids": list(range(1600))}] * 200)
    command = f"{sys.executable} -m prefixhash hash {path} | head -n 1"
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert len(run.stdout.splitlines()) == 1
    assert run.stderr == ""


def test_info_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["prefixhash"] == __version__
    assert facts["algorithms"] == ["sha256_cbor", "sha256", "xxhash_cbor", "xxhash"]
    assert facts["profiles"][0] == "strict"
    for word in (facts["kernel"], "vllm:0.19", "vllm:0.33", "xxhash_cbor", facts["python"]):
        assert word in text


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"prefixhash {__version__}\n"
    with pytest.raises(SystemExit, match="2"):
        main([])
