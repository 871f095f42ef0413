"""What a review tried on real servers with independent tables: empty sources, rows deleted in place, doubled tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.publication.record import IndependentRecord, Phase
from airflow_provider_dpone.publication.stop import Stopped
from airflow_provider_dpone.routes.cluster_refresh import OperatorRequest, rollback
from tests.cluster import LocalCluster
from tests.integration.external_site import external_site
from tests.integration.independent_site import IndependentSite
from tests.integration.refresh_site import QUICK, rows_query

pytestmark = pytest.mark.cluster


@pytest.fixture
def site(cluster: LocalCluster, tmp_path: Path) -> Iterator[IndependentSite]:
    with external_site(cluster) as found:
        yield IndependentSite(cluster, found.database, tmp_path, (cluster.endpoints[0],))


def test_an_empty_source_is_one_generation_on_every_replica(site: IndependentSite) -> None:
    staged = site.stage(rows_query(0))
    site.publish(staged, guards=Guards(allow_empty=True))
    assert site.counts() == [0, 0]
    assert len({*site.uuids()}) == 2


def test_a_source_that_fails_again_and_again_leaves_one_table_at_most(site: IndependentSite) -> None:
    for _ in range(3):
        site.cluster.answer_error(1, r"^\s*INSERT INTO .*numbers", 241)
        with pytest.raises(Stopped):
            site.stage(rows_query(7))
        assert len(site.tables()) == 1
    site.publish(site.stage(rows_query(7)))
    assert site.counts() == [7, 7]


def test_a_predecessor_from_which_rows_were_deleted_is_rolled_back_to(site: IndependentSite) -> None:
    """The server counts rows that a lightweight DELETE only masks; the content check doesn't."""
    site.refresh(10, run="first")
    for node in site.cluster.nodes:
        site.cluster.execute(f"DELETE FROM {site.database}.orders WHERE id = 3", node=node)
    staged = site.stage(rows_query(20), run="second", retention=3600)
    site.publish(staged)
    site.cleanup(staged)
    assert site.record().record.phase is Phase.COMPLETED_RETAINING
    with site.worker("operator") as (ports, _):
        done = rollback(ports, site.site, OperatorRequest("a test", operation=staged.operation_id), QUICK)
    assert done.rows == 9
    assert site.counts() == [9, 9]
    assert isinstance(site.record().record, IndependentRecord)
