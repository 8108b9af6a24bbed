"""A way to hash is one class and one row, shown by a toy; nothing else knows any by name."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import pickle
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import prefixhash
from prefixhash import (
    BlockHasher,
    HashProfile,
    InvalidProfileError,
    InvalidRequestError,
    MultiModalFeature,
    PlaceholderRange,
    Request,
)
from prefixhash.cli.main import main
from prefixhash.hashing import dialects, known_profiles, parts
from prefixhash.hashing.algorithms import Algorithm, sha256
from prefixhash.hashing.dialects.base import Chain, Dialect, Extras
from prefixhash.request.tokens import token_array

PACKAGE = Path(prefixhash.__file__).parent
IDS = list(range(1, 17))


class Words:
    """SHA-256 of the parent, the salt and four bytes for each token."""

    def __call__(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        block_size: int,
        extras: Sequence[tuple[Any, ...] | None] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> list[bytes]:
        ids = list(token_ids[start:stop])
        digests = []
        for block in range(len(ids) // block_size):
            (salt,) = (extras and extras[block]) or ("",)
            words = struct.pack(f"<{block_size}I", *ids[block * block_size :][:block_size])
            parent = hashlib.sha256(parent + salt.encode() + words).digest()
            digests.append(parent)
        return digests

    def hash_tokens(self, parent: bytes, token_ids: Any, block_size: int) -> list[bytes]:
        ids = token_array(token_ids, "token_ids")
        return self(parent, ids, block_size, stop=len(ids) // block_size * block_size)


@dataclass(frozen=True)
class Toy(Dialect):
    """Words without a root; pad ids stand for media; embeddings cannot be said."""

    engine: ClassVar[str] = "toy"
    releases: ClassVar[tuple[str, ...]] = ("1", "2")
    algorithms: ClassVar[dict[str, Algorithm]] = {
        "words": Algorithm("words", "words", 32, collision_resistant=True, digest=sha256)
    }
    default_algorithm: ClassVar[str] = "words"
    drops: ClassVar[tuple[str, ...]] = ("prompt_embeds", "lora_request")

    def root(
        self, algorithm: Algorithm, namespace: str, seed: str | None, random_root: bool
    ) -> tuple[bytes, bool]:
        return b"", True

    def chain(self, algorithm: Algorithm, root: bytes) -> Chain:
        return Words()

    def extras(
        self, request: Any, start: int, stop: int, block_size: int, ahead: int, resumed: bool
    ) -> Extras | None:
        salt = "" if start else parts.salt(request)
        return [(salt,), *[None] * ((stop - start) // block_size - 1)] if salt else None

    def replaced_ids(self, request: Any, start: int, stop: int) -> Sequence[tuple[int, int]]:
        spans = [range(*parts.span(item)) for item in parts.media(request)]
        return [(i, 7) for span in spans for i in span if start <= i < stop]

    def int64(self, block_hash: bytes) -> int:
        return int.from_bytes(block_hash[:8], "big", signed=True)


@pytest.fixture(autouse=True)
def _one_row_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "DIALECTS", (*dialects.DIALECTS, Toy))


def toy_hashes(ids: list[int], salt: str = "") -> list[bytes]:
    digests, parent = [], b""
    for start in range(0, len(ids) - 3, 4):
        data = b"".join(token.to_bytes(4, "little") for token in ids[start : start + 4])
        parent = hashlib.sha256(parent + (b"" if start else salt.encode()) + data).digest()
        digests.append(parent)
    return digests


def test_a_row_makes_a_profile() -> None:
    profile = HashProfile.parse("toy:1")
    assert (profile.name, profile.algorithm.name, profile.root) == ("toy:1", "words", b"")
    assert profile != HashProfile.parse("toy:2")
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert known_profiles()[-2:] == ("toy:1", "toy:2")
    for name in ("toy", "toy:", "toy:3", "to:1"):
        with pytest.raises(InvalidProfileError, match=r"known: strict, .*toy:1|one of 1, 2"):
            HashProfile.parse(name)
    with pytest.raises(InvalidProfileError, match="algorithm='sha256': must be one of words"):
        HashProfile.parse("toy:1", "sha256")


def test_a_row_hashes_requests_and_bare_tokens() -> None:
    hasher = BlockHasher(4, HashProfile.parse("toy:1"))
    assert hasher.hash_tokens(IDS) == toy_hashes(IDS)
    assert hasher.hash_tokens(IDS[4:], toy_hashes(IDS)[0]) == toy_hashes(IDS)[1:]
    # SGLang's own digest of these tokens, which are hashed as its pages are.
    assert hasher.hash_tokens(IDS)[-1].hex().startswith("e6e688fa1045e868")
    request = Request("r", IDS[:6], block_hasher=hasher, cache_salt="s")
    request.append_token_ids(IDS[6:])
    assert request.block_hashes == toy_hashes(IDS, "s")
    assert (hasher.extra_keys(request, 0), hasher.extra_keys(request, 1)) == (("s",), None)
    foreign = SimpleNamespace(block_hashes=[], num_tokens=16, all_token_ids=IDS, cache_salt="s")
    assert hasher(foreign) == request.block_hashes


def test_a_row_may_hash_other_ids_than_the_requests() -> None:
    hasher = BlockHasher(4, HashProfile.parse("toy:1"))
    media = [MultiModalFeature("a", PlaceholderRange(3, 6))]
    request = Request("r", IDS, block_hasher=hasher, mm_features=media)
    assert request.block_hashes == toy_hashes([*IDS[:3], *[7] * 6, *IDS[9:]])
    assert list(request.all_token_ids) == IDS


def test_what_a_row_would_leave_out_is_refused() -> None:
    hasher = BlockHasher(4, HashProfile.parse("toy:1"))
    with pytest.raises(InvalidRequestError, match="toy:1 hashes leave it out"):
        Request("r", None, prompt_embeds=torch.ones(2, 2), block_hasher=hasher)
    lora = SimpleNamespace(lora_name="a")
    foreign = SimpleNamespace(
        block_hashes=[], num_tokens=16, all_token_ids=IDS, lora_request=lora, prompt_embeds=None
    )
    with pytest.raises(InvalidRequestError, match=r"lora_request=.*leave it out"):
        hasher(foreign)
    with pytest.raises(InvalidProfileError, match="lookahead_tokens=1: toy:1 has none"):
        HashProfile(Toy.algorithms["words"], Toy("1"), b"", 1)


def test_each_dialect_says_which_64_bits_its_engine_reports() -> None:
    (digest, *_) = BlockHasher(4, HashProfile.parse("toy:1")).hash_tokens(IDS)
    assert HashProfile.parse("toy:1").dialect.int64(digest) == -3488128144981237669  # SGLang's
    tail = int.from_bytes(digest[-8:], "big")
    for name in ("strict", "vllm:0.33"):
        assert HashProfile.parse(name).dialect.int64(digest) == tail


def test_the_command_line_takes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"token_ids": IDS})))
    assert main(["hash", "--profile", "toy:1", "--block-size", "4"]) == 0
    hashes = json.loads(capsys.readouterr().out)["block_hashes"]
    assert hashes == [digest.hex() for digest in toy_hashes(IDS)]
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["profiles"][-2:] == ["toy:1", "toy:2"]


def test_every_dialect_says_what_it_must() -> None:
    for kind in dialects.DIALECTS:
        for name in kind.names():
            dialect = kind.of(name.partition(":")[2])
            assert dialect.name == name
            assert pickle.loads(pickle.dumps(dialect)) == dialect
        assert kind.default_algorithm in kind.algorithms
        with pytest.raises(InvalidProfileError, match="version="):
            kind("none such")
    assert len({kind.engine for kind in dialects.DIALECTS}) == len(dialects.DIALECTS)


# --- no branch on a name --------------------------------------------------------------------------

ENGINES = tuple(kind.engine for kind in dialects.DIALECTS)
CLASSES = {kind.__name__ for kind in dialects.DIALECTS}
PREDICATES = {"startswith", "endswith", "removeprefix", "partition", "split", "get", "isinstance"}


def names_a_dialect(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        engine = node.value.partition(":")[0].partition("-")[0]
        return engine in ENGINES
    return isinstance(node, ast.Name) and node.id in CLASSES


def branches(source: str) -> Iterator[int]:
    """Lines where a value is compared with, or looked up by, a dialect's name or class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            parts = node.args if called in PREDICATES else []
        elif isinstance(node, (ast.Compare, ast.MatchValue, ast.MatchClass)):
            parts = [node]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        else:
            continue
        if any(names_a_dialect(inner) for part in parts for inner in ast.walk(part)):
            yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        "x = name == 'strict'",
        "if schema in ('vllm-0.31', 'other'): pass",
        "y = profile.name.startswith('vllm:')",
        "isinstance(d, Vllm)",
        "table = {'strict': 1}",
        "table['vllm']",
        "match name:\n    case 'vllm:0.33': pass",
    ],
)
def test_a_branch_on_a_dialects_name_is_seen(source: str) -> None:
    assert list(branches(source))


MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "dialects"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_outside_the_dialects_branches_on_one(path: Path) -> None:
    assert not list(branches(path.read_text(encoding="utf-8")))
