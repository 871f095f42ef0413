"""The operators: fields, rendering, which stage a task belongs to, and what Airflow does with each stop."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, TaskGroup, task_group

from airflow_provider_dpone import ClusterRefresh, FileSource, SqlSource, TableStructure, cluster_refresh
from airflow_provider_dpone.clickhouse.progress import RunningQueries
from airflow_provider_dpone.compat import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    TaskDeferred,
)
from airflow_provider_dpone.operators import CleanupOperator, PublishOperator, StageOperator
from airflow_provider_dpone.operators.outcome import airflow_outcome, failure
from airflow_provider_dpone.operators.publish import GRACE
from airflow_provider_dpone.operators.xcom import for_xcom
from airflow_provider_dpone.publication.receipt import (
    STAGE_SCHEMA,
    StageReceipt,
    dump,
    load_stage_receipt,
    publication_receipt,
)
from airflow_provider_dpone.publication.record import AuthorityRecord, ContentDigest, Phase
from airflow_provider_dpone.publication.stop import Category, Code, Stop, Stopped
from airflow_provider_dpone.publication.watch import (
    SeenOutcome,
    Watch,
    Why,
    Woken,
    dump_woken,
    load_watch,
)
from airflow_provider_dpone.routes.cluster_refresh import (
    CleanedUp,
    CleanupRequest,
    HandedOver,
    PublishRequest,
    StageRequest,
)
from tests.unit.builders import in_phase, receipt_of

REFRESH = ClusterRefresh("ch", "analytics", "mart", "orders", max_source_bytes=1)
SOURCE = SqlSource("SELECT 1 AS id")
RECEIPT = StageReceipt(
    schema=STAGE_SCHEMA,
    operation_id="ab" * 32,
    cluster="analytics",
    database="mart",
    table="orders",
    candidate="orders__dpone_a1",
    candidate_sql="`mart`.`orders__dpone_a1`",
    candidate_uuid="u1",
    rows=1,
    bytes=10,
    content=ContentDigest(1, "1", "2"),
    live_rows=None,
    replicas=("s1/r1", "s1/r2"),
)
PUBLISHED = publication_receipt(in_phase(Phase.COMMITTED), replayed=False)


def other(table: str) -> ClusterRefresh:
    return ClusterRefresh("ch", "analytics", "mart", table, max_source_bytes=1)


def dag() -> DAG:
    return DAG("refreshes", schedule=None)


def stage(
    task_id: str = "stage", refresh: Any = REFRESH, source: Any = SOURCE, **kwargs: Any
) -> StageOperator:
    return StageOperator(task_id=task_id, refresh=refresh, source=source, **kwargs)


def publish(task_id: str = "publish", refresh: Any = REFRESH, **kwargs: Any) -> PublishOperator:
    return PublishOperator(task_id=task_id, refresh=refresh, **kwargs)


def context(task: Any = None, **more: Any) -> Any:
    ti = SimpleNamespace(
        dag_id="refreshes",
        run_id="r1",
        task_id="stage",
        map_index=-1,
        max_tries=0,
        try_number=1,
        id="ti-1",
        xcom_pull=lambda **_: dump(RECEIPT),
    )
    return {
        "ti": ti,
        "task": task,
        "dag_run": SimpleNamespace(conf={}),
        "params": {"table": "orders", "day": "2026-01-01"},
        **more,
    }


# --- Arguments


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"on_busy": "perhaps"}, "on_busy"),
        ({"busy_timeout": timedelta(0)}, "busy_timeout"),
        ({"busy_timeout": 5}, "busy_timeout"),
        ({"load_timeout": timedelta(seconds=-1)}, "load_timeout"),
    ],
)
def test_a_wrong_argument_of_stage_is_named_while_the_dag_is_parsed(
    arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=f"^{named} must be"):
        stage(**arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"min_rows": -1}, "min_rows"),
        ({"min_rows": True}, "min_rows"),
        ({"max_shrink": 1.5}, "max_shrink"),
        ({"max_shrink": -0.1}, "max_shrink"),
        ({"publish_timeout": timedelta(0)}, "publish_timeout"),
    ],
)
def test_a_wrong_argument_of_publish_is_named_while_the_dag_is_parsed(
    arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=f"^{named} must be"):
        publish(**arguments)


# --- Rendering


def rendered(operator: BaseOperator) -> Any:
    operator.render_template_fields(context(operator))
    return operator


def test_a_frozen_refresh_is_rendered_into_a_new_one() -> None:
    template = ClusterRefresh(
        "ch",
        "analytics",
        "mart",
        "{{ params.table }}",
        max_source_bytes=1,
        structure=TableStructure(columns={"id": "UInt64"}, order_by="id", comment="{{ params.day }}"),
    )
    with dag():
        found = rendered(
            stage(
                refresh=template, source=SqlSource("SELECT '{{ params.day }}'"), order_key="{{ params.day }}"
            )
        )
    assert found.refresh.table == "orders"
    assert found.refresh.structure.comment == "2026-01-01"
    assert found.source == SqlSource("SELECT '2026-01-01'")
    assert found.order_key == "2026-01-01"
    assert template.table == "{{ params.table }}"


def test_dicts_are_rendered_by_airflow_and_become_values_afterwards() -> None:
    with dag():
        found = rendered(
            stage(
                refresh={**REFRESH.serialize(), "table": "{{ params.table }}"},
                source={"path": "/data/{{ params.day }}.csv"},
            )
        )
    assert found.rendered_refresh() == REFRESH
    assert found._rendered_source() == FileSource("/data/2026-01-01.csv")


def test_what_comes_out_of_a_template_is_no_template_again() -> None:
    with dag():
        found = stage(refresh={**REFRESH.serialize(), "table": "{{ params.table }}"})
    found.render_template_fields(context(found, params={"table": "{{ 1 + 1 }}"}))
    assert found.rendered_refresh().table == "{{ 1 + 1 }}"


def test_sql_may_lie_in_a_file(tmp_path: Any) -> None:
    (tmp_path / "orders.sql").write_text("SELECT '{{ params.day }}'")
    with DAG("refreshes", schedule=None, template_searchpath=str(tmp_path)):
        found = rendered(stage(source=SqlSource("orders.sql")))
    assert found.source.sql == "SELECT '2026-01-01'"


@pytest.mark.parametrize(
    ("refresh", "message"),
    [
        ({"cluster": "c"}, "Clickhouse_conn_id is missing"),
        ({**REFRESH.serialize(), "tabel": "x"}, "ClusterRefresh has no argument tabel"),
        (5, "Refresh must be a ClusterRefresh"),
    ],
)
def test_a_dict_that_makes_no_refresh_is_refused(refresh: Any, message: str) -> None:
    with pytest.raises(Stopped) as caught:
        stage(refresh=refresh).rendered_refresh()
    assert caught.value.stop.code is Code.BAD_INPUT
    assert caught.value.stop.message.startswith(message)


# --- Which stage


def loaded(found: DAG) -> DAG:
    """What Airflow does with a DAG once its file was read."""
    found.resolve_template_files()  # type: ignore[no-untyped-call]
    return found


def stage_of(found: DAG, task_id: str) -> str:
    """The id of the stage task whose output a task takes."""
    task: Any = found.get_task(task_id)
    return str(task.staged.operator.task_id)


def test_the_one_stage_task_of_the_same_table_is_found() -> None:
    with dag() as found:
        stage("stage_orders") >> publish()
        stage("stage_lines", other("lines")) >> found.get_task("publish")
    loaded(found)
    assert stage_of(found, "publish") == "stage_orders"


def test_a_stage_task_further_up_is_found_through_the_checks_in_between() -> None:
    with dag() as found:
        check = BaseOperator(task_id="check")
        stage() >> check >> publish()
    loaded(found)
    assert stage_of(found, "publish") == "stage"
    assert "stage" in found.get_task("publish").upstream_task_ids


def test_templates_and_dicts_are_compared_as_they_are_written() -> None:
    template = other("{{ params.table }}")
    with dag() as found:
        stage(refresh=template.serialize()) >> publish(refresh=template)
    loaded(found)
    assert stage_of(found, "publish") == "stage"


def test_without_a_stage_task_the_dag_does_not_parse() -> None:
    with dag() as found:
        publish()
    with pytest.raises(
        AirflowException, match="PublishOperator 'publish' of DAG 'refreshes' has no stage task"
    ):
        loaded(found)


def test_a_stage_task_of_another_table_does_not_count() -> None:
    with dag() as found:
        stage(refresh=other("lines")) >> publish()
    with pytest.raises(AirflowException, match="has no stage task of the same table upstream"):
        loaded(found)


def test_two_stage_tasks_of_one_table_need_a_word() -> None:
    with dag() as found:
        [stage("one"), stage("two")] >> publish()
    with pytest.raises(AirflowException, match=r"more than one stage task upstream: 'one', 'two'. Say which"):
        loaded(found)


def test_a_mapped_stage_task_needs_a_word() -> None:
    with dag() as found:
        mapped = StageOperator.partial(task_id="stage", refresh=REFRESH).expand(source=[SOURCE, SOURCE])
        mapped >> publish()
    with pytest.raises(AirflowException, match=r"its stage task 'stage' is mapped.*expand\(staged="):
        loaded(found)


def test_the_task_group_names_and_orders_its_tasks() -> None:
    with dag() as found:
        group = cluster_refresh(
            group_id="orders",
            refresh=REFRESH,
            source=SOURCE,
            stage_kwargs={"on_busy": "wait", "retries": 3},
            publish_kwargs={"min_rows": 5},
            cleanup_kwargs={"wait": False},
        )
    loaded(found)
    assert isinstance(group, TaskGroup)
    tasks: Any = {name: found.get_task(f"orders.{name}") for name in ("stage", "publish", "cleanup")}
    assert tasks["stage"].downstream_task_ids == {"orders.publish", "orders.cleanup"}
    assert tasks["publish"].downstream_task_ids == {"orders.cleanup"}
    assert (tasks["stage"].on_busy, tasks["stage"].retries) == ("wait", 3)
    assert (tasks["publish"].min_rows, tasks["cleanup"].wait) == (5, False)


def test_the_tasks_can_be_in_a_mapped_group() -> None:
    with dag() as found:

        @task_group
        def one(refresh: Any) -> None:
            (
                stage(refresh=refresh)
                >> publish(refresh=refresh)
                >> CleanupOperator(task_id="cleanup", refresh=refresh)
            )

        one.expand(refresh=[REFRESH.serialize(), other("lines").serialize()])
    loaded(found)
    assert stage_of(found, "one.publish") == "one.stage"


def test_a_mapped_task_is_serialized_with_its_values() -> None:
    from airflow.serialization import serialized_objects

    # Airflow 3.1 has the other name.
    found_as = "DagSerialization" if hasattr(serialized_objects, "DagSerialization") else "SerializedDAG"
    to_dict = getattr(serialized_objects, found_as).to_dict
    with dag() as found:
        StageOperator.partial(task_id="stage", source=SOURCE).expand(refresh=[REFRESH, other("lines")])
    first = to_dict(loaded(found))
    assert first == to_dict(found)
    assert "lines" in str(first)


# --- Execution


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Ports that nobody calls, because the routes are replaced too."""
    made = SimpleNamespace(
        ports=object(),
        site=object(),
        staging=lambda *arguments: SimpleNamespace(arguments=arguments),
        running=RunningQueries(),
    )

    @contextmanager
    def connect(*arguments: Any, **options: Any) -> Iterator[SimpleNamespace]:
        made.connect = (arguments, options)
        yield made

    monkeypatch.setattr("airflow_provider_dpone.composition.connect", connect)
    return made


