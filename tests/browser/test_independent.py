"""The page where every replica has a table of its own: half staged, then published; in the window of a reader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.airflow.bench import CONN_ID
from tests.airflow.harness import LocalAirflow
from tests.browser.chromium import Visitor
from tests.browser.conftest import Judge
from tests.browser.reading import ReceiptPage
from tests.browser.test_situations import photograph
from tests.cluster import INDEPENDENT_CLUSTER_NAME, LocalCluster
from tests.integration.external_site import external_site
from tests.integration.independent_site import IndependentSite
from tests.integration.test_independent_ways import half_staged

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]


@pytest.fixture
def independent(connected_airflow: LocalAirflow, cluster: LocalCluster) -> Iterator[IndependentSite]:
    """Workers whose evidence and connection are those of the one Airflow."""
    evidence = connected_airflow.home / "dpone" / "evidence"
    with external_site(cluster) as found:
        yield IndependentSite(cluster, found.database, evidence, (cluster.endpoints[0],), conn_id=CONN_ID)


def receipt_of(visitor: Visitor, operation: str) -> ReceiptPage:
    path = f"/dpone/dags/dag/operations/{operation}/{INDEPENDENT_CLUSTER_NAME}?still=true"
    assert visitor.open(path).status == 200
    return ReceiptPage(visitor.page)


def test_half_staged(visitor: Visitor, judge: Judge, independent: IndependentSite) -> None:
    """One replica is ready, the other one's load never arrived, and its task is dead: nothing is live yet."""
    record = half_staged(independent)
    receipt = receipt_of(visitor, record.operation_id)
    assert receipt.verdict == "Staging"
    assert "Its rows are sealed, and ready on s1/r1 of 2 replicas. Nothing was sent." in receipt.what
    assert receipt.safe.startswith("Not affected")
    assert "it goes on from what is proven" in receipt.next
    assert "Abandon it" in receipt.next
    assert receipt.steps["Source sealed, replicas loaded"] == "here now"
    first, second = (receipt.replicas[alias] for alias in ("s1/r1", "s1/r2"))
    assert first["Content"] == "ready: equal to what was sealed"
    assert second["Content"] == "claimed: not compared"
    assert second["Candidate"] == "absent"
    assert {row["Readers see"] for row in (first, second)} == {"as it was when locked"}
    assert {row["Queue entry"] for row in (first, second)} == {"nothing was sent"}
    live = independent.uuids()
    assert [row["Target"].split()[1] for row in (first, second)] == [str(uuid)[:8] for uuid in live]
    assert any(one.startswith("airflow dpone abandon") for one in receipt.commands)
    assert all(INDEPENDENT_CLUSTER_NAME in one for one in receipt.commands)
    judge()
    photograph(visitor, "half-staged")


def test_published(visitor: Visitor, judge: Judge, independent: IndependentSite) -> None:
    """Each replica shows its own table's identity."""
    independent.refresh(7, run="first")
    record = independent.record().record
    receipt = receipt_of(visitor, record.operation_id)
    assert receipt.verdict == "Published"
    assert "proven on every replica" in receipt.what
    rows = [receipt.replicas[alias] for alias in ("s1/r1", "s1/r2")]
    assert [row["Target"].split()[1] for row in rows] == [str(uuid)[:8] for uuid in independent.uuids()]
    assert len({row["Target"] for row in rows}) == 2
    assert {(row["Readers see"], row["Content"], row["Rows"]) for row in rows} == {
        ("new data is live", "equal", "7")
    }
    judge()
    photograph(visitor, "independent")
