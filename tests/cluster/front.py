"""The HTTP port of one server as clients see it: everything passes through, byte for byte, except what the embedded
server lacks (ON CLUSTER statements and system.distributed_ddl_queue), and except where a fault is armed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode
from uuid import uuid4

import aiohttp
import lz4.frame  # type: ignore[import-untyped]
import zstandard
from aiohttp import web
from yarl import URL

from tests.cluster.ddl_statement import may_have_on_cluster
from tests.cluster.faults import ArmedFault, FaultKind, FaultRegistry
from tests.cluster.node_client import (
    ADMIN,
    CODE_HEADER,
    Caller,
    ErrorAnswer,
    NodeClient,
    NodeDownError,
    ServerError,
)
from tests.cluster.on_cluster import Initiator, StatementRefusedError
from tests.cluster.spec import QUEUE_STAND_IN
from tests.cluster.sql import first_word, replace_table
from tests.cluster.statement_log import Outcome, StatementLog

_LOG = logging.getLogger(__name__)

TOOL_HEADER = "X-Cluster-Tool"
"""Requests with this header are the test's own: no fault hits them, and no log shows them."""

QUEUE_TABLE = ("system", "distributed_ddl_queue")
_HELPER_TRACE = re.compile(r": (?:In scope|while executing).*?(?=\. \([A-Z_]+\) \(version|$)", re.DOTALL)
_PEEKED_BYTES = 65_536
_LOGGED_CHARACTERS = 16_384
_HOP_BY_HOP = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate"),
        *("proxy-authorization", "te", "transfer-encoding", "upgrade"),
    }
)
# URL parameters that belong to the transport; every other one is a setting.
_NOT_SETTINGS = frozenset(
    {
        *("add_http_cors_header", "buffer_size", "cancel_http_readonly_queries_on_client_close"),
        *("client_protocol_version", "compress", "database", "decompress", "default_format"),
        *("enable_http_compression", "http_headers_progress_interval_ms"),
        *("http_write_exception_in_output_format", "password", "query", "query_id", "quota_key", "role"),
        *("send_progress_in_http_headers", "session_check", "session_id", "session_timeout", "stacktrace"),
        *("user", "wait_end_of_query"),
    }
)
_CALLER_HEADERS = (
    "Authorization",
    "X-ClickHouse-Database",
    "X-ClickHouse-Key",
    "X-ClickHouse-Quota",
    "X-ClickHouse-User",
)
_CALLER_TRANSPORT = frozenset(
    {"database", "user", "password", "role", "session_id", "session_timeout", "quota_key"}
)


class ConnectionCutError(Exception):
    """The client's connection is to be cut, with this outcome in the log."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server behind a front port.

    Attributes:
        died: returns when the server's process has ended; never, as long as it runs.
    """

    node: int
    client: NodeClient
    initiator: Initiator
    died: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _UpstreamRequest:
    """What is sent to the server: query string, headers, body."""

    query_string: str
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes] | None


