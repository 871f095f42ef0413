"""A triggerer with many waiting publications asks a cluster once per interval, however many they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airflow_provider_dpone.triggers import poller, publication
from tests.cluster import LocalCluster
from tests.integration.task_site import CONN_ID, connect
from tests.integration.waiting_site import QUEUE_READ, RECORD_READ, reads, wait_all, waiting

pytestmark = pytest.mark.cluster

INTERVAL = 1.0
INTERVALS = 3


def test_a_hundred_that_wait_cost_one_look_per_interval_and_end_with_one(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, database: str, tmp_path: Path
) -> None:
    connect(monkeypatch, cluster, tmp_path)
    monkeypatch.setattr(poller, "POLL_SECONDS", INTERVAL)
    monkeypatch.setattr(publication, "HOLD_SECONDS", 0.0)
    with waiting(cluster, 100, conn_id=CONN_ID, database=database) as watches:
        since = cluster.last_statement()
        ended = asyncio.run(wait_all(watches, (INTERVALS + 0.5) * INTERVAL))
        looks = len(reads(cluster, QUEUE_READ, since))
        assert ended == 0
        # A pause comes before each look, so that there may be one less on a busy machine, and never one more.
        assert 1 <= looks <= INTERVALS
        assert len(reads(cluster, RECORD_READ, since)) in (looks, looks - 1)

        # The replicas refuse all swaps, whose tables don't exist: that, too, is an end, and one look tells all.
        for node in cluster.nodes:
            cluster.resume_worker(node)
        since = cluster.last_statement()
        assert asyncio.run(wait_all(watches, 60.0)) == len(watches)
        assert 1 <= len(reads(cluster, QUEUE_READ, since)) <= 10
