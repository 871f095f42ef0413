"""Runs an Airflow command with Python's cyclic garbage collector held back: ``python -m tests.airflow.launch ...``.

Building the API's routes and models makes millions of objects that all stay. Collecting garbage among them takes
half of the time in which Airflow boots; with it held back, the same code comes up in about half the time.
"""

from __future__ import annotations

import gc

gc.set_threshold(200_000, 50, 100)

if __name__ == "__main__":
    from airflow.__main__ import main

    main()  # type: ignore[no-untyped-call]
