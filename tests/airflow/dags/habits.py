"""A refresh that says what it did: to an asset, to OpenLineage and to the metrics."""

from __future__ import annotations

from typing import Any

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.sdk import DAG, Asset, Param

from airflow_provider_dpone import ClusterRefresh, MiB, SqlSource, TableStructure, cluster_refresh

PARAMS: Any = {"database": Param("mart", type="string"), "rows": 10}

with DAG("habits", schedule=None, params=PARAMS) as habits:
    cluster_refresh(
        group_id="orders",
        refresh=ClusterRefresh(
            "refreshes",
            "analytics",
            "{{ params.database }}",
            "orders",
            max_source_bytes=MiB,
            structure=TableStructure(columns={"id": "UInt64"}, order_by="id"),
        ),
        source=SqlSource(
            "SELECT id FROM {{ params.database }}.raw WHERE id < {{ params.rows }} AND 's3cret' != 'c0nfidential'"
        ),
        publish_kwargs={"outlets": [Asset("dpone_habits_orders")]},
    )

enable_lineage(habits)
