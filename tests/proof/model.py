"""A small decoder in torch whose attention reads and writes K and V only through a store.

Random weights, float64. Tokens go through one at a time, so that a token's arithmetic is the same
whatever was computed before it: equal K and V give bitwise equal logits.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from prefixhash import LoRARequest, Request

VOCABULARY, WIDTH, HEADS, HEAD_SIZE, RANK = 48, 16, 2, 8, 2
LAYERS = {"layers.0": None, "layers.1": 12, "layers.2": None, "layers.3": 12}  # name: window


class Store(Protocol):
    """Where K and V of the tokens so far live."""

    def write(self, layer: str, position: int, key: Any, value: Any) -> None:
        """Keeps K and V, each (HEAD_SIZE,), of one position."""

    def read(self, layer: str, start: int, stop: int) -> tuple[Any, Any]:
        """K and V of positions [start, stop), each (stop - start, HEAD_SIZE)."""


class Contiguous:
    """The store of a computation from scratch: one growing tensor per layer."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {name: [] for name in LAYERS}

    def write(self, layer: str, position: int, key: Any, value: Any) -> None:
        rows = self._rows[layer]
        if position != len(rows):
            raise AssertionError("a computation from scratch goes token by token")
        rows.append(torch.stack((key, value)))

    def read(self, layer: str, start: int, stop: int) -> tuple[Any, Any]:
        rows = torch.stack(self._rows[layer][start:stop])
        return rows[:, 0], rows[:, 1]


class Model:
    """Query heads share one K/V head; every other layer sees a window of 12 tokens."""

    def __init__(self) -> None:
        self._embedding = _random("embedding", VOCABULARY, WIDTH)
        self._head = _random("head", WIDTH, VOCABULARY)
        self._weights = {
            name: {
                "qkv": _random(f"{name} qkv", WIDTH, (HEADS + 2) * HEAD_SIZE),
                "out": _random(f"{name} out", HEADS * HEAD_SIZE, WIDTH),
                "up": _random(f"{name} up", WIDTH, 2 * WIDTH),
                "down": _random(f"{name} down", 2 * WIDTH, WIDTH),
            }
            for name in LAYERS
        }
        self._adapters: dict[Any, Any] = {}
        angles = torch.outer(
            torch.arange(256, dtype=torch.float64),
            10.0 ** -torch.arange(HEAD_SIZE // 2, dtype=torch.float64),
        )
        self._cos, self._sin = angles.cos(), angles.sin()

    def forward(self, request: Request, position: int, store: Store) -> Any:
        """Logits, (VOCABULARY,), of one position; K and V of the earlier ones are in the store."""
        hidden = self.input_row(request, position)
        for name, window in LAYERS.items():
            start = 0 if window is None else max(0, position + 1 - window)
            attended = self._attention(name, request, hidden, position, start, store)
            hidden = hidden + attended @ self._weights[name]["out"]
            inner = torch.tanh(_normed(hidden) @ self._weights[name]["up"])
            hidden = hidden + inner @ self._weights[name]["down"]
        return _normed(hidden) @ self._head

    def input_row(self, request: Request, position: int) -> Any:
        """What enters the first layer: a media item's row, a prompt embedding, or a token's."""
        for feature in request.mm_features:
            place = feature.mm_position
            if place.offset <= position < place.end:
                kind = f"{feature.modality} {feature.identifier} of {place.length}"
                return _random(f"{kind}, row {position - place.offset}", WIDTH)
        embeds, mask = request.prompt_embeds, request.prompt_is_token_ids
        if embeds is not None and position < len(embeds) and not (mask and mask[position]):
            return embeds[position]
        return self._embedding[request.all_token_ids[position]]

    def _attention(
        self, name: str, request: Request, hidden: Any, position: int, start: int, store: Store
    ) -> Any:
        row = _normed(hidden)
        qkv = row @ self._weights[name]["qkv"]
        if request.lora_request is not None:
            down, up = self._adapter(name, request.lora_request)
            qkv = qkv + row @ down @ up
        vectors = qkv.reshape(HEADS + 2, HEAD_SIZE)
        heads = self._rotated(vectors[: HEADS + 1], position)
        store.write(name, position, heads[HEADS], vectors[HEADS + 1])
        # Fresh copies: the same memory layout, hence the same arithmetic, from every store.
        keys, values = (rows.clone() for rows in store.read(name, start, position + 1))
        scores = heads[:HEADS] @ keys.T / HEAD_SIZE**0.5
        return (torch.softmax(scores, dim=-1) @ values).flatten()

    def _rotated(self, heads: Any, position: int) -> Any:
        """Rotary position embedding, so that K depends on the position."""
        cos, sin = self._cos[position], self._sin[position]
        left, right = heads.chunk(2, dim=1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=1)

    def _adapter(self, name: str, lora: LoRARequest) -> Any:
        key = (name, lora)
        if key not in self._adapters:
            seed = f"{name} {lora.lora_name} {lora.lora_path} {lora.revision}"
            self._adapters[key] = (
                _random(f"{seed} down", WIDTH, RANK),
                _random(f"{seed} up", RANK, (HEADS + 2) * HEAD_SIZE),
            )
        return self._adapters[key]


def _random(name: str, *shape: int) -> Any:
    """Values that depend on the name alone."""
    generator = torch.Generator().manual_seed(int.from_bytes(name.encode(), "little") % (2**63))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) / 2


def _normed(row: Any) -> Any:
    return row / (row.square().mean() + 1e-6).sqrt()
