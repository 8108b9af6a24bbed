"""Reading a Hugging Face `config.json`: which part describes the decoder, and typed field access.

A field that a config leaves out has the default of its architecture (`Architecture.defaults`, the
values of the `transformers` config classes); a field set to null has none. Every complaint names
the fields that it is about, so that a caller can add them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from prefixhash import _arguments
from prefixhash.errors import InvalidArgumentError, ModelConfigError, shorten
from prefixhash.layout.row_formats import ITEM_SIZES

Config = Mapping[str, Any]
# Where multimodal configs keep the decoder's part; the first one that exists is taken.
_DECODER_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_DEEPEST_PART = 8
_DTYPE_NAMES = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16"}


def load_config(config: object) -> Config:
    """The config as a mapping: given as one, as the path of the file or of its folder, or as an
    object with `to_dict()` (a `transformers` config).

    Raises `ModelConfigError` for text that is no JSON object, `OSError` for a file that cannot be
    read.
    """
    if isinstance(config, Mapping):
        return config
    if isinstance(config, (str, os.PathLike)):
        return _read(_arguments.text("config", os.fsdecode(config)))
    to_dict = getattr(config, "to_dict", None)
    if callable(to_dict) and not isinstance(config, type):
        found = to_dict()
        if isinstance(found, Mapping):
            return found
    problem = "must be a mapping, the path of a config.json, or a transformers config"
    raise InvalidArgumentError("config", config, problem)


def decoder_part(config: Config) -> tuple[Config, str]:
    """The mapping that describes the decoder's layers, and its model type."""
    model_type = outer = _type_name(config)
    for _ in range(_DEEPEST_PART):
        parts = [config.get(name) for name in _DECODER_PARTS]
        inner = next((part for part in parts if isinstance(part, Mapping) and part), None)
        if inner is None:
            return config, model_type
        config, outer = inner, _type_name(config) or outer
        model_type = _type_name(inner) or (f"{outer}_text" if outer else "")
    problem = f"parts lie more than {_DEEPEST_PART} deep: check {', '.join(_DECODER_PARTS)}"
    raise ModelConfigError(model_type, problem, _DECODER_PARTS)


def model_dtype_of(config: Config, decoder: Config) -> str:
    """Element type that engines load the weights in, as torch names it.

    Checkpoints in float32, and those that do not say, are served in bfloat16.
    """
    for part in (config, decoder):
        named = part.get("dtype") or part.get("torch_dtype")
        if named:
            name = str(named).removeprefix("torch.")
            name = _DTYPE_NAMES.get(name, name)
            if name not in ITEM_SIZES:
                known = ", ".join(ITEM_SIZES)
                raise ModelConfigError(
                    _type_name(decoder), f"unknown dtype {named!r}; known: {known}", ("dtype",)
                )
            return "bfloat16" if name in ("float32", "float64") else name
    return "bfloat16"


def declared_kv_dtype(config: Config, decoder: Config) -> str | None:
    """KV dtype that a quantised checkpoint asks for, as engines honour it with `auto`."""
    for part in (config, decoder):
        quantization = part.get("quantization_config") or part.get("compression_config")
        if isinstance(quantization, Mapping):
            inner = quantization.get("quantization")
            for holder in (quantization, inner if isinstance(inner, Mapping) else {}):
                scheme = holder.get("kv_cache_scheme") or holder.get("kv_cache_quant_algo")
                if scheme:
                    return _kv_dtype_of_scheme(scheme, _type_name(decoder))
    return None


def _kv_dtype_of_scheme(scheme: object, model_type: str) -> str:
    if isinstance(scheme, Mapping):
        bits, is_float = scheme.get("num_bits"), scheme.get("type") == "float"
        named = {8: "fp8", 4: "nvfp4"}.get(bits) if is_float and isinstance(bits, int) else None
    else:
        named = {"fp8": "fp8", "nvfp4": "nvfp4"}.get(str(scheme).lower())
    if named is None:
        problem = f"unknown KV-cache scheme {scheme!r}: pass kv_dtype instead of auto"
        raise ModelConfigError(model_type, problem, ("quantization_config.kv_cache_scheme",))
    return named


def _read(path: str) -> Config:
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    with open(path, encoding="utf-8") as file:
        try:
            config = json.load(file)
        except json.JSONDecodeError as error:
            raise ModelConfigError("", f"{path}:{error.lineno}: no JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:  # text, numbers of 4,301 digits, nesting
            raise ModelConfigError("", f"{path}: no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelConfigError("", f"{path}: must hold a JSON object")
    return config


def _type_name(decoder: Config) -> str:
    value = decoder.get("model_type")
    return "" if value is None else str(value)


class ConfigFields:
    """The decoder's fields with the defaults of its architecture.

    Names given together are spellings of one field; the first one that the config has counts.
    """

    def __init__(
        self, decoder: Config, model_type: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self._fields = decoder
        self._defaults = defaults or {}
        self.model_type = model_type

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def names(self) -> tuple[str, ...]:
        """Fields that the config itself sets (not null)."""
        return tuple(str(name) for name, value in self._fields.items() if value is not None)

    def get(self, *names: str) -> Any:
        """The value, the architecture's default, or None."""
        present = [name for name in names if name in self._fields]
        if present:
            values = [self._fields[name] for name in present if self._fields[name] is not None]
            return values[0] if values else None
        return next((self._defaults[name] for name in names if name in self._defaults), None)

    def optional_integer(self, *names: str) -> int | None:
        """A whole number of 0 or more, or None."""
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not _arguments.is_integer(value) or value < 0:
            said = f"{names[0]}={shorten(value)}"
            raise self.error(f"{said} must be a whole number of 0 or more", names)
        return int(value)

    def integers(self, *names: str) -> tuple[int, ...]:
        """Numbers of 1 or more, all needed. One complaint names all that are lacking."""
        values = {name: self.optional_integer(name) for name in names}
        self._complain([name for name, value in values.items() if value is None])
        wrong = tuple(name for name, value in values.items() if value == 0)
        if wrong:
            raise self.error(f"{', '.join(wrong)} must be 1 or more", wrong)
        return tuple(value for value in values.values() if value is not None)

    def integer(self, *names: str) -> int:
        """A number of 1 or more, needed; `names` are spellings of one field."""
        value = self.optional_integer(*names)
        if value is None:
            self._complain([names[0]])
        if not value:
            raise self.error(f"{names[0]} must be 1 or more", names[:1])
        return value

    def mapping(self, name: str) -> ConfigFields:
        """A nested object, needed."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise self.error(f"{name} must be an object", (name,))
        return ConfigFields(value, self.model_type)

    def items(self, name: str, kind: type, length: int | None = None) -> list[Any] | None:
        """A list of `kind`, of `length` if that is given, or None."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.error(f"{name} must be a list", (name,))
        if any(not isinstance(item, kind) for item in value):
            raise self.error(f"{name} must hold {kind.__name__} values only", (name,))
        if length is not None and len(value) != length:
            raise self.error(f"{name} has {len(value)} entries for {length} layers", (name,))
        return list(value)

    def error(self, problem: str, fields: Sequence[str] = ()) -> ModelConfigError:
        """The complaint, to be raised."""
        return ModelConfigError(self.model_type, problem, tuple(fields))

    def _complain(self, missing: Sequence[str]) -> None:
        if missing:
            raise self.error(f"lacks {', '.join(missing)}: add what is missing", missing)
