"""One Airflow, one cluster, one browser, and a visitor who has logged in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser

from tests.airflow.bench import CONN_ID
from tests.airflow.conftest import airflow_env, bench, connected_airflow, metrics_received
from tests.airflow.harness import LocalAirflow
from tests.browser import judging
from tests.browser.chromium import Visitor, chromium
from tests.browser.record import JUDGED
from tests.cluster import LocalCluster
from tests.integration.refresh_site import RefreshSite

__all__ = ["airflow_env", "bench", "connected_airflow", "metrics_received"]

Judge = Callable[[], None]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def _window(browser: Browser, connected_airflow: LocalAirflow) -> Iterator[Visitor]:
    with Visitor(browser, connected_airflow.url) as visitor:
        visitor.log_in("viewer")
        yield visitor


@pytest.fixture
def visitor(_window: Visitor) -> Iterator[Visitor]:
    """Somebody who may read DAGs, but not the secret ones; whatever they did, nothing was to be complained about."""
    _window.begin()
    yield _window
    _window.assert_quiet()


@pytest.fixture
def judge(visitor: Visitor, record_property: Callable[[str, object], None]) -> Judge:
    """Judges what the visitor's window shows, and says in the results how often that was."""
    return lambda: record_property(JUDGED, judging.judge(visitor.page))


@pytest.fixture
def site(connected_airflow: LocalAirflow, cluster: LocalCluster, database: str) -> RefreshSite:
    """Workers whose evidence and connection are those of the one Airflow."""
    evidence = connected_airflow.home / "dpone" / "evidence"
    return RefreshSite(cluster, database, evidence, (cluster.endpoints[0],), conn_id=CONN_ID)


@contextmanager
def api_server_with(airflow: LocalAirflow, **env: str) -> Iterator[None]:
    """Another configuration of the api-server, for a while. Sessions stay: they are in no server's memory."""
    before = dict(airflow.env)
    try:
        airflow.env.update(env)
        airflow.kill("api-server")
        airflow.start("api-server")
        yield
    finally:
        airflow.env.clear()
        airflow.env.update(before)
        airflow.kill("api-server")
        airflow.start("api-server")
