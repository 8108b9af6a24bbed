"""A few random histories for each layout, the same at every run; more by hand, see the module."""

from __future__ import annotations

import pytest

from .random_histories import RULES, run_history
from .test_stateful import LAYOUTS, CacheMachine


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_cache_does_what_the_naive_cache_does(layout: str) -> None:
    found = [run_history(layout, seed, steps=300) for seed in range(4)]
    assert sum(stats.requests for stats in found) > 30
    assert sum(stats.hits for stats in found) > 10


def test_every_rule_of_the_state_machine_is_drawn() -> None:
    marked = vars(CacheMachine).items()
    rules = {name for name, value in marked if hasattr(value, "hypothesis_stateful_rule")}
    assert rules == set(RULES)
