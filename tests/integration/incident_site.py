"""Fourteen incidents, built on real servers, and what an operator has to be told about each.

One function per incident. It builds the situation on a site and returns what every view of it must say: the command
and the page show the same :class:`Explanation`. The fixtures that heal a cluster heal it of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

import pytest

from airflow_provider_dpone import ClusterRefresh, MiB
from airflow_provider_dpone.clickhouse.control_table import ControlTable, sentinel_row
from airflow_provider_dpone.evidence.reader import EvidenceReader
from airflow_provider_dpone.operators import PublishOperator
from airflow_provider_dpone.operators.xcom import for_xcom
from airflow_provider_dpone.publication.explanation import (
    NEVER_AHEAD,
    NEVER_CREATE,
    NEVER_DROP,
    NEVER_EDIT,
    NEVER_SWAP,
    NEVER_UNLISTED,
    NEVER_UNQUEUE,
    Way,
)
from airflow_provider_dpone.publication.receipt import StageReceipt
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from tests.cluster import CLUSTER_NAME, wait_until
from tests.integration.control import create_table
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query
from tests.integration.task_site import context

SWAP: Final = r"^\s*(EXCHANGE|RENAME)\b"
DROP: Final = r"^\s*DROP TABLE"
SHORT: Final = replace(QUICK, publish=1.0)
OLD_ROWS, NEW_ROWS = 3, 9

OLD_NEW: Final = {"s1/r1": "new", "s1/r2": "old"}
PARTIAL: Final = {"s1/r1": "committed", "s1/r2": "pending"}


@dataclass(frozen=True)
class Said:
    """What must be said about an incident.

    :ivar operation: the operation that it is about, if there is one.
    :ivar plain: parts of the plain words at the top.
    :ivar code: why it does not go on; ``None``: nothing is in the way.
    :ivar states: per replica.
    :ivar live: which generation each replica shows.
    :ivar words: what must stand somewhere below.
    :ivar next: what is safe now.
    :ivar never: what must never be done.
    :ivar affected: whether readers are affected; ``None``: it is not known.
    :ivar commands: how the commands that are printed begin, after ``airflow dpone``.
    :ivar status: exit status of the command.
    """

    operation: str | None
    plain: tuple[str, ...]
    code: Code | None
    states: Mapping[str, str] = field(default_factory=dict)
    live: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    next: tuple[Way, ...] = ()
    never: tuple[str, ...] = (NEVER_EDIT,)
    affected: bool | None = False
    commands: tuple[str, ...] = ()
    status: int = 2


def stopped(work: Callable[[], Any]) -> Stop:
    """Return why the work stopped."""
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop


def staged_over_old_rows(site: RefreshSite, **more: Any) -> StageReceipt:
    """New data is staged for a table that has rows."""
    create_table(site.cluster, site.database, site.table, OLD_ROWS)
    staged = site.stage(rows_query(NEW_ROWS), **{"run": "second", **more})
    site.since = site.cluster.last_statement()
    return staged


def in_flight(site: RefreshSite) -> StageReceipt:
    """The new data is live on the first replica, and the second one has not begun."""
    staged = staged_over_old_rows(site)
    site.cluster.pause_worker(2)
    # The reply would only come after seconds, and say that a replica is late.
    fault = site.cluster.drop_response(1, SWAP, after="enqueue")
    assert stopped(lambda: site.publish(staged, waits=SHORT, run="second")).code is Code.PARTIAL_IN_PROGRESS
    assert fault.hits == 1
    return staged


def entry_of(site: RefreshSite) -> str:
    """The queue's entry of the swap."""
    publication = site.record().record.publication
    assert publication is not None
    assert publication.entry is not None
    return publication.entry


IN_FLIGHT: Final = (NEVER_SWAP, NEVER_DROP, NEVER_AHEAD, NEVER_EDIT)


