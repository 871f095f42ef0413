"""`LocalCluster`: starts a cluster and takes it down again."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.client import ClusterClient
from tests.cluster.processes import child_environment
from tests.cluster.spec import ClusterSpec, User

_REPOSITORY = Path(__file__).resolve().parents[2]
_START_SECONDS = 90.0
_STOP_SECONDS = 15.0


class ClusterNotStartedError(RuntimeError):
    """The cluster did not come up; the message has the end of the supervisor's log."""


class LocalCluster(ClusterClient):
    """ClickHouse servers, ZooKeeper and a gateway on this machine, for as long as the ``with`` block lasts.

        with LocalCluster(replicas=2) as cluster:
            cluster.query("SELECT * FROM system.clusters")

    All processes die with this one, however it ends, and the temporary folder goes with them (it stays only if this
    process and the supervisor are killed at the same moment).
    """

    def __init__(
        self,
        replicas: int = 2,
        *,
        internal_replication: bool = True,
        secret: bool = True,
        users: Sequence[User] = (),
        chdb_folders: Mapping[int, Path] | None = None,
        worker_retry_seconds: float = 1.0,
        load_balancer_port: int = 0,
    ) -> None:
        """Start the cluster. The arguments are those of `ClusterSpec`.

        Raises:
            ClusterNotStartedError: something did not come up.
            ValueError: an impossible specification.
        """
        self.spec = ClusterSpec(
            replicas=replicas,
            internal_replication=internal_replication,
            secret=secret,
            users=tuple(users),
            chdb_folders=dict(chdb_folders or {}),
            worker_retry_seconds=worker_retry_seconds,
            load_balancer_port=load_balancer_port,
        )
        self.folder = Path(tempfile.mkdtemp(prefix="dpone-cluster-"))
        # Not in the folder, which the supervisor removes when it fails.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the cluster
        try:
            self._process = self._launch()
            try:
                super().__init__(json.loads(self._first_line()))
            except BaseException:
                self.close()
                raise
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _launch(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.supervisor", str(self.folder), self.spec.to_json()],
            cwd=_REPOSITORY,
            env=child_environment(),
            # The supervisor ends when its input does: no signal can get lost on the way.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Ctrl-C is for this process, which then closes the cluster in order.
            start_new_session=True,
        )

    def _first_line(self) -> str:
        output = self._process.stdout
        if output is None:
            raise ClusterNotStartedError("the supervisor has no output")
        readable, _, _ = select.select([output], [], [], _START_SECONDS)
        line = output.readline() if readable else ""
        if not line:
            raise ClusterNotStartedError(self.supervisor_log()[-4000:])
        return line

    def supervisor_log(self) -> str:
        """What the supervisor has logged so far."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def close(self) -> None:
        """Take everything down and remove the folder; calling it again does nothing."""
        self._process.terminate()  # the end of its input may be late: a forked child of ours holds the pipe, too
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        deadline = time.monotonic() + _STOP_SECONDS
        while self.folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
