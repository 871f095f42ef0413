"""Load a table of PostgreSQL into ClickHouse with dlt, and say how many seconds that took.

Runs in the environment of ``requirements/bench.txt``, as a process of its own:

    python dlt_postgres.py BACKEND POSTGRES_PORT HTTP_PORT TCP_PORT DATABASE USER PASSWORD
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time


def main(backend: str, postgres: str, http: str, tcp: str, database: str, user: str, password: str) -> None:
    """Run the pipeline once and print seconds and rows as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"DLT_DATA_DIR": folder, "RUNTIME__DLTHUB_TELEMETRY": "false"})
        # In another environment than the one in which types are checked.
        import dlt  # type: ignore[import-not-found]
        from dlt.destinations import clickhouse  # type: ignore[import-not-found]
        from dlt.sources.sql_database import sql_table  # type: ignore[import-not-found]

        started = time.perf_counter()
        pipeline = dlt.pipeline(
            "bench",
            destination=clickhouse(
                {
                    "host": "127.0.0.1",
                    "port": int(tcp),
                    "http_port": int(http),
                    "username": user,
                    "password": password,
                    "database": database,
                    "secure": 0,
                },
                table_engine_type="merge_tree",
            ),
            pipelines_dir=folder,
            dataset_name="dlt",
        )
        table = sql_table(
            f"postgresql+psycopg2://postgres@127.0.0.1:{postgres}/postgres",
            table="flights",
            backend=backend,
            chunk_size=50_000,
        )
        pipeline.run(table, write_disposition="replace", loader_file_format="parquet")
        seconds = time.perf_counter() - started
        rows = pipeline.last_trace.last_normalize_info.row_counts["flights"]
        sys.stdout.write(json.dumps({"seconds": seconds, "rows": rows}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