def replace_route(monkeypatch: pytest.MonkeyPatch, name: str, answer: Any) -> list[Any]:
    calls: list[Any] = []

    def route(*arguments: Any) -> Any:
        calls.append(arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(f"airflow_provider_dpone.routes.cluster_refresh.{name}", route)
    return calls


def test_stage_hands_its_arguments_to_the_route(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(monkeypatch, "stage", RECEIPT)
    refresh = ClusterRefresh.from_mapping(
        {**REFRESH.serialize(), "retain_predecessor": 60, "on_dependents": "refuse"}
    )
    operator = stage(refresh=refresh, on_busy="wait", busy_timeout=timedelta(minutes=2), allow_older=True)
    answer = operator.execute(context(data_interval_end=datetime(2026, 1, 2, tzinfo=UTC)))
    assert answer == dump(RECEIPT)
    ((_, _, _, request, waits),) = calls
    assert isinstance(request, StageRequest)
    assert request.identity.series == "0"
    assert request.order_key == "2026-01-02T00:00:00.000000Z"
    assert (request.allow_older, request.retention, request.refuse_dependents) == (True, 60, True)
    assert waits.busy == 120
    assert connected.connect[1]["writer"] == "ti-1"


def test_stage_does_not_wait_for_another_operation_unless_told_to(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(monkeypatch, "stage", RECEIPT)
    stage().execute(context())
    stage(on_busy="wait").execute(context())
    assert [waits.busy for *_, waits in calls] == [0, 3600]


def test_publish_hands_guards_and_the_staged_operation_to_the_route(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(monkeypatch, "publish", PUBLISHED)
    operator = publish(
        staged=dump(RECEIPT), allow_empty=True, min_rows=3, max_shrink=0.5, publish_timeout=timedelta(hours=2)
    )
    operator.execute(context())
    ((_, _, request, waits),) = calls
    assert isinstance(request, PublishRequest)
    assert request.operation_id == RECEIPT.operation_id
    assert (request.guards.allow_empty, request.guards.min_rows, request.guards.max_shrink) == (True, 3, 0.5)
    assert waits.publish == 7200


def test_publish_asks_as_the_same_task_in_every_try_until_it_is_cleared(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(monkeypatch, "publish", PUBLISHED)
    for changes in ({}, {"try_number": 2, "id": "ti-2"}, {"max_tries": 3}, {"task_id": "other"}):
        asking = context()
        for name, value in changes.items():
            setattr(asking["ti"], name, value)
        publish(staged=dump(RECEIPT)).execute(asking)
    first, retry, cleared, other = [request.asker for _, _, request, _ in calls]
    assert first == retry
    assert len({first, cleared, other}) == 3


# --- Deferral


@pytest.mark.parametrize(
    "why", ["outcome", "record", "contradiction", "recheck", "deadline", "unknown_watch"]
)
def test_a_task_that_an_earlier_release_deferred_is_finished_by_this_one(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, why: str
) -> None:
    """Airflow calls the method that was named then, with the event of a triggerer that runs that release still."""
    golden = Path(__file__).parents[1] / "golden"
    staged = json.loads((golden / "receipts" / "v1-stage.json").read_text())
    event = json.loads((golden / "events" / f"v1-{why}.json").read_text())
    calls = replace_route(monkeypatch, "publish", PUBLISHED)
    operator = publish(staged=staged, deferrable=True, publish_timeout=timedelta(hours=1))
    operator.resume_execution("execute_complete", {"event": event}, context())
    ((_, _, request, _),) = calls
    assert request.operation_id == event["watch"]["operation_id"]
    # The deadline is the one of then, not an hour from now.
    assert request.patience > 24 * 3600
    assert (request.outcome is not None) is (why == "outcome")


def bound() -> AuthorityRecord:
    return in_phase(Phase.BOUND, operation_id=RECEIPT.operation_id)


def handed(left: float = 100.0) -> HandedOver:
    return HandedOver(Stop(Code.IN_PROGRESS, "The replicas are working."), bound(), left)


def deferred(operator: PublishOperator, event: Any = None) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        _ = operator.execute(context()) if event is None else operator.execute_complete(context(), event)
    return caught.value


def test_publish_defers_on_what_is_bound_until_its_deadline(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(monkeypatch, "publish", handed(left=1_000))
    before = time.time()
    found = deferred(publish(staged=dump(RECEIPT), deferrable=True))
    ((_, _, request, _),) = calls
    assert (request.hand_over_after, request.outcome) == (15, None)
    assert found.method_name == "execute_complete"
    # Everything is in the trigger: some ways to run a task lose a deferral's own arguments.
    assert not found.kwargs
    watch = load_watch(found.trigger.watch)
    assert watch is not None
    assert watch == Watch.of(bound(), conn_id="ch", deadline=watch.deadline)
    assert before + 1_000 <= watch.deadline <= time.time() + 1_001
    assert found.timeout is not None
    assert timedelta(seconds=1_000) < found.timeout <= timedelta(seconds=1_001) + GRACE


def test_the_deadline_stays_over_deferrals_and_the_outcome_is_handed_to_the_route(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(monkeypatch, "publish", handed())
    operator = publish(staged=dump(RECEIPT), deferrable=True, publish_timeout=timedelta(hours=9))
    deadline = int(time.time()) + 50
    watch = Watch.of(bound(), conn_id="ch", deadline=deadline)
    outcome = SeenOutcome(watch.entry, watch.query_digest, receipt_of(bound()), 1_100)
    event = dump_woken(Woken(Why.OUTCOME, replace(watch, outcome=outcome)))
    found = deferred(operator, event)
    ((_, _, request, _),) = calls
    assert 48 < request.patience <= 50
    assert request.outcome == outcome
    # The record does not have it yet, so it is kept.
    assert load_watch(found.trigger.watch) == replace(watch, outcome=outcome)
    assert found.trigger.watch["deadline"] == deadline
    assert found.timeout is not None
    assert found.timeout <= timedelta(seconds=50) + GRACE


def test_after_the_deadline_one_last_look_tells_what_is_known(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(
        monkeypatch, "publish", Stopped(Stop(Code.IN_PROGRESS, "The replicas are working."))
    )
    watch = Watch.of(bound(), conn_id="ch", deadline=int(time.time()) - 1)
    with pytest.raises(AirflowException, match="STILL RUNNING"):
        publish(staged=dump(RECEIPT), deferrable=True).execute_complete(
            context(), dump_woken(Woken(Why.DEADLINE, watch))
        )
    assert calls[0][2].patience == 0


def test_a_worker_that_can_not_look_does_not_lose_what_the_trigger_saw(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    replace_route(monkeypatch, "publish", Stopped(Stop(Code.SERVER_UNAVAILABLE, "No host can be reached.")))
    operator = publish(staged=dump(RECEIPT), deferrable=True)
    watch = Watch.of(bound(), conn_id="ch", deadline=int(time.time()) + 50)
    seen = replace(watch, outcome=SeenOutcome(watch.entry, watch.query_digest, receipt_of(bound()), 1_100))
    found = deferred(operator, dump_woken(Woken(Why.OUTCOME, seen)))
    assert load_watch(found.trigger.watch) == seen
    # The first try of a task has nothing to lose: Airflow retries it.
    with pytest.raises(AirflowException, match="No host can be reached"):
        operator.execute(context())


def test_what_holds_is_not_deferred_again(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    replace_route(monkeypatch, "publish", Stopped(Stop(Code.ENTRY_AMBIGUOUS, "Two entries.")))
    watch = Watch.of(bound(), conn_id="ch", deadline=int(time.time()) + 50)
    with pytest.raises(AirflowFailException, match="Two entries"):
        publish(staged=dump(RECEIPT), deferrable=True).execute_complete(
            context(), dump_woken(Woken(Why.CONTRADICTION, watch))
        )


@pytest.mark.parametrize("event", [None, "success", {"why": "unknown_watch", "watch": {"schema": "later"}}])
def test_an_event_that_says_nothing_is_as_good_as_a_retry(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, event: Any
) -> None:
    calls = replace_route(monkeypatch, "publish", PUBLISHED)
    answer = publish(staged=dump(RECEIPT), deferrable=True).execute_complete(context(), event)
    assert answer == dump(PUBLISHED)
    request = calls[0][2]
    assert request.outcome is None
    assert 3_599 < request.patience <= 3_600


def test_an_event_of_an_operation_that_was_staged_anew_says_nothing(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(monkeypatch, "publish", PUBLISHED)
    watch = Watch.of(in_phase(Phase.BOUND), conn_id="ch", deadline=int(time.time()) + 50)
    seen = replace(watch, outcome=SeenOutcome(watch.entry, watch.query_digest, receipt_of(bound()), 1_100))
    publish(staged=dump(RECEIPT)).execute_complete(context(), dump_woken(Woken(Why.OUTCOME, seen)))
    assert calls[0][2].outcome is None


@pytest.mark.parametrize(
    ("argument", "airflow", "hands_over"),
    [(None, "False", False), (None, "True", True), (False, "True", False), (True, "False", True)],
)
def test_deferrable_is_what_airflow_says_unless_the_task_says_it(
    monkeypatch: pytest.MonkeyPatch,
    connected: SimpleNamespace,
    argument: bool | None,
    airflow: str,
    hands_over: bool,
) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", airflow)
    calls = replace_route(monkeypatch, "publish", PUBLISHED)
    publish(staged=dump(RECEIPT), deferrable=argument).execute(context())
    assert calls[0][2].hand_over_after == (15 if hands_over else None)


def test_a_receipt_for_another_table_is_refused(connected: SimpleNamespace) -> None:
    with pytest.raises(AirflowFailException, match=r"staged is for mart.orders .* refresh is for mart.lines"):
        publish(refresh=other("lines"), staged=dump(RECEIPT)).execute(context())


def test_what_is_no_receipt_is_refused(connected: SimpleNamespace) -> None:
    with pytest.raises(AirflowFailException, match="is not the output of a dpone stage task"):
        publish(staged={"rows": 1}).execute(context())


def cleaned(next_due: int | None) -> CleanedUp:
    return CleanedUp(PUBLISHED, next_due)


def test_cleanup_waits_for_a_kept_table_outside_of_a_worker(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    calls = replace_route(monkeypatch, "cleanup", cleaned(30))
    before = datetime.now(UTC)
    with pytest.raises(AirflowRescheduleException) as caught:
        CleanupOperator(task_id="cleanup", refresh=REFRESH, staged=dump(RECEIPT)).execute(context())
    assert timedelta(seconds=31) <= caught.value.reschedule_date - before < timedelta(seconds=40)
    assert calls[0][2] == CleanupRequest(RECEIPT.operation_id, RECEIPT.candidate)


def test_a_long_wait_is_cut_into_hours(monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace) -> None:
    replace_route(monkeypatch, "cleanup", cleaned(7 * 24 * 3600))
    with pytest.raises(AirflowRescheduleException) as caught:
        CleanupOperator(task_id="cleanup", refresh=REFRESH, staged=dump(RECEIPT)).execute(context())
    assert caught.value.reschedule_date - datetime.now(UTC) <= timedelta(hours=1)


@pytest.mark.parametrize(("next_due", "wait"), [(None, True), (30, False)])
def test_cleanup_ends_when_nothing_is_kept_or_nobody_wants_to_wait(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, next_due: int | None, wait: bool
) -> None:
    replace_route(monkeypatch, "cleanup", cleaned(next_due))
    operator = CleanupOperator(task_id="cleanup", refresh=REFRESH, staged=dump(RECEIPT), wait=wait)
    assert operator.execute(context()) == dump(PUBLISHED)


def test_killing_a_stage_task_kills_its_load(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    replace_route(monkeypatch, "stage", RECEIPT)
    killed: list[bool] = []
    connected.staging = lambda *_: SimpleNamespace(cancel=lambda: killed.append(True))
    operator = stage()
    operator.on_kill()
    assert killed == []
    operator.execute(context())
    operator.on_kill()
    assert killed == [True]


def test_a_receipt_is_never_too_large_for_xcom(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace
) -> None:
    difference = tuple(
        f"adds column `column_{number}` of type LowCardinality(String)" for number in range(2000)
    )
    dependents = tuple(f"{'d' * 200}.{'v' * 200}_{number} (View)" for number in range(50))
    receipt = replace(RECEIPT, schema_difference=difference, dependents=dependents)
    replace_route(monkeypatch, "stage", receipt)
    answer = stage().execute(context())
    assert len(json.dumps(answer)) <= 16 * 1024
    for name, whole in (("schema_difference", difference), ("dependents", dependents)):
        *shown, rest = answer[name]
        assert shown == list(whole[: len(shown)])
        assert rest == f"... and {len(whole) - len(shown)} more"
    # Publish and cleanup can still read it.
    assert load_stage_receipt(answer).operation_id == RECEIPT.operation_id


def test_a_receipt_that_fits_is_whole() -> None:
    receipt = replace(RECEIPT, dependents=("mart.v (View)",))
    assert for_xcom(receipt) == dump(receipt)


# --- What Airflow does with a stop

RETRIED = {Category.RETRYABLE, Category.IN_PROGRESS, Category.NOT_OBSERVED}


@pytest.mark.parametrize("code", list(Code))
def test_each_code_is_retried_or_not_by_its_category(code: Code) -> None:
    error = failure(Stop(code, "What happened."))
    assert isinstance(error, AirflowFailException) is (code.category not in RETRIED)
    for part in (code.value, "What happened.", Stop(code, "x").next_action):
        assert part in str(error)


@pytest.mark.parametrize(
    ("code", "words"), [(Code.IN_PROGRESS, "STILL RUNNING"), (Code.REPLICA_NOT_OBSERVED, "NOT OBSERVABLE")]
)
def test_what_is_not_over_says_so(code: Code, words: str) -> None:
    assert words in str(failure(Stop(code, "x")))
    assert "everything is kept" in str(failure(Stop(code, "x")))


@pytest.mark.parametrize(
    ("operator", "route"),
    [
        (stage(), "stage"),
        (publish(staged=dump(RECEIPT)), "publish"),
        (CleanupOperator(task_id="cleanup", refresh=REFRESH, staged=dump(RECEIPT)), "cleanup"),
    ],
)
def test_an_exception_nobody_thought_of_tells_its_kind_and_place_only(
    monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace, operator: BaseOperator, route: str
) -> None:
    replace_route(monkeypatch, route, RuntimeError("password=s3cret host=db.internal"))
    with pytest.raises(
        AirflowException, match=r"An unexpected RuntimeError was raised in .*, line \d+"
    ) as caught:
        operator.execute(context())
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_exceptions_of_airflow_pass_as_they_are() -> None:
    with pytest.raises(AirflowRescheduleException), airflow_outcome():
        raise AirflowRescheduleException(datetime.now(UTC))  # type: ignore[no-untyped-call]


def test_a_bad_option_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, connected: SimpleNamespace) -> None:
    replace_route(monkeypatch, "stage", RECEIPT)
    monkeypatch.setenv("AIRFLOW__DPONE__READY_TIMEOUT", "soon")
    with pytest.raises(AirflowFailException, match=r"\[dpone\] ready_timeout must be a positive number"):
        stage().execute(context())
