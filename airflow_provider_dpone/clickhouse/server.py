"""HTTP to ClickHouse, in two kinds that never mix: reads that may be repeated, and one-shot mutations.

A mutation has its own fresh connection, which is made before the first byte and used for one request.
Nothing sends it again: no retry, no redirect, no reuse of an idle socket, no second host. A read goes
through a pool, and may try another host.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    SSLError,
)
from urllib3.response import BaseHTTPResponse, HTTPResponse
from urllib3.util.timeout import Timeout

from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ReplyLost, ServerError

Settings = Mapping[str, str | int | bool]
"""ClickHouse settings and HTTP parameters of one statement."""

_RESERVED: Final = frozenset(
    {
        "compress",
        "decompress",
        "password",
        "query",
        "query_id",
        "session_check",
        "session_id",
        "session_timeout",
        "stacktrace",
        "user",
    }
)

_READ_SETTINGS: Final[Settings] = {
    "wait_end_of_query": 1,
    # Not in the statement: CHECK GRANT has no FORMAT clause.
    "default_format": "JSONCompact",
    "http_write_exception_in_output_format": 0,
    "cancel_http_readonly_queries_on_client_close": 1,
    "output_format_json_quote_64bit_integers": 0,
    "output_format_json_quote_decimals": 1,
    "output_format_json_quote_denormals": 1,
    # A row that a limit cut off would look like a table that is absent.
    "read_overflow_mode": "throw",
    "result_overflow_mode": "throw",
    "timeout_overflow_mode": "throw",
    "limit": 0,
    "offset": 0,
}

# insert_keeper_max_retries=0: the server's own retry repeats a write to KeeperMap that may have been
# committed. async_insert=0: a batch would share the fate of other clients' rows.
_ONCE_SETTINGS: Final[Settings] = {
    "wait_end_of_query": 1,
    "async_insert": 0,
    "insert_keeper_max_retries": 0,
    "http_write_exception_in_output_format": 0,
}

_READ_WORDS: Final = ("SELECT", "WITH", "SHOW", "DESCRIBE", "EXISTS", "EXPLAIN", "CHECK GRANT")

_SOCKET_OPTIONS: Final[list[tuple[int, int, int | bytes]]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A load may be silent for an hour; without probes a router forgets the connection meanwhile.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *([(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)] if hasattr(socket, "TCP_KEEPIDLE") else []),
]


_CHUNK_BYTES: Final = 512 * 1024

_BROKEN: Final = (HTTPError, OSError, http.client.HTTPException)
_LOST: Final = "the connection broke or the server was silent for too long"
_ANOTHER: Final = "what answered is not the server that this connection is bound to"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Where and as whom to connect.

    :ivar hosts: HTTP endpoints, the preferred one first. One is enough.
    :ivar ca_cert: file with the CA's certificates; the system's if empty.
    :ivar connect_timeout: seconds.
    :ivar read_timeout: seconds; how long a server may be silent.
    :ivar session_settings: the user's own settings, sent with every statement. Ours win.
    :ivar replicas: HTTP endpoints by replica, such as ``s1/r2``, where the cluster's own names lead nowhere.
    """

    hosts: tuple[tuple[str, int], ...]
    user: str = "default"
    password: str = field(default="", repr=False)
    secure: bool = False
    verify: bool = True
    ca_cert: str = ""
    client_cert: str = ""
    client_key: str = ""
    connect_timeout: float = 10.0
    read_timeout: float = 300.0
    session_settings: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("the connection names no host")
        for name, value in (("user", self.user), ("password", self.password)):
            if any(char in value for char in "\r\n\0"):
                raise ValueError(f"the connection's {name} holds a control character")
        if reserved := sorted(_RESERVED & set(self.session_settings)):
            raise ValueError(f"these settings can't be set on the connection: {', '.join(reserved)}")


