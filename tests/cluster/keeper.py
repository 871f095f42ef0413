"""A typed asyncio face of the kazoo client (kazoo has threads and no types). This is the only file that knows kazoo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError  # type: ignore[import-untyped]
from kazoo.handlers.threading import KazooTimeoutError  # type: ignore[import-untyped]

from tests.cluster.spec import Endpoint

_SESSION_TIMEOUT = 10.0
_CONNECT_SECONDS = 30.0


class KeeperError(RuntimeError):
    """ZooKeeper did not do what was asked: connection lost, session expired, or another error."""


class MissingNodeError(KeeperError):
    """There is no such znode."""


class ExistingNodeError(KeeperError):
    """There is such a znode already."""


@dataclass(frozen=True, slots=True)
class Znode:
    """Content of a znode and the time at which ZooKeeper created it, in milliseconds since 1970."""

    text: str
    created_ms: int


class Keeper:
    """One session with ZooKeeper. It reconnects, with a new session if need be, for as long as it is open."""

    def __init__(self, endpoint: Endpoint) -> None:
        retry = {"max_tries": -1, "delay": 0.1, "backoff": 1, "max_delay": 0.5}
        self._client = KazooClient(hosts=str(endpoint), timeout=_SESSION_TIMEOUT, connection_retry=retry)

    async def open(self) -> None:
        """Connect.

        Raises:
            KeeperError: no connection within half a minute.
        """
        try:
            await asyncio.to_thread(self._client.start, _CONNECT_SECONDS)
        except KazooTimeoutError as error:
            raise KeeperError("ZooKeeper does not answer") from error

    async def close(self) -> None:
        """End the session; its ephemeral znodes vanish."""
        await asyncio.to_thread(self._client.stop)
        await asyncio.to_thread(self._client.close)

    @property
    def _connected_client(self) -> Any:
        """The client, if it has a connection. Without one it would keep requests back and send them much later.

        Raises:
            KeeperError: it has none.
        """
        if not self._client.connected:
            raise KeeperError("no connection")
        return self._client

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Names of the children, sorted. `watch` is called once, in the event loop, at the next change."""
        callback = None
        if watch is not None:
            loop = asyncio.get_running_loop()
            notify = watch

            def callback(_event: object) -> None:
                loop.call_soon_threadsafe(notify)

        children: list[str] = await _settled(self._connected_client.get_children_async(path, watch=callback))
        return sorted(children)

    async def get(self, path: str) -> Znode:
        """Read a znode."""
        content, stat = await _settled(self._connected_client.get_async(path))
        return Znode(content.decode(), stat.ctime)

    async def exists(self, path: str) -> bool:
        """Whether there is such a znode."""
        return await _settled(self._connected_client.exists_async(path)) is not None

    async def create(
        self, path: str, text: str = "", *, sequence: bool = False, ephemeral: bool = False
    ) -> str:
        """Create a znode; returns its path, which ends in a number if `sequence` is set."""
        created: str = await _settled(
            self._connected_client.create_async(path, text.encode(), sequence=sequence, ephemeral=ephemeral)
        )
        return created

    async def ensure_path(self, path: str) -> None:
        """Create an empty znode and its parents, unless they exist."""
        await _settled(self._connected_client.ensure_path_async(path))

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a znode, if there is one."""
        try:
            if recursive:
                await asyncio.to_thread(self._connected_client.delete, path, recursive=True)
            else:
                await _settled(self._connected_client.delete_async(path))
        except (NoNodeError, MissingNodeError):
            return
        except KazooException as error:
            raise _translated(error) from error

    async def replace(self, old_path: str, new_path: str, text: str) -> None:
        """Delete one znode and create another, both or neither."""
        transaction = self._connected_client.transaction()
        transaction.delete(old_path)
        transaction.create(new_path, text.encode())
        for outcome in await _settled(transaction.commit_async()):
            if isinstance(outcome, KazooException):
                raise _translated(outcome)


async def _settled(result: Any) -> Any:
    """Wait for a kazoo result without blocking the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    result.rawlink(lambda _result: loop.call_soon_threadsafe(settle))
    await future
    if result.exception is not None:
        raise _translated(result.exception) from result.exception
    return result.value


def _translated(error: BaseException) -> KeeperError:
    text = f"{type(error).__name__} {error}".strip()
    match error:
        case NoNodeError():
            return MissingNodeError(text)
        case NodeExistsError():
            return ExistingNodeError(text)
        case _:
            return KeeperError(text)
