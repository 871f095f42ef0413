"""Every interleaving of the quick scopes, judged by the oracle. A floor keeps the search from shrinking unseen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.exploration.explore import Scope
from tests.exploration.scopes import QUICK, hunting
from tests.proof.oracle import Broken
from tests.simulation.mutants import MUTANTS

FLOORS = {
    "a fault anywhere, a replica runs its entry again": 15_000,
    "three replicas, one runs its entry again, one refuses": 10_000,
    "the target is absent before": 10_000,
    "replicas are read one after the other": 1_200,
    "the list of replicas changes": 9_000,
    "two workers publish": 90_000,
    "an operator abandons": 13_000,
    "an operator resolves": 45_000,
    "independent: a fault anywhere": 2_000,
    "independent: a try and its retry at once": 7_000,
    "independent: an operator abandons, replicas are read one after the other": 5_500,
    "independent: each replica in its thread": 250,
}
"""How many states each scope has at least."""


@pytest.mark.parametrize("scope", QUICK, ids=[scope.name for scope in QUICK])
def test_every_state_holds_the_invariants(
    scope: Scope, record_property: Callable[[str, object], None]
) -> None:
    result = scope.explore()
    assert result.complete
    assert result.states >= FLOORS[scope.name]
    record_property(
        "explored",
        f"{scope.name}: {result.states:,} states, {result.transitions:,} transitions, depth {result.depth}",
    )


@pytest.mark.parametrize(
    "name",
    [
        "swap_again_after_a_timeout",
        "trust_the_queue",
        "treat_a_null_code_as_zero",
        "rename_before_it_is_claimed",
        "bind_without_comparing_the_live_tables",
    ],
)
def test_exploration_catches_a_planted_bug(name: str) -> None:
    def hunt() -> None:
        for scope in hunting(name):
            scope.explore(60_000)

    with MUTANTS[name](), pytest.raises(Broken):
        hunt()