def replica_down_before_admission(site: RefreshSite) -> Said:
    """1. A replica is down before admission."""
    published = site.refresh(OLD_ROWS, run="first")
    site.cluster.kill_node(2)
    refused = stopped(lambda: site.stage(rows_query(NEW_ROWS), run="second"))
    assert refused.code is Code.REPLICA_UNAVAILABLE
    return Said(
        operation=published.operation_id,
        plain=("No operation is under way, and nothing was changed", "s1/r2 can't be read"),
        code=Code.REPLICA_UNAVAILABLE,
        live={"s1/r1": "new", "s1/r2": "unknown"},
        words=("s1/r1: shows the table that was published last", "s1/r2: can't be read"),
        next=(Way.START,),
        status=0,
    )


def replica_down_after_dispatch(site: RefreshSite) -> Said:
    """2. A replica is down after dispatch."""
    staged = in_flight(site)
    site.cluster.kill_node(2)
    return Said(
        operation=staged.operation_id,
        plain=("the new data is live on s1/r1", "it follows by itself when it returns"),
        code=Code.REPLICA_NOT_OBSERVED,
        states={"s1/r1": "committed", "s1/r2": "not observed"},
        live={"s1/r1": "new", "s1/r2": "unknown"},
        words=(
            "s1/r1: holds the new generation; the old one is kept next to it",
            "s1/r2: can't be read",
            "s1/r2: in progress",
            f"waits for s1/r2 to end {entry_of(site)} of the queue",
        ),
        next=(Way.WAIT,),
        never=IN_FLIGHT,
        affected=None,
    )


def reply_lost(site: RefreshSite) -> Said:
    """3. The reply of the swap was lost."""
    staged = in_flight(site)
    return Said(
        operation=staged.operation_id,
        plain=("the new data is live on s1/r1; s1/r2 will follow",),
        code=Code.PARTIAL_IN_PROGRESS,
        states=PARTIAL,
        live=OLD_NEW,
        words=(
            "The reply of the statement was lost at",
            f"It was seen in the queue as {entry_of(site)}",
            "never sent a second time",
            "s1/r1: finished",
            "s1/r2: in progress",
        ),
        next=(Way.WAIT,),
        never=IN_FLIGHT,
        affected=True,
    )


def keeper_unreachable(site: RefreshSite) -> Said:
    """4. Keeper is unreachable."""
    staged = in_flight(site)
    entry = entry_of(site)
    site.cluster.stop_zookeeper()
    return Said(
        operation=staged.operation_id,
        plain=(
            "the control table can't be read, because Keeper can't be reached",
            "No change is possible now",
            "What was known before, at",
        ),
        code=Code.AUTHORITY_UNAVAILABLE,
        # The tables themselves can be looked at without Keeper.
        states=PARTIAL,
        live=OLD_NEW,
        words=(
            "It was BOUND at",
            f"It was seen in the queue as {entry}",
            "The last conclusion was PARTIAL_IN_PROGRESS, at",
            "s1/r1: holds the new generation; the old one is kept next to it (looked at now)",
            "only the control table knows",
            "it may still arrive or run",
            "waits until the control table can be read",
        ),
        next=(Way.RESTORE,),
        never=(NEVER_SWAP, NEVER_DROP, NEVER_EDIT),
        affected=True,
        status=1,
    )


def foreign_entry_blocks(site: RefreshSite) -> Said:
    """5. A foreign entry blocks the DDL queue."""
    staged = staged_over_old_rows(site)
    site.cluster.fail_execution(2, "poison", count=1000, code=242)
    site.cluster.execute(
        f"CREATE TABLE {site.database}.poison ON CLUSTER {CLUSTER_NAME} (id UInt8) ENGINE = Memory",
        settings={"distributed_ddl_task_timeout": 0},
    )
    (poison,) = {row["entry"] for row in site.cluster.queue_rows("poison")}
    assert stopped(lambda: site.publish(staged, waits=SHORT)).code is Code.PARTIAL_IN_PROGRESS
    return Said(
        operation=staged.operation_id,
        plain=("the new data is live on s1/r1; s1/r2 will follow", f"waits behind {poison} on s1/r2"),
        code=Code.PARTIAL_IN_PROGRESS,
        states=PARTIAL,
        live=OLD_NEW,
        words=(f"s1/r2: {poison}, queued by somebody else at ", "and comes first"),
        next=(Way.WAIT, Way.UNBLOCK),
        never=(*IN_FLIGHT, NEVER_UNQUEUE),
        affected=True,
    )


