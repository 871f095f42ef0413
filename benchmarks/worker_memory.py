"""The memory that reading a source takes, in a process of its own: python -m benchmarks.worker_memory WAY SQL

Prints the peak in MB on top of what Airflow, the hook and the drivers had taken before.
"""

from __future__ import annotations

import gc
import json
import os
import sys

from airflow_provider_dpone.sources import dbapi, postgres
from scripts.lib.processes import resident_bytes

TYPES = (
    "Int32", "Int32", "Int32", "Nullable(Int32)", "Int32", "Nullable(Float64)", "String", "Nullable(String)",
    "String", "String", "DateTime64(6, 'UTC')",
)  # fmt: skip


def resident_mb() -> float:
    """What the process holds now, in MB."""
    return resident_bytes(os.getpid()) / 1e6


def main(way: str, sql: str) -> None:
    """Drain the source and print the peak."""
    query = dbapi.Query(dbapi.hook_of("pg"), sql, None)
    connection = query.connect()
    columns = postgres.describe(query, connection)
    connection.close()
    if way == "copy":
        load = postgres.copy_stream(query, columns, TYPES)
    else:
        names = [column.name for column in columns]
        load = dbapi.rows_stream(query, names, TYPES, batch_rows=10_000, why="a benchmark")
    gc.collect()
    before = resident_mb()
    peak, size = before, 0
    for number, chunk in enumerate(load.chunks()):
        size += len(chunk)
        if number % 16 == 0:
            peak = max(peak, resident_mb())
    print(json.dumps({"mb": peak - before, "bytes": size, "rows": load.rows()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
