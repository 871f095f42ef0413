"""A review of the changes after bc33215, on the simulated cluster."""

from __future__ import annotations

import pytest

from airflow_provider_dpone.publication.history import _given_up
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import abandon
from tests.simulation.test_replica_staging import OwnSite


def test_an_operators_reason_stays_the_reason_when_publish_runs_after_it() -> None:
    site = OwnSite()
    staged = site.run()
    site.command(abandon)
    with pytest.raises(Stopped) as caught:
        site.publish(staged)
    assert caught.value.stop.code is Code.SUPERSEDED
    bodies = [(0, body) for of, body in site.trail.entries if of == staged.operation_id]
    why = _given_up(bodies)
    assert why is not None
    assert (why.code, why.reason) == (None, "test")
