"""The page as an application that is imported at its first request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class LazyApp:
    """An ASGI application. What it needs is imported in a thread, so that other requests don't wait for it."""

    def __init__(self) -> None:
        self._built: asyncio.Future[App] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. Requests that come together share what the first one builds."""
        if self._built is None:
            self._built = asyncio.ensure_future(asyncio.to_thread(_build))
        try:
            app = await asyncio.shield(self._built)
        except Exception:
            self._built = None
            raise
        await app(scope, receive, send)


def _build() -> App:
    from airflow_provider_dpone.web.app import create_app

    return create_app()
