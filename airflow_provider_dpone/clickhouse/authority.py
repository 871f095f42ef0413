"""The target's one record: compare-and-swap through KeeperMap, and the only place where permits are made.

What a reply proves, and what it doesn't:

* Success of an ``UPDATE`` proves nothing by itself: one that matches no row succeeds as well. Only the
  read-back of our own write id, exactly one version on, shows that the write happened.
* An error that Keeper may have had a part in (code 999 and whatever else is not surely raised before the
  execution) leaves the outcome unknown, whatever its text says and whatever is read afterwards: a hidden
  repetition of a committed write reports a conflict, and a lost request may be applied later.
* A permit needs both: the acknowledgement and the exact read-back, in one invocation.

A read-back that shows an older version is not a verdict but a reader that lags behind (a follower of
Keeper, or another replica behind a load balancer): it is read again, within a bound. Reading again is no
retry. So nothing here depends on which server answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from airflow_provider_dpone.clickhouse import control_table
from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.errors import (
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stopped,
    summary,
)
from airflow_provider_dpone.clickhouse.replicas import (
    READ_SETTINGS,
    Answers,
    from_contacted,
    member_section,
    members_of,
)
from airflow_provider_dpone.clickhouse.server import Server, Settings
from airflow_provider_dpone.clickhouse.sql import string
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.record import AuthorityRecord, Row, StoredRecord, encode
from airflow_provider_dpone.routes.ports import Claimed, Conflict, OutcomeUnknown, Stored

WRITE_SETTINGS: Final[Settings] = {
    "keeper_map_strict_mode": 1,
    "insert_keeper_max_retries": 0,
    "async_insert": 0,
}

RAISED_BEFORE_EXECUTION: Final = frozenset(
    {
        ErrorCode.UNKNOWN_IDENTIFIER,
        ErrorCode.UNKNOWN_TABLE,
        ErrorCode.SYNTAX_ERROR,
        ErrorCode.UNKNOWN_DATABASE,
        ErrorCode.UNKNOWN_SETTING,
        ErrorCode.READONLY,
        ErrorCode.TOO_MANY_SIMULTANEOUS_QUERIES,
        ErrorCode.ACCESS_DENIED,
        ErrorCode.AUTHENTICATION_FAILED,
    }
)
"""Codes that prove that the statement did nothing."""

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class _ReadBack:
    """The slot as it was read after an acknowledged write, with the cluster's members."""

    row: Row | None
    version: int | None
    inventory_digest: str


