"""What Airflow's users expect of any provider: events, metrics, lineage, a pointer, honest words at the end."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_dpone import FileSource, SqlSource, compat
from airflow_provider_dpone.compat import AirflowException, TaskDeferred
from airflow_provider_dpone.get_provider_info import get_provider_info
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook
from airflow_provider_dpone.operators import CleanupOperator, lineage, metrics
from airflow_provider_dpone.publication.receipt import (
    RetainedReceipt,
    dump,
    publication_receipt,
    settled_receipt,
)
from airflow_provider_dpone.publication.record import Phase, Settled
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.watch import Watch
from airflow_provider_dpone.routes.cluster_refresh import CleanedUp
from airflow_provider_dpone.triggers.publication import PublicationTrigger
from tests.unit.builders import ENTRY, in_phase
from tests.unit.test_operators import (
    PUBLISHED,
    RECEIPT,
    REFRESH,
    bound,
    connected,
    context,
    handed,
    publish,
    replace_route,
    stage,
)

__all__ = ["connected"]

ORDERS = Asset("orders")
REPLAYED = replace(PUBLISHED, replayed=True)
SETTLED = settled_receipt(
    in_phase(Phase.COMPLETED),
    Settled(operation_id="ab" * 32, outcome=Phase.COMPLETED, epoch=1, at=1_100, rows=7, uuid="u1"),
    replayed=False,
)

# --- Asset events


def events_after(monkeypatch: pytest.MonkeyPatch, answer: Any) -> tuple[Any, Any]:
    """The task's outlets after it has run, and the extra of the event that Airflow makes for each."""
    replace_route(monkeypatch, "publish", answer)
    operator = publish(staged=dump(RECEIPT), outlets=[ORDERS, AssetAlias("any")])
    events = OutletEventAccessors()
    operator.execute(context(outlet_events=events))
    return operator.outlets, events[ORDERS].extra


