"""A group: layers that use one block table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from prefixhash.errors import InvalidArgumentError
from prefixhash.layout.checks import (
    instance,
    instances,
    keep,
    keep_flags,
    layer_names,
)
from prefixhash.layout.layer_spec import LayerSpec
from prefixhash.layout.merge import are_of_one_type


@dataclass(frozen=True)
class KVCacheGroup:
    """Layers that use one block table: block 17 of the group is block 17 in each of its layers.

    `spec` says how many blocks a request needs. `layer_specs` has one spec per layer where they
    differ (all of one type); None if `spec` is every layer's. A group without layers is legal: a
    pipeline stage keeps the block table of layers that live elsewhere.
    `overlay`: laid densely from byte 0 of the block, over the other groups' slots.
    """

    layer_names: tuple[str, ...]
    spec: LayerSpec
    layer_specs: tuple[LayerSpec, ...] | None = None
    is_draft: bool = False
    overlay: bool = False

    def __post_init__(self) -> None:
        keep(self, "layer_names", layer_names("layer_names", self.layer_names))
        keep_flags(self, "is_draft", "overlay")
        if len(set(self.layer_names)) < len(self.layer_names):
            raise InvalidArgumentError("layer_names", self.layer_names, "a layer is named twice")
        instance("spec", self.spec, LayerSpec, "a layer spec")
        if self.layer_specs is None:
            return
        specs = instances("layer_specs", self.layer_specs, LayerSpec, "layer specs")
        keep(self, "layer_specs", specs)
        if len(specs) != len(self.layer_names):
            problem = f"must hold one spec per layer ({len(self.layer_names)})"
            raise InvalidArgumentError("layer_specs", len(specs), problem)
        if not are_of_one_type((self.spec, *specs)):
            problem = "layers of one group must be of one type (block size, kind, window)"
            raise InvalidArgumentError("layer_specs", specs, problem)

    @classmethod
    def of(cls, layers: Mapping[str, LayerSpec], *, overlay: bool = False) -> KVCacheGroup:
        """A group with a spec per layer; `layers` (name to spec) must be of one type."""
        if not isinstance(layers, Mapping) or not layers:
            problem = "must be a mapping of at least one layer to its spec"
            raise InvalidArgumentError("layers", layers, problem)
        specs = tuple(layers.values())
        return cls(tuple(layers), specs[0], specs, overlay=overlay)

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def title(self) -> str:
        """The kind as people read it, with its reach: `sliding window 1024`."""
        reach = self.spec.reach
        return self.spec.title if reach is None else f"{self.spec.title} {reach}"

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.spec.block_size

    @property
    def window(self) -> int | None:
        """Tokens of the sliding window; None for other kinds."""
        return getattr(self.spec, "window", None)

    @property
    def chunk(self) -> int | None:
        """Tokens of the local chunk; None for other kinds."""
        return getattr(self.spec, "chunk", None)

    @property
    def has_layer_specs(self) -> bool:
        return self.layer_specs is not None

    @cached_property
    def specs(self) -> tuple[LayerSpec, ...]:
        """The spec of each layer, in the order of `layer_names`."""
        if self.layer_specs is None:
            return (self.spec,) * len(self.layer_names)
        return self.layer_specs

    @cached_property
    def page_sizes(self) -> tuple[int, ...]:
        """Bytes per block of each layer, in the order of `layer_names`."""
        return tuple(spec.page_size_bytes for spec in self.specs)

    @cached_property
    def page_size_bytes(self) -> int:
        """Bytes per block of all layers together."""
        return sum(self.page_sizes)

    @cached_property
    def content_size_bytes(self) -> int:
        """Bytes per block that the layers really use."""
        return sum(spec.content_size_bytes for spec in self.specs)

    def project(self, owned: Collection[str]) -> KVCacheGroup:
        """The group as a worker sees it that owns only the layers in `owned` (order is kept).

        The block need stays the whole model's; the draft mark stays only where a layer remains.
        """
        if not isinstance(owned, frozenset):
            owned = frozenset(layer_names("owned", owned))
        kept = [index for index, name in enumerate(self.layer_names) if name in owned]
        if len(kept) == len(self.layer_names):
            return self
        specs = self.layer_specs
        return replace(
            self,
            layer_names=tuple(self.layer_names[index] for index in kept),
            layer_specs=None if specs is None else tuple(specs[index] for index in kept),
            is_draft=self.is_draft and bool(kept),
        )


def groups_of(groups: Sequence[KVCacheGroup]) -> tuple[KVCacheGroup, ...]:
    """`groups` as a tuple; raises `InvalidArgumentError` for anything but groups."""
    return instances("groups", groups, KVCacheGroup, "KVCacheGroup values")
