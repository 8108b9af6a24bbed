"""Merging the specs of several layers into one, and telling layers of one type."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from prefixhash.errors import (
    IncompatibleLayersError,
    InvalidArgumentError,
    UnsupportedCombinationError,
)
from prefixhash.layout.checks import instances, mapping_of
from prefixhash.layout.layer_spec import LayerSpec
from prefixhash.layout.specs import FullAttentionSpec

# What a kernel attends to, not what is stored: may be recorded on some layers of a merged spec.
_RECORDED = ("recorded_window", "recorded_chunk")
_NOT_STORED = (*_RECORDED, "non_causal")


def merge_specs(layers: Mapping[str, LayerSpec]) -> LayerSpec:
    """One spec for all `layers` (name to spec), or `IncompatibleLayersError` that names the field.

    All fields must be equal, with one exception: layers that keep every token may record a window
    or a chunk on some layers only, and count as non-causal if one is.
    """
    if not mapping_of("layers", layers, LayerSpec, "layer specs"):
        raise InvalidArgumentError("layers", {}, "at least one layer is needed")
    name, first = next(iter(layers.items()))
    if all(spec == first for spec in layers.values()):
        return first
    changes: dict[str, object] = {}
    if all(isinstance(spec, FullAttentionSpec) for spec in layers.values()):
        changes = {field: _one_recorded_value(layers, field) for field in _RECORDED}
        changes["non_causal"] = any(getattr(spec, "non_causal", False) for spec in layers.values())
    for other, spec in layers.items():
        _require_equal_fields(name, first, other, spec)
    if all(changes.get(field) is not None for field in _RECORDED):
        raise _both_recorded(layers)
    return dataclasses.replace(first, **changes)  # type: ignore[arg-type]


def try_merge(layers: Mapping[str, LayerSpec]) -> LayerSpec | None:
    """`merge_specs`, or None if the layers differ.

    Two different recorded windows or chunks stay an error, as in vLLM: no grouping helps there.
    """
    try:
        return merge_specs(layers)
    except IncompatibleLayersError as error:
        if error.field in _RECORDED:
            raise
        return None


def same_type(specs: Iterable[LayerSpec]) -> bool:
    """Whether all layers always need equally many blocks, so that one block table serves them all.

    Equal block sizes, and: all keep every token; or the same window; or the same chunk; or states
    with equally many speculative blocks; or all cross-attention. The order of layers is irrelevant.
    """
    return are_of_one_type(instances("specs", specs, LayerSpec, "layer specs"))


def are_of_one_type(specs: Iterable[LayerSpec]) -> bool:
    """`same_type`, for specs that are known to be some."""
    distinct = set(specs)
    if len({spec.type_key for spec in distinct}) > 1:
        return False
    for spec in distinct:
        if not spec.is_cached:
            problem = "such layers keep nothing between steps: leave them out"
            raise UnsupportedCombinationError(spec.kind, problem)
    return True


def _one_recorded_value(layers: Mapping[str, LayerSpec], field: str) -> object:
    found = {getattr(spec, field): name for name, spec in layers.items()}
    found.pop(None, None)
    if len(found) > 1:
        values, names = zip(*list(found.items())[:2], strict=True)
        problem = "layers of one group must record the same value or none"
        raise IncompatibleLayersError(names, field, values, problem)
    return next(iter(found), None)


def _require_equal_fields(name: str, first: LayerSpec, other: str, spec: LayerSpec) -> None:
    problem = "layers of one spec must be equal"
    if type(spec) is not type(first):
        raise IncompatibleLayersError((name, other), "kind", (first.kind, spec.kind), problem)
    mine, theirs = first._compared(), spec._compared()
    skipped = _NOT_STORED if isinstance(first, FullAttentionSpec) else ()
    for field, value in mine.items():
        if field not in skipped and theirs[field] != value:
            raise IncompatibleLayersError((name, other), field, (value, theirs[field]), problem)


def _both_recorded(layers: Mapping[str, LayerSpec]) -> IncompatibleLayersError:
    names, values = [], []
    for field in _RECORDED:
        name = next(name for name, spec in layers.items() if getattr(spec, field) is not None)
        names.append(name)
        values.append(f"{field}={getattr(layers[name], field)}")
    problem = "layers of one spec cannot record a window and a chunk"
    return IncompatibleLayersError(tuple(names), "recorded", tuple(values), problem)
