"""Row formats: how many bytes one stored row takes, said by numbers instead of by format names.

A row is what one token leaves in one head of one layer: a key and a value vector, or one latent
vector. A `RowFormat` turns vector widths into bytes, so the planner never tests a format's name.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError
from prefixhash.layout.checks import integers, keep_integers

# Bytes of one element. Names as torch spells them.
ITEM_SIZES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}


_WIDTHS = "a sequence with the width of each vector"


def dtype_name(dtype: object, argument: str = "dtype") -> str:
    """The torch name of `dtype`, which is such a name or a `torch.dtype` (not imported)."""
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_SIZES:
        raise InvalidArgumentError(argument, dtype, f"use one of {', '.join(ITEM_SIZES)}")
    return name


@dataclass(frozen=True)
class RowFormat:
    """Bytes of one row of one head.

    `bits` per element (None: the element type's own size); `scale_group`: one more byte for so many
    elements, 0 for none; `scale_bytes`: bytes of scale per vector, counted on top of the data;
    `fixed_bytes`: the whole row, keys and values together, when the format is opaque (else 0).
    `name` only labels the format, in messages and when layers are compared.
    """

    name: str = "plain"
    bits: int | None = None
    scale_group: int = 0
    scale_bytes: int = 0
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        _arguments.text("name", self.name)
        keep_integers(self, 0, "scale_group", "scale_bytes", "fixed_bytes")
        keep_integers(self, 1, "bits", optional=True)
        if self.bits is not None and self.bits not in (1, 2, 4, 8):
            raise InvalidArgumentError("bits", self.bits, "use 1, 2, 4, 8, or None for plain")

    @property
    def is_plain(self) -> bool:
        """Whether rows hold elements of the storage type and nothing else."""
        return (self.bits, self.scale_group, self.scale_bytes, self.fixed_bytes) == (None, 0, 0, 0)

    def vector_bytes(self, width: int, item_size: int) -> int:
        """Bytes of the data of one vector of `width` elements, block scales included."""
        width = _arguments.integer("width", width)
        item_size = _arguments.integer("item_size", item_size)
        if self.bits is None:
            return width * item_size
        scales = width // self.scale_group if self.scale_group else 0
        return width * self.bits // 8 + scales

    def row_bytes(self, widths: tuple[int, ...], item_size: int) -> int:
        """Bytes of one row that holds a vector of each width (key and value, or one latent)."""
        widths = integers("widths", widths, 0, _WIDTHS)
        if self.fixed_bytes:
            return self.fixed_bytes
        return sum(self.vector_bytes(width, item_size) + self.scale_bytes for width in widths)

    def scales(self, widths: tuple[int, ...]) -> int:
        """Bytes of the per-vector scales within `row_bytes`."""
        vectors = len(integers("widths", widths, 0, _WIDTHS))
        return 0 if self.fixed_bytes else self.scale_bytes * vectors


PLAIN = RowFormat()
# 8-bit elements with one float32 scale per token and head, for keys and for values.
PER_TOKEN_HEAD = RowFormat("per_token_head", scale_bytes=4)
INT4_PER_TOKEN_HEAD = RowFormat("int4_per_token_head", bits=4, scale_bytes=4)
# Two 4-bit floats per byte and one 8-bit scale per 16 elements.
FP4_BLOCK_SCALED = RowFormat("fp4_block_scaled", bits=4, scale_group=16)
# DeepSeek-V3.2 sparse latent: 512 FP8, 4 float32 scales, 64 two-byte rotary values.
LATENT_656 = RowFormat("latent_656", fixed_bytes=656)
# DeepSeek-V4 latent: 448 FP8, 64 two-byte rotary values, 8 scale bytes.
LATENT_584 = RowFormat("latent_584", fixed_bytes=584)

# An engine's KV types that are stored as bytes, and how their rows are laid out.
_BYTE_ROWS = {
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), PLAIN),
    **dict.fromkeys(("int8_per_token_head", "fp8_per_token_head"), PER_TOKEN_HEAD),
    "int4_per_token_head": INT4_PER_TOKEN_HEAD,
    "nvfp4": FP4_BLOCK_SCALED,
    "fp8_ds_mla": LATENT_656,
}
_OTHER_NAMES = {"half": "float16", "float": "float32"}


def slot_packed(slot_bytes: int) -> RowFormat:
    """Keys and values of one token and head packed into `slot_bytes` bytes (TurboQuant)."""
    slot_bytes = _arguments.integer("slot_bytes", slot_bytes, 1)
    return RowFormat("slot_packed", fixed_bytes=slot_bytes)


def storage_of(kv_dtype: str, model_dtype: str = "bfloat16") -> tuple[str, RowFormat]:
    """Element type and row format for an engine's `kv_dtype` option.

    `auto` stores the model's own type; `fp8*` bytes with a scale per tensor; `*_per_token_head`
    with scales; `nvfp4` packed FP4; `fp8_ds_mla` the 656-byte latent row; any torch type as it is.
    """
    _arguments.text("kv_dtype", kv_dtype, meaning=", such as auto or fp8")
    own = dtype_name(model_dtype, "model_dtype")
    if kv_dtype == "auto":
        return own, PLAIN
    if kv_dtype in _BYTE_ROWS:
        return "uint8", _BYTE_ROWS[kv_dtype]
    return dtype_name(_OTHER_NAMES.get(kv_dtype, kv_dtype), "kv_dtype"), PLAIN
