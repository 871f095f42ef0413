"""All targets that a control table knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_provider_dpone.clickhouse.control_table import ControlTable, all_rows_section, row_of
from airflow_provider_dpone.clickhouse.errors import (
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stopped,
)
from airflow_provider_dpone.clickhouse.replicas import READ_SETTINGS, Answers, from_contacted
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.publication.record import AuthorityRecord, decode
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped

_TIMEOUT: Final = 60.0
_NO_TABLE: Final = frozenset({ErrorCode.UNKNOWN_TABLE, ErrorCode.UNKNOWN_DATABASE})


@dataclass(frozen=True, slots=True)
class Unusable:
    """A row that this release can't use. It is left alone.

    :ivar key: the row's key, a digest: the names are in what can't be read.
    """

    key: str
    stop: Stop


def read_targets(
    server: Server, control: ControlTable, cluster: str
) -> tuple[AuthorityRecord | Unusable, ...]:
    """Return the record of every target on ``cluster``, by name, in one read of the contacted server.

    :raises Stopped: ``CONTROL_TABLE_MISSING``, ``AUTHORITY_UNAVAILABLE``, ``SERVER_UNAVAILABLE``.
    """
    try:
        reply = server.read(
            from_contacted([all_rows_section(control)]), settings=READ_SETTINGS, timeout=_TIMEOUT
        )
    except ServerError as error:
        if error.code in _NO_TABLE:
            raise Stopped(
                Stop(Code.CONTROL_TABLE_MISSING, "The control table doesn't exist on the contacted server.")
            ) from None
        raise stopped(error, "Reading the control table") from None
    except (ConnectFailed, ReplyLost) as error:
        raise stopped(error, "Reading the control table") from None
    records: list[AuthorityRecord] = []
    unusable: list[Unusable] = []
    for row, _ in map(row_of, Answers.of(reply.rows).all(0, "row")):
        try:
            record = decode(row)
        except Stopped as refused:
            unusable.append(Unusable(row.target_key, refused.stop))
        else:
            if record.cluster == cluster:
                records.append(record)
    return (*sorted(records, key=lambda record: (record.database, record.table)), *unusable)
