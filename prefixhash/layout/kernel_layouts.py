"""How a kernel wants its tensor: logical axes and their physical order. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prefixhash import _arguments
from prefixhash._arguments import sequence
from prefixhash.errors import InvalidArgumentError, UnsupportedCombinationError
from prefixhash.layout.checks import integers, keep, mapping_of
from prefixhash.layout.groups import KVCacheGroup
from prefixhash.layout.layer_spec import AttentionSpec

Axis = str | int
_PERMUTATION = "a permutation of the places of the axes"
_NAMES = ("blocks", "tokens", "heads", "vector", "row")


@dataclass(frozen=True)
class KernelLayout:
    """The tensor that a kernel wants: logical axes, and the physical order of these axes.

    Axes: `blocks`; `tokens` (rows per kernel block); `heads`; `vector` (elements of a key or a
    value with its scales); `row` (elements of a whole row); or a fixed size. `order[i]` is the
    logical axis at physical place i, outermost first; None: as listed.
    """

    axes: tuple[Axis, ...]
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        axes = tuple(
            axis if isinstance(axis, str) else _arguments.integer("axes", axis, 1)
            for axis in sequence("axes", self.axes, "a sequence of names and sizes")
        )
        bad = [axis for axis in axes if isinstance(axis, str) and axis not in _NAMES]
        if bad or axes.count("blocks") != 1:
            problem = f"use 'blocks' once, and {', '.join(_NAMES[1:])} or sizes"
            raise InvalidArgumentError("axes", self.axes, problem)
        keep(self, "axes", axes)
        places = tuple(range(len(axes)))
        order = places if self.order is None else integers("order", self.order, 0, _PERMUTATION)
        if sorted(order) != list(places):
            raise InvalidArgumentError("order", self.order, f"must be {_PERMUTATION}")
        keep(self, "order", order)

    @property
    def physical(self) -> tuple[int, ...]:
        """Logical axes from the outermost to the innermost in memory."""
        return self.order or ()

    @property
    def block_axis(self) -> int:
        return self.axes.index("blocks")

    @property
    def is_block_outermost(self) -> bool:
        """Whether all bytes of a block are adjacent."""
        return self.physical[0] == self.block_axis


TOKEN_MAJOR = KernelLayout(("blocks", 2, "tokens", "heads", "vector"))
HEAD_MAJOR = KernelLayout(("blocks", 2, "tokens", "heads", "vector"), (0, 1, 3, 2, 4))
KV_OUTERMOST = KernelLayout((2, "blocks", "tokens", "heads", "vector"))
FUSED_ROWS = KernelLayout(("blocks", "tokens", "heads", "row"))
LATENT = KernelLayout(("blocks", "tokens", "row"))

Layouts = KernelLayout | Mapping[str, KernelLayout] | None


def default_layout(spec: AttentionSpec) -> KernelLayout:
    """Token-major with keys and values apart; whole rows where these have different widths."""
    widths = spec.vector_widths
    if len(widths) == 1 and spec.num_kv_heads == 1:
        return LATENT
    if len(widths) == 1 or spec.row.fixed_bytes or widths[0] != widths[1]:
        return FUSED_ROWS
    return TOKEN_MAJOR


def layouts_by_layer(groups: Sequence[KVCacheGroup], layouts: Layouts) -> dict[str, KernelLayout]:
    """The layout of every attention layer.

    One layout for all applies to layers with equal key and value vectors, the rest keep their
    default; a mapping names layers one by one.
    """
    _check_layouts(groups, layouts)
    chosen: dict[str, KernelLayout] = {}
    for group in groups:
        for name, spec in zip(group.layer_names, group.specs, strict=True):
            if not isinstance(spec, AttentionSpec):
                continue
            layout = default_layout(spec)
            if isinstance(layouts, KernelLayout) and layout == TOKEN_MAJOR:
                layout = layouts
            elif isinstance(layouts, Mapping):
                layout = layouts.get(name, layout)
            chosen[name] = layout
    return chosen


def _check_layouts(groups: Sequence[KVCacheGroup], layouts: Layouts) -> None:
    if layouts is None or isinstance(layouts, KernelLayout):
        return
    mapping_of("layouts", layouts, KernelLayout, "a KernelLayout, or a mapping to them")
    known = {name for group in groups for name in group.layer_names}
    for name in layouts:
        if name not in known:
            raise InvalidArgumentError("layouts", name, "is no layer of this plan")


def select_common_layout(supported: Sequence[Iterable[str]]) -> str:
    """The first layout of stage 0 that every pipeline stage supports; names are free.

    Raises `UnsupportedCombinationError` with each stage's layouts if there is none.
    """
    what = "a sequence of layout names for each stage"
    stages = [
        [_arguments.text("supported", name) for name in sequence("supported", names, what)]
        for names in sequence("supported", supported, what)
    ]
    if not stages:
        raise InvalidArgumentError("supported", supported, "at least one stage is needed")
    for name in stages[0]:
        if all(name in names for names in stages):
            return name
    raise UnsupportedCombinationError("view", f"the stages share no layout: {stages}")