@dataclass(slots=True)
class Authority:
    """Writes the record; implements :class:`routes.ports.Authority`.

    :ivar cluster: the cluster whose members are read together with the read-back.
    :ivar visible_within: for how many seconds an acknowledged write may stay invisible to reads.
    """

    server: Server
    cluster: str
    control: ControlTable = field(default_factory=ControlTable)
    timeout: float = 60.0
    visible_within: float = 5.0
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def write(
        self, expected: StoredRecord | None, record: AuthorityRecord, write_id: str
    ) -> Stored | Conflict | OutcomeUnknown:
        """Store ``record`` if the slot is exactly ``expected``; see :meth:`routes.ports.Authority.write`.

        :raises Stopped: the write was surely not made, because it could not be sent or was refused.
        """
        result = self._compare_and_swap(expected, record, write_id)
        return result if isinstance(result, Conflict | OutcomeUnknown) else Stored(result[0])

    def claim(
        self, expected: StoredRecord, record: AuthorityRecord, token: str, write_id: str
    ) -> Claimed | Conflict | OutcomeUnknown:
        """As :meth:`write`, and issue the permit for ``token``; see :meth:`routes.ports.Authority.claim`."""
        result = self._compare_and_swap(expected, record, write_id)
        if isinstance(result, Conflict | OutcomeUnknown):
            return result
        stored, inventory_digest = result
        permit = Permit(token=token, epoch=record.dispatch_epoch, write_id=write_id)
        return Claimed(stored, permit, inventory_digest)

    def _compare_and_swap(
        self, expected: StoredRecord | None, record: AuthorityRecord, write_id: str
    ) -> tuple[StoredRecord, str] | Conflict | OutcomeUnknown:
        row = encode(record, write_id)
        sql = self.control.insert(row) if expected is None else self._update(expected, row)
        try:
            self.server.once(sql, settings=WRITE_SETTINGS, query_id=write_id, timeout=self.timeout)
        except ConnectFailed as error:
            raise stopped(error, "Writing the control record") from None
        except ServerError as error:
            if error.code in RAISED_BEFORE_EXECUTION:
                raise stopped(error, "Writing the control record") from None
            return OutcomeUnknown(summary(error))
        except ReplyLost as error:
            return OutcomeUnknown(summary(error))
        return self._acknowledged(expected, record, row)

    def _acknowledged(
        self, expected: StoredRecord | None, record: AuthorityRecord, row: Row
    ) -> tuple[StoredRecord, str] | Conflict | OutcomeUnknown:
        """Read back what an acknowledged write left, until it is visible or the bound is over."""
        deadline = self.monotonic() + self.visible_within
        pause = _FIRST_PAUSE
        while True:
            seen = self._read_back(row.target_key)
            if isinstance(seen, _ReadBack):
                verdict = judge(expected, row, seen.row, seen.version)
                match verdict:
                    case int():
                        return StoredRecord(record, row.write_id, verdict), seen.inventory_digest
                    case Conflict() | OutcomeUnknown():
                        return verdict
                    case None:
                        why = "the write was acknowledged, but is not visible"
            else:
                why = f"the write was acknowledged, but can't be read back: {seen}"
            if self.monotonic() + pause > deadline:
                return OutcomeUnknown(why)
            self.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _read_back(self, target_key: str) -> _ReadBack | str:
        sections = (control_table.row_section(self.control, target_key), member_section(self.cluster))
        try:
            reply = self.server.read(
                from_contacted(sections), settings=READ_SETTINGS, timeout=max(1.0, self.visible_within)
            )
        except (ServerError, ConnectFailed, ReplyLost) as error:
            return summary(error)
        answers = Answers.of(reply.rows)
        inventory = Inventory(self.cluster, members_of(answers.all(0, "member")))
        if (fields := answers.one(0, "row")) is None:
            return _ReadBack(None, None, inventory.digest)
        row, version = control_table.row_of(fields)
        return _ReadBack(row, version, inventory.digest)

    def _update(self, expected: StoredRecord, row: Row) -> str:
        """Return the UPDATE that changes exactly the row that was read, or nothing."""
        before = expected.record
        return (
            f"ALTER TABLE {self.control.qualified} UPDATE "
            f"operation_id = {string(row.operation_id)}, fence_token = {string(row.fence_token)}, "
            f"phase = {string(row.phase)}, dispatch_epoch = {row.dispatch_epoch}, "
            f"write_id = {string(row.write_id)}, payload = {string(row.payload)}, "
            f"payload_sha256 = {string(row.payload_sha256)} "
            f"WHERE target_key = {string(row.target_key)} AND _version = {expected.version} "
            f"AND operation_id = {string(before.operation_id)} AND fence_token = {string(before.fence_token)} "
            f"AND phase = {string(before.phase.value)} AND dispatch_epoch = {before.dispatch_epoch} "
            f"AND write_id = {string(expected.write_id)}"
        )


def judge(
    expected: StoredRecord | None, written: Row, found: Row | None, version: int | None
) -> int | Conflict | OutcomeUnknown | None:
    """Judge what is read after an acknowledged write.

    :returns: the version under which ``written`` is stored; or what is proven or not; or ``None`` where
        the reader lags behind and must be asked again.
    """
    goal = 0 if expected is None else expected.version + 1
    if found is None or version is None:
        return None
    if found.write_id == written.write_id:
        if version == goal and found == written:
            return version
        return OutcomeUnknown("the record was written more than once, or not as it was sent")
    if expected is None:
        # The strict INSERT was acknowledged, so it did create the row.
        return OutcomeUnknown("the record was created, and has moved on since")
    if version < expected.version:
        return None
    if version == expected.version:
        # Another write id under the expected version: the predicate can't have matched.
        return None if found.write_id == expected.write_id else Conflict()
    if version == goal:
        return Conflict()
    # Ours may have been one of the writes in between.
    return OutcomeUnknown("the record has moved on by more than one write")
