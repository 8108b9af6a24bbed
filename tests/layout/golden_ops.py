"""Answers every operation of the golden file with this library, in a comparable form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefixhash.errors import NotEnoughMemoryError, PrefixHashError
from prefixhash.layout import (
    KVCacheGroup,
    KVCachePlan,
    LayerSpec,
    PlanOptions,
    approximate_gcd,
    auto_fit_max_model_len,
    bucket_layers_by_page_size,
    bytes_needed,
    check_enough_memory,
    estimate_max_model_len,
    group_layer_tuples,
    group_layers,
    lay_out_kv_cache,
    merge_specs,
    pack_kv_cache,
    plan_workers,
    project_groups,
    resolve_block_sizes,
    same_type,
)
from prefixhash.layout.merge import try_merge

from .golden_convert import (
    Data,
    Specs,
    canon_group,
    canon_spec,
    canon_tensors,
    category,
    options_from,
)
from .golden_more import OtherOperations


@dataclass(frozen=True)
class AnyOf:
    """Several values of the reference, of which one must be matched."""

    choices: list[Any]

    def __repr__(self) -> str:
        return " or ".join(repr(choice) for choice in self.choices)


class Answers(OtherOperations):
    """One golden file's conventions, and whether the null block counts as usable."""

    def __init__(self, golden: Data, *, count_null: bool) -> None:
        self.specs = Specs(golden["spec_defaults"])
        self._option_defaults: Data = golden["option_defaults"]
        self._count_null = count_null

    def answer(self, case: Data) -> Data:
        """`{"output": ...}` or `{"error": category}`, as far as this library goes."""
        operation: Callable[[Data], Data] = getattr(self, case["op"])
        try:
            return {"output": operation(case["input"])}
        except PrefixHashError as error:
            answer = {"error": category(error), "exception": error}
            if isinstance(error, NotEnoughMemoryError):
                answer["per_worker"] = [
                    {
                        "bytes_needed": needed,
                        "bytes_planned_with": available,
                        "estimated_max_model_len": longest,
                    }
                    for needed, available, longest in error.per_worker
                ]
            return answer

    def expected(self, case: Data) -> Data:
        """What the golden file says, in the same form."""
        if "error" in case:
            answer = {"error": case["error"]["category"]}
            if "per_worker" in case["error"]:
                answer["per_worker"] = case["error"]["per_worker"]
            return answer
        return {"output": self._comparable(dict(case["output"]))}

    def option_data(self, data: Data) -> Data:
        return {**self._option_defaults, **data.get("options", {})}

    def options(self, data: Data, **changes: Any) -> PlanOptions:
        return options_from({**self.option_data(data), **changes}, count_null=self._count_null)

    def _comparable(self, output: Data) -> Data:
        """Output specs are tables of plain data: put ours in their place."""
        table = output.pop("specs", {})
        for key in ("groups", "global_groups"):
            if key in output:
                output[key] = self.specs.canon_groups(output[key], table)
        if "merged" in output:
            output["merged"] = self.specs.canon_spec(output["merged"])
        if "scheduler" in output:
            keys = output["scheduler"]["group_specs"]
            specs = [self.specs.canon_spec(table[key]) for key in keys]
            output["scheduler"] = {**output["scheduler"], "group_specs": specs}
        runners = [output.pop(k) for k in ("views_runner_v1", "views_runner_v2") if k in output]
        if runners:
            output["views"] = AnyOf(
                [{"error": r["error"]["category"]} if "error" in r else r for r in runners]
            )
        return output

    def _layers(self, data: Data) -> dict[str, LayerSpec]:
        return self.specs.layers(data["layers"], data["specs"])

    def _groups(self, data: Sequence[Data]) -> tuple[KVCacheGroup, ...]:
        return tuple(self.specs.group(group) for group in data)

    def grouped(self, data: Data) -> tuple[KVCacheGroup, ...]:
        layers = self._layers(data)
        return group_layers(layers, self._with_draft(layers, data, self.options(data)))

    def _with_draft(
        self, layers: dict[str, LayerSpec], data: Data, options: PlanOptions
    ) -> PlanOptions:
        """The reference marks the last layer's group, and only beside DeepSeek-V4 layer tuples."""
        used = {key for part in data.get("workers", [data]) for _, key in part["layers"]}
        marked = any(data["specs"][key].get("format_version") == "deepseek_v4" for key in used)
        if not (self.option_data(data)["draft_model"] and marked and layers):
            return options
        groups = group_layers(layers, options)
        if len(groups) < 2 or not all(group.has_layer_specs for group in groups):
            return options
        return replace(options, draft_layers=(list(layers)[-1],))

    # One method per operation of the golden file.

    def approximate_gcd(self, data: Data) -> Data:
        return {"value": approximate_gcd(data["values"], data["lower_bound"])}

    def layer_page_size(self, data: Data) -> Data:
        spec = self.specs.make(data["spec"])
        scales = getattr(spec, "scale_size_bytes", 0)
        output: Data = {
            "page_size_bytes": spec.page_size_bytes,
            "storage_block_size": spec.rows_per_block,
            "unpadded_page_size_bytes": spec.content_size_bytes - scales,
        }
        if spec.page_size_bytes != spec.content_size_bytes:
            output["page_size_padded"] = spec.page_size_bytes
        return output

    def layer_max_memory(self, data: Data) -> Data:
        spec = self.specs.make(data["spec"])
        options = self.options(data)
        blocks = spec.block_need(options).at(options.max_model_len)
        return {
            "max_bytes": blocks * spec.page_size_bytes,
            "max_blocks": blocks,
            "admission_blocks": blocks,
        }

    def merge_specs(self, data: Data) -> Data:
        specs = {str(i): self.specs.make(spec) for i, spec in enumerate(data["specs"])}
        return {"merged": canon_spec(merge_specs(specs))}

    def classify_specs(self, data: Data) -> Data:
        specs = {str(i): self.specs.make(spec) for i, spec in enumerate(data["specs"])}
        uniform = same_type(specs.values())
        output: Data = {"identical_spec": try_merge(specs) is not None, "uniform_type": uniform}
        if uniform:
            pages = [spec.page_size_bytes for spec in specs.values()]
            output["page_size_bytes"] = sum(pages)
            output["page_sizes"] = sorted(set(pages))
            output["layers_of_most_common_page_size"] = max(pages.count(page) for page in pages)
        return output

    def group_layers(self, data: Data) -> Data:
        return {"groups": [canon_group(group) for group in self.grouped(data)]}

    def group_layer_tuples(self, data: Data) -> Data:
        families = [
            {name: self.specs.make(spec) for name, spec in family} for family in data["families"]
        ]
        return {"groups": [canon_group(group) for group in group_layer_tuples(families)]}

    def bucket_by_page_size(self, data: Data) -> Data:
        buckets = bucket_layers_by_page_size(self._groups(data["groups"]))
        return {"buckets": [[page, slots] for page, slots in buckets.items()]}

    def packed_layout(self, data: Data) -> Data:
        override = self.option_data(data)["num_blocks_override"]
        buffers = pack_kv_cache(
            self._groups(data["groups"]), data["available_memory"], num_blocks_override=override
        )
        return {"num_blocks": buffers.num_blocks, "tensors": canon_tensors(buffers.tensors)}

    def layout_from_groups(self, data: Data) -> Data:
        options = self.option_data(data)
        buffers = lay_out_kv_cache(
            self._groups(data["groups"]),
            data["available_memory"],
            cross_layer_packing=options["cross_layer_packing"],
            num_blocks_override=options["num_blocks_override"],
        )
        return {"num_blocks": buffers.num_blocks, "tensors": canon_tensors(buffers.tensors)}

    def project_to_worker(self, data: Data) -> Data:
        groups = project_groups(self.grouped(data), set(data["owned_layers"]))
        return {"groups": [canon_group(group) for group in groups]}

    def estimate_max_model_len(self, data: Data) -> Data:
        groups, options = self.grouped(data), self.options(data)
        lengths = [estimate_max_model_len(groups, m, options) for m in data["available_memory"]]
        needed = bytes_needed(groups, options)
        return {
            "from_groups": lengths,
            "per_layer": lengths,
            "needed_from_groups": needed,
            "needed_per_layer": needed,
        }

    def check_enough_memory(self, data: Data) -> Data:
        check_enough_memory(self.grouped(data), data["available_memory"], self.options(data))
        return {"ok": True}

    def auto_fit_max_model_len(self, data: Data) -> Data:
        workers = [self._groups(groups) for groups in data["workers"]]
        length = auto_fit_max_model_len(workers, data["available_memory"], self.options(data))
        return {"max_model_len": length}

    def plans(self, data: Data) -> tuple[KVCachePlan, ...]:
        workers = [self.specs.layers(w["layers"], data["specs"]) for w in data["workers"]]
        memory = [worker["available_memory"] for worker in data["workers"]]
        merged = {name: spec for layers in workers for name, spec in layers.items()}
        options = self.options(data)
        if self.option_data(data)["draft_model"]:
            options = self._with_draft(merged, data, options)
        return plan_workers(workers, memory, options)

    def plan(self, data: Data) -> Data:
        plans = self.plans(data)
        workers = [{"layers": w["layers"], "specs": data["specs"]} for w in data["workers"]]
        pairs = [pair for worker in workers for pair in worker["layers"]]
        whole = {**data, "layers": list(dict(pairs).items())}
        first = plans[0]
        output = {
            "global_groups": [canon_group(group) for group in self.grouped(whole)],
            "max_model_len": first.max_model_len,
            "num_blocks": first.num_blocks,
            "workers": [_worker(plan) for plan in plans],
        }
        if first.groups:
            output["scheduler"] = self._scheduler(first, self.option_data(data))
        return output

    def _scheduler(self, plan: KVCachePlan, options: Data) -> Data:
        smallest = min(group.block_size for group in plan.groups)
        sizes = resolve_block_sizes(
            plan.groups,
            smallest,
            context_ranks=options["dcp"] * options["pcp"],
            prefix_caching=options["prefix_caching"],
            connector=options["connector"],
            hash_block_size=options["hash_block_size"],
        )
        return {
            "group_specs": [canon_spec(group.spec) for group in plan.groups],
            "min_block_size": smallest,
            "capacity_tokens": plan.capacity_tokens,
            "max_concurrency": plan.max_concurrency,
            "scheduler_block_size": sizes.scheduler,
            "hash_block_size": sizes.hash,
        }


def _worker(plan: KVCachePlan) -> Data:
    return {
        "group_layers": [list(group.layer_names) for group in plan.groups],
        "tensors": canon_tensors(plan.tensors),
        "bytes_per_block": plan.bytes_per_block,
        "bytes_needed_for_one_request": plan.bytes_needed(),
        "blocks_needed_for_one_request": list(plan.blocks_needed()),
        "capacity_tokens": plan.capacity_tokens,
        "max_concurrency": plan.max_concurrency,
    }
