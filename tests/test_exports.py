"""The names at the top of the package: listed once for readers and once for type checkers."""

from __future__ import annotations

import ast
from pathlib import Path

import prefixhash
from prefixhash import errors, layout

SOURCE = Path(prefixhash.__file__).read_text(encoding="utf-8")


def _imported_for_type_checkers() -> set[str]:
    (block,) = (node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    return {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_lazy_names_are_those_that_type_checkers_see() -> None:
    assert _imported_for_type_checkers() == prefixhash._LAYOUT
    assert set(layout.__all__) >= prefixhash._LAYOUT
    for name in prefixhash._LAYOUT:
        assert getattr(prefixhash, name) is getattr(layout, name)


def test_all_layer_specs_and_errors_are_at_the_top() -> None:
    specs = {
        name
        for name in layout.__all__
        if isinstance(getattr(layout, name), type)
        and issubclass(getattr(layout, name), layout.LayerSpec)
    }
    # The bases are for those who write a kind of their own.
    assert specs - set(prefixhash.__all__) == {"AttentionSpec", "LayerSpec"}
    public = {name for name in vars(errors) if name.endswith("Error")}
    assert public <= set(prefixhash.__all__)


def test_all_is_what_dir_shows() -> None:
    assert set(prefixhash.__all__) <= set(dir(prefixhash))
