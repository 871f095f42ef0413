"""Receives what Airflow's statsd client sends, as lines of the form ``name,tag=value:number|type``."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self


class MetricsReceived:
    """A port on this machine that takes metrics for as long as the ``with`` block lasts.

    Attributes:
        port: the UDP port.
        lines: what has arrived.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self.port: int = self._socket.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _receive(self) -> None:
        while not self._over.is_set():
            try:
                self.lines += self._socket.recv(65_536).decode().splitlines()
            except TimeoutError:
                continue
