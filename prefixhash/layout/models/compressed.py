"""DeepSeek-V4: compressed latent attention, sliding latent windows and compressor states.

Each layer keeps the latent rows of the last `sliding_window` tokens, and, where its entry in
`compress_ratios` is above 1, one latent row per so many tokens and the compressor's running state.
Layers with ratio 4 choose tokens by an indexer, which keeps keys and a compressor state of its own.
"""

from __future__ import annotations

from prefixhash.layout.models.attention import indexer_width, num_layers
from prefixhash.layout.models.fields import ConfigFields
from prefixhash.layout.models.rank import ModelLayer, Rank
from prefixhash.layout.specs import MLAAttentionSpec, SlidingWindowMLASpec

# Tokens per block: of the compressed rows (64 rows at ratio 4), and of what shares their pages.
BLOCK = 256
_WINDOW_BLOCK = 64
_STATE_BLOCKS = {4: 4, 128: 8}
# Ratio whose layers overlap their compression windows and have an indexer.
_INDEXED_RATIO = 4


def compressed_layers(fields: ConfigFields, rank: Rank) -> list[ModelLayer]:
    """All caches of the model, in the order in which vLLM's layers register them."""
    count = num_layers(fields)
    ratios = fields.items("compress_ratios", int)
    if ratios is None or len(ratios) < count:
        problem = f"needs one compress_ratios entry for each of {count} layers"
        raise fields.error(problem, ("compress_ratios",))
    kinds = _Kinds(fields, rank)
    return [
        ModelLayer(index, f"layers.{index}.{name}", spec)
        for index, ratio in enumerate(ratios[:count])
        for name, spec in kinds.of(max(ratio, 1))
    ]


class _Kinds:
    """The specs of one layer, by its compression ratio."""

    def __init__(self, fields: ConfigFields, rank: Rank) -> None:
        self._fields = fields
        self._block = rank.block(BLOCK)
        self._head = fields.integer("head_dim")
        self._dtype, self._row, self._alignment = rank.compressed_storage()
        self._known: dict[int, list[tuple[str, MLAAttentionSpec | SlidingWindowMLASpec]]] = {}

    def of(self, ratio: int) -> list[tuple[str, MLAAttentionSpec | SlidingWindowMLASpec]]:
        if ratio not in self._known:
            self._known[ratio] = self._specs(ratio)
        return self._known[ratio]

    def _specs(self, ratio: int) -> list[tuple[str, MLAAttentionSpec | SlidingWindowMLASpec]]:
        if ratio == 1:
            return [("window", self._window())]
        if ratio not in _STATE_BLOCKS:
            known = ", ".join(str(known) for known in (1, *_STATE_BLOCKS))
            problem = f"compress_ratios holds {ratio}; known: {known}"
            raise self._fields.error(problem, ("compress_ratios",))
        indexed = self._indexer(ratio) if ratio == _INDEXED_RATIO else []
        return [
            *indexed,
            ("window", self._window()),
            ("attn", self._compressed(ratio)),
            ("state", self._state(self._head, ratio)),
        ]

    def _indexer(self, ratio: int) -> list[tuple[str, MLAAttentionSpec | SlidingWindowMLASpec]]:
        keys = MLAAttentionSpec(
            block_size=self._block,
            head_size=indexer_width(self._fields),
            dtype="uint8",
            compress_ratio=ratio,
            alignment=self._alignment,
        )
        state = self._state(self._fields.integer("index_head_dim"), ratio)
        return [("indexer", keys), ("indexer_state", state)]

    def _window(self) -> SlidingWindowMLASpec:
        return SlidingWindowMLASpec(
            block_size=_WINDOW_BLOCK,
            head_size=self._head,
            dtype=self._dtype,
            row=self._row,
            window=self._fields.integer("sliding_window"),
            alignment=self._alignment,
        )

    def _compressed(self, ratio: int) -> MLAAttentionSpec:
        return MLAAttentionSpec(
            block_size=self._block,
            head_size=self._head,
            dtype=self._dtype,
            row=self._row,
            compress_ratio=ratio,
            alignment=self._alignment,
        )

    def _state(self, head: int, ratio: int) -> SlidingWindowMLASpec:
        """Key and score of the tokens that are being compressed, twice where windows overlap."""
        overlap = 2 if ratio == _INDEXED_RATIO else 1
        return SlidingWindowMLASpec(
            block_size=_STATE_BLOCKS[ratio],
            head_size=2 * overlap * head,
            dtype="float32",
            window=overlap * ratio,
            alignment=self._alignment,
        )
