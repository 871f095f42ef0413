"""Every scenario on real servers, judged by one checker. ``--all-scenarios`` runs them all, else one per class."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import LocalCluster
from tests.scenarios.catalogue import QUICK, SCENARIOS
from tests.scenarios.fixtures import ALL, PROPERTY, a_database
from tests.scenarios.independent import MEASURED
from tests.scenarios.outcome import Outcome
from tests.scenarios.scenario import Scenario
from tests.scenarios.world import a_world, violations

CLASSES = (
    *(Outcome.COMMITTED, Outcome.ABORTED, Outcome.REFUSED, Outcome.RETRYABLE, Outcome.CONFLICT),
    *(Outcome.IN_PROGRESS, Outcome.NOT_OBSERVED, Outcome.CONTRADICTION, Outcome.PARTIAL_TERMINAL),
    Outcome.KILLED,
)
CASES = frozenset(
    [
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "9",
        "10",
        "12",
        "13",
        "14",
        "15",
        "17",
        "20",
        "22",
        "25",
        "26",
        "27",
        "28",
        "29",
        "30",
        "32",
        "33",
        "35",
        "36",
        "37",
        "38",
        "39",
        "40",
        "41",
        "42",
    ]
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scenario" in metafunc.fixturenames:
        chosen = SCENARIOS if metafunc.config.getoption(ALL) else QUICK
        # A larger cluster starts as late as possible: it costs the others time.
        ordered = sorted(chosen, key=lambda scenario: (scenario.replicas, scenario.own_cluster))
        metafunc.parametrize("scenario", ordered, ids=[scenario.name for scenario in ordered])


@pytest.mark.cluster
def test_a_scenario_ends_as_it_must(
    scenario: Scenario,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    started = time.monotonic()
    with ExitStack() as stack:
        cluster: LocalCluster
        if scenario.own_cluster:
            cluster = stack.enter_context(LocalCluster(replicas=scenario.replicas))
        else:
            cluster = request.getfixturevalue("cluster" if scenario.replicas == 2 else "cluster_of_three")
        database = stack.enter_context(a_database(cluster))
        world = stack.enter_context(
            a_world(cluster, database, tmp_path, balanced=scenario.balanced, independent=scenario.independent)
        )
        try:
            scenario.run(world)
        finally:
            # Whatever waits goes on, and whoever is down comes back.
            cluster.heal()
        found, exchanges = violations(world), world.site.swaps()
        assert all(reader.reads > 10 for reader in world.readers.values()), "nobody has read"
    assert not found, "\n".join(found)
    request.node.user_properties.append(
        (
            PROPERTY,
            json.dumps(
                {
                    "name": scenario.name,
                    "case": ", ".join(scenario.cases),
                    "outcome": world.seen[0].value,
                    "done": [step.text for step in scenario.steps],
                    "exchanges": exchanges,
                    "reads": sum(reader.reads for reader in world.readers.values()),
                    "independent": scenario.independent,
                    "kept": world.kept,
                    "seconds": round(time.monotonic() - started, 1),
                }
            ),
        )
    )


def test_one_quick_scenario_per_class() -> None:
    assert Counter(scenario.outcome for scenario in QUICK if not scenario.independent) == Counter(CLASSES)


def test_what_independent_tables_are_measured_by_is_quick() -> None:
    assert any(scenario.name.endswith(MEASURED) for scenario in QUICK if scenario.independent)


def test_every_reported_situation_of_this_route_has_a_scenario() -> None:
    covered = {case for scenario in SCENARIOS for case in scenario.cases}
    assert covered >= CASES
    assert len(SCENARIOS) == len({scenario.name for scenario in SCENARIOS}) >= 30
