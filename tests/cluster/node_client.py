"""The gateway's own requests to a server: no resend, no keep-alive reuse, errors with their ClickHouse code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.cluster.spec import ADMIN_USER, Endpoint

CODE_HEADER = "X-ClickHouse-Exception-Code"
_TAIL = re.compile(r"\s*\((?P<name>[A-Z0-9_]+)\) \(version (?P<version>[^()]*(?:\([^()]*\))?[^()]*)\)\s*$")


class NodeDownError(ConnectionError):
    """The server does not accept the connection, or cut it."""


class ServerError(RuntimeError):
    """A ClickHouse error.

    Attributes:
        code: its number.
        text: its whole text, as the server sent it.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text.strip()


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose rights and settings a request has: parameters and headers that go with it."""

    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


ADMIN = Caller(headers={"X-ClickHouse-User": ADMIN_USER})


def new_session() -> aiohttp.ClientSession:
    """A session that opens a connection for each request, so that none is ever repeated on a stale one."""
    return aiohttp.ClientSession(
        auto_decompress=False,
        # Answers are passed on as they are, so the client decides about their compression, and nobody else.
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None),
    )


@dataclass(frozen=True, slots=True)
class NodeClient:
    """Sends statements straight to one server."""

    session: aiohttp.ClientSession
    endpoint: Endpoint

    async def text(
        self, sql: str, parameters: Mapping[str, str] | None = None, caller: Caller = ADMIN
    ) -> str:
        """Run a statement and return its answer.

        Raises:
            ServerError: the server refused it.
            NodeDownError: the server is not there, or went away.
        """
        query = {**caller.parameters, **(parameters or {})}
        try:
            async with self.session.post(
                f"http://{self.endpoint}/",
                params={**query, "wait_end_of_query": "1"},
                headers=caller.headers,
                data=sql.encode(),
            ) as response:
                body = (await response.read()).decode(errors="replace")
                code = response.headers.get(CODE_HEADER)
                if code is not None or response.status != 200:
                    raise ServerError(int(code or 0), body)
                return body
        except aiohttp.ClientError as error:
            raise NodeDownError(str(error)) from error

    async def rows(
        self, sql: str, parameters: Mapping[str, str] | None = None, caller: Caller = ADMIN
    ) -> list[dict[str, Any]]:
        """Run a query and return its rows. Errors as in `text`."""
        # Whatever output settings the caller has, this answer is for the gateway.
        plain = {"output_format_json_quote_64bit_integers": "0", "enable_http_compression": "0"}
        body = await self.text(f"{sql} FORMAT JSONEachRow", {**(parameters or {}), **plain}, caller)
        return [json.loads(line) for line in body.splitlines()]

    async def answers(self) -> bool:
        """Whether the server answers at all."""
        try:
            async with self.session.get(
                f"http://{self.endpoint}/ping", timeout=aiohttp.ClientTimeout(total=3)
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def error_like(self, code: int, message: str) -> ErrorAnswer:
        """What this server would answer with an error of that code: status and headers are its own.

        The server is made to raise the code, so that the mapping to HTTP statuses, the error's name and the version
        are never ours. Only the message is.

        Raises:
            NodeDownError: the server is not there.
        """
        sql = f"SELECT throwIf(1, 'x', toInt16({code})) SETTINGS allow_custom_error_code_in_throwif = 1"
        try:
            async with self.session.post(
                f"http://{self.endpoint}/", data=sql.encode(), headers=ADMIN.headers
            ) as response:
                body = (await response.read()).decode(errors="replace")
                tail = _TAIL.search(body)
                suffix = tail[0].strip() if tail is not None else ""
                text = f"Code: {code}. DB::Exception: {message.rstrip('.')}. {suffix}\n"
                return ErrorAnswer(response.status, text, dict(response.headers))
        except aiohttp.ClientError as error:
            raise NodeDownError(str(error)) from error


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An HTTP answer with a ClickHouse error."""

    status: int
    text: str
    headers: Mapping[str, str]
