"""Rules of the house that a reader of one module cannot see broken."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import prefixhash

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "prefixhash"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Which rooms a room imports, beside itself: exactly these, so that an edge nobody uses goes, too.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "_arguments": {"errors"},
    "_compiled": set(),
    "_source": {"errors"},
    "_units": {"_arguments", "errors"},
    "request": {"_arguments", "_compiled", "_source", "errors"},
    "hashing": {"_arguments", "_compiled", "errors", "request"},
    "events": {"_arguments", "_source", "errors"},
    "pool": {"_arguments", "_compiled", "errors", "events"},
    "cache": {"_arguments", "_compiled", "errors", "events", "pool"},
    "layout": {"_arguments", "errors"},
    "trace": {
        "_arguments",
        "_compiled",
        "_source",
        "_units",
        "cache",
        "errors",
        "hashing",
        "pool",
        "request",
    },
    "cli": {
        "_compiled",
        "_source",
        "_units",
        "errors",
        "events",
        "hashing",
        "layout",
        "package",
        "request",
        "trace",
    },
    "package": {"cache", "cli", "errors", "hashing", "layout", "pool", "request"},
}
HASHERS = {"hashlib", "xxhash", "cbor2", "pickle"}


def room_of(path: Path) -> str:
    """The folder or file of the package that a module belongs to; `package` for the top itself."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "package" if name in ("__init__", "__main__") else name


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            if module == "prefixhash":
                yield from (f"{module}.{alias.name}" for alias in node.names)
            else:
                yield module


def rooms_imported(path: Path) -> set[str]:
    """The other rooms that a module imports, at its top or inside a function."""
    found = set()
    for name in imports(path):
        package, *rest = name.split(".")
        if package == "prefixhash":
            found.add(rest[0] if rest and rest[0] in ROOMS else "package")
    return found - {room_of(path)}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_exactly_what_the_table_says(room: str) -> None:
    members = [path for path in MODULES if room_of(path) == room]
    assert members
    assert set().union(*map(rooms_imported, members)) == ROOMS[room]


def test_every_module_is_in_a_room_and_rooms_form_no_circle() -> None:
    assert {room_of(path) for path in MODULES} == set(ROOMS)
    below = {room: edges - {"package"} for room, edges in ROOMS.items() if room != "package"}
    tuple(TopologicalSorter(below).static_order())  # raises CycleError


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def modules_imported(path: Path, known: set[str]) -> Iterator[str]:
    """The modules that define what a module imports, seen through what packages pass on."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and (node.module or "") in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else definer(node.module or "", alias.name)


def definer(package: str, name: str) -> str:
    """The module from which a package takes the name, or the package itself."""
    path = PACKAGE.parent.joinpath(*package.split("."), "__init__.py")
    if path.exists():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and name in {item.name for item in node.names}:
                return definer(node.module or "", name)
    return package


def test_no_two_modules_import_each_other() -> None:
    """Not even for types alone, or inside a function. (Packages only pass names on.)"""
    paths = {module_name(path): path for path in MODULES}
    below = {
        name: set(modules_imported(path, set(paths))) - {name}
        for name, path in paths.items()
        if path.name not in ("__init__.py", "__main__.py") or "_compiled" in name
    }
    tuple(TopologicalSorter(below).static_order())  # raises CycleError


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_hashes_and_serialisers_stay_in_the_hashing_room(path: Path) -> None:
    if room_of(path) != "hashing":
        assert not HASHERS & {name.split(".")[0] for name in imports(path)}


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
