"""What can go wrong between us and a server, without a word of what the server said.

ClickHouse's error texts quote hosts, SQL and row values. Only its code, its error name and our own
one-line meaning leave this module; the text itself is looked at here and then kept private.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum, unique
from typing import Final

from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped


@unique
class ErrorCode(IntEnum):
    """The codes of ClickHouse that something here depends on."""

    ATTEMPT_TO_READ_AFTER_EOF = 32
    BAD_ARGUMENTS = 36
    UNKNOWN_IDENTIFIER = 47
    NOT_IMPLEMENTED = 48
    TABLE_ALREADY_EXISTS = 57
    UNKNOWN_TABLE = 60
    SYNTAX_ERROR = 62
    UNKNOWN_DATABASE = 81
    UNKNOWN_SETTING = 115
    NO_ELEMENTS_IN_CONFIG = 139
    TIMEOUT_EXCEEDED = 159
    READONLY = 164
    DNS_ERROR = 198
    TOO_MANY_SIMULTANEOUS_QUERIES = 202
    SOCKET_TIMEOUT = 209
    NETWORK_ERROR = 210
    QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING = 216
    NO_ZOOKEEPER = 225
    MEMORY_LIMIT_EXCEEDED = 241
    TABLE_IS_READ_ONLY = 242
    ALL_CONNECTION_TRIES_FAILED = 279
    UNFINISHED = 341
    TABLE_SIZE_EXCEEDS_MAX_DROP_SIZE_LIMIT = 359
    QUERY_IS_PROHIBITED = 392
    QUERY_WAS_CANCELLED = 394
    FUNCTION_THROW_IF_VALUE_IS_NON_ZERO = 395
    ACCESS_DENIED = 497
    AUTHENTICATION_FAILED = 516
    HAVE_DEPENDENT_OBJECTS = 630
    CLUSTER_DOESNT_EXIST = 701
    KEEPER_EXCEPTION = 999


_MEANINGS: Final = {
    ErrorCode.ATTEMPT_TO_READ_AFTER_EOF: "a connection ended too early",
    ErrorCode.BAD_ARGUMENTS: "an argument, a path or a configuration value is not accepted",
    ErrorCode.UNKNOWN_IDENTIFIER: "a column is unknown",
    ErrorCode.NOT_IMPLEMENTED: "the server can't do this with these tables",
    ErrorCode.TABLE_ALREADY_EXISTS: "a table of that name or UUID exists already",
    ErrorCode.UNKNOWN_TABLE: "a table doesn't exist",
    ErrorCode.SYNTAX_ERROR: "the server can't parse the statement",
    ErrorCode.UNKNOWN_DATABASE: "the database doesn't exist",
    ErrorCode.UNKNOWN_SETTING: "the server doesn't know a setting",
    ErrorCode.NO_ELEMENTS_IN_CONFIG: "the server's configuration lacks an element",
    ErrorCode.TIMEOUT_EXCEEDED: "the server stopped waiting; the work may go on",
    ErrorCode.READONLY: "the user may only read, or may not change a setting",
    ErrorCode.DNS_ERROR: "a host name can't be resolved",
    ErrorCode.MEMORY_LIMIT_EXCEEDED: "a memory limit was reached",
    ErrorCode.TOO_MANY_SIMULTANEOUS_QUERIES: "the server runs too many queries",
    ErrorCode.SOCKET_TIMEOUT: "a server waited too long for another one",
    ErrorCode.NETWORK_ERROR: "a server could not reach another one",
    ErrorCode.QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING: "a query with this id is running",
    ErrorCode.NO_ZOOKEEPER: "Keeper is not configured or not reachable",
    ErrorCode.TABLE_IS_READ_ONLY: "the table is read-only, as without Keeper",
    ErrorCode.ALL_CONNECTION_TRIES_FAILED: "a replica could not be reached",
    ErrorCode.UNFINISHED: "the server gave the work up or lost sight of it",
    ErrorCode.TABLE_SIZE_EXCEEDS_MAX_DROP_SIZE_LIMIT: "the table is larger than max_table_size_to_drop",
    ErrorCode.QUERY_IS_PROHIBITED: "the statement is prohibited by the configuration",
    ErrorCode.QUERY_WAS_CANCELLED: "the query was cancelled",
    ErrorCode.FUNCTION_THROW_IF_VALUE_IS_NON_ZERO: "a check inside the query failed",
    ErrorCode.ACCESS_DENIED: "the user lacks a grant",
    ErrorCode.AUTHENTICATION_FAILED: "user or password is wrong",
    ErrorCode.HAVE_DEPENDENT_OBJECTS: "other objects depend on the table",
    ErrorCode.CLUSTER_DOESNT_EXIST: "the server has no cluster of that name",
    ErrorCode.KEEPER_EXCEPTION: "Keeper refused the operation or lost the connection",
}

KEEPER_CODES: Final = frozenset(
    {ErrorCode.KEEPER_EXCEPTION, ErrorCode.TABLE_IS_READ_ONLY, ErrorCode.NO_ZOOKEEPER}
)
"""Codes of a statement that could not use Keeper. For a write they leave its outcome unknown."""

REPLICA_CODES: Final = frozenset(
    {
        ErrorCode.ALL_CONNECTION_TRIES_FAILED,
        ErrorCode.ATTEMPT_TO_READ_AFTER_EOF,
        ErrorCode.DNS_ERROR,
        ErrorCode.NETWORK_ERROR,
        ErrorCode.SOCKET_TIMEOUT,
    }
)
"""Codes of a distributed read that could not reach a replica."""

_EXCEPTION = re.compile(r"Code:\s*(\d+)\.\s*DB::\w*Exception")
_NAME_TAIL = re.compile(r"\(([A-Z][A-Z0-9_]{1,80})\)\s*\(version ")
_NEEDED_GRANT = re.compile(r"necessary to have the grant ([A-Z][A-Z ]*)(?:\([^)]*\))? ON ([\w.*`]*[\w*`])")
_DIAGNOSED_COLUMN = re.compile(r"Column \d+,\s+name: (.+?),\s+type: ")
_OWN_MESSAGE = re.compile(r"DB::Exception: dpone: ((?:[A-Za-z0-9 ,'-]|`(?:[^`\\]|\\.)*`)+)")


class ServerError(Exception):
    """A server answered with an error of ClickHouse.

    :ivar code: ClickHouse's error code.
    :ivar name: its name, such as ``UNKNOWN_TABLE``; empty if the server didn't give it.
    :ivar remote_host_error: another host of a distributed statement reported it.
    :ivar needed_grant: the grant that the user lacks, as ``SELECT ON system.clusters``.
    :ivar diagnosed_column: the column that the server was reading when it found a body malformed, by its own account;
        values stand in that account too, so it counts only if there is such a column.
    :ivar own_message: what a ``throwIf(..., 'dpone: ...')`` of ours says: plain words and quoted names.
    """

    def __init__(self, code: int, name: str, text: str = "") -> None:
        # Only code and name are arguments of the exception: those are what gets pickled and printed.
        super().__init__(code, name)
        self.code = code
        self.name = name
        self.remote_host_error = "There was an error on [" in text
        grant = _NEEDED_GRANT.search(text) if code == ErrorCode.ACCESS_DENIED else None
        self.needed_grant = " ON ".join(part.strip() for part in grant.groups()) if grant else None
        own = _OWN_MESSAGE.search(text) if code == ErrorCode.FUNCTION_THROW_IF_VALUE_IS_NON_ZERO else None
        self.own_message = own.group(1).strip() if own else None
        diagnosed = _DIAGNOSED_COLUMN.findall(text)
        # The row is told up to the column that could not be read.
        self.diagnosed_column: str | None = diagnosed[-1] if diagnosed else None
        self._text = text

    def __str__(self) -> str:
        return summary(self)

    def __reduce__(self) -> tuple[type[ServerError], tuple[int, str]]:
        # A pickle travels to logs and databases; the text stays here.
        return ServerError, (self.code, self.name)

    def mentions(self, text: str) -> bool:
        """Tell whether the server's text holds ``text``. The text itself is not given away."""
        return text in self._text

    @classmethod
    def from_text(cls, text: str, *, code: int | None = None) -> ServerError | None:
        """Read an error from a response body; ``None`` if it is none.

        :param code: from the header ``X-ClickHouse-Exception-Code``, which is believed first.
        """
        found = _EXCEPTION.search(text)
        if code is None:
            if found is None:
                return None
            code = int(found.group(1))
        names = _NAME_TAIL.findall(text)
        return cls(code, names[-1] if names else name_of(code), text)


