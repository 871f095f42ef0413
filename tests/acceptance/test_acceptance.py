"""Acceptance: the whole cycle and its usual troubles, the same on the local cluster and on stand-alone servers.

Nothing here uses what only the local cluster's gateway can do. What a swap was is read from the servers' own queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

import pytest

from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from tests.acceptance.docker import docker_cluster, why_not
from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.cluster.client import ClusterClient
from tests.cluster.spec import DATABASE_PREFIX
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query

pytestmark = pytest.mark.cluster

DAY: Final = 24 * 3600
PATIENT: Final = replace(QUICK, ready=60, publish=90)


@pytest.fixture(scope="module", params=["local", "docker"])
def servers(request: pytest.FixtureRequest) -> Iterator[ClusterClient]:
    if request.param == "local":
        yield request.getfixturevalue("cluster")
        return
    if reason := why_not():
        end = pytest.fail if os.environ.get("DPONE_REQUIRE_DOCKER") else pytest.skip
        end(f"the Docker profile did not run: {reason}")
    with docker_cluster() as running:
        yield running


@pytest.fixture
def site(servers: ClusterClient, tmp_path: Path) -> Iterator[RefreshSite]:
    database = f"{DATABASE_PREFIX}_{uuid4().hex[:8]}"
    servers.execute(f"CREATE DATABASE {database} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
    # The site asks for no more than what both kinds of cluster have.
    running = cast(LocalCluster, servers)
    yield RefreshSite(running, database, tmp_path / "evidence", (servers.endpoints[0],))
    servers.heal()
    servers.execute(f"DROP DATABASE {database} ON CLUSTER {CLUSTER_NAME} SYNC")


def swaps(site: RefreshSite) -> int:
    """How many entries of the queue swap tables of this site's database."""
    rows = site.cluster.queue_rows(site.database)
    words = ("EXCHANGE ", "RENAME ")
    return len({row["entry"] for row in rows if row["query"].lstrip().upper().startswith(words)})


def stopped(work: Callable[[], Any]) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


def test_a_table_is_created_replaced_kept_and_cleaned_up(site: RefreshSite) -> None:
    first = site.refresh(3, run="first")
    assert (first.statement, first.rows, first.state) == ("RENAME", 3, Phase.COMPLETED)
    second = site.refresh(9, run="second", retention=DAY)
    assert (second.statement, second.rows, second.state) == ("EXCHANGE", 9, Phase.COMPLETED_RETAINING)
    assert [(one.alias, one.queue, one.rows) for one in second.replicas] == [
        ("s1/r1", "finished", 9),
        ("s1/r2", "finished", 9),
    ]
    assert site.counts() == [9, 9]
    (kept,) = second.retained
    assert site.tables() == {"orders", kept.table}
    assert swaps(site) == 2


def test_a_retry_is_answered_from_the_record_and_nothing_is_sent_again(site: RefreshSite) -> None:
    staged = site.stage(rows_query(4))
    receipt = site.publish(staged)
    again = site.publish(staged)
    assert again == replace(receipt, replayed=True)
    assert swaps(site) == 1
    assert stopped(lambda: site.stage(rows_query(5))).code is Code.IDENTITY_REUSED


def test_what_may_not_go_live_is_refused_and_the_table_is_as_it_was(site: RefreshSite) -> None:
    site.refresh(8, run="second", order_key="2")
    assert (
        stopped(lambda: site.stage(rows_query(8), run="first", order_key="1")).code
        is Code.OLDER_THAN_PUBLISHED
    )
    staged = site.stage(rows_query(2), run="third", order_key="3")
    assert stopped(lambda: site.publish(staged, Guards(max_shrink=0.5))).code is Code.GUARD_MAX_SHRINK
    assert site.counts() == [8, 8]
    assert swaps(site) == 1


def test_a_replica_that_is_away_is_named_and_nothing_is_changed(site: RefreshSite) -> None:
    site.refresh(3, run="first")
    before = site.uuids()
    staged = site.stage(rows_query(9), run="second")
    site.cluster.stop_node(2)
    stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, ready=2)))
    assert stop.category in (Category.RETRYABLE, Category.NOT_OBSERVED)
    assert "s1/r2" in str(stop.message)
    site.cluster.start_node(2)
    site.cluster.heal()
    assert site.uuids() == before
    assert site.publish(staged, waits=PATIENT).rows == 9
    assert site.counts() == [9, 9]
    assert swaps(site) == 2


def test_without_keeper_nothing_is_changed_and_afterwards_it_goes_on(site: RefreshSite) -> None:
    site.refresh(3, run="first")
    staged = site.stage(rows_query(9), run="second")
    site.cluster.stop_zookeeper()
    stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, ready=2)))
    assert stop.category in (Category.RETRYABLE, Category.NOT_OBSERVED)
    site.cluster.start_zookeeper()
    site.cluster.heal()
    assert site.publish(staged, waits=PATIENT).rows == 9
    assert swaps(site) == 2
