"""Independent tables on real servers: sealed once, loaded into every replica, published by one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dpone.publication.receipt import IndependentReceipt
from airflow_provider_dpone.publication.record import IndependentRecord, Phase, StageState
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from tests.cluster import LocalCluster
from tests.integration.external_site import external_site
from tests.integration.independent_site import IndependentSite
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query

pytestmark = pytest.mark.cluster

LOAD = r"^\s*INSERT INTO .* FORMAT Native"
SOURCE = r"^\s*INSERT INTO .*numbers"
CREATE = r"^\s*CREATE TABLE .*__dpone_"
PROMOTE = r"^\s*RENAME TABLE .*__dpone_.* TO .*__dpone_"
SWAP = r"^\s*(EXCHANGE|RENAME)\b.* ON CLUSTER "


@pytest.fixture
def site(cluster: LocalCluster, tmp_path: Path) -> Iterator[IndependentSite]:
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


def stopped(work: Callable[[], Any]) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


def staging(site: IndependentSite) -> IndependentRecord:
    record = site.record().record
    assert isinstance(record, IndependentRecord)
    return record


def test_a_lost_load_reply_is_found_loaded_by_the_retry_and_nothing_is_loaded_twice(
    site: IndependentSite,
) -> None:
    """The outcome that this route is measured by: no duplicate row, no false success, one generation everywhere."""
    site.refresh(5, run="first")
    site.since = site.cluster.last_statement()
    fault = site.cluster.drop_response(1, LOAD)
    stop = stopped(lambda: site.stage(rows_query(1000), run="second"))
    assert fault.hits == 1
    assert stop.category is Category.RETRYABLE
    record = staging(site)
    assert record.phase is Phase.STAGING
    assert {stage.alias: stage.state for stage in record.stages} == {
        "s1/r1": StageState.CLAIMED,
        "s1/r2": StageState.READY,
    }
    assert site.counts() == [5, 5]
    staged = site.stage(rows_query(1000), run="second")
    assert staged.rows == 1000
    receipt = site.publish(staged)
    assert site.publish(staged).replayed
    site.cleanup(staged)
    assert site.counts() == [1000, 1000]
    assert [r.after.target for r in receipt.replicas] == site.uuids()
    assert len(site.sent(SOURCE)) == 1, "the source is read once"
    assert len(site.sent(LOAD)) == 2, "no replica is loaded twice"
    assert site.swaps() == 1
    assert site.tables() == {"orders"}


def test_a_load_that_never_arrived_is_left_behind_and_built_anew_under_another_name(
    site: IndependentSite,
) -> None:
    site.cluster.refuse(2, LOAD)
    assert stopped(lambda: site.stage(rows_query(100))).category is Category.RETRYABLE
    before = staging(site).stage_of("s1/r2")
    assert before is not None
    staged = site.stage(rows_query(100))
    record = staging(site)
    assert record.phase is Phase.PREPARED
    assert before.name in {item.name for item in record.retained}
    site.publish(staged)
    site.cleanup(staged)
    assert site.counts() == [100, 100]
    assert site.tables() == {"orders"}


def test_a_lost_reply_of_the_rename_is_seen_in_the_tables(site: IndependentSite) -> None:
    fault = site.cluster.drop_response(2, PROMOTE)
    staged = site.stage(rows_query(7))
    assert fault.hits == 1
    assert len(site.sent(PROMOTE)) == 2
    site.publish(staged)
    assert site.counts() == [7, 7]


def test_a_lost_reply_of_a_create_stops_and_the_retry_takes_another_name(site: IndependentSite) -> None:
    fault = site.cluster.drop_response(2, CREATE)
    stop = stopped(lambda: site.stage(rows_query(7)))
    assert (fault.hits, stop.code) == (1, Code.STAGING_UNKNOWN)
    staged = site.stage(rows_query(7))
    site.publish(staged)
    site.cleanup(staged)
    assert site.counts() == [7, 7]
    assert site.tables() == {"orders"}


def test_live_tables_that_differ_are_refused_before_the_source_is_read(site: IndependentSite) -> None:
    site.refresh(5, run="first")
    site.cluster.execute(f"INSERT INTO {site.database}.orders VALUES (99, 'more')", node=2)
    site.since = site.cluster.last_statement()
    stop = stopped(lambda: site.stage(rows_query(7), run="second"))
    assert stop.code is Code.TARGET_NOT_UNIFORM
    assert {alias: facts["rows"] for alias, facts in stop.replicas.items()} == {"s1/r1": 5, "s1/r2": 6}
    assert not site.sent(SOURCE)
    assert staging(site).phase is Phase.ABORTED
    assert site.tables() == {"orders"}


def test_a_source_that_fails_leaves_the_target_locked_and_the_retry_goes_on(site: IndependentSite) -> None:
    fault = site.cluster.answer_error(1, SOURCE, 241)
    stop = stopped(lambda: site.stage(rows_query(7)))
    assert (fault.hits, stop.category) == (1, Category.RETRYABLE)
    assert staging(site).phase is Phase.LOCKED
    other = stopped(lambda: site.stage(rows_query(8), dag="another"))
    assert other.code is Code.TARGET_BUSY
    assert other.facts["phase"] == "LOCKED"
    staged = site.stage(rows_query(7))
    site.publish(staged)
    site.cleanup(staged)
    assert site.tables() == {"orders"}


def test_a_later_run_of_the_same_dag_takes_the_place_of_one_that_died_while_staging(
    site: IndependentSite,
) -> None:
    site.cluster.refuse(2, LOAD)
    stopped(lambda: site.stage(rows_query(7), run="dead"))
    assert staging(site).phase is Phase.STAGING
    staged = site.stage(rows_query(9), run="next")
    site.publish(staged)
    site.cleanup(staged)
    assert site.counts() == [9, 9]
    assert site.tables() == {"orders"}


def test_a_lost_reply_of_the_swap_is_reconciled_by_each_replicas_own_uuid(site: IndependentSite) -> None:
    site.refresh(5, run="first")
    staged = site.stage(rows_query(9), run="second")
    fault = site.cluster.drop_response(1, SWAP)
    receipt = site.publish(staged)
    assert fault.hits == 1
    assert not receipt.replayed
    assert site.counts() == [9, 9]
    assert site.swaps() == 2


def test_a_terminal_error_on_one_replica_is_partial_terminal(site: IndependentSite) -> None:
    site.refresh(5, run="first")
    staged = site.stage(rows_query(9), run="second")
    site.cluster.fail_execution(2, SWAP)
    stop = stopped(lambda: site.publish(staged))
    assert stop.code is Code.PARTIAL_TERMINAL
    assert {alias: facts["state"] for alias, facts in stop.replicas.items()} == {
        "s1/r1": "committed",
        "s1/r2": "pending",
    }
    assert site.counts() == [9, 5]


def test_the_mode_has_to_be_the_clusters(site: IndependentSite, tmp_path: Path) -> None:
    wrong = RefreshSite(
        site.cluster, site.database, tmp_path, site.endpoints, cluster_name=site.cluster_name, table="other"
    )
    assert stopped(lambda: wrong.stage(rows_query(1))).code is Code.REPLICATION_MODE_MISMATCH
    wrong = IndependentSite(site.cluster, site.database, tmp_path, site.endpoints, cluster_name="analytics")
    assert stopped(lambda: wrong.stage(rows_query(1))).code is Code.REPLICATION_MODE_MISMATCH


def test_a_candidate_that_somebody_wrote_to_is_not_published(site: IndependentSite) -> None:
    staged = site.stage(rows_query(7))
    site.cluster.execute(
        f"ALTER TABLE {site.database}.{staged.candidate} UPDATE name = 'x' WHERE id = 1 SETTINGS "
        "mutations_sync = 2",
        node=2,
    )
    stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, ready=2)))
    assert stop.code is Code.CONTENT_DIFFERS
    assert stop.replicas["s1/r2"]["content_match"] is False
    assert site.swaps() == 0
