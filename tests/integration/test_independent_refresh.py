"""Independent tables on real servers: sealed once, loaded into every replica, published by one statement."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_dpone.publication.receipt import IndependentReceipt
from airflow_provider_dpone.publication.record import IndependentRecord, Phase
from tests.cluster import LocalCluster
from tests.integration.external_site import external_site
from tests.integration.independent_site import IndependentSite
from tests.integration.refresh_site import rows_query

pytestmark = pytest.mark.cluster


@pytest.fixture
def site(cluster: LocalCluster, tmp_path: Path) -> object:
    with external_site(cluster) as found:
        yield IndependentSite(cluster, found.database, tmp_path, (cluster.endpoints[0],))


def test_an_absent_target_is_published_by_one_rename(site: IndependentSite) -> None:
    staged = site.stage(rows_query(1000))
    assert site.uuids() == [None, None]
    record = site.record().record
    assert isinstance(record, IndependentRecord)
    assert record.phase is Phase.PREPARED
    receipt = site.publish(staged)
    assert isinstance(receipt, IndependentReceipt)
    assert receipt.statement == "RENAME"
    live = site.uuids()
    assert len({*live}) == 2
    assert [r.after.target for r in receipt.replicas] == live
    assert site.counts() == [1000, 1000]
    done = site.cleanup(staged).receipt
    assert done.state is Phase.COMPLETED
    assert site.tables() == {"orders"}
    assert site.swaps() == 1


def test_an_existing_target_is_published_by_one_exchange_and_its_predecessor_dropped(
    site: IndependentSite,
) -> None:
    site.refresh(10, run="first")
    old = site.uuids()
    staged = site.stage(rows_query(20), run="second")
    receipt = site.publish(staged)
    assert receipt.statement == "EXCHANGE"
    assert [r.before.target for r in receipt.replicas] == old
    assert [r.after.target for r in receipt.replicas] == site.uuids()
    assert site.uuids(staged.candidate) == old
    site.cleanup(staged)
    assert site.tables() == {"orders"}
    assert site.counts() == [20, 20]