def one_replica_failed(site: RefreshSite) -> Said:
    """6. Terminal partial: one replica failed."""
    staged = staged_over_old_rows(site)
    site.cluster.fail_execution(2, SWAP)
    assert stopped(lambda: site.publish(staged)).code is Code.PARTIAL_TERMINAL
    return Said(
        operation=staged.operation_id,
        plain=("the swap has ended; the new data is live on s1/r1 and the old data on s1/r2", "are kept"),
        code=Code.PARTIAL_TERMINAL,
        states=PARTIAL,
        live=OLD_NEW,
        words=(
            "s1/r1: holds the new generation; the old one is kept next to it",
            "s1/r2: holds the old generation; the new one is kept next to it",
            "s1/r2: failed, exception code 164 (READONLY)",
            f"s1/r2: EXCHANGE TABLES `{site.database}`.`orders` AND `{site.database}`.`{staged.candidate}`",
        ),
        next=(Way.REPAIR,),
        never=(NEVER_SWAP, NEVER_DROP, NEVER_EDIT),
        affected=True,
        commands=("resolve ",),
    )


def swapped_back_after_a_crash(site: RefreshSite) -> Said:
    """7. A replica swapped back after a crash."""
    staged = staged_over_old_rows(site)
    site.cluster.hold_execution(2, SWAP, executed=True)
    stopped(lambda: site.publish(staged, waits=SHORT))
    site.cluster.kill_node(2)
    site.cluster.start_node(2)
    assert stopped(lambda: site.publish(staged)).code is Code.PARTIAL_TERMINAL
    return Said(
        operation=staged.operation_id,
        plain=(
            "the new data is live on s1/r1 and the old data on s1/r2",
            "The queue says success on s1/r2, too",
            "ran the swap again, which undid it",
        ),
        code=Code.PARTIAL_TERMINAL,
        states=PARTIAL,
        live=OLD_NEW,
        words=("s1/r2: finished, exception code 0", "s1/r2: EXCHANGE TABLES"),
        next=(Way.REPAIR,),
        never=(NEVER_SWAP, NEVER_DROP, NEVER_EDIT),
        affected=True,
        commands=("resolve ",),
    )


def entry_pruned(site: RefreshSite) -> Said:
    """8. The queue entry was pruned before it was read."""
    staged = in_flight(site)
    entry = entry_of(site)
    site.cluster.resume_worker(2)
    wait_until(
        lambda: {row["status"] for row in site.cluster.queue_rows() if row["entry"] == entry} == {"Finished"}
    )
    site.cluster.remove_queue_entry(entry)
    return Said(
        operation=staged.operation_id,
        plain=(
            f"queue entry {entry} was seen before, but is not in the queue now",
            "they see the new data on s1/r1, s1/r2",
        ),
        code=Code.ENTRY_NOT_SEEN,
        states={"s1/r1": "committed", "s1/r2": "committed"},
        live={"s1/r1": "new", "s1/r2": "new"},
        words=(
            "s1/r2: holds the new generation; the old one is kept next to it",
            f"How {entry} ended: it was seen in the queue before, and is not there any more.",
            "it may still arrive or run",
        ),
        next=(Way.WAIT, Way.RESOLVE),
        never=IN_FLIGHT,
        commands=("resolve ",),
    )


