"""Rules of the house that a reader of one module cannot see broken."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import prefixhash

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "prefixhash"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Which rooms a room may import, beside itself.
ROOMS = {
    "errors": set(),
    "_compiled": set(),
    "_tokens": {"_compiled", "errors"},
    "_request_fields": {"_tokens", "errors"},
    "request": {"_request_fields", "_tokens", "errors"},
    "hashing": {"_compiled", "_request_fields", "_tokens", "request", "errors"},
    "pool": {"_compiled", "errors"},
    "cache": {"hashing", "pool", "request", "errors"},
    "layout": {"errors"},
    "trace": {"_compiled", "cache", "pool", "hashing", "request", "layout", "errors"},
}
HASHERS = {"hashlib", "xxhash", "cbor2", "pickle"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    allowed = ROOMS.get(room)
    for name in imports(path):
        parts = name.split(".")
        if allowed is not None and parts[0] == "prefixhash":
            assert len(parts) > 1, f"{path.name} imports the package itself"
            assert parts[1] in allowed | {room}, f"{room} must not import {name}"
        if room != "hashing":
            assert parts[0] not in HASHERS, f"{name} belongs to hashing/"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_assert_guards_anything(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not lines


def test_import_is_light() -> None:
    code = (
        "import sys, json, prefixhash, prefixhash.cli.main; "
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "matplotlib", "PIL", "rich", "msgspec", "cbor2"}
    assert not heavy & set(json.loads(run.stdout))


def test_every_room_is_packaged() -> None:
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {str(p.parent.relative_to(ROOT)).replace("/", ".") for p in MODULES}
    assert set(project["tool"]["setuptools"]["packages"]) == packages
    assert project["project"]["version"] == prefixhash.__version__


def test_everything_exported_exists_and_is_documented() -> None:
    for name in prefixhash.__all__:
        value = getattr(prefixhash, name)
        assert name.startswith("__") or value.__doc__, name
