"""Why an answer differs from the reference: the rules, and for each when it applies.

A rule is chosen from the input of a case and the two answers, never from the case's name. Where
the reference's value follows from a formula, that formula must give it exactly.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from prefixhash.errors import InvalidArgumentError, PrefixHashError
from prefixhash.layout import (
    KVCacheGroup,
    KVCachePlan,
    MambaSpec,
    PlanOptions,
    bytes_needed,
    plan_workers,
)

from . import golden_reference as reference
from .golden_convert import LATENT_KINDS, Data
from .golden_ops import Answers
from .golden_walk import Difference, walk

RULES = {
    1: "the null block is reserved in check, longest length, auto-fit and capacity",
    2: "needs are blocks over all groups times bytes per block; one concurrency for all",
    3: "functions are pure: padding returns new values, shared specs are fine",
    4: "all fields of all layers are compared, and all are kept",
    5: "a stage without layers is legal",
    6: "state pages are padded, aligned to every element, and honour offset and stride",
    7: "packed views follow from byte strides in physical order",
    8: "row width comes from the spec's content bytes",
    10: "errors are types with data; other layers beside layer tuples are planned",
    11: "senseless numbers are rejected by name",
}


class Explainer:
    """Explains the differences of one case. `answers` counts the null block, as the reference."""

    def __init__(self, answers: Answers, case: Data) -> None:
        self._answers = answers
        self._case = case
        self._input: Data = case["input"]

    def differences(self, theirs: Data, ours: Data) -> list[Difference]:
        if theirs.get("error") != ours.get("error"):
            exception = ours.get("exception")
            if exception is not None:
                rule = self._rule_of_our_error(exception)
            else:
                rule = self._rule_of_their_error()
            return [Difference(rule, "outcome", _outcome(ours), _outcome(theirs))]
        return [
            Difference(self._rule_of_value(path, their, our), path, our, their)
            for path, their, our in walk(theirs, ours)
        ]

    # We refuse, or refuse otherwise.

    def _rule_of_our_error(self, exception: Exception) -> int | None:
        if isinstance(exception, InvalidArgumentError):
            numbers = ("available_memory", "num_blocks_override", "compress_ratio")
            named = (*numbers, "page_size_padded")
            return 11 if exception.argument in named else None
        theirs = self._case.get("error", {})
        if theirs.get("category") == "incompatible_page_sizes":
            # Ours came further, and then lacked memory.
            return self._rule_of_their_error()
        if theirs.get("type") in ("AssertionError", "ZeroDivisionError"):
            return 10
        for applies, rule in (
            (self._merges_unequal, 4),
            (self._has_other_rows, 8),
            (self._has_others_beside_tuples, 10),
        ):
            if applies:
                return rule
        return self._rule_of_need()

    # The reference refuses or breaks.

    def _rule_of_their_error(self) -> int | None:
        if self._input.get("reuse_one_object"):
            return 3
        category = self._case["error"]["category"]
        rule = getattr(self, f"_their_{category}", lambda: None)()
        if rule is None:
            rule = self._rule_of_need()
        if rule is None and self._has_other_rows:
            rule = 8
        return rule

    def _their_worker_without_layers(self) -> int | None:
        return 5 if self._has_empty_worker else None

    def _their_internal(self) -> int | None:
        kinds = {spec["kind"] for spec in self._specs}
        if "slot_packed_full_attention" in kinds and len(kinds) > 1:
            # Its merging expects a slot of every layer.
            return 4
        return self._their_worker_without_layers()

    def _their_incompatible_page_sizes(self) -> int | None:
        if self._has_other_rows:
            return None
        if any(spec["kind"] == "mamba" for spec in self._specs):
            return 6
        padded = any(spec["page_size_padded"] or spec["alignment"] for spec in self._specs)
        return 3 if padded else None

    def _their_invalid_padding(self) -> int | None:
        """Other blocks keep the padding of the old ones there."""
        kept = any(spec["alignment"] or spec["page_size_padded"] for spec in self._specs)
        return 3 if kept else None

    def _their_unsupported_layer(self) -> int | None:
        """Whether layers are of one type is asked of the first layer only."""
        return 4 if self._case["op"] == "classify_specs" else None

    def _their_inconsistent_workers(self) -> int | None:
        return 10 if self._has_others_beside_tuples else None

    _their_incompatible_layers = _their_inconsistent_workers

    # Both answer, or refuse alike.

    def _rule_of_value(self, path: str, theirs: Any, ours: Any) -> int | None:
        if "error" in self._case:
            return self._rule_of_need()
        if path.endswith(".alignment") and theirs is None:
            return 4
        operation = getattr(self, f"_{self._case['op']}", None)
        rule = operation(path, theirs, ours) if operation else None
        if rule is None and self._has_uneven_state and "error" not in str(theirs):
            # Its odd page shifts every size; what it refuses to view is refused here, too.
            rule = 6
        if rule is None and self._has_other_rows:
            rule = 8
        if rule is None and self._merges_unequal:
            rule = 4
        if rule is None and self._has_others_beside_tuples:
            rule = 10
        return rule

    def _classify_specs(self, path: str, theirs: Any, ours: Any) -> int | None:
        kinds = {spec["kind"] for spec in self._specs}
        return 4 if kinds == {"sliding_window", "sliding_window_mla"} and ours else None

    def _project_to_worker(self, path: str, theirs: Any, ours: Any) -> int | None:
        owned = set(self._input["owned_layers"])
        groups = self._answers.grouped(self._input)
        match = path.split(".")
        is_spec = len(match) > 3 and match[3] in ("specs", "page_size_bytes")
        emptied = is_spec and owned.isdisjoint(groups[int(match[2])].layer_names)
        return 5 if emptied and not ours else None

    def _estimate_max_model_len(self, path: str, theirs: Any, ours: Any) -> int | None:
        _, name, *index = path.split(".")
        needed = self._from_groups if name.endswith("from_groups") else self._per_layer
        options = self._answers.options(self._input)
        if not index:
            return 2 if theirs == needed(options) else None
        memory = self._input["available_memory"][int(index[0])]
        return 2 if theirs == reference.longest(needed, memory, options) else None

    def _auto_fit_max_model_len(self, path: str, theirs: Any, ours: Any) -> int | None:
        return self._rule_of_need()

    def _check_enough_memory(self, path: str, theirs: Any, ours: Any) -> int | None:
        return self._rule_of_need()

    def _plan(self, path: str, theirs: Any, ours: Any) -> int | None:
        parts = path.split(".")
        if parts[1] == "max_model_len":
            return self._rule_of_need()
        plans = self._plans_as_reference
        plan = plans[int(parts[2])] if parts[1] == "workers" else plans[0]
        scheduler = parts[1] == "scheduler"
        groups = reference.projected(plan, self._whole_groups)
        values: Data = {
            "bytes_needed_for_one_request": reference.needed_from_groups(groups, plan.options),
            "blocks_needed_for_one_request": list(plan.blocks_needed()),
        }
        if any(group.layer_names for group in plan.groups):
            times = reference.concurrency(plan, groups, scheduler=scheduler)
            values["max_concurrency"] = times
            values["capacity_tokens"] = int(times * plan.max_model_len)
        return 2 if parts[-1] in values and values[parts[-1]] == theirs else None

    def _tensor_views(self, path: str, theirs: Any, ours: Any) -> int | None:
        layers = dict(self._input["layers"])
        parts = path.split(".")
        if parts[:2] != ["output", "views"]:
            return None
        if "error" in str(theirs):
            formats = [spec["cache_format"] for spec in self._specs if spec["kind"] in LATENT_KINDS]
            return 8 if "fp8_ds_mla" in formats else None
        packed = self._answers.options(self._input).cross_layer_packing
        spec = self._input["specs"][layers[parts[2]]]
        if spec["kind"] == "mamba":
            return 6 if packed else None
        order = self._input["backends"][layers[parts[2]]]["order"]
        return 7 if packed and order != sorted(order) else None

    # Facts of the input.

    @cached_property
    def _specs(self) -> list[Data]:
        """The specs of all layers, in their order; of a table only what is used."""
        fill = self._answers.specs.fill
        table = self._input.get("specs")
        if not isinstance(table, dict):
            return [fill(spec) for spec in reference.all_specs(self._input)]
        workers = self._input.get("workers", [self._input])
        used = dict.fromkeys(key for worker in workers for _, key in worker["layers"])
        return [fill(table[key]) for key in used]

    @cached_property
    def _has_empty_worker(self) -> bool:
        workers = self._input.get("workers")
        if workers is not None:
            return any(not worker["layers"] for worker in workers)
        groups = self._input.get("groups", [{"layers": ["?"]}])
        return not any(group.get("layers") or group.get("uniform_type") for group in groups)

    @cached_property
    def _has_others_beside_tuples(self) -> bool:
        kinds = {spec["kind"] for spec in self._specs}
        return "sliding_window_mla" in kinds and bool(kinds - {"mla", "sliding_window_mla"})

    @cached_property
    def _merges_unequal(self) -> bool:
        """Whether the reference makes one spec of layers that differ."""
        specs = self._specs
        if self._answers.option_data(self._input)["disable_hybrid"]:
            specs = reference.without_hybrid(specs)
        first, *others = specs or [{}]
        return any(first != other for other in others) and all(
            reference.reference_merges(first, other) for other in others
        )

    @cached_property
    def _has_uneven_state(self) -> bool:
        made = [self._answers.specs.make(s) for s in self._specs if s["kind"] == "mamba"]
        return any(
            isinstance(spec, MambaSpec) and sum(spec.state_sizes) != spec.content_size_bytes
            for spec in made
        )

    @cached_property
    def _has_other_rows(self) -> bool:
        dropped = self._answers.option_data(self._input)["disable_hybrid"]
        for data in self._specs:
            page = reference.reference_page(data)
            if page is not None and page != self._answers.specs.make(data).content_size_bytes:
                return True
            if dropped and reference.loses_its_row(data):
                return True
        return False

    # Rule 2: which length fits, by the reference's formula.

    def _from_groups(self, options: PlanOptions) -> int:
        return reference.needed_from_groups(self._groups, options)

    def _per_layer(self, options: PlanOptions) -> int:
        """Layer tuples and hybrid groups turned off change the caller's specs in place."""
        changed = reference.is_layer_tuples(self._groups) or not options.hybrid_groups
        layers = self._answers.specs.layers(self._input["layers"], self._input["specs"])
        specs = [s for g in self._groups for s in g.specs] if changed else list(layers.values())
        return reference.needed_per_layer(specs, options)

    @cached_property
    def _groups(self) -> tuple[KVCacheGroup, ...]:
        return self._answers.grouped(self._input)

    def _rule_of_need(self) -> int | None:
        """2 if the two formulas of the need differ at all for this input."""
        try:
            return self._rule_of_formulas()
        except PrefixHashError:
            return None

    def _rule_of_formulas(self) -> int | None:
        op = self._case["op"]
        options = self._answers.options(self._input)
        if op == "check_enough_memory":
            return 2 if self._per_layer(options) != bytes_needed(self._groups, options) else None
        if op == "auto_fit_max_model_len":
            workers = [
                tuple(self._answers.specs.group(group) for group in groups)
                for groups in self._input["workers"]
            ]
            kept = workers
        elif op == "plan":
            workers = [plan.groups for plan in self._any_plans]
            whole = self._whole_groups
            kept = [reference.projected(plan, whole) for plan in self._any_plans]
        else:
            return None
        theirs = [reference.needed_from_groups(groups, options) for groups in kept]
        ours = [bytes_needed(groups, options) for groups in workers]
        return 2 if theirs != ours else None

    @cached_property
    def _plans_as_reference(self) -> list[KVCachePlan]:
        """Our plans with the length and the block count that the reference settled on."""
        output = self._case["output"]
        options = self._answers.options(self._input, max_model_len=output["max_model_len"])
        return [
            replace(plan, options=options, num_blocks=output["num_blocks"])
            for plan in self._any_plans
        ]

    @cached_property
    def _whole_groups(self) -> tuple[KVCacheGroup, ...]:
        """The groups of the whole model, which the workers share."""
        pairs = [pair for worker in self._input["workers"] for pair in worker["layers"]]
        return self._answers.grouped({**self._input, "layers": list(dict(pairs).items())})

    @cached_property
    def _any_plans(self) -> tuple[KVCachePlan, ...]:
        """Plans whose memory is never short."""
        specs = self._answers.specs
        workers = self._input["workers"]
        options = self._answers.options(self._input, max_model_len=1, num_blocks_override=10**9)
        layers = [specs.layers(worker["layers"], self._input["specs"]) for worker in workers]
        return plan_workers(layers, [1] * len(workers), options)


def _outcome(answer: Data) -> Any:
    if "error" not in answer:
        return answer["output"]
    exception = answer.get("exception")
    return answer["error"] if exception is None else f"{type(exception).__name__}: {exception}"
