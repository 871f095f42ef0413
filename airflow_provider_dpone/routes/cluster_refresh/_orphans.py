"""Orphans: drop a table of ours that no record needs, or strike off a kept one whose name somebody took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.canonical import digest
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.identity import OPERATOR, PROTOCOL, candidate_parts, target_key
from airflow_provider_dpone.publication.orphans import (
    Orphan,
    is_kept,
    kept_but_replaced,
    not_droppable,
    orphan_to_drop,
)
from airflow_provider_dpone.publication.queue import Terminal, read_queue
from airflow_provider_dpone.publication.record import (
    NOT_SEALED,
    AuthorityRecord,
    ContentDigest,
    Generation,
    IndependentRecord,
    IndependentRetained,
    Owner,
    Phase,
    ReplicatedRecord,
    Retained,
    StoredRecord,
    new_fence_token,
)
from airflow_provider_dpone.publication.statement import Drop
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.cluster_refresh._cleanup import clean
from airflow_provider_dpone.routes.cluster_refresh._common import (
    Site,
    Waits,
    compare_and_swap,
    observe_admitted,
    require_record,
    require_target,
    write,
)
from airflow_provider_dpone.routes.cluster_refresh._resolve import OperatorRequest, audit, audit_action
from airflow_provider_dpone.routes.ports import Conflict, OutcomeUnknown, Ports, Stored


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of an orphan.

    :ivar uuids: by replica.
    :ivar gone: it is proven absent on every replica; otherwise it is listed, and cleanup goes on with it.
    """

    name: str
    uuids: Mapping[str, str]
    gone: bool


def drop_orphan(ports: Ports, site: Site, orphan: Orphan, request: OperatorRequest, waits: Waits) -> Dropped:
    """Drop a table that no record needs.

    First its target's record is moved by compare-and-swap: the table is listed there, under a new fence token.
    After that no worker can prepare it, so no permit for its name can exist, and it is dropped like any listed
    table: by its UUID on every replica, once. Interrupted anywhere, the next cleanup or the same command goes on.

    :param orphan: as it was listed just now.
    :raises Stopped: nothing was dropped, or it is listed and can't be dropped now.
    """
    name, uuids = orphan.name, {*orphan.uuids.values()}
    if stop := not_droppable(orphan):
        raise Stopped(stop)
    if orphan.table != site.target.table:
        raise ValueError("an orphan is dropped on its own target")
    observation, authority_id = observe_admitted(ports, site, [site.target.table, name], waits)
    stored = observation.record
    if not is_kept(stored.record if stored else None, name, uuids):
        found = orphan_to_drop(stored, observation, name, uuids, site.target.table)
        if isinstance(found, Stop):
            raise Stopped(found)
        stored = _list(ports, site, orphan, found, request, observation, authority_id)
    elif stored is None or not stored.record.ended:
        raise Stopped(not_droppable(orphan) or _busy(site))
    else:
        audit(ports, stored, request, "orphans", f"drop {name}")
    clean(ports, site, stored, waits, observation.server_time)
    seen = ports.catalog.observe([site.target.table, name])
    absent = not seen.unread and all(name not in f.tables and f.sees_database for f in seen.replicas.values())
    return Dropped(name, orphan.uuids, absent)


def forget(ports: Ports, site: Site, name: str, request: OperatorRequest, waits: Waits) -> Retained:
    """Strike a kept table off the record without a drop, where another table has its name now.

    :returns: what was struck off.
    :raises Stopped: it is still there, nothing has its name, or its drop is still running. Nothing was changed.
    """
    observation, _ = observe_admitted(ports, site, [site.target.table, name], waits)
    stored = require_record(observation, site)
    record = stored.record
    if not record.ended:
        raise Stopped(_busy(site))
    item = kept_but_replaced(record, observation, name)
    if isinstance(item, Stop):
        raise Stopped(item)
    if item.drop is not None:
        sequence, rows = ports.queue.read(item.drop.token)
        queue = read_queue(
            rows,
            sequence=sequence,
            dispatch=item.drop,
            statement=Drop(record.cluster, record.database, name),
            inventory=ports.catalog.inventory,
        )
        if not isinstance(queue, Terminal):
            raise Stopped(
                Stop(
                    Code.CLEANUP_PENDING,
                    f"It is not proven that the drop of {name}, which was sent, has ended; it goes by the name. "
                    "Nothing was changed.",
                    next_action="Wait where it is running. Otherwise rename the table that has the name now: "
                    "the next run's cleanup then sees that the kept one is gone, and strikes it off.",
                )
            )
    audit(ports, stored, request, "orphans", f"forget {name}")
    if write(ports, stored, transitions.forgotten(record, name, now=observation.server_time)) is None:
        raise Stopped(Stop(Code.CAS_CONFLICT, f"{site.target}: another worker changed the record first."))
    return item