@dataclass(frozen=True, slots=True)
class ReadReply:
    """The answer to a read. Integers of any width are exact; decimals are text.

    :ivar server_name: how the answering server calls itself.
    :ivar summary: ClickHouse's counters of the query.
    """

    columns: tuple[str, ...]
    rows: list[list[object]]
    server_name: str
    summary: Mapping[str, str]

    def dicts(self) -> list[dict[str, object]]:
        """Return the rows by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class OnceReply:
    """The acknowledgement of a mutation: ClickHouse answered, completely and without an error.

    :ivar summary: ClickHouse's counters, such as ``written_rows``.
    """

    summary: Mapping[str, str]
    server_name: str
    text: str


@dataclass(frozen=True, slots=True)
class Download:
    """The whole answer to a query, in the format that was asked for.

    :ivar rows: how many rows it is; ClickHouse has counted them before it sent the first byte.
    :ivar chunks: its bytes in order, to be read once. A connection that breaks raises :class:`ReplyLost`.
    """

    rows: int
    chunks: Iterator[bytes]


class Server:
    """A connection to one cluster's HTTP endpoint (or several of them)."""

    def __init__(self, settings: ConnectionSettings) -> None:
        """Prepare; nothing is connected yet.

        :raises OSError: a certificate file can't be loaded.
        """
        self._settings = settings
        self._tls = _tls_context(settings) if settings.secure else None
        self._pools = [self._pool(host, port) for host, port in settings.hosts]
        self._preferred = 0
        self._mutations = 0
        self._name = ""

    def __repr__(self) -> str:
        return f"Server({len(self._pools)} endpoints, secure={self._settings.secure})"

    @property
    def settings(self) -> ConnectionSettings:
        """Where and as whom this connects."""
        return self._settings

    @property
    def user(self) -> str:
        """The user as whom statements run."""
        return self._settings.user

    @property
    def mutations(self) -> int:
        """How many requests of :meth:`once` have left (in whole or in part) so far."""
        return self._mutations

    def bind(self, name: str) -> None:
        """Count only what one server answers, from now on: the one that calls itself ``name``; any if it's empty.

        What another one answers is a lost reply: it says nothing about the server that was meant.
        """
        self._name = name

    def close(self) -> None:
        """Close the pool's idle connections."""
        for pool in self._pools:
            pool.close()

    def read(
        self,
        sql: str,
        *,
        settings: Settings | None = None,
        timeout: float | None = None,
        query_id: str | None = None,
    ) -> ReadReply:
        """Run a statement that changes nothing, on whichever host answers.

        :param sql: without FORMAT clause.
        :param timeout: seconds for everything, tries on other hosts included; ``read_timeout`` by default.
        :param query_id: the query's own, under which it can be killed.
        :raises ServerError: the server refused it.
        :raises ConnectFailed: no host could be reached.
        :raises ReplyLost: connections broke, or the time was up.
        """
        if not sql.lstrip().upper().startswith(_READ_WORDS):
            raise ValueError("only a statement that reads may be sent this way")
        # A try on a connection that was broken may still run: the next one takes its place.
        named: Settings = {"query_id": query_id, "replace_running_query": 1} if query_id is not None else {}
        url = "/?" + self._parameters(settings, {**_READ_SETTINGS, **named})
        body = sql.encode()
        deadline = time.monotonic() + (timeout if timeout is not None else self._settings.read_timeout)
        failure: ConnectFailed | ReplyLost | None = None
        # The first host is tried again at the end: its pooled connection may just have been stale.
        order = [(self._preferred + i) % len(self._pools) for i in range(len(self._pools))]
        for index in (*order, order[0]):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                response = self._pools[index].urlopen(
                    "POST",
                    url,
                    body=body,
                    headers=self._headers(),
                    retries=False,
                    redirect=False,
                    timeout=Timeout(connect=min(left, self._settings.connect_timeout), read=left),
                )
            except (NewConnectionError, ConnectTimeoutError, SSLError) as error:
                failure = _connect_failed(error)
                continue
            except _BROKEN:
                failure = ReplyLost(_LOST)
                continue
            try:
                reply = _read_reply(response, self._name)
            except ReplyLost as error:
                failure = error
                continue
            self._preferred = index
            return reply
        raise failure or ReplyLost("the time for reading was up")

    @contextmanager
    def download(
        self,
        sql: str,
        *,
        format: str,
        settings: Settings | None = None,
        timeout: float,
        query_id: str | None = None,
    ) -> Iterator[Download]:
        """Run a query and hand its answer over as ClickHouse encodes it, in bounded memory.

        The server has finished the query before it answers (it keeps what doesn't fit into its memory in a file), so
        that no error can come behind the first bytes and no part of an answer looks like one.

        :param sql: a SELECT without FORMAT clause.
        :param timeout: how many seconds the server may be silent.
        :param query_id: the query's own, under which it can be killed.
        :raises ServerError: the server refused it, or the query failed.
        :raises ConnectFailed: the server could not be reached.
        :raises ReplyLost: the connection broke.
        """
        if not sql.lstrip().upper().startswith("SELECT"):
            raise ValueError("only a query is downloaded")
        connection = self._connect(None, timeout)
        named: Settings = {"query_id": query_id} if query_id is not None else {}
        url = "/?" + self._parameters(settings, {**_READ_SETTINGS, **named, "default_format": format})
        try:
            try:
                connection.request(
                    "POST", url, body=sql.encode(), headers=self._headers(), preload_content=False
                )
                response = connection.getresponse()
                failed = response.status != 200 or "X-ClickHouse-Exception-Code" in response.headers
                text = response.read().decode(errors="replace") if failed else ""
            except _BROKEN:
                raise ReplyLost(_LOST) from None
            if (failure := _server_error(response, text)) is not None:
                raise failure
            rows = _summary(response).get("result_rows", "")
            if not _is_clickhouse(response) or not rows.isdigit():
                raise ReplyLost("what answered is not ClickHouse")
            if self._name and _server_name(response) != self._name:
                raise ReplyLost(_ANOTHER)
            yield Download(int(rows), _chunks(response))
        finally:
            connection.close()

    def once(
        self,
        sql: str,
        *,
        settings: Settings | None = None,
        query_id: str | None = None,
        body: Iterable[bytes] | None = None,
        timeout: float | None = None,
        pinned: int | None = None,
        before_send: Callable[[], None] | None = None,
    ) -> OnceReply:
        """Send a statement that changes something, exactly once.

        :param body: data of an INSERT, streamed behind ``sql``. If the iterator raises, the connection is
            cut without the final chunk, so that the server sees a broken insert and not a short one, and
            the exception goes through.
        :param timeout: how many seconds the server may be silent; ``read_timeout`` by default.
        :param pinned: index of the one host to use; else the first that accepts a connection.
        :param before_send: called when the connection stands, immediately before the first byte. If it
            raises, nothing is sent.
        :raises ConnectFailed: nothing was sent.
        :raises ServerError: ClickHouse answered with an error. Whether the statement has had an effect
            depends on the error.
        :raises ReplyLost: sent, with unknown outcome. An answer that isn't ClickHouse's own counts as this.
        """
        parameters = dict(settings or {})
        if query_id is not None:
            parameters["query_id"] = query_id
        url = "/?" + self._parameters(parameters, _ONCE_SETTINGS, query=None if body is None else sql)
        connection = self._connect(pinned, timeout if timeout is not None else self._settings.read_timeout)
        headers = {**self._headers(), "Connection": "close"}
        try:
            if before_send is not None:
                before_send()
            self._mutations += 1
            if body is None:
                return _send(connection, url, headers, sql.encode(), None, self._name)
            return _send(connection, url, headers, None, _Body(body), self._name)
        finally:
            connection.close()

    def _connect(self, pinned: int | None, timeout: float) -> HTTPConnection:
        """Connect to the pinned host, or to the first that accepts. Nothing is sent but the handshake."""
        hosts = self._settings.hosts
        candidates = (
            [pinned]
            if pinned is not None
            else [(self._preferred + i) % len(hosts) for i in range(len(hosts))]
        )
        failure = ConnectFailed("no host to connect to")
        for index in candidates:
            host, port = hosts[index]
            connection = self._connection(host, port)
            # http.client would open a second connection by itself when the first one is gone.
            connection.auto_open = 0
            try:
                connection.connect()
            except (HTTPError, OSError) as error:
                connection.close()
                failure = _connect_failed(error)
                continue
            # From here on it is the server's silence that counts. The attribute is set on the socket by urllib3
            # when it waits for the reply.
            connection.timeout = timeout
            connection.sock.settimeout(timeout)
            return connection
        raise failure

    def _connection(self, host: str, port: int) -> HTTPConnection:
        timeout = self._settings.connect_timeout
        if self._tls is None:
            return HTTPConnection(host, port, timeout=timeout, socket_options=_SOCKET_OPTIONS)
        return HTTPSConnection(
            host, port, timeout=timeout, socket_options=_SOCKET_OPTIONS, ssl_context=self._tls
        )

    def _pool(self, host: str, port: int) -> HTTPConnectionPool:
        if self._tls is None:
            return HTTPConnectionPool(host, port, maxsize=4, socket_options=_SOCKET_OPTIONS)
        return HTTPSConnectionPool(
            host, port, maxsize=4, socket_options=_SOCKET_OPTIONS, ssl_context=self._tls
        )

    def _headers(self) -> dict[str, str]:
        # http.client writes text headers as latin-1; ClickHouse reads the bytes as UTF-8.
        return {
            "X-ClickHouse-User": self._settings.user.encode().decode("latin-1"),
            "X-ClickHouse-Key": self._settings.password.encode().decode("latin-1"),
        }

    def _parameters(self, given: Settings | None, ours: Settings, query: str | None = None) -> str:
        merged: dict[str, str | int | bool] = {**self._settings.session_settings, **(given or {}), **ours}
        texts = {k: str(int(v)) if isinstance(v, bool) else str(v) for k, v in merged.items()}
        if query is not None:
            texts["query"] = query
        return urlencode(texts)