class _Request:
    """A client's request, of which as much has been read as is needed to know its statement."""

    def __init__(self, request: web.Request) -> None:
        self.raw = request
        self.parameters = dict(parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True))
        self.is_tool = TOOL_HEADER in request.headers
        self.in_url = bool(self.parameters.get("query", "").strip())
        self._peeked = b""
        self._rest: AsyncIterator[bytes] | None = None
        self.statement = ""
        self.client_gone = False

    async def read_statement(self) -> None:
        """Find the statement: in the URL, or at the beginning of the body."""
        if self.raw.can_read_body:
            self._rest = self.raw.content.iter_any()
        if self.in_url:
            self.statement = self.parameters["query"]
        elif self._rest is not None and not self.raw.content_type.startswith("multipart/"):
            await self._peek(_PEEKED_BYTES)
            self.statement = self._decoded().decode(errors="replace")

    async def whole_statement(self) -> str:
        """The statement, however long it is."""
        if not self.in_url:
            await self._peek(None)
            self.statement = self._decoded().decode(errors="replace")
        return self.statement

    async def _peek(self, limit: int | None) -> None:
        while self._rest is not None and (limit is None or len(self._peeked) < limit):
            try:
                self._peeked += await anext(self._rest)
            except StopAsyncIteration:
                self._rest = None

    def _decoded(self) -> bytes:
        encoding = self.raw.headers.get("Content-Encoding", "").lower()
        try:
            match encoding:
                case "":
                    return self._peeked
                case "gzip":
                    return zlib.decompressobj(31).decompress(self._peeked)
                case "deflate":
                    return zlib.decompressobj().decompress(self._peeked)
                case "zstd":
                    return zstandard.ZstdDecompressor().decompressobj().decompress(self._peeked)
                case "lz4":
                    return bytes(lz4.frame.LZ4FrameDecompressor().decompress(self._peeked))
        except (zlib.error, zstandard.ZstdError, RuntimeError) as error:
            _LOG.info("unreadable %s body: %s", encoding, error)
        return b""

    async def body(self) -> AsyncIterator[bytes]:
        """The whole body: what was read already, then the rest as it comes."""
        if self._peeked:
            yield self._peeked
        if self._rest is not None:
            try:
                async for chunk in self._rest:
                    yield chunk
            except BaseException:
                self.client_gone = True
                raise

    @property
    def has_body(self) -> bool:
        return bool(self._peeked) or self._rest is not None

    def headers(self, *without: str) -> list[tuple[str, str]]:
        """Its headers, for the server behind."""
        excluded = _HOP_BY_HOP | {TOOL_HEADER.lower(), *without}
        return [(name, value) for name, value in self.raw.headers.items() if name.lower() not in excluded]

    @property
    def caller(self) -> Caller:
        """Its credentials and settings, for requests in its name."""
        return Caller(
            parameters={
                name: value
                for name, value in self.parameters.items()
                if name in _CALLER_TRANSPORT or (name not in _NOT_SETTINGS and not name.startswith("param_"))
            },
            headers={name: self.raw.headers[name] for name in _CALLER_HEADERS if name in self.raw.headers},
        )

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in self.parameters.items() if name not in _NOT_SETTINGS}

    @property
    def query_parameters(self) -> dict[str, str]:
        prefix = "param_"
        return {
            name.removeprefix(prefix): value
            for name, value in self.parameters.items()
            if name.startswith(prefix)
        }

    @property
    def user(self) -> str:
        """Who asks, as far as the request says."""
        basic = self.raw.headers.get("Authorization", "").removeprefix("Basic ")
        if basic:
            try:
                return b64decode(basic).decode(errors="replace").partition(":")[0]
            except ValueError:
                return ""
        return self.parameters.get("user", self.raw.headers.get("X-ClickHouse-User", "default"))