def _busy(site: Site) -> Stop:
    return Stop(
        Code.TARGET_BUSY,
        f"{site.target}: an operation is under way, so nothing is dropped or forgotten.",
        next_action="Let it end; `airflow dpone explain` says where it stands.",
    )


def _list(
    ports: Ports,
    site: Site,
    orphan: Orphan,
    generation: Generation,
    request: OperatorRequest,
    observation: Observation,
    authority_id: str,
) -> StoredRecord:
    """List the table on its target's record: the write after which nobody can prepare it."""
    stored, now = observation.record, observation.server_time
    operation_id = orphan.operation_id or ""
    kind: Callable[..., Retained] = IndependentRetained if observation.independent else Retained
    item = kind(orphan.name, generation, now, operation_id)
    ports.log(f"{site.target}: {orphan.name} is listed, so that nobody can publish it any more.")
    if stored is not None:
        audit(ports, stored, request, "orphans", f"drop {orphan.name}")
        moved = transitions.listed(stored.record, item, nonce=ports.random.hex(128), now=now)
        written = write(ports, stored, moved)
        if written is None:
            raise Stopped(Stop(Code.CAS_CONFLICT, f"{site.target}: another worker changed the record first."))
        return written
    require_target(site, observation)
    record = _given_up(ports, site, item, observation, authority_id)
    audit_action(ports.evidence, record.operation_id, request, "orphans", f"drop {orphan.name}")
    match compare_and_swap(ports, None, record):
        case Stored(created):
            return created
        case Conflict() | OutcomeUnknown():
            raise Stopped(
                Stop(
                    Code.CAS_CONFLICT,
                    f"{site.target}: whether the table was listed is not known. Nothing was dropped.",
                    next_action="List the orphans again.",
                )
            )


def _given_up(
    ports: Ports, site: Site, item: Retained, observation: Observation, authority_id: str
) -> AuthorityRecord:
    """Return the record of an operation that never got as far as one: it is given up."""
    target, inventory = site.target, observation.inventory
    parts = candidate_parts(item.name)
    now = observation.server_time
    make: Callable[..., AuthorityRecord] = IndependentRecord if observation.independent else ReplicatedRecord
    return make(
        authority_id=authority_id,
        target_key=target_key(authority_id, target.database, target.table),
        cluster=target.cluster,
        database=target.database,
        table=target.table,
        operation_id=digest(f"{PROTOCOL}/orphans", item.operation_id, item.name),
        publication_key="",
        owner=Owner(OPERATOR, "", "orphans", -1),
        order_key=None,
        plan_digest="",
        fence_token=new_fence_token(item.operation_id, ports.random.hex(128)),
        phase=Phase.ABORTED,
        dispatch_epoch=0,
        inventory_digest=inventory.digest,
        replicas=inventory.aliases,
        servers=tuple(observation.replicas[alias].server for alias in inventory.aliases),
        predecessor=observation.generation(target.table),
        desired=item.generation,
        candidate=item.name,
        attempt_id=parts[1] if parts else "",
        content=NOT_SEALED if observation.independent else ContentDigest(0, "0", "0"),
        staged_bytes=0,
        live_rows=observation.rows(target.table),
        dependents=(),
        retention=0,
        prepared_at=now,
        changed_at=now,
        retained=(item,),
    )
