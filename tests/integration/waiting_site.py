"""Many publications that wait at once: real queue entries that no replica executes, and their control records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import uuid4

from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue, render
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.watching import Lookout
from airflow_provider_dpone.publication.queue import Running, read_queue
from airflow_provider_dpone.publication.record import Dispatch, Phase
from airflow_provider_dpone.publication.statement import Exchange
from airflow_provider_dpone.publication.watch import SCHEMA, Watch
from airflow_provider_dpone.triggers.publication import PublicationTrigger
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, LocalCluster
from tests.cluster.statement_log import LoggedStatement
from tests.integration.refresh_site import CONTROL, init, settings

QUEUE_READ = r"FROM system\.distributed_ddl_queue"
RECORD_READ = r"FROM `dpone`\.`authority_v1`"


@contextmanager
def waiting(cluster: LocalCluster, count: int, *, conn_id: str, database: str) -> Iterator[list[Watch]]:
    """``count`` publications whose swaps are in the queue, and that every replica is kept from executing.

    Afterwards the replicas go on (and refuse the swaps, whose tables don't exist), and the records are gone.
    """
    init(cluster)
    for node in cluster.nodes:
        cluster.pause_worker(node)
    prefix = f"waiting-{uuid4().hex[:8]}"
    server = Server(settings(cluster.endpoints[0]))
    try:
        watches = _watches(cluster, server, prefix, count, conn_id, database)
        _write_records(cluster, watches)
        yield watches
    finally:
        server.close()
        for node in cluster.nodes:
            cluster.resume_worker(node)
        cluster.execute(
            f"ALTER TABLE {CONTROL.qualified} DELETE WHERE startsWith(target_key, '{prefix}')",
            settings={"mutations_sync": 1},
        )


def _watches(
    cluster: LocalCluster, server: Server, prefix: str, count: int, conn_id: str, database: str
) -> list[Watch]:
    swaps = {
        f"dpone1:{prefix}:publish:1:{n:032x}": Exchange(CLUSTER_NAME, database, f"t{n}", f"t{n}__dpone_{n}")
        for n in range(count)
    }
    for token, swap in swaps.items():
        # As the provider sends it, but for not waiting at all.
        cluster.execute(
            render(swap),
            user=APP_USER,
            password=APP_PASSWORD,
            settings={
                "log_comment": token,
                "distributed_ddl_task_timeout": 0,
                "distributed_ddl_entry_format_version": 5,
            },
        )
    _, rows = DdlQueue(server).read_many(swaps)
    # Nobody has taken an inventory yet; that of a look is the same for all.
    probe = Watch(
        SCHEMA, conn_id, CLUSTER_NAME, database, "t", "c", "", "", True, "", Phase.TERMINAL, "", 1, "", "", 0
    )
    inventory = Lookout(server, CONTROL).look([probe])[probe].inventory
    watches = []
    for n, (token, swap) in enumerate(swaps.items()):
        state = read_queue(
            rows[token], sequence=1, dispatch=Dispatch(token, 1), statement=swap, inventory=inventory
        )
        if not isinstance(state, Running):
            raise TypeError(f"entry {n} does not wait: {state}")
        watches.append(
            Watch(
                schema=SCHEMA,
                conn_id=conn_id,
                cluster=CLUSTER_NAME,
                database=database,
                table=swap.target,
                candidate=swap.candidate,
                target_key=f"{prefix}-{n}",
                operation_id=f"{n:064x}",
                replaces=True,
                inventory_digest=inventory.digest,
                phase=Phase.BOUND,
                token=token,
                epoch=1,
                entry=state.entry,
                query_digest=state.query_digest,
                deadline=int(time.time()) + 24 * 3600,
            )
        )
    return watches


def _write_records(cluster: LocalCluster, watches: Sequence[Watch]) -> None:
    columns = (
        "target_key, operation_id, fence_token, phase, dispatch_epoch, write_id, payload, payload_sha256"
    )
    values = [
        f"('{watch.target_key}', '{watch.operation_id}', '', '{watch.phase.value}', 1, 'w', '{'x' * 2000}', "
        f"'{'0' * 64}')"
        for watch in watches
    ]
    # Keeper takes no message of more than a megabyte.
    for start in range(0, len(values), 100):
        cluster.execute(
            f"INSERT INTO {CONTROL.qualified} ({columns}) VALUES {', '.join(values[start : start + 100])}"
        )


def reads(cluster: LocalCluster, pattern: str, since: int) -> list[LoggedStatement]:
    """Statements that left the triggerer and match, one per look."""
    return cluster.statements(pattern, since)


async def wait_all(watches: Sequence[Watch], seconds: float) -> int:
    """Run one trigger for each watch in this event loop, as a triggerer does; returns how many ended by themselves."""

    async def run(watch: Watch) -> int:
        return len([event async for event in PublicationTrigger.of(watch).run()])

    tasks = [asyncio.create_task(run(watch)) for watch in watches]
    done, pending = await asyncio.wait(tasks, timeout=seconds)
    for task in pending:
        task.cancel()
    for task in pending:
        with suppress(asyncio.CancelledError):
            await task
    return sum(task.result() for task in done)
