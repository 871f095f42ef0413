"""Who publishes what: identities that a retry shares and a new request doesn't."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from airflow_provider_dpone.publication.canonical import digest

PROTOCOL = "dpone.cluster-full-refresh.v1"

OPERATOR = "operator"
"""What stands in place of a DAG where a person began an operation."""

ROLLBACK = "rollback"
"""What stands in place of a task where an operator rolls back; the run is the operation that is undone."""

_CANDIDATE_PREFIX_LENGTH = 64


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The scheduler's name of one staging task instance.

    ``series`` is opaque: Airflow's ``ti.max_tries``, which no automatic retry changes and an ordinary
    clear does. The try number is left out, so that a retry is the same operation.
    """

    deployment_id: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    series: str

    def operation_id(self, target_key: str) -> str:
        """Return the operation id: equal for every retry, new after a clear."""
        return digest(
            f"{PROTOCOL}/operation",
            self.deployment_id,
            self.dag_id,
            self.run_id,
            self.task_id,
            self.map_index,
            target_key,
            self.series,
        )

    def publication_key(self, target_key: str) -> str:
        """Return the identity of the publication over all its runs (a task of a DAG, for one target)."""
        return digest(
            f"{PROTOCOL}/publication",
            self.deployment_id,
            self.dag_id,
            self.task_id,
            self.map_index,
            target_key,
        )

    def digest(self) -> str:
        """Return the identity of this task itself, whatever it does: equal for every retry, new after a clear."""
        return digest(
            f"{PROTOCOL}/task",
            self.deployment_id,
            self.dag_id,
            self.run_id,
            self.task_id,
            self.map_index,
            self.series,
        )


def target_key(authority_id: str, database: str, table: str) -> str:
    """Return the key of a target's slot in the control table."""
    return digest(f"{PROTOCOL}/target", authority_id, database, table)


def candidate_name(table: str, attempt_id: str) -> str:
    """Return the name of the candidate of one staging attempt. It belongs to that attempt for ever.

    The target's name leads, where it is plain text, so that people find it in a table list.
    """
    prefix = table[:_CANDIDATE_PREFIX_LENGTH] if re.fullmatch(r"[A-Za-z0-9_]+", table) else "table"
    return f"{prefix}__dpone_{attempt_id}"


_PARKED: Final = "_parked"
_LOST: Final = "_lost"
_ATTEMPT: Final = "[0-9a-f]{16}"
_RENAMED: Final = f"(?:{_PARKED}|{_LOST})*"

CANDIDATE_ENDING: Final = f"__dpone_{_ATTEMPT}{_RENAMED}"
"""How a candidate's name ends, whatever it was renamed to since: a regular expression, for ClickHouse too."""

_CANDIDATE = re.compile(f"(?P<table>.+)__dpone_(?P<attempt>{_ATTEMPT}){_RENAMED}", re.DOTALL)


def candidate_parts(name: str) -> tuple[str, str] | None:
    """Return the prefix and the attempt of a name that :func:`candidate_name` may have made, parked or not."""
    found = _CANDIDATE.fullmatch(name)
    return (found["table"], found["attempt"]) if found else None


def only_target(candidate: str) -> str | None:
    """Return the one target that a candidate of this name can have been made for; ``None`` if several can."""
    parts = candidate_parts(candidate)
    if parts is None or parts[0] == "table" or len(parts[0]) >= _CANDIDATE_PREFIX_LENGTH:
        return None
    return parts[0] if re.fullmatch(r"[A-Za-z0-9_]+", parts[0]) else None


def parked_name(candidate: str) -> str:
    """Return the name under which a disarmed candidate is kept. As unique as the candidate's own."""
    return f"{candidate}{_PARKED}"


def lost_name(name: str) -> str:
    """Return the name that a recovery gives: no statement but a drop of exactly this table ever uses it."""
    return f"{name}{_LOST}"


def correlation_token(operation_id: str, action: str, epoch: int, nonce: str) -> str:
    """Return the ``log_comment`` that marks one dispatched statement.

    Short plain ASCII: ClickHouse parses the stored settings line again on every host, and an overlong
    or badly escaped one would fail there.
    """
    return f"dpone1:{operation_id[:16]}:{action}:{epoch}:{nonce}"


def is_uuid(text: str) -> bool:
    """Tell whether ``text`` is a UUID that is not nil."""
    try:
        return UUID(text).int != 0
    except ValueError:
        return False
