"""Preflight: all findings at once, what is left out, and how people see them."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_provider_dpone.cli import commands
from airflow_provider_dpone.publication.decide import ContentCheck
from airflow_provider_dpone.publication.facts import ControlFacts, Dependent, Observation
from airflow_provider_dpone.publication.inventory import Inventory
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.cluster_refresh import Site
from airflow_provider_dpone.routes.cluster_refresh.preflight import Finding, Preflight, preflight
from airflow_provider_dpone.routes.ports import Target
from tests.unit.builders import CONTROL, FOREIGN, OLD, USER, in_phase, observation, stored

LIVE = {"orders": OLD}
FREE = "the table is free for the next refresh"
REPLACEABLE = "the table can be replaced"
GRANTED = "the user has every grant"


@dataclass
class FakeCatalog:
    answer: Observation | Stop

    @property
    def inventory(self) -> Inventory:
        raise NotImplementedError

    def observe(self, tables: Collection[str]) -> Observation:
        if isinstance(self.answer, Stop):
            raise Stopped(self.answer)
        return self.answer

    def content(self, table: str) -> ContentCheck:
        raise NotImplementedError

    def dictionary_loads(self, dictionaries: Collection[Dependent]) -> Mapping[str, Mapping[Dependent, int]]:
        raise NotImplementedError


@dataclass
class FakeGrants:
    answer: Stop | None = None
    fails: Stop | None = None

    def required(self, *, table_functions: bool) -> tuple[str, ...]:
        more = ("GRANT READ ON FILE TO `app`",) if table_functions else ()
        return ("GRANT CLUSTER ON *.* TO `app`", *more)

    def check(self, *, table_functions: bool) -> Stop | None:
        if self.fails is not None:
            raise Stopped(self.fails)
        return self.answer


def run(seen: Observation | Stop, grants: FakeGrants | None = None, *, from_file: bool = False) -> Preflight:
    site = Site(Target("analytics", "mart", "orders"), USER, CONTROL)
    return preflight(FakeCatalog(seen), grants or FakeGrants(), site, from_file=from_file)


def failed(found: Preflight) -> dict[str, Code]:
    return {finding.name: finding.stop.code for finding in found.findings if finding.stop is not None}


def good(phase: Phase = Phase.COMPLETED, first: Any = LIVE, second: Any = LIVE) -> Observation:
    return observation(stored(in_phase(phase)), first, second)


def second_replica(seen: Observation, **changes: Any) -> Observation:
    return replace(seen, replicas={**seen.replicas, "s1/r2": replace(seen.replicas["s1/r2"], **changes)})


def test_a_target_in_order_has_no_failure() -> None:
    found = run(good())
    assert found.ok
    assert failed(found) == {}
    said = {finding.name: finding.found for finding in found.findings}
    assert said[REPLACEABLE] == "ReplicatedMergeTree, 10 rows"
    assert said[FREE].startswith("last: DAG dag, run run, phase COMPLETED")
    assert [member.alias for member in found.members] == ["s1/r1", "s1/r2"]


def test_an_absent_target_that_was_never_published_is_in_order() -> None:
    found = run(observation(None, {}, {}))
    assert found.ok
    said = {finding.name: finding.found for finding in found.findings}
    assert said[REPLACEABLE].startswith("absent")
    assert said[FREE] == "never published"


def test_all_that_is_wrong_is_told_at_once() -> None:
    seen = second_replica(good(second={"orders": FOREIGN}), user="default", version="23.8.1")
    lacking = Stop(Code.MISSING_GRANT, "No CLUSTER.")
    assert failed(run(seen, FakeGrants(lacking))) == {
        "every replica answers as the connection's user": Code.INTERSERVER_SECRET_MISSING,
        "every server is new enough": Code.CAPABILITY_MISSING,
        GRANTED: Code.MISSING_GRANT,
        REPLACEABLE: Code.TARGET_NOT_UNIFORM,
    }


@pytest.mark.parametrize("phase", [Phase.PREPARED, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL])
def test_a_table_in_work_is_held_and_not_judged(phase: Phase) -> None:
    found = run(good(phase, second={"orders": FOREIGN}))
    assert failed(found) == {FREE: Code.TARGET_BUSY}
    assert REPLACEABLE not in {finding.name for finding in found.findings}


@pytest.mark.parametrize(
    "phase", [Phase.COMMITTED, Phase.COMPLETED, Phase.COMPLETED_RETAINING, Phase.ABORTED]
)
def test_a_table_whose_operation_is_over_is_free(phase: Phase) -> None:
    assert FREE not in failed(run(good(phase)))


def test_without_a_control_table_nothing_is_said_about_the_target() -> None:
    bare = ControlFacts(None, None, None, None)
    seen = observation(None, LIVE, LIVE)
    seen = replace(
        seen, replicas={alias: replace(facts, control=bare) for alias, facts in seen.replicas.items()}
    )
    found = run(seen)
    assert failed(found) == {"the control table exists": Code.CONTROL_TABLE_MISSING}
    assert REPLACEABLE not in {finding.name for finding in found.findings}


def test_a_cluster_that_cannot_be_read_leaves_grants_to_tell() -> None:
    found = run(
        Stop(Code.UNKNOWN_CLUSTER, "None of that name."), FakeGrants(fails=Stop(Code.SERVER_ERROR, "x"))
    )
    assert failed(found) == {"the cluster can be read": Code.UNKNOWN_CLUSTER, GRANTED: Code.SERVER_ERROR}
    assert found.grants == ("GRANT CLUSTER ON *.* TO `app`",)


def test_independent_replicas_are_asked_one_by_one_after_the_whole_cluster() -> None:
    asked: list[bool] = []
    reached = "every replica is reached by a connection of its own"

    def direct(seen: Observation, *, table_functions: bool) -> Iterator[Finding]:
        asked.append(table_functions)
        yield Finding(reached, Stop(Code.REPLICA_CONNECTION_WRONG, "s1/r2 leads to s1/r1."))

    site = Site(Target("analytics", "mart", "orders"), USER, CONTROL)
    found = preflight(FakeCatalog(good()), FakeGrants(), site, from_file=True, direct=direct)
    assert failed(found) == {reached: Code.REPLICA_CONNECTION_WRONG}
    assert asked == [True]
    names = [finding.name for finding in found.findings]
    assert names.index(GRANTED) < names.index(reached) < names.index(REPLACEABLE)
    unread = preflight(
        FakeCatalog(Stop(Code.UNKNOWN_CLUSTER, "None of that name.")), FakeGrants(), site, direct=direct
    )
    assert reached not in failed(unread)


def test_what_depends_on_the_table_is_listed() -> None:
    found = run(replace(good(), dependents=(Dependent("mart", "daily", "View"),)))
    assert found.ok
    assert "mart.daily (View)" in {finding.found for finding in found.findings}


@pytest.mark.parametrize(
    ("seen", "from_file", "wanted"),
    [
        (good(), False, False),
        (good(), True, True),
        (observation(None, {}, {}), False, True),
        (Stop(Code.UNKNOWN_CLUSTER, "None of that name."), False, False),
        (Stop(Code.UNKNOWN_CLUSTER, "None of that name."), True, True),
    ],
    ids=["query", "file", "absent", "unread", "file-unread"],
)
def test_the_grant_for_table_functions_is_asked_where_one_is_used(
    seen: Observation | Stop, from_file: bool, wanted: bool
) -> None:
    assert ("GRANT READ ON FILE TO `app`" in run(seen, from_file=from_file).grants) is wanted


def show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: Preflight, output: str
) -> tuple[int, str]:
    """Exit status and what was printed."""

    @contextmanager
    def server(_: str) -> Iterator[None]:
        yield None

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    monkeypatch.setattr("airflow_provider_dpone.composition.server", server)
    monkeypatch.setattr("airflow_provider_dpone.composition.preflight", lambda *_, **__: found)
    status = 0
    try:
        commands.preflight(
            Namespace(
                conn_id="c",
                cluster="analytics",
                database="mart",
                table="orders",
                replication_mode="internal",
                source="query",
                output=output,
            )
        )
    except SystemExit as end:
        status = int(str(end.code))
    return status, capsys.readouterr().out


def test_the_table_has_a_line_per_check_and_the_next_step_for_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = show(monkeypatch, capsys, run(good(second={"orders": FOREIGN})), "table")
    assert status == 1
    assert "s1/r1  host1:9000" in text
    assert "ok    every replica answers" in text
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("FAIL"))
    assert REPLACEABLE in lines[at]
    assert any(line.strip().startswith("Next: Find out which replica is right") for line in lines[at:])
    assert "GRANT CLUSTER ON *.* TO `app`;" in text
    assert "A refresh would be refused: 1 check failed." in text


def test_json_is_one_object_with_the_same_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(good())
    status, text = show(monkeypatch, capsys, found, "json")
    assert status == 0
    answer = json.loads(text)
    assert answer["ok"] is True
    assert [check["name"] for check in answer["checks"]] == [finding.name for finding in found.findings]
