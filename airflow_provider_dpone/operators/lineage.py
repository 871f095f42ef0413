"""What OpenLineage is told about a refresh, where its provider is installed; nothing at all where it is not.

Datasets have names, and neither hosts nor SQL text: a namespace is the cluster's name or a connection's id. See
``docs/adr/0042-lineage-without-hosts-and-sql.md``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from airflow_provider_dpone.publication.receipt import PublicationReceipt, SettledReceipt, StageReceipt
    from airflow_provider_dpone.sources import Source
    from airflow_provider_dpone.values import ClusterRefresh

Name: TypeAlias = tuple[str, str]
"""Namespace and name of a dataset."""

_BUCKETS: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""Scheme of a path -> scheme of the namespace, where the place is a bucket and no host."""

_PATTERN: Final = re.compile(r"[*?\[]")

_log = logging.getLogger(__name__)


def of_stage(
    refresh: ClusterRefresh, source: Source, receipt: StageReceipt | None = None, query_id: str | None = None
) -> Any | None:
    """Return the lineage of a stage task: from what the source reads to the staged table.

    :param receipt: what was staged; ``None`` before it is.
    :param query_id: the id of the load's query.
    """

    def make(facets: Any, lineage: Any) -> Any:
        new = receipt is not None and not receipt.resumed
        return lineage(
            inputs=[
                facets.InputDataset(namespace=space, name=name) for space, name in inputs_of(refresh, source)
            ],
            outputs=[
                _output(
                    facets,
                    staged_table(refresh),
                    rows=receipt.rows if receipt is not None and new else None,
                    size=receipt.bytes if receipt is not None and new else None,
                    change="CREATE" if new else None,
                )
            ],
            run_facets=_external_query(facets, refresh, query_id),
        )

    return _made(make)


def of_publish(
    refresh: ClusterRefresh, receipt: PublicationReceipt | SettledReceipt | None = None
) -> Any | None:
    """Return the lineage of a publish task: from the staged table to the live one.

    A replayed answer changed nothing, so it has no datasets.

    :param receipt: the proof; ``None`` before there is one.
    """

    def make(facets: Any, lineage: Any) -> Any:
        from airflow_provider_dpone.publication.receipt import PublicationReceipt

        if receipt is not None and receipt.replayed:
            return lineage()
        space, name = staged_table(refresh)
        proof = receipt if isinstance(receipt, PublicationReceipt) else None
        change = None if proof is None else "CREATE" if proof.statement == "RENAME" else "OVERWRITE"
        return lineage(
            inputs=[facets.InputDataset(namespace=space, name=name)],
            outputs=[
                _output(
                    facets,
                    live_table(refresh),
                    rows=None if receipt is None else receipt.rows,
                    size=None if proof is None else proof.bytes,
                    change=change,
                )
            ],
            run_facets=_external_query(facets, refresh, None if proof is None else proof.entry),
        )

    return _made(make)


def live_table(refresh: ClusterRefresh) -> Name:
    """Return the dataset of the live table."""
    return _namespace(refresh), f"{refresh.database}.{refresh.table}"


def staged_table(refresh: ClusterRefresh) -> Name:
    """Return the dataset that stands for all candidates of a table: each has a new name, which nobody could follow."""
    return _namespace(refresh), f"{refresh.database}.{refresh.table}__dpone_staged"


def inputs_of(refresh: ClusterRefresh, source: Source) -> list[Name]:
    """Return the datasets that a source surely reads; what can't be told is left out."""
    from airflow_provider_dpone.sources import FileSource, SqlSource

    match source:
        case SqlSource(sql=sql, conn_id=None):
            return [(_namespace(refresh), name) for name in tables_of(sql, "clickhouse")]
        case SqlSource(sql=sql, conn_id=str() as conn_id):
            return [(f"airflow-connection://{conn_id}", name) for name in tables_of(sql, "generic")]
        case FileSource(path=path):
            found = place_of(path)
            return [] if found is None else [found]
        case _:
            return []


def tables_of(sql: str, dialect: str) -> list[str]:
    """Return the tables that a query names with their database or schema; none if the parser doesn't understand it.

    A name without one may be a table function or an expression of the query, so it is no table for sure.
    """
    try:
        from openlineage_sql import parse  # type: ignore[import-untyped]
    except ImportError:
        return []
    found = parse([sql], dialect=dialect)
    if found is None or found.errors:
        return []
    names = (
        ".".join(part for part in (table.database, table.schema, table.name) if part)
        for table in found.in_tables
        if table.schema
    )
    return sorted(set(names))


def place_of(path: str) -> Name | None:
    """Return the dataset of a path or URL of object storage; of a pattern, the folder that it begins with.

    ``None`` where the place is a host.
    """
    scheme, separator, rest = path.partition("://")
    if not separator:
        return "file", _fixed(path)
    if scheme == "file":
        return "file", _fixed(rest)
    if scheme not in _BUCKETS:
        return None
    bucket, _, key = rest.partition("/")
    # What stands before the at sign is a connection's id.
    return f"{_BUCKETS[scheme]}://{bucket.rpartition('@')[2]}", _fixed(key)


def _fixed(path: str) -> str:
    found = _PATTERN.search(path)
    return path if found is None else path[: path.rfind("/", 0, found.start()) + 1].rstrip("/") or "/"


def _namespace(refresh: ClusterRefresh) -> str:
    return f"clickhouse://{refresh.cluster}"


def _output(facets: Any, dataset: Name, *, rows: int | None, size: int | None, change: str | None) -> Any:
    space, name = dataset
    own: dict[str, Any] = {}
    if change is not None:
        own["lifecycleStateChange"] = facets.LifecycleStateChangeDatasetFacet(
            lifecycleStateChange=facets.LifecycleStateChange[change]
        )
    written: dict[str, Any] = {}
    if rows is not None:
        written["outputStatistics"] = facets.OutputStatisticsOutputDatasetFacet(rowCount=rows, size=size)
    return facets.OutputDataset(namespace=space, name=name, facets=own, outputFacets=written)


def _external_query(facets: Any, refresh: ClusterRefresh, query_id: str | None) -> dict[str, Any]:
    if query_id is None:
        return {}
    return {
        "externalQuery": facets.ExternalQueryRunFacet(externalQueryId=query_id, source=_namespace(refresh))
    }


def _made(make: Callable[[Any, Any], Any]) -> Any | None:
    """Return what ``make`` makes of OpenLineage's classes; ``None`` where they are missing, or it fails.

    Whoever asks would log the text of an exception, which is not ours to tell.
    """
    try:
        from airflow.providers.common.compat.openlineage import facet
        from airflow.providers.openlineage.extractors import OperatorLineage
    except ImportError:
        return None
    try:
        return make(facet, OperatorLineage)
    except Exception as error:  # noqa: BLE001 - see above
        _log.info("OpenLineage is told nothing about this task: %s.", type(error).__name__)
        return None
