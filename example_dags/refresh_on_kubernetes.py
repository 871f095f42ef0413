"""A refresh where each task is a pod: more memory for the load alone, and waiting outside of pods.

What the tasks share is not on the pods: the evidence lies in a bucket (``[dpone] evidence_path``), and the
connection comes from a secrets backend. Neither is said here, so the DAG is the same everywhere.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_dpone import ClusterRefresh, GiB, SqlSource, TableStructure, cluster_refresh

with DAG(
    dag_id="refresh_on_kubernetes",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    # A pod may be evicted at any moment. The next try looks first, and goes on from what it finds.
    default_args={"retries": 5, "retry_delay": timedelta(minutes=1)},
    tags=["dpone", "example"],
    doc_md=__doc__,
):
    # [START howto_kubernetes]
    cluster_refresh(
        group_id="visits",
        refresh=ClusterRefresh(
            clickhouse_conn_id="clickhouse_default",
            cluster="analytics",
            database="mart",
            table="visits",
            max_source_bytes=10 * GiB,
            structure=TableStructure(columns={"day": "Date", "visits": "UInt64"}, order_by=["day"]),
        ),
        source=SqlSource("SELECT day, visits FROM mart_raw.visits"),
        # Rows of a file or of another database pass through this pod, and through no other.
        stage_kwargs={"executor_config": {"pod_template_file": "/opt/airflow/pod_templates/load.yaml"}},
        # While replicas are slow, the triggerer waits, and no pod is held.
        publish_kwargs={"deferrable": True},
    )
    # [END howto_kubernetes]
