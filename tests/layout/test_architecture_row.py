"""A new architecture is one row: with it, its configs are read, listed and planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixhash.cli.main import main
from prefixhash.errors import UnknownArchitectureError
from prefixhash.layout import (
    FullAttentionSpec,
    SlidingWindowSpec,
    known_model_types,
    read_model_config,
)
from prefixhash.layout.models import architectures, attention

# `global_head_dim` means another thing in every architecture: unknown ones are refused for it.
CONFIG = {
    "model_type": "toy",
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "global_head_dim": 64,
    "max_position_embeddings": 4096,
}


@pytest.fixture
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = architectures.Architecture(
        attention.attention_layers(attention.full_every(3)), {"sliding_window": 32, "head_dim": 64}
    )
    monkeypatch.setitem(architectures.ARCHITECTURES, "toy", toy)


def test_without_the_row_it_is_unknown() -> None:
    with pytest.raises(UnknownArchitectureError, match="toy"):
        read_model_config(CONFIG)


@pytest.mark.usefixtures("_row")
def test_a_row_is_enough_to_read_a_config() -> None:
    model = read_model_config(CONFIG)
    kinds = [type(spec) for spec in model.specs.values()]
    assert kinds == [SlidingWindowSpec, SlidingWindowSpec, FullAttentionSpec] * 2
    assert not model.generic
    assert "toy" in known_model_types()


@pytest.mark.usefixtures("_row")
def test_a_row_is_enough_for_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG), encoding="utf-8")
    assert main(["plan", str(file), "--memory", "1GiB", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["known_architecture"]
    assert [(group["kind"], len(group["layers"])) for group in plan["groups"]] == [
        *[("sliding_window", 2)] * 2,
        ("full_attention", 2),
    ]
    assert main(["plan", "--list"]) == 0
    assert "toy" in capsys.readouterr().out.split()
