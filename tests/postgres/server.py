"""One PostgreSQL server on a free port of the loopback address."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg2  # type: ignore[import-untyped]

from tests.cluster.die_with_parent import die_with_parent
from tests.cluster.processes import free_ports
from tests.cluster.spec import LOCALHOST
from tests.postgres.installation import PostgresNotFoundError, find_postgres

__all__ = ["LocalPostgres", "PostgresNotFoundError"]

USER: Final = "postgres"
DATABASE: Final = "postgres"
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0
# Nothing here outlives the tests, so nothing is written to disk for good.
_SETTINGS: Final = (
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "shared_buffers=64MB",
    "max_connections=40",
)


class LocalPostgres:
    """A server with one superuser, whom it trusts without a password. Use it in a ``with`` block."""

    def __init__(self) -> None:
        """Find the programs; nothing is started yet.

        Raises:
            PostgresNotFoundError: there is no PostgreSQL server on this machine.
        """
        self._installation = find_postgres()
        (self.port,) = free_ports(1)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def uri(self) -> str:
        """An Airflow connection to it."""
        return f"postgres://{USER}@{LOCALHOST}:{self.port}/{DATABASE}"

    def connect(self) -> Any:
        """Return a connection of psycopg2 that commits each statement."""
        connection = psycopg2.connect(host=LOCALHOST, port=self.port, user=USER, dbname=DATABASE)
        connection.autocommit = True
        return connection

    def execute(self, sql: str) -> None:
        """Run statements."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
        finally:
            connection.close()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                rows: list[tuple[Any, ...]] = cursor.fetchall()
                return rows
        finally:
            connection.close()

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # a fast shutdown: it ends all sessions
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="dpone-postgres-"))
        become = _become_somebody()
        if become is not None:
            os.chown(folder, *_somebody())
        log = folder / "log"
        data = folder / "data"
        programs, environment = self._installation.programs, self._installation.environment
        made = subprocess.run(
            [
                programs / "initdb",
                "-D",
                data,
                "-U",
                USER,
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C.UTF-8",
                "-N",
            ],
            env=environment,
            cwd=folder,
            preexec_fn=become,
            capture_output=True,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stderr.decode(errors='replace')[-1000:]}")
        settings = [
            f"listen_addresses={LOCALHOST}",
            f"port={self.port}",
            f"unix_socket_directories={folder}",
            *_SETTINGS,
        ]
        parent = os.getpid()

        def before() -> None:
            if become is not None:
                become()
            # After the change of the user, which would undo it.
            die_with_parent(parent)

        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    programs / "postgres",
                    "-D",
                    data,
                    *(part for setting in settings for part in ("-c", setting)),
                ],
                env=environment,
                cwd=folder,
                preexec_fn=before,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._await_ready(log)

    def _await_ready(self, log: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.connect().close()
            except psycopg2.OperationalError as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-1000:]}") from error
                time.sleep(0.05)
            else:
                return


def _somebody() -> tuple[int, int]:
    """User and group as whom the server runs where the tests run as root, which it refuses."""
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    raise PostgresNotFoundError("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


def _become_somebody() -> Callable[[], None] | None:
    if os.geteuid() != 0:
        return None
    user, group = _somebody()

    def become() -> None:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)

    return become
