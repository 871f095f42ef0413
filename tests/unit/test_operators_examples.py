"""The example DAGs: they parse as Airflow parses them, and say what they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag  # type: ignore[no-redef]

FOLDER = Path(__file__).resolve().parents[2] / "example_dags"
FILES = sorted(FOLDER.glob("*.py"))


def test_there_are_examples() -> None:
    assert {file.stem for file in FILES} >= {
        "cluster_refresh_flights",
        "cluster_refresh_daily_summary",
        "write_audit_publish_orders",
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_parses_and_is_named_after_its_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    bag = DagBag(str(file))
    assert bag.import_errors == {}
    assert list(bag.dags) == [file.stem]
    dag: Any = bag.dags[file.stem]
    assert dag.doc_md
    staged = [task.staged.operator.task_id for task in dag.tasks if hasattr(task, "staged")]
    assert len(staged) == 2
    assert {task_id.rpartition(".")[2] for task_id in staged} == {"stage"}
