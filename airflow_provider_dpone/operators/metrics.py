"""What the operators count and time, through Airflow's metrics. A metric never ends a task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_dpone.compat import AirflowException
from airflow_provider_dpone.publication.stop import Stopped

if TYPE_CHECKING:
    from airflow_provider_dpone.publication.receipt import PublicationReceipt, SettledReceipt, StageReceipt
    from airflow_provider_dpone.values import ClusterRefresh

UNEXPECTED: Final = "unexpected"
"""The outcome of what ended by an exception that nobody thought of."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    :ivar kind: ``counter`` or ``timer``; a timer is handed to Airflow as a length of time.
    :ivar outcomes: values of the tag ``outcome``, besides the categories of what stopped it; empty: it has no
        such tag.
    """

    name: str
    kind: Literal["counter", "timer"]
    meaning: str
    outcomes: tuple[str, ...] = ()


STAGES: Final = Metric(
    "dpone.stages", "counter", "Stage tasks that came to an end, by how.", ("staged", "resumed", UNEXPECTED)
)
STAGE_ROWS: Final = Metric("dpone.stage.rows", "counter", "Rows that were loaded into candidates.")
STAGE_BYTES: Final = Metric(
    "dpone.stage.bytes", "counter", "Bytes that were loaded: of a stream its body, of a query what it wrote."
)
STAGE_DURATION: Final = Metric(
    "dpone.stage.duration", "timer", "From the start of a stage task to its prepared candidate."
)
PUBLICATIONS: Final = Metric(
    "dpone.publications",
    "counter",
    "Publish tasks that came to an end, by how.",
    ("committed", "replayed", UNEXPECTED),
)
PUBLISH_DEFERRALS: Final = Metric(
    "dpone.publish.deferrals", "counter", "How often a publish task went to wait in the triggerer."
)
PUBLISH_DURATION: Final = Metric(
    "dpone.publish.duration",
    "timer",
    "From the start of a publish task to its proof; of one that was deferred, from the dispatch.",
)

METRICS: Final = (
    STAGES,
    STAGE_ROWS,
    STAGE_BYTES,
    STAGE_DURATION,
    PUBLICATIONS,
    PUBLISH_DEFERRALS,
    PUBLISH_DURATION,
)


class Meter:
    """The metrics of one target. Tags are the cluster's name and ``database.table``, and nothing else of the target."""

    def __init__(self, refresh: ClusterRefresh) -> None:
        self._tags = {"cluster": refresh.cluster, "target": f"{refresh.database}.{refresh.table}"}

    @contextmanager
    def outcomes(self, metric: Metric) -> Iterator[None]:
        """Count the block if it ends by what stopped it. Exceptions of Airflow, such as a deferral, are no outcome."""
        try:
            yield
        except Stopped as stopped:
            self.count(metric, outcome=stopped.stop.category.value)
            raise
        except AirflowException:
            raise
        except Exception:
            self.count(metric, outcome=UNEXPECTED)
            raise

    def staged(self, receipt: StageReceipt, seconds: float) -> None:
        """Count a candidate that is prepared.

        :param seconds: how long it took.
        """
        self.count(STAGES, outcome="resumed" if receipt.resumed else "staged")
        if receipt.resumed:
            return
        self.count(STAGE_ROWS, receipt.rows)
        self.count(STAGE_BYTES, receipt.bytes)
        self.time(STAGE_DURATION, seconds)

    def published(self, receipt: PublicationReceipt | SettledReceipt, seconds: float) -> None:
        """Count an answered publish task, and time it if its answer is new.

        :param seconds: how long it took.
        """
        self.count(PUBLICATIONS, outcome="replayed" if receipt.replayed else "committed")
        if not receipt.replayed:
            self.time(PUBLISH_DURATION, seconds)

    def count(self, metric: Metric, by: int = 1, **tags: str) -> None:
        """Add to a counter."""
        self._send("incr", metric, {"count": by}, tags)

    def time(self, metric: Metric, seconds: float) -> None:
        """Hand one length of time to a timer. As a timedelta, whose unit no backend can mistake."""
        self._send("timing", metric, {"dt": timedelta(seconds=max(0.0, seconds))}, {})

    def _send(self, how: str, metric: Metric, value: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        from airflow_provider_dpone import compat

        try:
            getattr(compat.stats(), how)(metric.name, **value, tags={**self._tags, **tags})
        except Exception as error:  # noqa: BLE001 - no metric is worth a task; the text may hold an address
            _log.debug("Metric %s was not sent: %s.", metric.name, type(error).__name__)
