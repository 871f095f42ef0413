"""The whole route on real servers: what the protocol promises, with replies cut and replicas away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dpone.publication.decide import Guards
from airflow_provider_dpone.publication.receipt import PublicationReceipt, StageReceipt
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from tests.cluster import LocalCluster, QueueStatus
from tests.cluster.client import wait_until
from tests.integration.control import create_table
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query

pytestmark = pytest.mark.cluster

SWAP = r"^\s*(EXCHANGE|RENAME)\b"
CAS = r"^\s*ALTER TABLE .*authority_v1.* UPDATE"


@pytest.fixture
def site(cluster: LocalCluster, database: str, tmp_path: Path) -> RefreshSite:
    return RefreshSite(cluster, database, tmp_path, (cluster.endpoints[0],))


def stopped(work: Callable[[], Any]) -> Stop:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


def existing(site: RefreshSite, rows: int = 3, *, published: bool = False) -> str:
    """A table, so that the next publication is an EXCHANGE. Returns the live UUID.

    :param published: a refresh has made it, so that it has a record; else it is there, as tables are before their
        first refresh, which takes a third of the time.
    """
    if published:
        site.refresh(rows, run="first")
    else:
        create_table(site.cluster, site.database, site.table, rows)
    uuid = site.uuids()[0]
    assert uuid is not None
    site.since = site.cluster.last_statement()
    return uuid


def test_an_absent_target_is_published_by_one_rename(site: RefreshSite) -> None:
    staged = site.stage(rows_query(10))
    assert site.uuids() == [None, None]
    receipt = site.publish(staged)
    assert receipt.statement == "RENAME"
    assert site.uuids() == [staged.candidate_uuid] * 2
    assert site.counts() == [10, 10]
    done = site.cleanup(staged).receipt
    assert isinstance(done, PublicationReceipt)
    assert done.state is Phase.COMPLETED
    assert site.tables() == {"orders"}
    assert site.swaps() == 1


def test_an_existing_target_is_published_by_one_exchange_and_its_predecessor_dropped(
    site: RefreshSite,
) -> None:
    old = existing(site, published=True)
    staged = site.stage(rows_query(20), run="second")
    receipt = site.publish(staged)
    assert receipt.statement == "EXCHANGE"
    assert [r.before.target for r in receipt.replicas] == [old, old]
    assert [r.after.target for r in receipt.replicas] == [staged.candidate_uuid] * 2
    assert site.uuids(staged.candidate) == [old, old]
    site.cleanup(staged)
    assert site.tables() == {"orders"}
    assert site.counts() == [20, 20]
    assert site.swaps() == 1


def test_the_slot_is_reused_over_many_runs_with_one_record(site: RefreshSite) -> None:
    for n in range(1, 5):
        receipt = site.refresh(n, run=f"run{n}")
        assert site.counts() == [n, n]
    record = site.record().record
    assert record.phase is Phase.COMPLETED
    assert record.operation_id == receipt.operation_id
    assert len(record.settled) == 3
    assert site.tables() == {"orders"}


def test_behind_a_load_balancer_that_changes_replica_per_request(site: RefreshSite) -> None:
    site.endpoints = (site.cluster.load_balancer,)
    site.refresh(5, run="one")
    site.refresh(6, run="two")
    assert site.counts() == [6, 6]
    assert {statement.node for statement in site.sent("")} == {1, 2}
    assert site.swaps() == 2


def test_an_empty_source_is_refused_unless_allowed(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(0), run="second")
    assert stopped(lambda: site.publish(staged)).code is Code.GUARD_EMPTY
    assert site.counts() == [3, 3]
    receipt = site.publish(staged, Guards(allow_empty=True))
    assert receipt.rows == 0
    assert site.counts() == [0, 0]


def test_guards_are_refused_before_the_dispatch_with_the_numbers(site: RefreshSite) -> None:
    existing(site, rows=100)
    staged = site.stage(rows_query(50), run="second")
    stop = stopped(lambda: site.publish(staged, Guards(min_rows=60)))
    assert (stop.code, stop.facts["rows"], stop.facts["min_rows"]) == (Code.GUARD_MIN_ROWS, 50, 60)
    stop = stopped(lambda: site.publish(staged, Guards(max_shrink=0.3)))
    assert stop.code is Code.GUARD_MAX_SHRINK
    assert "50.0%" in stop.message
    assert site.swaps() == 0
    assert site.publish(staged, Guards(max_shrink=0.5)).rows == 50


# Lost replies, lost workers.


@pytest.mark.parametrize("first", [True, False], ids=["rename", "exchange"])
def test_a_lost_reply_of_the_swap_is_reconciled_and_nothing_is_sent_again(
    site: RefreshSite, first: bool
) -> None:
    if not first:
        existing(site)
    staged = site.stage(rows_query(9), run="second")
    fault = site.cluster.drop_response(1, SWAP)
    receipt = site.publish(staged)
    assert fault.hits == 1
    assert not receipt.replayed
    assert site.counts() == [9, 9]
    assert site.swaps() == 1
    assert site.publish(staged).replayed
    assert site.swaps() == 1


def test_a_swap_that_was_cut_before_it_ran_is_never_sent_again(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.refuse(1, SWAP)
    short = replace(QUICK, publish=1)
    stop = stopped(lambda: site.publish(staged, waits=short))
    assert stop.code is Code.ENTRY_NOT_SEEN
    assert stopped(lambda: site.publish(staged, waits=short)).code is Code.ENTRY_NOT_SEEN
    assert site.record().record.phase is Phase.DISPATCHING
    assert site.counts() == [3, 3]
    assert site.tables() == {"orders", staged.candidate}


def test_a_committed_claim_whose_reply_is_lost_gives_no_permit_and_the_next_try_goes_on(
    site: RefreshSite,
) -> None:
    existing(site, published=True)
    staged = site.stage(rows_query(9), run="second")
    fault = site.cluster.drop_response(1, CAS)
    stop = stopped(lambda: site.publish(staged))
    assert stop.code is Code.CAS_OUTCOME_UNKNOWN
    assert stop.category is Category.RETRYABLE
    assert fault.hits == 1
    assert site.record().record.phase is Phase.DISPATCHING
    assert site.swaps() == 0
    assert len([s for s in site.sent(CAS) if "DISPATCHING" in s.text]) == 1
    receipt = site.publish(staged)
    assert site.swaps() == 1
    assert receipt.epoch == site.record().record.dispatch_epoch
    assert site.counts() == [9, 9]


def test_a_refused_claim_gives_no_permit_and_the_next_try_goes_on(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.refuse(1, CAS)
    assert stopped(lambda: site.publish(staged)).category is Category.RETRYABLE
    assert site.record().record.phase is Phase.PREPARED
    site.publish(staged)
    assert site.swaps() == 1


def test_two_racing_workers_send_one_swap(site: RefreshSite) -> None:
    existing(site, published=True)
    staged = site.stage(rows_query(9), run="second")
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(site.publish(staged))
        except Stopped as caught:
            results.append(caught.stop)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=180)
    assert len(results) == 4
    assert site.swaps() == 1
    assert site.counts() == [9, 9]
    assert any(isinstance(result, PublicationReceipt) for result in results)
    for result in results:
        if isinstance(result, Stop):
            assert result.category is Category.RETRYABLE, result


def test_a_lost_reply_of_the_cleanup_is_reconciled(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.publish(staged)
    fault = site.cluster.drop_response(1, r"^\s*DROP TABLE")
    done = site.cleanup(staged)
    assert fault.hits == 1
    assert isinstance(done.receipt, PublicationReceipt)
    assert done.receipt.state is Phase.COMPLETED
    assert site.tables() == {"orders"}


# Replicas that are late, fail, or repeat.


def test_a_paused_replica_is_waited_for_and_the_original_entry_converges(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.pause_worker(2)
    stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=4)))
    assert stop.code is Code.PARTIAL_IN_PROGRESS
    assert stop.replicas["s1/r1"]["state"] == "committed"
    assert stop.replicas["s1/r2"]["state"] == "pending"
    record = site.record().record
    assert record.phase is Phase.BOUND
    assert record.publication is not None
    assert site.counts() == [9, 3]
    site.cluster.resume_worker(2)
    receipt = site.publish(staged)
    assert receipt.entry == record.publication.entry
    assert site.counts() == [9, 9]
    assert site.swaps() == 1


def test_a_terminal_error_on_one_replica_is_partial_terminal_and_both_generations_are_kept(
    site: RefreshSite,
) -> None:
    old = existing(site, published=True)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.fail_execution(2, SWAP)
    for _ in range(2):
        stop = stopped(lambda: site.publish(staged))
        assert stop.code is Code.PARTIAL_TERMINAL
        assert stop.replicas["s1/r1"] == {"state": "committed", "queue": "finished", "exception_code": 0}
        assert stop.replicas["s1/r2"]["state"] == "pending"
        assert stop.replicas["s1/r2"]["queue"] == "failed"
    assert site.record().record.phase is Phase.TERMINAL
    assert site.uuids() == [staged.candidate_uuid, old]
    assert site.uuids(staged.candidate) == [old, staged.candidate_uuid]
    assert stopped(lambda: site.cleanup(staged)).code is Code.NOT_COMMITTED
    busy = stopped(lambda: site.stage(rows_query(1), run="third"))
    assert busy.code is Code.TARGET_BUSY
    assert busy.facts["phase"] == "TERMINAL"
    assert site.swaps() == 1


def test_a_replica_that_swapped_back_after_a_crash_is_seen_though_the_queue_says_success(
    site: RefreshSite,
) -> None:
    old = existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.crash_worker_before_mark(2, SWAP)
    stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=8)))
    if stop.category is Category.IN_PROGRESS:
        site.cluster.restart_worker(2)
        stop = stopped(lambda: site.publish(staged))
    assert stop.code is Code.PARTIAL_TERMINAL
    assert {facts["exception_code"] for facts in stop.replicas.values()} == {0}
    assert site.uuids() == [staged.candidate_uuid, old]
    assert site.uuids(staged.candidate) == [old, staged.candidate_uuid]


def test_a_replica_away_before_the_dispatch_stops_before_anything_is_changed(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.kill_node(2)
    try:
        stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, ready=2)))
        assert stop.code is Code.REPLICA_UNAVAILABLE
        assert "s1/r2" in stop.message
        assert site.swaps() == 0
        stop = stopped(lambda: site.stage(rows_query(9), run="third"))
        assert stop.code is Code.REPLICA_UNAVAILABLE
    finally:
        site.cluster.start_node(2)
    site.publish(staged)
    assert site.counts() == [9, 9]


# The queue.


def test_an_unreadable_queue_status_waits_and_never_reaches_cleanup(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.pause_worker(2)
    stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
    publication = site.record().record.publication
    assert publication is not None
    assert publication.entry is not None
    unreadable: tuple[QueueStatus | None, ...] = (QueueStatus.REMOVING, QueueStatus.UNKNOWN, None)
    for status in unreadable:
        site.cluster.report_queue_row(staged.candidate, node=2, status=status)
        site.cluster.resume_worker(2)
        stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
        assert stop.code is Code.ENTRY_UNREADABLE, status
        assert stopped(lambda: site.cleanup(staged)).code is Code.NOT_COMMITTED, status
    site.cluster.heal()
    assert site.publish(staged).entry == publication.entry


def test_two_entries_with_one_token_hold_and_none_is_selected(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.pause_worker(2)
    stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
    publication = site.record().record.publication
    assert publication is not None
    assert publication.entry is not None
    site.cluster.duplicate_queue_entry(publication.entry)
    stop = stopped(lambda: site.publish(staged))
    assert stop.code is Code.ENTRY_AMBIGUOUS
    assert stop.category is Category.CONTRADICTION


def test_an_entry_that_the_queue_forgot_is_not_taken_as_failed_or_done(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.pause_worker(2)
    stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
    publication = site.record().record.publication
    assert publication is not None
    assert publication.entry is not None
    site.cluster.resume_worker(2)
    wait_finished(site, publication.entry)
    site.cluster.remove_queue_entry(publication.entry)
    stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=1)))
    assert stop.code is Code.ENTRY_NOT_SEEN
    assert publication.entry in stop.message
    assert site.tables() == {"orders", staged.candidate}


def wait_finished(site: RefreshSite, entry: str) -> None:
    wait_until(
        lambda: {row["status"] for row in site.cluster.queue_rows() if row["entry"] == entry} == {"Finished"}
    )


# What moves in between.


def test_a_target_that_was_replaced_after_staging_is_not_overwritten_and_the_candidate_is_dropped(
    site: RefreshSite,
) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    other = f"{site.database}.other"
    site.cluster.execute(
        f"CREATE TABLE {other} ON CLUSTER analytics AS {site.database}.orders ENGINE = "
        "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}') ORDER BY id"
    )
    site.cluster.execute(f"EXCHANGE TABLES {other} AND {site.database}.orders ON CLUSTER analytics")
    site.since = site.cluster.last_statement()
    stop = stopped(lambda: site.publish(staged))
    assert stop.code is Code.TARGET_MOVED
    assert stop.category is Category.REFUSED
    assert site.swaps() == 0
    assert site.record().record.phase is Phase.ABORTED
    assert staged.candidate not in site.tables()
    assert site.refresh(7, run="third").state is Phase.COMPLETED


def test_a_migration_after_staging_is_not_undone(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.execute(
        f"ALTER TABLE {site.database}.orders ON CLUSTER analytics ADD COLUMN extra UInt8",
        settings={"alter_sync": "2"},
    )
    assert stopped(lambda: site.publish(staged)).code is Code.TARGET_MOVED
    assert site.counts() == [3, 3]


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO {} VALUES (1, 'more')", "ALTER TABLE {} DELETE WHERE id = 0 SETTINGS mutations_sync = 2"],
    ids=["more rows", "fewer rows"],
)
def test_a_candidate_whose_content_changed_is_not_published(site: RefreshSite, statement: str) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.execute(statement.format(staged.candidate_sql))
    stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, ready=2)))
    assert stop.code is Code.CONTENT_DIFFERS
    assert site.swaps() == 0


def test_a_changed_row_with_equal_counts_is_not_published(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    site.cluster.execute(
        f"ALTER TABLE {staged.candidate_sql} UPDATE name = 'changed' WHERE id = 3 SETTINGS mutations_sync = 2"
    )
    assert stopped(lambda: site.publish(staged)).code is Code.CONTENT_DIFFERS


def test_a_slow_run_never_overwrites_a_newer_one_that_finished_meanwhile(site: RefreshSite) -> None:
    existing(site, published=True)
    old = site.stage(rows_query(5), run="old", order_key="2026-01-01")
    new = site.stage(rows_query(9), run="new", order_key="2026-01-02")
    site.publish(new)
    site.cleanup(new)
    stop = stopped(lambda: site.publish(old))
    assert stop.code is Code.SUPERSEDED
    assert site.counts() == [9, 9]
    stop = stopped(lambda: site.stage(rows_query(5), run="older", order_key="2026-01-01"))
    assert stop.code is Code.OLDER_THAN_PUBLISHED
    assert site.tables() == {"orders"}


# Identity.


def test_a_second_try_of_stage_resumes_and_reads_nothing_again(site: RefreshSite) -> None:
    first = site.stage(rows_query(9))
    loads = r"^\s*INSERT INTO `mart\w+`\.`\w+__dpone_"
    inserts = len(site.sent(loads))
    second = site.stage(rows_query(9))
    assert second.resumed
    assert second.candidate == first.candidate
    assert len(site.sent(loads)) == inserts == 1


def test_a_changed_plan_supersedes_what_was_never_dispatched_and_drops_it(site: RefreshSite) -> None:
    first = site.stage(rows_query(9))
    second = site.stage(rows_query(11))
    assert not second.resumed
    assert second.operation_id == first.operation_id
    site.publish(second)
    site.cleanup(second)
    assert site.counts() == [11, 11]
    assert site.tables() == {"orders"}


def test_staging_a_published_operation_again_is_refused(site: RefreshSite) -> None:
    site.refresh(9, run="run")
    stop = stopped(lambda: site.stage(rows_query(9)))
    assert stop.code is Code.IDENTITY_REUSED
    assert site.stage(rows_query(9), series="1").rows == 9


def test_a_dag_without_cleanup_works_for_ever(site: RefreshSite) -> None:
    for n in range(1, 5):
        site.publish(site.stage(rows_query(n), run=f"run{n}"))
    assert site.counts() == [4, 4]
    assert len(site.tables()) == 2


def test_a_kept_predecessor_does_not_block_the_next_run(site: RefreshSite) -> None:
    existing(site)
    staged = site.stage(rows_query(4), run="keep", retention=3600)
    site.publish(staged)
    done = site.cleanup(staged)
    assert isinstance(done.receipt, PublicationReceipt)
    assert done.receipt.state is Phase.COMPLETED_RETAINING
    assert done.next_due is not None
    assert 3500 < done.next_due <= 3600
    after = site.refresh(5, run="next")
    assert [r.table for r in after.retained] == [staged.candidate]
    assert site.tables() == {"orders", staged.candidate}


def test_an_undroppable_predecessor_leaves_the_publication_successful_and_the_target_free(
    site: RefreshSite,
) -> None:
    existing(site)
    staged = site.stage(rows_query(4), run="second")
    site.publish(staged)
    site.cluster.fail_execution(2, r"^\s*DROP TABLE", count=20)
    stop = stopped(lambda: site.cleanup(staged))
    assert stop.code is Code.CLEANUP_PENDING
    assert "successful" in stop.message
    assert site.record().record.phase is Phase.COMPLETED_RETAINING
    site.cluster.heal()
    site.refresh(5, run="third")
    assert site.tables() == {"orders"}


# Leftovers.


def test_a_stage_that_died_half_way_leaves_the_target_untouched_and_the_retry_removes_its_candidate(
    site: RefreshSite,
) -> None:
    existing(site)
    fault = site.cluster.drop_response(1, r"^\s*INSERT INTO .*__dpone_")
    stop = stopped(lambda: site.stage(rows_query(9), run="second"))
    assert fault.hits == 1
    assert stop.category is Category.RETRYABLE
    assert site.counts() == [3, 3]
    staged = site.stage(rows_query(9), run="second")
    site.publish(staged)
    site.cleanup(staged)
    assert site.tables() == {"orders"}


def test_a_lost_reply_of_prepared_is_resumed_by_the_next_try(site: RefreshSite) -> None:
    existing(site, published=True)
    site.cluster.drop_response(1, CAS)
    stop = stopped(lambda: site.stage(rows_query(9), run="second"))
    assert stop.code is Code.CAS_OUTCOME_UNKNOWN
    staged: StageReceipt = site.stage(rows_query(9), run="second")
    assert staged.resumed
    assert site.publish(staged).rows == 9


def test_keeper_away_changes_nothing_and_the_queue_error_that_no_later_success_clears_does_not_either(
    site: RefreshSite,
) -> None:
    existing(site)
    staged = site.stage(rows_query(9), run="second")
    left = f"SELECT 1 FROM system.replicas WHERE database = '{site.database}' AND last_queue_update_exception != ''"
    for _ in range(5):
        site.cluster.stop_zookeeper()
        try:
            stop = stopped(lambda: site.publish(staged, waits=replace(QUICK, ready=2)))
            assert stop.code in (Code.AUTHORITY_UNAVAILABLE, Code.CANDIDATE_NOT_READY)
            assert stop.category in (Category.NOT_OBSERVED, Category.RETRYABLE)
        finally:
            site.cluster.start_zookeeper()
            site.cluster.heal()
        if site.cluster.query(left):
            break
    else:
        pytest.fail("the server never showed last_queue_update_exception, which this test is about")
    assert site.publish(staged, waits=replace(QUICK, ready=60)).rows == 9


def test_nothing_that_identifies_hosts_sql_or_secrets_is_in_records_receipts_logs_or_evidence(
    site: RefreshSite,
) -> None:
    planted = "SELECT 424242 AS id, 'planted-value' AS name"
    staged = site.stage(planted)
    receipt = site.publish(staged)
    from airflow_provider_dpone.publication.receipt import dump
    from airflow_provider_dpone.publication.record import encode

    texts = [
        str(dump(staged)),
        str(dump(receipt)),
        encode(site.record().record, "w").payload,
        "\n".join(site.lines),
        *(path.read_text() for path in site.folder.rglob("*.json")),
    ]
    assert any(path.suffix == ".json" for path in site.folder.rglob("*"))
    for text in texts:
        for secret in ("planted-value", "424242", "127.0.0.1", site.password, "SELECT"):
            assert secret not in text, secret
