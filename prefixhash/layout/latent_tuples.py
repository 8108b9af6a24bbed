"""Layer-tuple grouping: latent layers of several page sizes beside window-latent ones.

The latent layers form one group. Every window family is split into groups that repeat the tuple of
page sizes about as often as the latent group does, so that all of them fit the same slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from prefixhash._arguments import sequence
from prefixhash.errors import IncompatibleLayersError, InvalidArgumentError
from prefixhash.layout.checks import mapping_of
from prefixhash.layout.gcd import approximate_gcd
from prefixhash.layout.groups import KVCacheGroup
from prefixhash.layout.layer_spec import AttentionSpec, LayerSpec
from prefixhash.layout.packing import packed_layout
from prefixhash.layout.specs import HiddenStateSpec, MLAAttentionSpec, SlidingWindowMLASpec

Layers = Mapping[str, LayerSpec]

# Every attention kernel in use takes blocks of so many tokens.
_KERNEL_TOKENS = 16


def group_layer_tuples(families: Sequence[Layers]) -> tuple[KVCacheGroup, ...]:
    """Groups of family 0 (latent layers) and of window families, each of one type.

    A window family's pages are padded up to the smallest latent page that holds them; then every
    page size must occur equally often. Raises `IncompatibleLayersError` where that cannot be. The
    given specs are left alone.
    """
    families = [
        mapping_of(f"families[{index}]", family, LayerSpec, "layer specs")
        for index, family in enumerate(sequence("families", families, "a sequence of families"))
    ]
    if not families or not families[0]:
        first = {name: spec.kind for family in families for name, spec in family.items()}
        problem = "window-latent layers need latent layers beside them"
        raise IncompatibleLayersError(tuple(first)[:1], "kind", tuple(first.values())[:1], problem)
    _require_family(families[0], MLAAttentionSpec)
    for family in families[1:]:
        _require_family(family, SlidingWindowMLASpec)
    tuples = [_most_frequent_page(family) for family in families]
    per_group = approximate_gcd(tuples, lower_bound=tuples[0])
    pages = sorted({spec.page_size_bytes for spec in families[0].values()})
    groups = [KVCacheGroup.of(families[0])]
    for family in families[1:]:
        groups += _window_groups(_padded_by_page(family, pages), per_group)
    return tuple(groups)


def group_latent_model(layers: Layers) -> tuple[KVCacheGroup, ...]:
    """Groups of a model with window-latent layers: layer tuples, then what fits over their slots.

    Layers of other kinds get groups of their own, laid over the others' bytes, with blocks cut and
    layers dealt so that they do not widen the block; hidden states get blocks of as many tokens as
    the block holds.
    """
    latent: dict[str, LayerSpec] = {}
    windows: dict[tuple[object, ...], dict[str, LayerSpec]] = {}
    others: dict[tuple[object, ...], dict[str, LayerSpec]] = {}
    hidden: dict[str, HiddenStateSpec] = {}
    for name, spec in layers.items():
        if isinstance(spec, SlidingWindowMLASpec):
            windows.setdefault(spec.type_key, {})[name] = spec
        elif isinstance(spec, HiddenStateSpec):
            hidden[name] = spec
        elif isinstance(spec, MLAAttentionSpec):
            latent[name] = spec
        else:
            others.setdefault(spec.type_key, {})[name] = spec
    groups = group_layer_tuples([latent, *windows.values()])
    width = packed_layout(groups).bytes_per_block
    for family in others.values():
        groups += _overlay_groups(family, width)
    return groups + tuple(_hidden_group(name, spec, width) for name, spec in hidden.items())


def _require_family(family: Layers, kind: type[LayerSpec]) -> None:
    first, spec = next(iter(family.items()), (None, None))
    if first is None or spec is None:
        raise InvalidArgumentError("families", family, "a family without layers: leave it out")
    for name, other in family.items():
        if not isinstance(other, kind):
            problem = f"a family must hold {kind.kind} layers only"
            raise IncompatibleLayersError((name,), "kind", (other.kind,), problem)
        if other.type_key != spec.type_key:
            problem = "layers of one family must be of one type"
            keys = (spec.type_key, other.type_key)
            raise IncompatibleLayersError((first, name), "type", keys, problem)


def _most_frequent_page(family: Layers) -> int:
    return max(Counter(spec.page_size_bytes for spec in family.values()).values())


def _padded_by_page(family: Layers, pages: list[int]) -> dict[int, dict[str, LayerSpec]]:
    """The family's layers padded up to one of `pages` (ascending), by page size."""
    padded: dict[int, dict[str, LayerSpec]] = {}
    # One padded value per distinct spec: layers are many, specs are few.
    made: dict[LayerSpec, LayerSpec] = {}
    for name, spec in family.items():
        if spec not in made:
            made[spec] = _padded_up(name, spec, pages)
        new = made[spec]
        padded.setdefault(new.page_size_bytes, {})[name] = new
    if len({len(layers) for layers in padded.values()}) > 1:
        counts = {next(iter(layers)): len(layers) for layers in padded.values()}
        problem = "page sizes of a window family must occur equally often"
        raise IncompatibleLayersError(
            tuple(counts), "layers of this page size", tuple(counts.values()), problem
        )
    return padded