class _Body:
    """A stream of data that remembers its own failure, to tell it from one of the connection."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.failure: Exception | None = None
        self.complete = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:
                # An empty chunk is what ends a chunked body.
                if chunk:
                    yield chunk
        except Exception as error:
            self.failure = error
            raise
        self.complete = True


def _send(
    connection: HTTPConnection,
    url: str,
    headers: Mapping[str, str],
    data: bytes | None,
    body: _Body | None,
    name: str,
) -> OnceReply:
    try:
        try:
            connection.request(
                "POST",
                url,
                body=data if body is None else iter(body),
                headers=headers,
                chunked=body is not None,
                preload_content=False,
            )
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses an insert answers before it has read everything, and closes.
            if body is None or body.failure is not None:
                raise
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except _BROKEN as error:
        if body is not None and body.failure is error:
            raise
        raise ReplyLost(_LOST) from None
    _require_name(response, name)
    if (failure := _server_error(response, text)) is not None:
        raise failure
    if not _is_clickhouse(response) or (body is not None and not body.complete):
        raise ReplyLost("what answered is not ClickHouse, or it answered too early")
    return OnceReply(_summary(response), _server_name(response), text)


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    try:
        yield from response.stream(_CHUNK_BYTES)
    except _BROKEN:
        raise ReplyLost(_LOST) from None


def _connect_failed(error: Exception) -> ConnectFailed:
    """Say in our own words why there is no connection; the error itself names hosts."""
    match error:
        case SSLError() | ssl.SSLError():
            return ConnectFailed("the TLS handshake with the server failed (check certificates and CA)")
        case NameResolutionError():
            return ConnectFailed("the server's host name can't be resolved")
        case ConnectTimeoutError() | TimeoutError():
            return ConnectFailed("the server did not accept a connection in time")
        case _:
            return ConnectFailed("the server did not accept a connection")


def _read_reply(response: BaseHTTPResponse, name: str) -> ReadReply:
    text = response.data.decode(errors="replace")
    _require_name(response, name)
    if (failure := _server_error(response, text)) is not None:
        raise failure
    if not _is_clickhouse(response):
        raise ReplyLost("what answered is not ClickHouse")
    try:
        document = json.loads(text)
        columns = tuple(column["name"] for column in document["meta"])
        rows = document["data"]
    except (ValueError, KeyError, TypeError):
        # A query that fails after its first bytes appends the error to them.
        raise ServerError.from_text(text) or ReplyLost("the answer is not complete") from None
    return ReadReply(columns, rows, _server_name(response), _summary(response))


def _require_name(response: BaseHTTPResponse, name: str) -> None:
    # Errors have the header, too.
    if name and _server_name(response) != name:
        raise ReplyLost(_ANOTHER)


def _server_error(response: BaseHTTPResponse, text: str) -> ServerError | None:
    code = response.headers.get("X-ClickHouse-Exception-Code")
    if code is not None and code.isdigit():
        return ServerError.from_text(text, code=int(code))
    return None if response.status == 200 else ServerError.from_text(text)


def _is_clickhouse(response: BaseHTTPResponse) -> bool:
    return response.status == 200 and "X-ClickHouse-Summary" in response.headers


def _server_name(response: BaseHTTPResponse) -> str:
    return response.headers.get("X-ClickHouse-Server-Display-Name", "")


def _summary(response: BaseHTTPResponse) -> Mapping[str, str]:
    try:
        found = json.loads(response.headers.get("X-ClickHouse-Summary", "{}"))
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _tls_context(settings: ConnectionSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_cert or None)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.client_cert:
        context.load_cert_chain(settings.client_cert, settings.client_key or None)
    return context
