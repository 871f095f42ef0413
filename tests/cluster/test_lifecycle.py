"""Clusters of other shapes, and what is left when a cluster is gone: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import ClusterClient, ClusterNotStartedError, LocalCluster, wait_until
from tests.cluster.leftovers import processes_of

pytestmark = pytest.mark.cluster


@contextmanager
def command_line(*options: str) -> Iterator[tuple[subprocess.Popen[str], ClusterClient]]:
    """``python -m tests.cluster up`` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", "up", *options],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, ClusterClient.attach(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_four_external_replicas_that_vanish_with_their_killed_owner() -> None:
    with command_line("--replicas", "4", "--external") as (process, cluster):
        rows = cluster.query(
            "SELECT replica_num, port, internal_replication FROM system.clusters WHERE cluster = 'analytics' "
            "ORDER BY replica_num",
            node=4,
        )
        assert [(row["replica_num"], row["port"]) for row in rows] == [
            (number, endpoint.port) for number, endpoint in enumerate(cluster.direct_tcp, start=1)
        ]
        assert {row["internal_replication"] for row in rows} == {0}
        answers = cluster.query("CREATE DATABASE mart ON CLUSTER analytics")
        assert sorted(row["num_hosts_remaining"] for row in answers) == [0, 1, 2, 3]
        replicas = cluster.query(
            "SELECT getMacro('replica') AS name FROM clusterAllReplicas('analytics', system.one) ORDER BY name"
        )
        assert [row["name"] for row in replicas] == ["r1", "r2", "r3", "r4"]
        folder = cluster.addresses["folder"]
        assert len(processes_of(folder)) == 6  # the supervisor, ZooKeeper, four servers
        process.kill()
        wait_until(lambda: not processes_of(folder) and not Path(folder).exists(), timeout=30)


def test_killed_supervisor_takes_the_servers_along_and_its_owner_cleans_up() -> None:
    with command_line() as (process, cluster):
        folder = cluster.addresses["folder"]
        supervisor = min(processes_of(folder))
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: processes_of(folder) == [], timeout=30)
        assert Path(folder).exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not Path(folder).exists()


def test_server_of_an_unknown_build_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_chdb.abi3.so").write_bytes(b"\x7fELF\x02\x01" + bytes(122))
    with pytest.raises(ClusterNotStartedError, match="carries no build id"):
        LocalCluster(chdb_folders={2: tmp_path})


def test_one_replica_is_no_cluster() -> None:
    with pytest.raises(ValueError, match="2 to 4 replicas"):
        LocalCluster(replicas=1)
