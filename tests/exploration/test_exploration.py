"""Every interleaving of the quick scopes, judged by the oracle. A floor keeps the search from shrinking unseen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.exploration.explore import Exploration, Scope
from tests.exploration.scopes import QUICK

FLOORS = {
    "a fault anywhere, a replica runs its entry again": 12_000,
    "three replicas, one runs its entry again, one refuses": 7_500,
    "the target is absent before": 7_500,
    "replicas are read one after the other": 800,
    "the list of replicas changes": 7_500,
    "two workers publish": 49_000,
    "an operator abandons": 12_000,
    "an operator resolves": 35_000,
}
"""How many states each scope has at least."""


@pytest.mark.parametrize("scope", QUICK, ids=[scope.name for scope in QUICK])
def test_every_state_holds_the_invariants(
    scope: Scope, record_property: Callable[[str, object], None]
) -> None:
    result = Exploration(scope).run()
    assert result.complete
    assert result.states >= FLOORS[scope.name]
    record_property(
        "explored",
        f"{scope.name}: {result.states:,} states, {result.transitions:,} transitions, depth {result.depth}",
    )
