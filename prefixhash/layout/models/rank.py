"""What one tensor-parallel rank stores: element types, and its share of heads and channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from prefixhash import _arguments
from prefixhash.errors import UnsupportedCombinationError
from prefixhash.layout.checks import keep, keep_integers
from prefixhash.layout.layer_spec import LayerSpec
from prefixhash.layout.row_formats import (
    LATENT_584,
    LATENT_656,
    PLAIN,
    RowFormat,
    dtype_name,
    storage_of,
)

# More is a mistyped number, which would only exhaust memory.
_MOST_RANKS = 1 << 20


class ModelLayer(NamedTuple):
    """One cached layer: index of its decoder layer (for the pipeline split), name, spec."""

    decoder_layer: int
    name: str
    spec: LayerSpec


def is_auto(dtype: object) -> bool:
    """Whether the choice of a type is left to the config and the architecture."""
    return isinstance(dtype, str) and dtype == "auto"


@dataclass(frozen=True)
class Rank:
    """How a model is served, as far as the bytes of one rank depend on it.

    `kv_dtype` and `model_dtype` are resolved (no `auto`, except that `kv_dtype` may be `auto` for
    the model's own type); `state_dtype` may be `auto`; `block_size` None is the engine's choice.
    """

    block_size: int | None = None
    tensor_parallel: int = 1
    kv_dtype: str = "auto"
    model_dtype: str = "bfloat16"
    state_dtype: str = "auto"
    speculative_tokens: int = 0

    def __post_init__(self) -> None:
        keep_integers(self, 1, "block_size", optional=True)
        ranks = _arguments.integer("tensor_parallel", self.tensor_parallel, 1, _MOST_RANKS)
        keep(self, "tensor_parallel", ranks)
        keep_integers(self, 0, "speculative_tokens")
        storage_of(self.kv_dtype, self.model_dtype)
        if not is_auto(self.state_dtype):
            dtype_name(self.state_dtype, "state_dtype")

    def block(self, default: int = 16) -> int:
        """Tokens per attention block, before any alignment with states."""
        return self.block_size or default

    def kv_heads(self, heads: int) -> int:
        """KV heads of one rank: an equal share, or one that several ranks hold alike."""
        if heads >= self.tensor_parallel:
            return self.share(heads, "KV heads")
        if self.tensor_parallel % heads:
            problem = f"{heads} KV heads cannot be replicated evenly: use a multiple of {heads}"
            raise UnsupportedCombinationError(self._said, problem)
        return 1

    def share(self, total: int, what: str) -> int:
        """An equal share of `total`; `what` names it in the error."""
        if total % self.tensor_parallel:
            problem = f"does not divide the model's {total} {what}: use a divisor of {total}"
            raise UnsupportedCombinationError(self._said, problem)
        return total // self.tensor_parallel

    @property
    def _said(self) -> str:
        return f"tensor_parallel={self.tensor_parallel}"

    def attention_storage(self) -> tuple[str, RowFormat]:
        """Element type and row format of ordinary keys and values."""
        if self.kv_dtype == "fp8_ds_mla":
            raise UnsupportedCombinationError(
                "kv_dtype='fp8_ds_mla'", "only sparse latent attention has such rows: use fp8"
            )
        return storage_of(self.kv_dtype, self.model_dtype)

    def latent_storage(self, *, sparse: bool = False) -> tuple[str, RowFormat]:
        """Element type and row format of latent rows.

        8-bit rows of sparse attention are the 656-byte rows of the sparse FlashMLA kernel.
        """
        if sparse and self.kv_dtype.startswith("fp8") and "head" not in self.kv_dtype:
            return "uint8", LATENT_656
        dtype, row = self.attention_storage()
        if row != PLAIN:
            problem = "latent attention has no such rows: use auto, a float type or fp8"
            raise UnsupportedCombinationError(f"kv_dtype={self.kv_dtype!r}", problem)
        return dtype, row

    def compressed_storage(self) -> tuple[str, RowFormat, int]:
        """Element type, row format and page alignment in bytes of DeepSeek-V4's latent rows.

        Any 8-bit type means the packed rows of 584 bytes.
        """
        if self.kv_dtype.startswith("fp8"):
            return "uint8", LATENT_584, 576
        dtype, row = self.latent_storage()
        return dtype, row, 512
