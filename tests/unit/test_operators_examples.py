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
    assert len(FILES) >= 9


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_parses_and_is_named_after_its_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    bag = DagBag(str(file))
    assert bag.import_errors == {}
    # A second DAG may show what follows from the first.
    assert sorted(bag.dags)[0] == file.stem
    assert all(name.startswith(file.stem) for name in bag.dags)
    assert all(dag.doc_md for dag in bag.dags.values())
    dag: Any = bag.dags[file.stem]
    staged = [task.staged.operator.task_id for task in dag.tasks if hasattr(task, "staged")]
    assert len(staged) == 2
    assert {task_id.rpartition(".")[2] for task_id in staged} == {"stage"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_shown_in_the_docs_from_its_file(file: Path) -> None:
    shown = f"<!-- example: example_dags/{file.name}"
    pages = FOLDER.parent.joinpath("docs").rglob("*.md")
    assert any(shown in page.read_text() for page in pages)