class ConnectFailed(Exception):
    """No connection: not one byte of the request was sent. Its text is ours and names no host."""


class ReplyLost(Exception):
    """The request was sent, at least in part, and no complete answer of ClickHouse came back.

    What was asked for may have happened, may still happen, or may never happen. Its text is ours.
    """


TransportError = ServerError | ConnectFailed | ReplyLost


def summary(error: TransportError) -> str:
    """Return what the error means, in one line and without foreign text."""
    if isinstance(error, ConnectFailed | ReplyLost):
        return str(error)
    if error.needed_grant is not None:
        return f"{error.code} {error.name}: the user lacks the grant {error.needed_grant}"
    try:
        meaning = error.own_message or _MEANINGS[ErrorCode(error.code)]
    except ValueError:
        meaning = "see ClickHouse's list of error codes"
    return f"{error.code} {error.name or name_of(error.code)}: {meaning}"


def told_code(code: int) -> str:
    """Return what an error code of ClickHouse means, where nothing but the code is kept."""
    return summary(ServerError(code, name_of(code)))


def stopped(error: TransportError, doing: str) -> Stopped:
    """Map an error of a *read* (or of a statement that surely did nothing) to the stop it means.

    :param doing: what was tried, as the start of a sentence: "Reading the cluster's replicas".
    """
    message = f"{doing} failed: {summary(error)}."
    if not isinstance(error, ServerError):
        return Stopped(Stop(Code.SERVER_UNAVAILABLE, message))
    facts: dict[str, Json] = {"exception_code": error.code, "exception_name": error.name}
    match error.code:
        case code if code in KEEPER_CODES:
            stop = Code.AUTHORITY_UNAVAILABLE
        case code if code in REPLICA_CODES:
            stop = Code.REPLICA_NOT_OBSERVED
        case ErrorCode.ACCESS_DENIED:
            stop = Code.MISSING_GRANT
        case ErrorCode.CLUSTER_DOESNT_EXIST:
            stop = Code.UNKNOWN_CLUSTER
        case _:
            stop = Code.SERVER_ERROR
    return Stopped(Stop(stop, message, facts=facts))


def name_of(code: int) -> str:
    """Return the name of an error code that something here depends on; empty for any other."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return ""


def stop_with(
    code: Code,
    message: str,
    *,
    facts: Mapping[str, Json] | None = None,
    replicas: Mapping[str, Mapping[str, Json]] | None = None,
) -> Stopped:
    """Return the exception of a stop."""
    return Stopped(Stop(code, message, facts=facts or {}, replicas=replicas or {}))
