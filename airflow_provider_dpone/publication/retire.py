"""Whether a replica that an operator calls gone for ever may be left out of an operation. Pure.

Nothing is proven about a replica that is gone. It is left out only where it can't take part any more: the
cluster's definition doesn't list it, Keeper has it in neither table, and the replicas that are left hold one
generation. What its queue worker would do if it came back, it does to its own copies of the two tables alone.

Keeper knows nothing of independent tables, so that nothing but the cluster's definition says that such a replica is
gone. Whether its server still runs can't be proven then, and is not said: no other replica's table hangs on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import assert_never

from airflow_provider_dpone.publication import transitions
from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.decide_resolve import held_state
from airflow_provider_dpone.publication.facts import Observation, TableFacts
from airflow_provider_dpone.publication.queue import (
    Contradictory,
    NotSeen,
    QueueState,
    Running,
    Terminal,
    Unreadable,
)
from airflow_provider_dpone.publication.record import AuthorityRecord, IndependentRecord, StoredRecord
from airflow_provider_dpone.publication.stop import Code, Stop


def missing_replicas(record: AuthorityRecord, observation: Observation) -> tuple[str, ...]:
    """Return the admitted replicas that the cluster doesn't list any more; none where a replica wasn't read."""
    if observation.unread or observation.inventory.digest == record.inventory_digest:
        return ()
    answering = {facts.server for facts in observation.replicas.values()}
    return tuple(
        alias
        for alias, server in zip(record.replicas, record.servers, strict=True)
        if server not in answering
    )


def already_retired(record: AuthorityRecord, observation: Observation, gone: Collection[str]) -> bool:
    """Tell whether these replicas were retired by an earlier run of the same command."""
    same = observation.inventory.digest == record.inventory_digest
    return same and {*gone} <= {replica.alias for replica in record.retired}


def without(
    record: AuthorityRecord, observation: Observation, gone: Collection[str]
) -> AuthorityRecord | Stop:
    """Return the record with the replicas that are left, or say which one is not accounted for.

    Replicas are told apart by their servers: a replica that is taken out of the cluster's definition changes
    the numbers of those behind it.
    """
    if unknown := [alias for alias in gone if alias not in record.replicas]:
        return _missing(
            record, f"{', '.join(unknown)} is not among the admitted replicas {', '.join(record.replicas)}"
        )
    if unread := observation.unread:
        return _missing(record, f"the cluster lists {', '.join(unread)}, and it can't be read")
    answering = {facts.server: alias for alias, facts in observation.replicas.items()}
    present: dict[str, str] = {}
    for alias, server in zip(record.replicas, record.servers, strict=True):
        now = answering.pop(server, None)
        if alias in gone:
            if now is not None:
                return _missing(record, f"the cluster still lists {alias}, and it answers")
        elif now is None:
            return _missing(record, f"the cluster doesn't list {alias} any more, and nobody called it gone")
        else:
            present[alias] = now
    if answering:
        return _missing(
            record, f"{', '.join(answering.values())} is a server that this operation was not admitted with"
        )
    digest = observation.inventory.digest
    if others := [a for a, facts in observation.replicas.items() if facts.inventory_digest != digest]:
        return _missing(record, f"{', '.join(others)} still lists other replicas")
    order = observation.inventory.aliases
    ordered = {old: present[old] for old in sorted(present, key=lambda old: order.index(present[old]))}
    return transitions.retired(record, ordered, inventory_digest=digest, now=observation.server_time)


def not_retirable(
    stored: StoredRecord, left: AuthorityRecord, observation: Observation, queue: QueueState | None
) -> Stop | None:
    """Return which condition is missing before the replicas in ``left`` may stand for all, or ``None``.

    :param left: the record as :func:`without` returns it.
    :param observation: a look with target, candidate and parked candidate, later than the read of the queue.
    :param queue: what the replicas that are left did with the swap (or the disarming RENAME); ``None`` where it
        is stored already.
    """
    found = observation.record
    if found is None or (found.write_id, found.version) != (stored.write_id, stored.version):
        return Stop(Code.CAS_CONFLICT, f"{_name(left)}: another worker changed the record first.")
    match queue:
        case Running() | Unreadable():
            words = {alias: {"queue": row.status.value} for alias, row in queue.hosts.items()}
            return _missing(left, "the replicas that are left have not ended the statement", words)
        case Contradictory(stop):
            return stop
        case Terminal() | NotSeen() | None:
            pass
        case _:
            assert_never(queue)
    for alias, facts in observation.replicas.items():
        for name, table in facts.tables.items():
            if isinstance(left, IndependentRecord):
                if table.replication is not None:
                    return _missing(
                        left, f"{name} on {alias}: it replicates itself, which it did not at admission"
                    )
            elif (why := _still_registered(table, len(left.replicas))) is not None:
                return _missing(left, f"{name} on {alias}: {why}", code=why_code(table))
    states = {alias: held_state(left, observation, alias) for alias in left.replicas}
    words = {alias: {"state": state.value} for alias, state in states.items()}
    known = {ReplicaState.PENDING, ReplicaState.COMMITTED}
    if strange := [alias for alias, state in states.items() if state not in known]:
        return _missing(
            left,
            f"a table is missing or is neither generation on {', '.join(strange)}",
            words,
            code=Code.GENERATION_UNKNOWN,
        )
    if len({*states.values()}) > 1:
        return _missing(
            left,
            "the replicas that are left hold different generations",
            words,
            next_action="Decide which generation is right. On each replica that holds the other one, swap the two "
            "tables on that replica alone, without ON CLUSTER. Then run the command again.",
        )
    return None


def why_code(table: TableFacts) -> Code:
    """Return whether a table's registration is not known, or known to be in the way."""
    unread = table.replication is None or table.replication.keeper_error
    return Code.REPLICA_NOT_OBSERVED if unread else Code.NOT_RESOLVABLE


def _still_registered(table: TableFacts, replicas: int) -> str | None:
    replication = table.replication
    if replication is None:
        return "its replicas in Keeper can't be counted"
    if replication.keeper_error:
        return "Keeper can't be read there"
    if replication.is_readonly or replication.is_session_expired:
        return "it is read-only there"
    counted = (replication.total_replicas, replication.active_replicas)
    if counted != (replicas, replicas):
        # All that are registered are active, and as many as are left: none of them can be the one that is gone.
        return (
            f"Keeper has {counted[0]} replicas of it, {counted[1]} of them active; {replicas} are left. Remove the "
            "one that is gone with SYSTEM DROP REPLICA, for both tables"
        )
    return None


def _missing(
    record: AuthorityRecord,
    why: str,
    replicas: Mapping[str, Mapping[str, str]] | None = None,
    *,
    code: Code = Code.NOT_RESOLVABLE,
    next_action: str = "",
) -> Stop:
    return Stop(
        code,
        f"{_name(record)}: no replica was retired: {why}.",
        replicas=replicas or {},
        next_action=next_action or "Bring about what is missing, and run the command again.",
    )


def _name(record: AuthorityRecord) -> str:
    return f"{record.database}.{record.table}"
