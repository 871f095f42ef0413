"""pytest fixtures: one cluster for the whole session, and a database of its own for each test.

Loaded by ``tests/conftest.py``; nothing starts before a test asks for a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.cluster import CLUSTER_NAME, LocalCluster
from tests.cluster.spec import DATABASE_PREFIX


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Two replicas with internal replication, started at the first use and shared by all tests of the session.

    A test that arms a fault or kills something uses `database` too (which heals the cluster afterwards), or calls
    ``cluster.heal()`` itself.
    """
    with LocalCluster(replicas=2, internal_replication=True) as running:
        yield running


@pytest.fixture
def database(cluster: LocalCluster) -> Iterator[str]:
    """The name of a fresh Atomic database on every replica, which ``dpone_app`` may use.

    Afterwards the cluster is healed of all faults and the database dropped with everything in it.
    """
    name = f"{DATABASE_PREFIX}_{uuid4().hex[:8]}"
    cluster.execute(f"CREATE DATABASE {name} ON CLUSTER {CLUSTER_NAME} ENGINE = Atomic")
    yield name
    cluster.heal()
    cluster.execute(f"DROP DATABASE {name} ON CLUSTER {CLUSTER_NAME} SYNC")
