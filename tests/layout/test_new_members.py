"""A new member is one row or one class: with it alone, it is read, listed, planned and shown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from prefixhash.cli.main import main
from prefixhash.errors import UnknownArchitectureError
from prefixhash.layout import (
    AttentionSpec,
    BlockNeed,
    FullAttentionSpec,
    PlanOptions,
    SlidingWindowSpec,
    known_model_types,
    plan_kv_cache,
    read_model_config,
    tensor_views,
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


@dataclass(frozen=True, eq=False, kw_only=True)
class EveryOtherSpec(AttentionSpec):
    """Keeps every `step`-th token."""

    kind: ClassVar[str] = "every_other"
    title: ClassVar[str] = "one token in"
    family: ClassVar[str] = "every_other"

    step: int

    @property
    def reach(self) -> int:
        return self.step

    def _type_key(self) -> tuple[object, ...]:
        return self.family, self.block_size, self.step

    def _block_need(self, options: PlanOptions) -> BlockNeed:
        return BlockNeed(self.block_size * self.step, None, 0)


def test_a_class_is_enough_for_a_kind_of_layer() -> None:
    shape: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 8}
    layers = {"a": FullAttentionSpec(**shape), "b": EveryOtherSpec(step=4, **shape)}
    plan = plan_kv_cache(layers, 1 << 20, PlanOptions(max_model_len=640))
    assert [group.kind for group in plan.groups] == ["full_attention", "every_other"]
    assert [group.title for group in plan.groups] == ["full attention", "one token in 4"]
    assert plan.blocks_needed() == (40, 10)
    views = tensor_views(plan.groups, plan.layout, plan.num_blocks)
    assert views["a"][0].shape == views["b"][0].shape
