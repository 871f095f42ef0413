"""Many tables in one DAG, by dynamic task mapping. Fifty of them are measured by ``scripts/bench many``."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.airflow.bench import SWAP, Bench

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]


def test_a_table_whose_source_fails_does_not_disturb_the_others(bench: Bench) -> None:
    since = bench.cluster.last_statement()
    run_id = bench.run("refresh_many", expect="failed", tables=4, bad=2, rows=10)
    states = Counter(
        (task.map_index == 2, task.task_id.rpartition(".")[2], task.state)
        for task in bench.airflow.task_instances("refresh_many", run_id)
        if task.map_index >= 0
    )
    assert states == {
        (False, "stage", "success"): 3,
        (False, "publish", "success"): 3,
        (False, "cleanup", "success"): 3,
        (True, "stage", "failed"): 1,
        (True, "publish", "upstream_failed"): 1,
        (True, "cleanup", "upstream_failed"): 1,
    }
    assert bench.tables() == {"many_00", "many_01", "many_03"}
    assert bench.rows("many_03") == [10, 10]
    assert bench.sent(SWAP, since) == 3