def test_an_event_says_what_was_published(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    outlets, extra = events_after(monkeypatch, PUBLISHED)
    assert outlets == [ORDERS, AssetAlias("any")]
    assert extra == {
        "operation_id": PUBLISHED.operation_id,
        "rows": PUBLISHED.rows,
        "epoch": PUBLISHED.epoch,
        "replicas": ["s1/r1", "s1/r2"],
    }


def test_an_answer_that_was_given_before_makes_no_event(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    assert events_after(monkeypatch, REPLAYED) == ([], {})


def test_what_a_later_operation_has_followed_says_what_is_still_known(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    _, extra = events_after(monkeypatch, SETTLED)
    assert extra == {"operation_id": "ab" * 32, "rows": 7}


def test_an_event_goes_without_facts_if_airflow_cannot_say_which_asset_an_outlet_is(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    """The publication is proven: a task that failed now would find it done when it is cleared, and make no event."""

    class Unreachable(OutletEventAccessors):
        def __getitem__(self, key: Any) -> Any:
            raise ConnectionError("the API")

    replace_route(monkeypatch, "publish", PUBLISHED)
    operator = publish(staged=dump(RECEIPT), outlets=[ORDERS])
    assert operator.execute(context(outlet_events=Unreachable())) == dump(PUBLISHED)
    assert operator.outlets == [ORDERS]


def test_a_publication_that_stopped_leaves_the_events_to_airflow_which_makes_none(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    events = OutletEventAccessors()
    replace_route(monkeypatch, "publish", Stopped(Stop(Code.PARTIAL_TERMINAL, "One of two.")))
    with pytest.raises(AirflowException):
        publish(staged=dump(RECEIPT), outlets=[ORDERS]).execute(context(outlet_events=events))
    assert len(events) == 0


def test_a_deferred_task_says_it_once_when_it_resumes(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    operator = publish(staged=dump(RECEIPT), deferrable=True, outlets=[ORDERS])
    events = OutletEventAccessors()
    replace_route(monkeypatch, "publish", handed())
    with pytest.raises(TaskDeferred):
        operator.execute(context(outlet_events=events))
    assert len(events) == 0
    replace_route(monkeypatch, "publish", PUBLISHED)
    operator.execute_complete(context(outlet_events=events))
    assert events[ORDERS].extra["operation_id"] == PUBLISHED.operation_id


# --- Metrics


@dataclass
class Stats:
    """Airflow's metrics, written down."""

    counted: list[tuple[str, int, Mapping[str, str]]] = field(default_factory=list)
    timed: dict[str, Any] = field(default_factory=dict)

    def incr(self, name: str, count: int = 1, *, tags: Mapping[str, str]) -> None:
        self.counted.append((name, count, tags))

    def timing(self, name: str, dt: timedelta, *, tags: Mapping[str, str]) -> None:
        self.timed[name] = dt


TAGS = {"cluster": "analytics", "target": "mart.orders"}


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> Stats:
    found = Stats()
    monkeypatch.setattr(compat, "stats", lambda: found)
    return found


def test_airflow_has_its_metrics_where_they_are_looked_for() -> None:
    found = compat.stats()
    assert callable(found.incr)
    assert callable(found.timing)


def test_a_stage_counts_its_rows_and_bytes(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, stats: Stats
) -> None:
    replace_route(monkeypatch, "stage", RECEIPT)
    stage().execute(context())
    assert stats.counted == [
        ("dpone.stages", 1, {**TAGS, "outcome": "staged"}),
        ("dpone.stage.rows", 1, TAGS),
        ("dpone.stage.bytes", 10, TAGS),
    ]
    assert timedelta(0) <= stats.timed["dpone.stage.duration"] < timedelta(minutes=1)


def test_a_resumed_stage_loaded_nothing(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, stats: Stats
) -> None:
    replace_route(monkeypatch, "stage", replace(RECEIPT, resumed=True))
    stage().execute(context())
    assert stats.counted == [("dpone.stages", 1, {**TAGS, "outcome": "resumed"})]
    assert stats.timed == {}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (PUBLISHED, "committed"),
        (REPLAYED, "replayed"),
        (Stopped(Stop(Code.PARTIAL_TERMINAL, "x")), "partial_terminal"),
        (Stopped(Stop(Code.IN_PROGRESS, "x")), "in_progress"),
        (RuntimeError("password"), "unexpected"),
    ],
)
def test_a_publication_is_counted_by_its_outcome(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, stats: Stats, answer: Any, outcome: str
) -> None:
    replace_route(monkeypatch, "publish", answer)
    operator = publish(staged=dump(RECEIPT))
    if isinstance(answer, Exception):
        with pytest.raises(AirflowException):
            operator.execute(context())
    else:
        operator.execute(context())
    assert stats.counted == [("dpone.publications", 1, {**TAGS, "outcome": outcome})]
    assert ("dpone.publish.duration" in stats.timed) is (outcome == "committed")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(Stopped(Stop(Code.TARGET_BUSY, "x")), "conflict"), (RuntimeError("password"), "unexpected")],
)
def test_a_stage_is_counted_by_its_outcome(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, stats: Stats, answer: Any, outcome: str
) -> None:
    replace_route(monkeypatch, "stage", answer)
    with pytest.raises(AirflowException):
        stage().execute(context())
    assert stats.counted == [("dpone.stages", 1, {**TAGS, "outcome": outcome})]


def test_a_deferral_is_no_outcome_and_the_time_goes_on(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, stats: Stats
) -> None:
    operator = publish(staged=dump(RECEIPT), deferrable=True, publish_timeout=timedelta(seconds=100))
    replace_route(monkeypatch, "publish", handed(left=40))
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context())
    assert [name for name, *_ in stats.counted] == ["dpone.publish.deferrals"]
    replace_route(monkeypatch, "publish", PUBLISHED)
    event = {"why": "outcome", "watch": deferred.value.trigger.serialize()[1]["watch"]}
    operator.execute_complete(context(), event)
    assert stats.timed["dpone.publish.duration"] > timedelta(seconds=58)


def test_no_metric_ends_a_task(monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace) -> None:
    def broken() -> Any:
        raise OSError("statsd.internal:8125")

    monkeypatch.setattr(compat, "stats", broken)
    replace_route(monkeypatch, "publish", PUBLISHED)
    assert publish(staged=dump(RECEIPT)).execute(context()) == dump(PUBLISHED)


def test_every_metric_is_documented_once() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(names) == len(set(names))
    assert all(name.startswith("dpone.") for name in names)


# --- The pointer


class Store:
    """Airflow's task state store, which may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.kept: dict[str, Any] = {}
        self.error = error

    def set(self, key: str, value: Any) -> None:
        if self.error is not None:
            raise self.error
        self.kept[key] = value


@pytest.mark.parametrize(
    ("run", "route", "answer", "pointer"),
    [
        (
            lambda c: stage().execute(c),
            "stage",
            RECEIPT,
            {"operation_id": RECEIPT.operation_id, "epoch": None, "entry": None, "phase": "PREPARED"},
        ),
        (
            lambda c: publish(staged=dump(RECEIPT)).execute(c),
            "publish",
            PUBLISHED,
            {"operation_id": PUBLISHED.operation_id, "epoch": 5, "entry": ENTRY, "phase": "COMMITTED"},
        ),
        (
            lambda c: CleanupOperator(task_id="cleanup", refresh=REFRESH, staged=dump(RECEIPT)).execute(c),
            "cleanup",
            CleanedUp(publication_receipt(in_phase(Phase.COMPLETED), replayed=False), None),
            {"operation_id": PUBLISHED.operation_id, "epoch": 5, "entry": ENTRY, "phase": "COMPLETED"},
        ),
        (
            lambda c: publish(staged=dump(RECEIPT)).execute(c),
            "publish",
            SETTLED,
            {"operation_id": "ab" * 32, "epoch": None, "entry": None, "phase": "COMPLETED"},
        ),
    ],
    ids=["stage", "publish", "cleanup", "settled"],
)
def test_a_task_leaves_a_pointer_where_airflow_has_a_place_for_it(
    monkeypatch: pytest.MonkeyPatch,
    connected: SimpleNamespace,
    run: Callable[[Any], Any],
    route: str,
    answer: Any,
    pointer: Mapping[str, Any],
) -> None:
    replace_route(monkeypatch, route, answer)
    store = Store()
    whole = run(context(task_state_store=store))
    assert store.kept == {"dpone": pointer}
    # Without a store, or with one that fails, the answer is the same.
    assert run(context()) == whole
    assert run(context(task_state_store=Store(RuntimeError("no")))) == whole


def test_a_task_that_defers_leaves_its_queue_entry(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    store = Store()
    replace_route(monkeypatch, "publish", handed())
    with pytest.raises(TaskDeferred):
        publish(staged=dump(RECEIPT), deferrable=True).execute(context(task_state_store=store))
    assert store.kept["dpone"] == {
        "operation_id": RECEIPT.operation_id,
        "epoch": 5,
        "entry": ENTRY,
        "phase": "BOUND",
    }


# --- OpenLineage, with its real provider


def facets_of(found: Any) -> Any:
    """A lineage as it is sent, without what OpenLineage adds by itself."""
    from openlineage.client.serde import Serde

    names = ("inputs", "outputs", "run_facets", "job_facets")
    plain = {name: json.loads(json.dumps(getattr(found, name), default=Serde.to_dict)) for name in names}
    return without(plain, "_producer", "_schemaURL", "_deleted")


def without(value: Any, *names: str) -> Any:
    match value:
        case dict():
            return {name: without(item, *names) for name, item in value.items() if name not in names}
        case list():
            return [without(item, *names) for item in value]
        case _:
            return value


STAGED = {"namespace": "clickhouse://analytics", "name": "mart.orders__dpone_staged"}
LIVE = {"namespace": "clickhouse://analytics", "name": "mart.orders"}


def test_a_stage_leads_from_its_source_to_the_staged_table(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    replace_route(monkeypatch, "stage", RECEIPT)
    connected.staging = lambda *_: SimpleNamespace(query_id="dpone-load-1")
    operator = stage(
        source=SqlSource("SELECT 's3cret' AS id FROM raw.orders JOIN raw.lines ON 1, numbers(3)")
    )
    before = facets_of(operator.get_openlineage_facets_on_start())
    operator.execute(context())
    found = facets_of(operator.get_openlineage_facets_on_complete(None))
    assert [one["name"] for one in found["inputs"]] == ["raw.lines", "raw.orders"]
    assert {one["namespace"] for one in found["inputs"]} == {"clickhouse://analytics"}
    [output] = found["outputs"]
    assert (output["namespace"], output["name"]) == tuple(STAGED.values())
    assert output["outputFacets"]["outputStatistics"] == {"rowCount": 1, "size": 10}
    assert output["facets"]["lifecycleStateChange"] == {"lifecycleStateChange": "CREATE"}
    assert found["run_facets"]["externalQuery"] == {
        "externalQueryId": "dpone-load-1",
        "source": "clickhouse://analytics",
    }
    assert found["job_facets"] == {}
    assert "s3cret" not in json.dumps(found)
    # Before it has run, and when it fails, the same datasets without numbers.
    assert [one["name"] for one in before["inputs"]] == ["raw.lines", "raw.orders"]
    assert "outputStatistics" not in json.dumps(before)
    assert "outputStatistics" not in json.dumps(facets_of(operator.get_openlineage_facets_on_failure(None)))


@pytest.mark.parametrize(
    ("phase", "changes", "change"),
    [(Phase.COMMITTED, {}, "OVERWRITE"), (Phase.COMPLETED, {"predecessor": None}, "CREATE")],
)
def test_a_publication_leads_from_the_staged_table_to_the_live_one(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, phase: Phase, changes: Any, change: str
) -> None:
    receipt = publication_receipt(in_phase(phase, **changes), replayed=False)
    replace_route(monkeypatch, "publish", receipt)
    operator = publish(staged=dump(RECEIPT))
    operator.execute(context())
    found = facets_of(operator.get_openlineage_facets_on_complete(None))
    assert [(one["namespace"], one["name"]) for one in found["inputs"]] == [tuple(STAGED.values())]
    [output] = found["outputs"]
    assert (output["namespace"], output["name"]) == tuple(LIVE.values())
    assert output["outputFacets"]["outputStatistics"] == {"rowCount": receipt.rows, "size": receipt.bytes}
    assert output["facets"]["lifecycleStateChange"] == {"lifecycleStateChange": change}
    assert found["run_facets"]["externalQuery"]["externalQueryId"] == ENTRY


def test_a_replayed_answer_wrote_nothing(monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace) -> None:
    replace_route(monkeypatch, "publish", REPLAYED)
    operator = publish(staged=dump(RECEIPT))
    operator.execute(context())
    found = facets_of(operator.get_openlineage_facets_on_complete(None))
    assert found == {"inputs": [], "outputs": [], "run_facets": {}, "job_facets": {}}
    failed = facets_of(operator.get_openlineage_facets_on_failure(None))
    assert [one["name"] for one in failed["outputs"]] == ["mart.orders"]


def test_without_openlineage_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors", None)
    assert stage().get_openlineage_facets_on_start() is None
    assert publish(staged=dump(RECEIPT)).get_openlineage_facets_on_complete(None) is None


def test_the_parser_of_queries_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage_sql", None)
    assert lineage.tables_of("SELECT 1 FROM a.b", "clickhouse") == []


def test_an_operator_that_can_not_be_read_tells_nothing() -> None:
    assert stage(refresh={"cluster": "c"}).get_openlineage_facets_on_start() is None
    assert publish(refresh=5, staged=dump(RECEIPT)).get_openlineage_facets_on_start() is None


def test_a_fault_in_what_is_told_ends_no_task_and_gives_nothing_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("SELECT s3cret")

    monkeypatch.setattr(lineage, "inputs_of", broken)
    assert stage().get_openlineage_facets_on_start() is None
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("source", "inputs"),
    [
        (SqlSource("SELECT 1 AS id"), []),
        (SqlSource("SELECT * FROM orders"), []),
        (SqlSource("WITH c AS (SELECT * FROM a.b) SELECT * FROM c"), [("clickhouse://analytics", "a.b")]),
        (SqlSource("this is no 'secret' query ("), []),
        (SqlSource("SELECT * FROM public.o", conn_id="shop"), [("airflow-connection://shop", "public.o")]),
        (FileSource("/data/x.csv"), [("file", "/data/x.csv")]),
        (FileSource("file:///data/day=*/x.csv"), [("file", "/data")]),
        (FileSource("s3://aws_default@bucket/in/x.parquet"), [("s3://bucket", "in/x.parquet")]),
        (FileSource("gcs://bucket/in/day=*/*.parquet"), [("gs://bucket", "in")]),
        (FileSource("sftp://files.internal/x.csv"), []),
        (FileSource("abfss://c@account.dfs.core.windows.net/x.csv"), []),
    ],
)
def test_inputs_are_what_is_sure_and_no_hosts(source: Any, inputs: list[tuple[str, str]]) -> None:
    assert lineage.inputs_of(REFRESH, source) == inputs


# --- The end of a task that somebody ended


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(
        "airflow_provider_dpone.operators.base.RefreshOperator._say", lambda _, text: lines.append(text)
    )
    return lines


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "No load or comparison is running"),
        (True, "taken up the kill"),
        (False, "no server has answered"),
    ],
)
def test_a_stage_that_is_killed_says_what_became_of_its_load(
    monkeypatch: pytest.MonkeyPatch,
    connected: SimpleNamespace,
    said: list[str],
    answer: bool | None,
    words: str,
) -> None:
    replace_route(monkeypatch, "stage", RECEIPT)
    connected.staging = lambda *_: SimpleNamespace(cancel=lambda: answer)
    operator = stage()
    operator.on_kill()
    assert "before anything was sent" in said[-1]
    operator.execute(context())
    operator.on_kill()
    assert words in said[-1]
    assert "the live table is as it was" in said[-1]


@pytest.mark.parametrize(
    ("sent", "words"), [(1, "was sent and can't be recalled"), (0, "has sent no statement")]
)
def test_a_publication_that_is_killed_says_that_nothing_is_recalled(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, said: list[str], sent: int, words: str
) -> None:
    replace_route(monkeypatch, "publish", PUBLISHED)
    connected.statements_sent = sent
    operator = publish(staged=dump(RECEIPT))
    operator.execute(context())
    operator.on_kill()
    assert words in said[-1]
    assert "never sends twice" in said[-1]
    # A comparison that runs before the statement ends with its task.
    assert connected.running.cancelled.is_set()


def test_a_cleanup_that_is_killed_says_that_the_publication_stands(said: list[str]) -> None:
    CleanupOperator(task_id="cleanup", refresh=REFRESH, staged=dump(RECEIPT)).on_kill()
    assert "The publication stands" in said[-1]


def test_a_trigger_that_is_killed_cancels_nothing(caplog: pytest.LogCaptureFixture) -> None:
    trigger = PublicationTrigger.of(Watch.of(bound(), conn_id="ch", deadline=2_000_000_000))
    lines: list[str] = []
    trigger._log = SimpleNamespace(info=lambda text, *_: lines.append(text))
    asyncio.run(trigger.on_kill())
    assert "can't be recalled" in lines[0]


# --- Words for people


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (PUBLISHED, ["Published and proven in", "10 rows on s1/r1, s1/r2", "epoch 5", ENTRY]),
        (REPLAYED, ["was published at 1970-01-01 00:", "the old answer", "no asset event"]),
        (SETTLED, ["7 rows; a later operation has followed", "Operation abababababababab."]),
    ],
)
def test_a_publication_says_what_is_proven(
    monkeypatch: pytest.MonkeyPatch,
    connected: SimpleNamespace,
    said: list[str],
    answer: Any,
    words: list[str],
) -> None:
    replace_route(monkeypatch, "publish", answer)
    publish(staged=dump(RECEIPT)).execute(context())
    assert said[0] == "Publishing mart.orders on cluster 'analytics', through connection 'ch'."
    assert [word for word in words if word not in said[-1]] == []


def test_what_a_receipt_warns_of_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_route(monkeypatch, "publish", replace(PUBLISHED, warnings=("a dictionary may be old",)))
    publish(staged=dump(RECEIPT)).execute(context())
    [line] = [one for one in capsys.readouterr().out.splitlines() if "dictionary" in one]
    assert "warning" in line
    assert "mart.orders: a dictionary may be old." in line


def test_a_stage_says_that_nothing_is_live_yet(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, said: list[str]
) -> None:
    replace_route(monkeypatch, "stage", replace(RECEIPT, live_rows=5))
    stage().execute(context())
    assert "1 rows (the live table has 5), 10 bytes, equal on s1/r1, s1/r2" in said[-1]
    assert "Nothing is live yet" in said[-1]
    replace_route(monkeypatch, "stage", replace(RECEIPT, resumed=True))
    stage().execute(context())
    assert "An earlier try had staged this: 1 rows, 10 bytes" in said[-1]


def test_a_deferral_says_what_is_waited_for_and_until_when(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, said: list[str]
) -> None:
    replace_route(monkeypatch, "publish", handed())
    with pytest.raises(TaskDeferred):
        publish(staged=dump(RECEIPT), deferrable=True).execute(context())
    assert f"queue entry {ENTRY} is not through yet" in said[-1]
    assert " UTC, without a worker slot; nothing is sent again." in said[-1]


@pytest.mark.parametrize(
    ("phase", "words"), [(Phase.COMPLETED, "nothing of this one is left"), (Phase.COMMITTED, "")]
)
def test_a_cleanup_says_what_is_left(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, said: list[str], phase: Phase, words: str
) -> None:
    receipt = publication_receipt(in_phase(phase), replayed=False)
    if not words:
        receipt = replace(receipt, retained=(RetainedReceipt("orders__dpone_b2", "u2", 60),))
        words = "Kept: orders__dpone_b2 until 1970-01-01 00:01:00 UTC."
    replace_route(monkeypatch, "cleanup", CleanedUp(receipt, None))
    CleanupOperator(task_id="cleanup", refresh=REFRESH, staged=dump(RECEIPT)).execute(context())
    assert words in said[-1]


# --- The connection's form on Airflow 3.1


def test_the_form_of_airflow_3_1_has_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(kind: str) -> Callable[..., Any]:
        return lambda **options: (kind, options["label"])

    forms = SimpleNamespace(BooleanField=made("yes or no"), StringField=made("text"))
    monkeypatch.setitem(sys.modules, "wtforms", forms)
    widgets = SimpleNamespace(BS3TextFieldWidget=object)
    monkeypatch.setitem(sys.modules, "flask_appbuilder.fieldwidgets", widgets)
    monkeypatch.setitem(sys.modules, "flask_appbuilder", SimpleNamespace(fieldwidgets=widgets))
    found = DponeClickHouseHook.get_connection_form_widgets()
    declared = get_provider_info()["connection-types"][0]["conn-fields"]
    assert list(found) == list(declared)
    assert found["secure"] == ("yes or no", "TLS")
    assert found["connect_timeout"] == ("text", "Connect timeout")
    behaviour = DponeClickHouseHook.get_ui_field_behaviour()
    assert set(behaviour) == {"hidden_fields", "relabeling", "placeholders"}


def test_the_commands_can_be_run_without_airflows_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow_provider_dpone.__main__ import main

    monkeypatch.setattr(sys, "argv", ["dpone", "init", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "--print-sql" in capsys.readouterr().out
