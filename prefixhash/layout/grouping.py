"""Which layers share a block table: the decision tree from layer specs to groups.

No layers: no groups. Equal specs: one group. One type: one group with a spec per layer.
Window-latent layers: layer tuples. Otherwise page sizes are made equal and the layers dealt into
groups of one size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from prefixhash import _arguments
from prefixhash._arguments import sequence
from prefixhash.errors import (
    IncompatibleLayersError,
    IncompatiblePageSizesError,
    InvalidArgumentError,
)
from prefixhash.layout.checks import instance, mapping_of
from prefixhash.layout.groups import KVCacheGroup
from prefixhash.layout.latent_tuples import group_latent_model
from prefixhash.layout.layer_spec import LayerSpec
from prefixhash.layout.merge import are_of_one_type, try_merge
from prefixhash.layout.options import PlanOptions, options_or_default
from prefixhash.layout.specs import (
    FullAttentionSpec,
    HiddenStateSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)

Layers = Mapping[str, LayerSpec]

# More layers than this are a mistyped number, which only takes time.
_MOST_LAYERS = 1_000_000
# Below this ratio of the largest to the smallest bucket, groups take the largest one's size.
_REFERENCE_RATIO = 1.5


def group_layers(
    layer_specs: Layers, options: PlanOptions | None = None
) -> tuple[KVCacheGroup, ...]:
    """The groups of a whole model; `layer_specs` maps layer names to specs, in the model's order.

    The order decides the order of groups and slots. Nothing given is changed. Linear in the number
    of layers. Raises `IncompatibleLayersError` or `IncompatiblePageSizesError` where the layers
    cannot be planned together.
    """
    options = options_or_default(options)
    _check(layer_specs, options)
    if not options.hybrid_groups:
        layer_specs = _without_hybrid(layer_specs)
    groups = _group(layer_specs, options)
    drafts = set(options.draft_layers)
    if not drafts:
        return groups
    return tuple(
        dataclasses.replace(group, is_draft=not drafts.isdisjoint(group.layer_names))
        for group in groups
    )


def _check(layers: Layers, options: PlanOptions) -> None:
    mapping_of("layer_specs", layers, LayerSpec, "layer specs")
    unknown = [name for name in options.draft_layers if name not in layers]
    if unknown:
        raise InvalidArgumentError("draft_layers", unknown, "are not among the layers")


def unify_page_sizes(layers: Layers) -> dict[str, LayerSpec]:
    """`layers` with pages of one size: the largest, rounded up to whole state elements.

    A smaller page that divides it gets larger blocks; a state page, which does not grow with its
    block, is padded; so is a page whose kernel reads by block stride. Otherwise
    `IncompatiblePageSizesError`.
    """
    mapping_of("layers", layers, LayerSpec, "layer specs")
    sizes = {spec.page_size_bytes for spec in layers.values()}
    if len(sizes) <= 1:
        return dict(layers)
    largest = max(layers, key=lambda name: layers[name].page_size_bytes)
    granule = math.lcm(*(spec.granule for spec in layers.values()))
    page = -(-max(sizes) // granule) * granule
    made: dict[LayerSpec, LayerSpec] = {}
    for name, spec in layers.items():
        if spec not in made:
            fits = spec.page_size_bytes == page
            made[spec] = spec if fits else _with_page_size(name, spec, largest, page)
    return {name: made[spec] for name, spec in layers.items()}


def equal_group_size(counts: Sequence[int], options: PlanOptions) -> int:
    """Layers per group, for buckets of `counts` equal layers each.

    `reference`: the smallest bucket, or the largest if that is less than 1.5 times as large.
    `least_cost`: the size with the fewest padding slots plus `group_price` slots per group; among
    equals the largest. Padding slots are bytes that no layer uses; every group is one more block
    table to fill at each step.
    """
    instance("options", options, PlanOptions, "PlanOptions")
    counts = [
        _arguments.integer("counts", count, 1, _MOST_LAYERS)
        for count in sequence("counts", counts, "a sequence of the layers of each bucket")
    ]
    if not counts:
        raise InvalidArgumentError("counts", counts, "at least one bucket is needed")
    low, high = min(counts), max(counts)
    if options.group_policy == "reference":
        return high if high < _REFERENCE_RATIO * low else low

    def cost(size: int) -> tuple[float, int]:
        groups = sum(-(-count // size) for count in counts)
        return groups * size - sum(counts) + options.group_price * groups, -size

    return min(range(1, high + 1), key=cost)


def _group(layers: Layers, options: PlanOptions) -> tuple[KVCacheGroup, ...]:
    if not layers:
        return ()
    # Many layers, few distinct specs: decisions look at one layer of each.
    distinct: dict[LayerSpec, str] = {}
    for name, spec in layers.items():
        distinct.setdefault(spec, name)
    examples = {name: spec for spec, name in distinct.items()}
    merged = try_merge(examples)
    if merged is not None:
        return (KVCacheGroup(tuple(layers), merged),)
    if are_of_one_type(examples.values()):
        return (KVCacheGroup.of(layers),)
    if any(isinstance(spec, SlidingWindowMLASpec) for spec in examples.values()):
        return group_latent_model(layers)
    return _equal_size_groups(layers, options)


def _equal_size_groups(layers: Layers, options: PlanOptions) -> tuple[KVCacheGroup, ...]:
    hidden = {n: spec for n, spec in layers.items() if isinstance(spec, HiddenStateSpec)}
    cached = {n: spec for n, spec in layers.items() if n not in hidden}
    if not cached:
        # Nothing else sets the page: the widest hidden states do.
        widest = max(hidden.values(), key=lambda spec: spec.page_size_bytes)
        cached = {n: spec for n, spec in layers.items() if spec == widest}
        hidden = {n: spec for n, spec in hidden.items() if n not in cached}
    buckets: dict[LayerSpec, list[str]] = {}
    for name, spec in unify_page_sizes(cached).items():
        buckets.setdefault(spec, []).append(name)
    size = equal_group_size([len(names) for names in buckets.values()], options)
    groups = []
    for spec, names in buckets.items():
        count = -(-len(names) // size)
        # Dealt out in turn, so that every pipeline stage gets a share of each group.
        groups += [KVCacheGroup(tuple(names[i::count]), spec) for i in range(count)]
    page = groups[0].spec.page_size_bytes
    groups += [KVCacheGroup((n,), _hidden_page(n, spec, page)) for n, spec in hidden.items()]
    return tuple(groups)


def _hidden_page(name: str, spec: HiddenStateSpec, page: int) -> HiddenStateSpec:
    """As many tokens as the common page holds, padded to it."""
    bytes_per_token = spec.num_kv_heads * spec.row_bytes
    if bytes_per_token > page:
        sizes = {name: bytes_per_token, "others": page}
        problem = "one token of the hidden states exceeds the common page: use larger blocks"
        raise IncompatiblePageSizesError(sizes, problem)
    fields = {"block_size": page // bytes_per_token, "page_size_padded": page}
    return dataclasses.replace(spec, **fields)  # type: ignore[arg-type]


def _with_page_size(name: str, spec: LayerSpec, largest: str, page: int) -> LayerSpec:
    grown = spec.grown_to(page)
    if grown is not None:
        return grown
    sizes = {name: spec.page_size_bytes, largest: page}
    problem = (
        "the smaller page does not divide the larger one: choose block sizes that fit, or a kernel "
        "that reads by block stride (reads_by_block_stride)"
    )
    raise IncompatiblePageSizesError(sizes, problem)


def _without_hybrid(layers: Layers) -> Layers:
    """All layers as one type: windowed ones keep every token and only record their window."""
    if not layers or try_merge(layers) is not None or are_of_one_type(layers.values()):
        return layers
    full = (FullAttentionSpec, MLAAttentionSpec)
    anchor = next((spec for spec in layers.values() if isinstance(spec, full)), None)
    if anchor is not None:
        layers = {name: spec.as_full(anchor.block_size) for name, spec in layers.items()}
    if try_merge(layers) is None and not are_of_one_type(layers.values()):
        names = (
            tuple(layers)[:1]
            + tuple(
                n
                for n, spec in layers.items()
                if spec.type_key != next(iter(layers.values())).type_key
            )[:1]
        )
        keys = tuple(layers[name].type_key for name in names)
        problem = "hybrid_groups is off and these layers cannot become one type: turn it on"
        raise IncompatibleLayersError(names, "type", keys, problem)
    return layers