def _padded_up(name: str, spec: LayerSpec, pages: list[int]) -> LayerSpec:
    for page in pages:
        if page >= spec.page_size_bytes:
            return spec.padded_to(page)
    problem = "a window layer's page exceeds every latent layer's: use smaller window blocks"
    sizes = (spec.page_size_bytes, pages[-1])
    raise IncompatibleLayersError((name, "latent"), "page_size_bytes", sizes, problem)


def _window_groups(by_page: dict[int, dict[str, LayerSpec]], per_group: int) -> list[KVCacheGroup]:
    """The layers of a window family in groups of `per_group` tuples of one layer of each page."""
    tuples = list(zip(*(layers.items() for layers in by_page.values()), strict=True))
    count = -(-len(tuples) // per_group)
    # Dealt out in turn, so that every pipeline stage gets a share of each group.
    return [
        KVCacheGroup.of(dict(layer for entry in tuples[index::count] for layer in entry))
        for index in range(count)
    ]


def _overlay_groups(family: Layers, width: int) -> tuple[KVCacheGroup, ...]:
    fitted = {name: _with_fitting_blocks(spec, width) for name, spec in family.items()}
    block_size = min(spec.block_size for spec in fitted.values())
    layers = [(name, spec.with_block_size(block_size)) for name, spec in family.items()]
    total = sum(spec.page_size_bytes for _, spec in layers)
    count = min(len(layers), max(1, -(-total // width)))
    return tuple(KVCacheGroup.of(dict(layers[i::count]), overlay=True) for i in range(count))


def _with_fitting_blocks(spec: LayerSpec, width: int) -> LayerSpec:
    """The layer with the largest fraction of its blocks whose page is within `width` bytes.

    Fractions that no kernel takes (not multiples of 16 tokens) are left out; if none fits, the
    layer stays as it is and widens the block. State pages cannot shrink.
    """
    if not isinstance(spec, AttentionSpec):
        return spec
    for parts in range(1, spec.block_size // _KERNEL_TOKENS + 1):
        tokens, rest = divmod(spec.block_size, parts)
        if rest == 0 and tokens % _KERNEL_TOKENS == 0:
            smaller = spec.with_block_size(tokens)
            if smaller.page_size_bytes <= width:
                return smaller
    return spec


def _hidden_group(name: str, spec: HiddenStateSpec, width: int) -> KVCacheGroup:
    """One layer with as many tokens per block as `width` bytes hold.

    The token count is rounded down to the coarsest power of two that costs at most 1/32 of it:
    hashes are taken at the greatest common divisor of the groups' block sizes.
    """
    bytes_per_token = spec.num_kv_heads * spec.row_bytes
    tokens = max(width // bytes_per_token, 1)
    granule = 1
    while 2 * granule <= tokens and (tokens % (2 * granule)) * 32 <= tokens:
        granule *= 2
    spec = spec.with_block_size(tokens // granule * granule)
    return KVCacheGroup.of({name: spec}, overlay=True)
