"""Tell other DAGs that a table is live: an asset event after the proof, and a DAG that waits for it.

The event comes once per publication that is proven on every replica, and never for a replayed answer.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource, TableStructure, cluster_refresh

# [START howto_asset_producer]
PRICES = Asset("mart_prices")

with DAG(
    dag_id="refresh_with_asset",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    cluster_refresh(
        group_id="prices",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_default",
            cluster="analytics",
            database="mart",
            table="prices",
            max_source_bytes=1 * GiB,
            structure=TableStructure(
                columns={"product": "UInt64", "price": "Decimal(12, 2)"}, order_by=["product"]
            ),
        ),
        source=SqlSource("SELECT product, price FROM mart_raw.prices"),
        publish_kwargs={"outlets": [PRICES]},
    )
# [END howto_asset_producer]

# [START howto_asset_consumer]
with DAG(
    dag_id="refresh_with_asset_consumer",
    schedule=[PRICES],
    catchup=False,
    tags=["dpone", "example"],
    doc_md=__doc__,
):

    @task
    def what_is_new(triggering_asset_events: Any = None) -> list[str]:
        """Whoever must not work twice remembers the operation's id."""
        return [
            f"{event.extra['rows']} prices of operation {event.extra['operation_id']}"
            for event in triggering_asset_events[PRICES]
        ]

    what_is_new()
# [END howto_asset_consumer]
