"""The rows of the kinds: what events call them, and that one row is all that a kind takes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import prefixhash
from prefixhash import BlockHasher, CacheGroup, InvalidArgumentError, PrefixCache, Request
from prefixhash.cache import kinds
from prefixhash.cache.kinds import KINDS, KVKind, find_kind
from prefixhash.cache.managers import SlidingWindowManager
from prefixhash.events import BlockStored

from ..vllm import run_with_vllm

PACKAGE = Path(prefixhash.__file__).parent
WIRE_NAMES = {
    "full_attention": "full_attention",
    "sink_full_attention": "sink_full_attention",
    "mla": "mla_attention",
    "hidden_state": "mla_attention",
    "sliding_window": "sliding_window",
    "sliding_window_mla": "sliding_window_mla",
    "chunked_local": "chunked_local_attention",
    "mamba": "mamba",
    "cross_attention": "cross_attention",
    "encoder_only": "encoder_only_attention",
}


def stored(group: CacheGroup) -> list[BlockStored]:
    """What a cache of this one group reports of a request of four blocks."""
    hasher = BlockHasher(16)
    cache = PrefixCache([group], 20, events=True, block_hasher=hasher, enable_caching=True)
    request = Request("r", range(64), block_hasher=hasher)
    cache.allocate(request, 64)
    cache.commit(request, 64)
    return [event for event in cache.take_events() if isinstance(event, BlockStored)]


def test_wire_names() -> None:
    assert {kind.names[0]: kind.wire_name for kind in KINDS} == WIRE_NAMES


def test_every_kind_is_called_in_events_what_vllm_calls_it() -> None:
    report = run_with_vllm(Path(__file__).with_name("vllm_kinds.py"))
    assert set(report["names"]) == set(WIRE_NAMES)
    for kind, (ours, theirs) in report["names"].items():
        assert ours == theirs, kind


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.manager.cacheable])
def test_events_name_the_kind_that_was_asked_for(kind: KVKind) -> None:
    group = CacheGroup(kind.names[-1], 16, window=40, chunk=64)
    (event,) = stored(group)
    assert event.kv_cache_spec_kind == kind.wire_name
    assert event.kv_cache_spec_sliding_window == (40 if "window" in kind.reach else None)


def test_latent_groups_find_what_groups_of_their_manager_find() -> None:
    groups = [CacheGroup("full_attention", 16), CacheGroup("mla", 16)]
    cache = PrefixCache(groups, 20)
    assert len(cache._search.kinds) == 1


def test_no_name_means_two_kinds_and_an_unknown_one_names_the_nearest() -> None:
    names = [name for kind in KINDS for name in kind.names]
    assert len(set(names)) == len(names)
    with pytest.raises(InvalidArgumentError, match="did you mean 'sliding_window'"):
        find_kind("sliding_windows")


def test_a_window_that_the_kind_lacks_is_left_out() -> None:
    assert CacheGroup("mla", 16, window=40) == CacheGroup("mla", 16)


def test_a_new_kind_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = KVKind(("toy",), "toy_on_the_wire", SlidingWindowManager, ("window", "toy_reach"))
    monkeypatch.setattr(kinds, "KINDS", (*KINDS, toy))
    (event,) = stored(CacheGroup("toy", 16, window=40))
    assert event.kv_cache_spec_kind == "toy_on_the_wire"
    assert event.kv_cache_spec_sliding_window == 40


def test_names_of_kinds_stand_in_one_place() -> None:
    """In docstrings and messages, yes; as values only in the table (layer specs have their own)."""
    names = {name for kind in KINDS for name in kind.names}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        if path.name == "kinds.py" or room == "layout":
            continue
        values = {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not values & names, path
