"""The distributed-DDL queue: one statement in, once, and what became of it.

The statement's token travels as the setting ``log_comment``. Comments in SQL don't arrive: the server
stores the statement as it formats it anew, together with the settings that were changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from airflow_provider_dpone.clickhouse.errors import (
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stopped,
)
from airflow_provider_dpone.clickhouse.replicas import READ_SETTINGS, next_sequence
from airflow_provider_dpone.clickhouse.server import Server, Settings
from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    Token,
    TokenKind,
    identifier,
    string,
    tokens,
    unquote,
)
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.queue import QueueRow
from airflow_provider_dpone.publication.queue_report import QueueReport, Unfinished
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename, Statement
from airflow_provider_dpone.routes.ports import Reply

TASK_TIMEOUT: Final = 5
"""How many seconds the server waits for the replicas before it answers; afterwards we look ourselves."""

_ANSWER_TIMEOUT: Final = 30.0

REFUSED_BEFORE_QUEUEING: Final = frozenset(
    {
        ErrorCode.SYNTAX_ERROR,
        ErrorCode.UNKNOWN_SETTING,
        ErrorCode.READONLY,
        ErrorCode.QUERY_IS_PROHIBITED,
        ErrorCode.ACCESS_DENIED,
        ErrorCode.AUTHENTICATION_FAILED,
        ErrorCode.CLUSTER_DOESNT_EXIST,
    }
)
"""Codes that the contacted server raises before it creates a queue entry, unless a replica sent them back.

A code that Keeper, the network, a time limit or the server's load may have had a part in is never here.
"""
_QUEUE_TIMEOUT: Final = 60.0

TOKEN_PREFIX: Final = "dpone1:"
"""What the tokens of all statements of this provider begin with."""

_MOST_TOKENS: Final = 1000


@dataclass(slots=True)
class DdlQueue:
    """Sends to the queue and reads it; implements :class:`routes.ports.DdlQueue`.

    :ivar task_timeout: seconds that the server waits for the replicas.
    :ivar sent: how many statements may have left this process; each used a permit.
    """

    server: Server
    task_timeout: int = TASK_TIMEOUT
    sent: int = 0

    def __post_init__(self) -> None:
        if self.task_timeout < 1:
            # 0 would answer without any status, a negative value would wait for ever.
            raise ValueError("the task timeout is at least one second")

    def send(self, permit: Permit, statement: Statement, token: str) -> Reply:
        """Send ``statement`` once; see :meth:`routes.ports.DdlQueue.send`.

        The permit is used when the connection stands, immediately before the first byte.

        :raises Stopped: no connection; the permit is not used and nothing was sent.
        """
        sql = render(statement)
        settings: Settings = {
            "log_comment": token,
            "distributed_ddl_output_mode": "throw",
            "distributed_ddl_task_timeout": self.task_timeout,
            # Entries of format 1 carry no settings, so our token would not be in the queue.
            "distributed_ddl_entry_format_version": 5,
            "skip_unavailable_shards": 0,
        }
        sending = False

        def use_permit() -> None:
            nonlocal sending
            permit.use(token)
            sending = True
            self.sent += 1

        try:
            self.server.once(
                sql,
                settings=settings,
                query_id=f"{token}:send",
                timeout=self.task_timeout + _ANSWER_TIMEOUT,
                before_send=use_permit,
            )
        except ServerError as error:
            # Only the server's own words count: a proxy may have put others in their place.
            said = error.mentions(f"Code: {error.code}. DB::Exception")
            refused = error.code in REFUSED_BEFORE_QUEUEING and said and not error.remote_host_error
            return Reply(answered=True, exception_code=error.code, name=error.name, refused=refused)
        except ReplyLost:
            return Reply(answered=False, exception_code=None)
        except ConnectFailed as error:
            raise stopped(error, "Sending the statement") from None
        except Exception:
            if not sending:
                raise
            # Once the permit is used, the queue and the tables decide, whatever went wrong here.
            return Reply(answered=False, exception_code=None)
        return Reply(answered=True, exception_code=0)

    def read(self, token: str) -> tuple[int, tuple[QueueRow, ...]]:
        """Return the rows that carry ``token``; see :meth:`routes.ports.DdlQueue.read`."""
        report = self.report(token)
        return report.sequence, report.rows

    def read_many(
        self, tokens: Collection[str], *, timeout: float = _QUEUE_TIMEOUT
    ) -> tuple[int, Mapping[str, tuple[QueueRow, ...]]]:
        """Return the server's time, in seconds since the epoch, and the rows of each token, in one pass.

        :raises Stopped: the queue can't be read.
        """
        comment = "settings['log_comment']"
        if len(tokens) <= _MOST_TOKENS:
            ours = f"{comment} IN ({', '.join(string(token) for token in sorted(tokens))})"
        else:
            # A statement's length is bounded, and so is the queue.
            ours = f"startsWith({comment}, {string(TOKEN_PREFIX)})"
        sql = (
            f"SELECT toUnixTimestamp(now()) AS read_at, groupArray(tuple(entry, query, {comment}, host, port, "
            "toString(status), exception_code, exception_text)) AS rows "
            f"FROM system.distributed_ddl_queue WHERE {ours}"
        )
        try:
            reply = self.server.read(sql, settings=READ_SETTINGS, timeout=timeout)
        except (ServerError, ConnectFailed, ReplyLost) as error:
            raise stopped(error, "Reading the distributed-DDL queue") from None
        ((read_at, found),) = reply.rows
        rows = [_row(*_list(row)) for row in _list(found)]
        by_token: defaultdict[str, list[QueueRow]] = defaultdict(list)
        for row in rows:
            by_token[row.token].append(row)
        return int(str(read_at)), {token: tuple(by_token[token]) for token in tokens}

    def report(self, token: str) -> QueueReport:
        """Look at the queue once: the token's rows, and what stands before and behind them.

        It costs the server a pass over all entries in Keeper, so it is not for tight loops. The cluster's
        name is no condition: an entry of another cluster under our token must be seen.

        :raises Stopped: the queue can't be read.
        """
        ours = f"settings['log_comment'] = {string(token)}"
        sql = (
            "SELECT groupArrayIf(tuple(entry, query, settings['log_comment'], host, port, toString(status), "
            f"exception_code, exception_text), {ours}) AS rows, "
            f"groupUniqArray(entry) AS entries, "
            "groupArrayIf(tuple(entry, host, port, toString(status), toUnixTimestamp(query_create_time), "
            f"startsWith(settings['log_comment'], {string(TOKEN_PREFIX)}), initiator_host, initiator_port), "
            f"NOT ({ours}) AND (status IS NULL OR toString(status) != 'Finished')) AS unfinished "
            "FROM system.distributed_ddl_queue"
        )
        sequence = next_sequence()
        try:
            reply = self.server.read(sql, settings=READ_SETTINGS, timeout=_QUEUE_TIMEOUT)
        except (ServerError, ConnectFailed, ReplyLost) as error:
            raise stopped(error, "Reading the distributed-DDL queue") from None
        found, entries, unfinished = (_list(value) for value in reply.rows[0])
        rows = tuple(_row(*_list(row)) for row in found)
        entry = max((row.entry for row in rows), default=None)
        return QueueReport(
            sequence=sequence,
            rows=rows,
            newer_entries=None if entry is None else sum(str(other) > entry for other in entries),
            unfinished=tuple(sorted((_unfinished(*_list(row)) for row in unfinished), key=lambda u: u.entry)),
        )


_TEMPLATES: Final[Mapping[type[Statement], str]] = {
    Exchange: "EXCHANGE TABLES {database} . {target} AND {database} . {candidate} ON CLUSTER {cluster}",
    Rename: "RENAME TABLE {database} . {source} TO {database} . {target} ON CLUSTER {cluster}",
    # Without SYNC: that would hold the host's queue until the data is gone.
    Drop: "DROP TABLE IF EXISTS {database} . {table} ON CLUSTER {cluster}",
}
"""The statements word by word, as the server writes them; a name that stands twice must be the same twice."""


def render(statement: Statement) -> str:
    """Return the SQL of a statement."""
    names = {name: identifier(value) for name, value in asdict(statement).items()}
    return _TEMPLATES[type(statement)].format(**names).replace(" . ", ".")


def render_local(statement: Statement) -> str:
    """Return the SQL of a statement for one replica alone, as a person would repair it by hand."""
    head, _, _ = _TEMPLATES[type(statement)].partition(" ON CLUSTER ")
    names = {name: identifier(value) for name, value in asdict(statement).items()}
    return head.format(**names).replace(" . ", ".")


def parse_statement(query: str) -> Statement | None:
    """Read a queue entry's text back; ``None`` if it is not one of our three statements, word by word."""
    try:
        found = [token for token in tokens(query) if token.kind is not TokenKind.COMMENT]
    except SqlSyntaxError:
        return None
    for kind, template in _TEMPLATES.items():
        if (names := _match(template.split(), found)) is not None:
            return kind(**names)
    return None


