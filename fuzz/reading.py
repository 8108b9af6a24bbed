"""Reads small decisions and requests off the bytes of a fuzzer."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixhash import LoRARequest, MultiModalFeature, PlaceholderRange


class Source:
    """Numbers, texts and fields of a request; zeros when the bytes are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def __bool__(self) -> bool:
        return bool(self._data)

    def number(self, size: int = 1) -> int:
        """A signed integer of `size` bytes."""
        taken, self._data = self._data[:size], self._data[size:]
        return int.from_bytes(taken, "little", signed=True)

    def token_id(self) -> int:
        """Mostly a token id of any size; now and then a negative one, which must be refused."""
        size = self.number() % 18
        return -size if size > 16 else self.number(size % 9) & (2**63 - 1)

    def text(self) -> str:
        """Up to three characters."""
        size = self.number() % 4
        taken, self._data = self._data[:size], self._data[size:]
        return bytes(taken).decode("latin-1")

    def fields(self) -> dict[str, Any]:
        """Arguments of `Request`; some of them are refused."""
        fields: dict[str, Any] = {
            "token_ids": [self.token_id() for _ in range(self.number() % 40)],
            "mm_features": [self.feature() for _ in range(self.number() % 4)],
            "lora_request": self.lora() if self.number() % 2 else None,
            "cache_salt": self.text(),
        }
        length = len(fields["token_ids"])
        if self.number() % 3 == 0:
            rows = [[self.number() % 3] for _ in range(length)]
            fields["prompt_embeds"] = np.array(rows, np.float32).reshape(length, 1)
            if self.number() % 2:
                fields["prompt_is_token_ids"] = [self.number() % 2 > 0 for _ in range(length)]
        return fields

    def feature(self) -> MultiModalFeature:
        """A media item within the first 41 positions."""
        place = PlaceholderRange(self.number() % 30, self.number() % 12)
        return MultiModalFeature("m" + self.text(), place, ("image", "audio")[self.number() % 2])

    def lora(self) -> LoRARequest:
        """An adapter."""
        return LoRARequest("l" + self.text(), self.text(), self.text())
