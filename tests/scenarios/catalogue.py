"""All scenarios."""

from __future__ import annotations

from tests.scenarios import killed, loads, machines, queue, swaps, targets
from tests.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *swaps.SCENARIOS,
    *killed.SCENARIOS,
    *queue.SCENARIOS,
    *machines.SCENARIOS,
    *targets.SCENARIOS,
    *loads.SCENARIOS,
)
QUICK: tuple[Scenario, ...] = tuple(scenario for scenario in SCENARIOS if scenario.quick)
"""One per class of outcomes, which run with all other tests."""