def _match(template: Sequence[str], found: Sequence[Token]) -> dict[str, str] | None:
    if len(template) != len(found):
        return None
    names: dict[str, str] = {}
    for expected, token in zip(template, found, strict=True):
        if expected.startswith("{"):
            if token.kind not in (TokenKind.WORD, TokenKind.IDENTIFIER):
                return None
            value = unquote(token.text)
            if names.setdefault(expected.strip("{}"), value) != value:
                return None
        elif not (token.is_word(expected) or token.is_symbol(expected)):
            return None
    return names


def _row(
    entry: object,
    query: object,
    token: object,
    host: object,
    port: object,
    status: object,
    exception_code: object,
    exception_text: object,
) -> QueueRow:
    return QueueRow(
        entry=str(entry),
        query=str(query),
        statement=parse_statement(str(query)),
        token=str(token),
        host=_text(host),
        port=_number(port),
        status=_text(status),
        exception_code=_number(exception_code),
        exception_text=_text(exception_text),
    )


def _unfinished(
    entry: object,
    host: object,
    port: object,
    status: object,
    since: object,
    ours: object,
    initiator_host: object,
    initiator_port: object,
) -> Unfinished:
    return Unfinished(
        entry=str(entry),
        host=_text(host),
        port=_number(port),
        status=_text(status),
        since=_number(since) or 0,
        ours=bool(ours),
        initiator_host=_text(initiator_host),
        initiator_port=_number(initiator_port),
    )


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("the server answered in another form than asked for")
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: object) -> int | None:
    """NULL stays ``None``: it means that nothing is known, never zero."""
    return None if value is None else int(str(value))