class Front:
    """Handles the requests to one server."""

    def __init__(
        self,
        upstream: Upstream,
        session: aiohttp.ClientSession,
        faults: FaultRegistry,
        log: StatementLog,
    ) -> None:
        self._upstream = upstream
        self._session = session
        self._faults = faults
        self._log = log

    async def handle(self, raw: web.Request) -> web.StreamResponse:
        """Answer one request, or cut its connection."""
        request = _Request(raw)
        if not request.is_tool:
            self._log.count_request(self._upstream.node)
        sequence = 0
        try:
            await request.read_statement()
            if not request.statement.strip():
                return await self._forward(request, self._same_request(request))
            if request.is_tool:
                return await self._answer(request, lambda _entry: None, None)
            sequence = self._begin(request)
            response = await self._answer_with_faults(request, sequence)
        except ConnectionCutError as cut:
            self._log.end(sequence, cut.outcome)
            return _cut(raw)
        except NodeDownError as error:
            _LOG.info("node %s is down: %s", self._upstream.node, error)
            self._log.end(sequence, Outcome.NODE_DOWN)
            return _cut(raw)
        except (ConnectionError, web.HTTPException, aiohttp.ClientPayloadError) as error:
            _LOG.info("client of node %s is gone: %s", self._upstream.node, error)
            self._log.end(sequence, Outcome.CLIENT_GONE)
            return _cut(raw)
        except BaseException:
            self._log.end(sequence, Outcome.CLIENT_GONE)
            raise
        code = int(response.headers.get(CODE_HEADER, "0"))
        outcome = Outcome.OK if response.status == 200 and not code else Outcome.ERROR
        self._log.end(sequence, outcome, http_status=response.status, code=code)
        return response

    def _begin(self, request: _Request) -> int:
        return self._log.begin(
            node=self._upstream.node,
            kind=first_word(request.statement),
            text=request.statement[:_LOGGED_CHARACTERS],
            query_id=request.parameters.get("query_id", ""),
            user=request.user,
            settings=request.settings,
        )

    async def _answer_with_faults(self, request: _Request, sequence: int) -> web.StreamResponse:
        statement = request.statement

        def take(*kinds: FaultKind) -> ArmedFault | None:
            return self._faults.take(self._upstream.node, statement, *kinds)

        before = take(FaultKind.REFUSE, FaultKind.ERROR_BEFORE, FaultKind.DELAY_BEFORE, FaultKind.HOLD_BEFORE)
        match before:
            case ArmedFault(kind=FaultKind.REFUSE):
                raise ConnectionCutError(Outcome.REFUSED)
            case ArmedFault(kind=FaultKind.ERROR_BEFORE, code=code):
                error = await self._upstream.client.error_like(code, "Injected before the execution")
                return await self._send_error(request, error)
            case ArmedFault():
                await before.wait()

        def on_enqueued(entry: str) -> None:
            self._log.enqueued(sequence, entry)
            if take(FaultKind.DROP_AFTER_ENQUEUE):
                raise ConnectionCutError(Outcome.DROPPED)

        after = take(
            FaultKind.DROP_RESPONSE, FaultKind.ERROR_AFTER, FaultKind.DELAY_AFTER, FaultKind.HOLD_AFTER
        )
        return await self._answer(request, on_enqueued, after)

    async def _answer(
        self, request: _Request, on_enqueued: Callable[[str], None], after: ArmedFault | None
    ) -> web.StreamResponse:
        if may_have_on_cluster(request.statement):
            answer = await self._run_on_cluster(request, on_enqueued)
            if isinstance(answer, ErrorAnswer):
                await self._spoil(after)
                return await self._send_error(request, answer)
            if answer is not None:
                return await self._forward(request, self._answering_request(request, answer), after)
        if QUEUE_TABLE[1] in request.statement:
            denied = await self._denied_queue(request)
            if denied is not None:
                return await self._send_error(request, denied)
            sql = replace_table(await request.whole_statement(), *QUEUE_TABLE, QUEUE_STAND_IN)
            return await self._forward(request, self._changed_request(request, sql), after)
        return await self._forward(request, self._same_request(request), after)

    # --- What goes to the server -----------------------------------------------------

    def _same_request(self, request: _Request) -> _UpstreamRequest:
        body = request.body() if request.has_body else None
        return _UpstreamRequest(request.raw.rel_url.raw_query_string, request.headers(), body)

    def _changed_request(self, request: _Request, sql: str) -> _UpstreamRequest:
        if not request.in_url:
            query = request.raw.rel_url.raw_query_string
            return _UpstreamRequest(query, request.headers("content-encoding"), sql.encode())
        parameters = urlencode({**request.parameters, "query": sql})
        return _UpstreamRequest(parameters, request.headers(), request.body() if request.has_body else None)

    def _answering_request(self, request: _Request, sql: str) -> _UpstreamRequest:
        """The query that yields the rows of an ON CLUSTER statement. The caller may lack the right to run it."""
        parameters = {
            name: value
            for name, value in request.parameters.items()
            if name not in _CALLER_TRANSPORT and name != "query" and not name.startswith("param_")
        }
        credentials = (name.lower() for name in _CALLER_HEADERS)
        headers = request.headers("content-encoding", "content-type", *credentials)
        return _UpstreamRequest(urlencode(parameters), [*headers, *ADMIN.headers.items()], sql.encode())

    async def _forward(
        self, request: _Request, upstream_request: _UpstreamRequest, after: ArmedFault | None = None
    ) -> web.StreamResponse:
        path, query = request.raw.rel_url.raw_path, upstream_request.query_string
        url = f"http://{self._upstream.client.endpoint}{path}" + (f"?{query}" if query else "")
        method = "POST" if isinstance(upstream_request.body, bytes) else request.raw.method
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                headers=upstream_request.headers,
                data=upstream_request.body,
                allow_redirects=False,
            ) as answer:
                if after is not None:
                    await answer.read()  # the server has done it all
                    await self._spoil(after)
                    if after.kind is FaultKind.ERROR_AFTER:
                        error = await self._upstream.client.error_like(
                            after.code, "Injected after the execution"
                        )
                        return await self._send_error(request, error)
                return await self._relay(request, answer)
        except aiohttp.ClientError as error:
            if request.client_gone:
                raise ConnectionCutError(Outcome.CLIENT_GONE) from error
            raise NodeDownError(str(error)) from error

    async def _relay(self, request: _Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                response.headers.add(name, value)
        response.content_length = answer.content_length
        await response.prepare(request.raw)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _spoil(self, after: ArmedFault | None) -> None:
        match after:
            case ArmedFault(kind=FaultKind.DROP_RESPONSE):
                raise ConnectionCutError(Outcome.DROPPED)
            case ArmedFault(kind=FaultKind.DELAY_AFTER | FaultKind.HOLD_AFTER):
                await after.wait()

    # --- What the embedded server lacks ----------------------------------------------

    async def _run_on_cluster(
        self, request: _Request, on_enqueued: Callable[[str], None]
    ) -> str | ErrorAnswer | None:
        """A query that yields the answer, or an error, or None if there is no ON CLUSTER clause after all."""
        sql = await request.whole_statement()
        query_id = request.parameters.get("query_id") or str(uuid4())
        run = asyncio.ensure_future(
            self._upstream.initiator.run(sql, request.caller, query_id, request.query_parameters, on_enqueued)
        )
        death = asyncio.ensure_future(self._upstream.died())
        try:
            await asyncio.wait({run, death}, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                raise NodeDownError("the initiator died")
            return await run
        except StatementRefusedError as error:
            return await self._upstream.client.error_like(error.code, error.message)
        except ServerError as error:
            answer = await self._upstream.client.error_like(error.code, "")
            # The server says that it failed inside formatQuerySingleLine, which the caller knows nothing of.
            text = _HELPER_TRACE.sub("", error.text)
            return ErrorAnswer(answer.status, f"{text}\n", answer.headers)
        finally:
            run.cancel()
            death.cancel()

    async def _denied_queue(self, request: _Request) -> ErrorAnswer | None:
        """The stand-in table is open to everybody, so the right to read the real one is checked here."""
        client, grant = self._upstream.client, f"SELECT ON {'.'.join(QUEUE_TABLE)}"
        try:
            answer = await client.text(f"CHECK GRANT {grant}", {"log_queries": "0"}, request.caller)
        except ServerError:
            return None  # wrong credentials: the server says so itself, in answer to the request
        if answer.strip() == "1":
            return None
        message = (
            f"{request.user}: Not enough privileges. To execute this query, it's necessary to have the grant"
        )
        return await client.error_like(497, f"{message} {grant}")

    async def _send_error(self, request: _Request, answer: ErrorAnswer) -> web.StreamResponse:
        response = web.Response(status=answer.status, text=answer.text)
        response.headers.update(
            {name: value for name, value in answer.headers.items() if name.lower().startswith("x-clickhouse")}
        )
        if "query_id" in request.parameters:
            response.headers["X-ClickHouse-Query-Id"] = request.parameters["query_id"]
        await response.prepare(request.raw)
        await response.write_eof()
        return response


def _cut(request: web.Request) -> web.StreamResponse:
    """Cut the client's connection (reset, not closed in order)."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # nobody is left to read it
