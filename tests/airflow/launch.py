"""Runs an Airflow command in less processor time: ``python -m tests.airflow.launch [--preload] ...``.

Building the API's routes and models makes millions of objects that all stay. Collecting garbage among them takes
half of the time in which Airflow boots; with the cyclic collector held back, the same code comes up in about half
the time.

Every task, and every reading of a DAG file, is a fork of its component, and would import the provider anew: three
quarters of what the process of a short task does. After ``--preload`` the component imports it once, before it forks.
That a process of Airflow's own can import it is shown by the commands, and by the tutorial.
"""

from __future__ import annotations

import gc
import importlib
import sys

gc.set_threshold(200_000, 50, 100)

PRELOAD = "--preload"
USED_BY_TASKS = (
    "airflow_provider_dpone.composition",
    "airflow_provider_dpone.operators",
    "airflow_provider_dpone.sources",
    "airflow_provider_dpone.task_groups",
    "airflow_provider_dpone.triggers.publication",
    "airflow.providers.standard.decorators.python",
)

if __name__ == "__main__":
    from airflow.__main__ import main

    if sys.argv[1:2] == [PRELOAD]:
        del sys.argv[1]
        for name in USED_BY_TASKS:
            importlib.import_module(name)
    main()  # type: ignore[no-untyped-call]
