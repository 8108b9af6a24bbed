"""Random inputs of planning cases, as plain data of the golden file's format."""

from __future__ import annotations

import copy
import random
from typing import Any

Data = dict[str, Any]

KINDS = (
    "full_attention",
    "sink_full_attention",
    "slot_packed_full_attention",
    "reference_sliding_window",
    "sliding_window",
    "chunked_local",
    "cross_attention",
    "encoder_only",
    "mla",
    "hidden_state",
    "sliding_window_mla",
    "mamba",
)
MODES = (
    "none",
    "fp8_per_tensor",
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
    "nvfp4",
)


class Cases:
    """Random inputs; the same seed gives the same cases."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def attention(self, kind: str) -> Data:
        mode = self.pick("none", "none", "none", "none", *MODES)
        data: Data = {
            "kind": kind,
            "block_size": self.pick(16, 16, 16, 32),
            "num_kv_heads": self.pick(1, 2, 2, 4),
            "head_size": self.pick(32, 64, 64, 96),
            "dtype": "bfloat16" if mode == "none" and "slot" not in kind else "uint8",
        }
        if mode != "none":
            data["quant_mode"] = mode
        if self.rng.random() < 0.3:
            data["reads_by_block_stride"] = True
        if kind in ("full_attention", "sliding_window") and self.rng.random() < 0.2:
            data["head_size_v"] = 32
        extras = {
            "sliding_window": ("window", (64, 128)),
            "chunked_local": ("chunk", (64, 256)),
            "sink_full_attention": ("sink_len", (16, 64)),
            "slot_packed_full_attention": ("slot_bytes", (0, 100, 388)),
            "reference_sliding_window": ("reference_window", (64, 512)),
        }
        if kind in extras:
            name, values = extras[kind]
            data[name] = self.pick(*values)
        if kind == "full_attention" and self.rng.random() < 0.2:
            data[self.pick("window", "chunk")] = self.pick(64, 128)
        if kind == "full_attention" and self.rng.random() < 0.1:
            data["non_causal"] = True
        if self.rng.random() < 0.05:
            data["page_size_padded"] = self.pick(1024, 65536, 131072)
        return data

    def latent(self, kind: str) -> Data:
        v4 = self.rng.random() < 0.5
        data: Data = {
            "kind": kind,
            "block_size": self.pick(64, 256) if kind == "mla" else self.pick(4, 8, 64),
            "num_kv_heads": 1,
            "head_size": self.pick(132, 512, 576),
            "dtype": self.pick("uint8", "bfloat16"),
        }
        if kind == "sliding_window_mla":
            data["window"] = self.pick(8, 128)
        elif self.rng.random() < 0.4:
            data["compress_ratio"] = self.pick(4, 128)
        if v4:
            data["alignment"] = self.pick(576, 512)
            if self.rng.random() < 0.6:
                data.update(head_size=512, dtype="uint8", cache_format="fp8_ds_mla")
                data.update(format_version="deepseek_v4", quant_mode="fp8_per_tensor")
        elif self.rng.random() < 0.3:
            data["cache_format"] = self.pick("fp8_ds_mla", "auto")
            data["dtype"] = "uint8" if data["cache_format"] != "auto" else "bfloat16"
        return data

    def hidden(self) -> Data:
        return {
            "kind": "hidden_state",
            "block_size": self.pick(16, 64),
            "num_kv_heads": self.pick(1, 3),
            "head_size": self.pick(256, 2880),
            "dtype": "bfloat16",
        }

    def mamba(self) -> Data:
        data: Data = {
            "kind": "mamba",
            "block_size": self.pick(16, 64, 1024),
            "state_shapes": self.pick([[3, 64], [8, 16]], [[4, 8]], [[16, 256]]),
        }
        data["state_dtypes"] = ["bfloat16"] * len(data["state_shapes"])
        if self.rng.random() < 0.2:
            data["speculative_blocks"] = 1
        if self.rng.random() < 0.2:
            data["page_size_padded"] = self.pick(8192, 16384)
        return data

    def spec(self, *only: str) -> Data:
        kind = self.pick(*(only or KINDS))
        if kind == "mamba":
            return self.mamba()
        if kind == "hidden_state":
            return self.hidden()
        if kind in ("mla", "sliding_window_mla"):
            return self.latent(kind)
        return self.attention(kind)

    def model(self) -> tuple[list[list[str]], Data]:
        """Layers and their table of specs, of a realistic mixture."""
        plain = ("full_attention", "sliding_window", "chunked_local", "full_attention")
        only = self.pick(
            ("full_attention",),
            ("full_attention", "sink_full_attention", "slot_packed_full_attention"),
            plain,
            (*plain, "mamba"),
            ("full_attention", "cross_attention"),
            ("mla", "mla", "hidden_state"),
            ("mla", "sliding_window_mla"),
            (*plain, "hidden_state"),
            ("mamba",),
            tuple(kind for kind in KINDS if kind != "encoder_only"),
        )
        table = {f"t{i}": self.spec(*only) for i in range(self.pick(1, 1, 2, 2, 3, 4))}
        if self.rng.random() < 0.6:
            # Alike but for what tells the kinds apart, as layers of one model are.
            first = next(iter(table.values()))
            alike = ("block_size", "num_kv_heads", "dtype", "head_size", "quant_mode")
            shared = {name: value for name, value in first.items() if name in alike}
            for spec in table.values():
                if first["kind"] in plain and spec["kind"] in plain:
                    spec.pop("quant_mode", None)
                    spec.update(shared)
        count = self.pick(1, 3, 8, 13, 24)
        return [[f"l{i}", self.pick(*table)] for i in range(count)], table

    def options(self) -> Data:
        options: Data = {
            "max_model_len": self.pick(16, 100, 1024, 4096),
            "max_num_batched_tokens": self.pick(16, 64, 512),
        }
        for name, values, chance in [
            ("auto_fit", (True,), 0.4),
            ("num_blocks_override", (1, 7, 300), 0.15),
            ("dcp", (2,), 0.05),
            ("pcp", (2,), 0.05),
            ("mamba_cache_mode", ("align", "all"), 0.4),
            ("disable_hybrid", (True,), 0.2),
            ("cross_layer_packing", (True,), 0.2),
            ("draft_model", (True,), 0.2),
        ]:
            if self.rng.random() < chance:
                options[name] = self.pick(*values)
        return options


def inputs(cases: Cases, op: str) -> Data:
    if op == "layer_page_size":
        return {"spec": cases.spec()}
    if op == "layer_max_memory":
        return {"spec": cases.spec(), "options": cases.options()}
    if op in ("merge_specs", "classify_specs"):
        first = cases.spec()
        second = cases.pick(copy.deepcopy(first), cases.spec(first["kind"]), cases.spec())
        return {"specs": [first, second]}
    pairs, table = cases.model()
    data: Data = {"layers": pairs, "specs": table, "options": cases.options()}
    if op == "estimate_max_model_len":
        data["available_memory"] = [0, -1, *(cases.rng.randrange(1 << 26) for _ in range(4))]
    elif op == "project_to_worker":
        data["owned_layers"] = [name for name, _ in pairs if cases.rng.random() < 0.6]
    elif op == "plan":
        count = cases.pick(1, 1, 2, 3)
        del data["layers"]
        dealt: list[Any] = [[] for _ in range(count)]
        for place, pair in enumerate(pairs):
            dealt[place * count // len(pairs)].append(pair)
        data["workers"] = [
            {"layers": part, "available_memory": cases.rng.randrange(1 << cases.pick(18, 22, 26))}
            for part in dealt
        ]
    return data