def held_by_another(site: RefreshSite) -> Said:
    """9. Another operation holds the target."""
    staged = staged_over_old_rows(site, run="holder", dag="other_dag")
    refused = stopped(lambda: site.stage(rows_query(5), run="mine"))
    assert refused.code is Code.TARGET_BUSY
    assert "other_dag" in refused.message
    assert "the source was not read" in refused.message
    return Said(
        operation=staged.operation_id,
        plain=(
            "new data of DAG other_dag, run holder is staged, and nothing was sent for it yet",
            "It holds the table",
            "1 other was refused, before its source was read",
        ),
        code=None,
        states={"s1/r1": "pending", "s1/r2": "pending"},
        live={"s1/r1": "old", "s1/r2": "old"},
        words=(
            "PREPARED: DAG other_dag, run holder, task stage",
            "PREPARED since ",
            "(DAG dag, run mine, task stage) was refused at",
            "before its source was read",
        ),
        next=(Way.RETRY, Way.ABANDON),
        commands=("abandon ",),
    )


def staging_died(site: RefreshSite) -> Said:
    """10. Staging died half way."""
    create_table(site.cluster, site.database, site.table, OLD_ROWS)
    before = site.tables()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        # As a killed worker: nothing is undone any more.
        patch.setattr("airflow_provider_dpone.routes.cluster_refresh._stage._Stage._wait_ready", die)
        patch.setattr("airflow_provider_dpone.routes.cluster_refresh._stage._Stage._discard", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            site.stage(rows_query(NEW_ROWS), run="second")
    (left,) = site.tables() - before
    (died,) = EvidenceReader(site.trail, CLUSTER_NAME).recent(site.database, site.table, limit=3, days=1)
    return Said(
        operation=died,
        plain=("the staging of DAG dag, run second did not end", "The table is untouched"),
        code=None,
        words=(
            "ADMITTED when it was heard of last, at",
            "(DAG dag, run second, task stage) was heard of last at",
            "its stage task is running, failed, or died",
            f"{left} (candidate, ",
            "on s1/r1, s1/r2): its staging attempt did not end; a retry of its stage task drops it",
        ),
        next=(Way.STAGE,),
        never=(NEVER_EDIT, NEVER_UNLISTED),
        commands=("orphans ",),
        status=0,
    )


def predecessor_stays(site: RefreshSite) -> Said:
    """11. The predecessor can't be dropped."""
    staged = staged_over_old_rows(site)
    site.publish(staged)
    site.cluster.fail_execution(2, DROP, count=20)
    pending = stopped(lambda: site.cleanup(staged))
    assert pending.code is Code.CLEANUP_PENDING
    return Said(
        operation=staged.operation_id,
        plain=(
            "the last operation is published on every replica",
            f"The table that it replaced is still there: {staged.candidate}",
            "its drop failed on s1/r2",
        ),
        code=None,
        live={"s1/r1": "new", "s1/r2": "new"},
        words=(
            f"{staged.candidate} (predecessor, ",
            "on s1/r2): its drop failed on s1/r2 with exception code 164",
            "It was proven on every replica.",
        ),
        next=(Way.CLEAN_UP,),
        never=(NEVER_EDIT, NEVER_UNLISTED),
        commands=("orphans ",),
        status=0,
    )


def with_own_control_table(site: RefreshSite) -> RefreshSite:
    """The same site with a control table that may be lost without harm to others.

    By hand, since `init` refuses a second one on a cluster that has published.
    """
    control = ControlTable("dpone", f"authority_{site.database}")
    site.cluster.execute(control.create(CLUSTER_NAME))
    site.cluster.execute(control.insert(sentinel_row(uuid4().hex, uuid4().hex), strict=True))
    return replace(site, control=control)


def control_table_dropped(site: RefreshSite) -> Said:
    """12. The control table was dropped or replaced. The site has a control table of its own."""
    staged = in_flight(site)
    for node in site.cluster.nodes:
        site.cluster.execute(f"DROP TABLE {site.control.qualified} SYNC", node=node)
    return Said(
        operation=staged.operation_id,
        plain=("The control table does not exist on s1/r1, s1/r2", "Nothing can be published"),
        code=Code.CONTROL_TABLE_LOST,
        states=PARTIAL,
        live=OLD_NEW,
        words=(
            "It was BOUND at",
            "only the control table knows",
            "it may still arrive or run",
            "the record that it needs is gone",
            "s1/r2: holds the old generation; the new one is kept next to it (looked at now)",
        ),
        next=(Way.RECOVER,),
        never=(NEVER_SWAP, NEVER_DROP, NEVER_EDIT, NEVER_CREATE),
        affected=True,
        commands=("init ", "init "),
        status=1,
    )


def cleared_while_unresolved(site: RefreshSite) -> Said:
    """13. A task was cleared while its operation was unresolved."""
    staged = in_flight(site)
    since = site.cluster.last_statement()
    refused = stopped(lambda: site.stage(rows_query(5), run="second", series="1"))
    assert refused.code is Code.TARGET_BUSY
    assert "the source was not read" in refused.message
    assert site.cluster.statements(r"^\s*(CREATE|INSERT)", since) == []
    return Said(
        operation=staged.operation_id,
        plain=(
            "the new data is live on s1/r1; s1/r2 will follow",
            "Its stage task was cleared while it was not resolved",
            "was refused before its source was read",
        ),
        code=Code.PARTIAL_IN_PROGRESS,
        states=PARTIAL,
        live=OLD_NEW,
        words=("(DAG dag, run second, task stage) was refused at", "before its source was read"),
        next=(Way.WAIT,),
        never=IN_FLIGHT,
        affected=True,
    )


def waiting_task_restarted(site: RefreshSite) -> Said:
    """14. The triggerer or worker was restarted: the task that waited is gone, and its record is not."""
    return restarted_while_waiting(site, in_flight(site))


def restarted_while_waiting(site: RefreshSite, staged: StageReceipt) -> Said:
    """What must be said when whoever waited for a swap that is under way was restarted."""
    return Said(
        operation=staged.operation_id,
        plain=("the new data is live on s1/r1; s1/r2 will follow", "Nothing was lost"),
        code=Code.PARTIAL_IN_PROGRESS,
        states=PARTIAL,
        live=OLD_NEW,
        words=(
            f"The publish task of DAG dag, run second waits for s1/r2 to end {entry_of(site)} of the queue.",
            "is restarted, nothing is lost",
            "Heard of last: task publish of DAG dag, run second, try 1, at",
        ),
        next=(Way.WAIT,),
        never=IN_FLIGHT,
        affected=True,
    )


def publish_operator(site: RefreshSite, staged: StageReceipt, conn_id: str) -> PublishOperator:
    """The publish task, as a DAG has it."""
    refresh = ClusterRefresh(conn_id, site.cluster_name, site.database, site.table, max_source_bytes=MiB)
    return PublishOperator(task_id="publish", refresh=refresh, staged=for_xcom(staged), deferrable=True)


def publish_context() -> Any:
    """What a try of that task is called with."""
    found = context("second", task_id="publish")
    found["ti"].dag_id = "dag"
    return found


INCIDENTS: Final[Mapping[int, Callable[[RefreshSite], Said]]] = {
    1: replica_down_before_admission,
    2: replica_down_after_dispatch,
    3: reply_lost,
    4: keeper_unreachable,
    5: foreign_entry_blocks,
    6: one_replica_failed,
    7: swapped_back_after_a_crash,
    8: entry_pruned,
    9: held_by_another,
    10: staging_died,
    11: predecessor_stays,
    12: control_table_dropped,
    13: cleared_while_unresolved,
    14: waiting_task_restarted,
}
"""By the number that each has in the list of incidents."""
