"""All scenarios."""

from __future__ import annotations

from tests.scenarios import independent, killed, loads, machines, queue, swaps, targets
from tests.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *swaps.SCENARIOS,
    *killed.SCENARIOS,
    *queue.SCENARIOS,
    *machines.SCENARIOS,
    *targets.SCENARIOS,
    *loads.SCENARIOS,
    *independent.SCENARIOS,
)
QUICK: tuple[Scenario, ...] = tuple(scenario for scenario in SCENARIOS if scenario.quick)
"""One per class of outcomes, and two of independent tables, which run with all other tests."""
