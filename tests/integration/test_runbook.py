"""Every command of the runbook, as the page has it, in the situation that it is written for.

Only what a reader replaces is replaced: the name of a table of ours, and an operation's id.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from airflow_provider_dpone.cli.definition import commands
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stopped
from tests.cluster import LocalCluster
from tests.cluster.client import wait_until
from tests.cluster.spec import ADMIN_USER
from tests.integration.external_site import init as init_independent
from tests.integration.independent_site import IndependentSite
from tests.integration.refresh_site import QUICK, RefreshSite, rows_query
from tests.integration.task_site import connect
from tests.integration.test_ways_out import (
    DAY,
    died_while_staging,
    drop_replica,
    lose_control_table,
    on_own,
    without_second_replica,
)

pytestmark = pytest.mark.cluster

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"
PLACEHOLDER: Final = "0123456789abcdef"
DATABASE, TABLE = "mart", "orders"
RUN: set[tuple[str, str]] = set()
"""Title and command of all that was run."""


def of_page(language: str) -> list[tuple[str, str]]:
    """Title of the section and line, for every line that the page shows in this language."""
    found = []
    for section in re.split(r"^##? ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        for block in re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            found += [(title, line) for line in block.splitlines()]
    return found


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    with LocalCluster(replicas=3) as running:
        yield running


@pytest.fixture
def site(own: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RefreshSite:
    site = on_own(own, DATABASE, tmp_path)
    # In a database that shows no table at all, nobody can tell that one is absent.
    own.execute(f"CREATE TABLE IF NOT EXISTS {DATABASE}.other ON CLUSTER analytics (id UInt64) ENGINE = Log")
    connect(monkeypatch, own, tmp_path, conn_id="clickhouse_default")
    connect(monkeypatch, own, tmp_path, conn_id="clickhouse_admin", user=ADMIN_USER, password="")
    return site


@pytest.fixture
def operator(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the one command of a section that has all of ``words``; returns what it printed."""

    def run(title: str, *words: str, named: str = "", status: int = 0) -> str:
        lines = [line for shown, line in of_page("bash") if shown == title]
        wanted = [line for line in lines if all(word in shlex.split(line) for word in words)]
        # The shortest: `orphans` itself, where there are its variants.
        line = min(wanted, key=len)
        RUN.add((title, line))
        arguments = shlex.split(line.replace(PLACEHOLDER, named) if named else line)
        assert PLACEHOLDER not in " ".join(arguments)
        capsys.readouterr()
        ended = 0
        try:
            options = _parser().parse_args(arguments[1:])
            options.func(options)
        except SystemExit as end:
            ended = int(str(end.code))
        printed = capsys.readouterr()
        assert ended == status, printed.out + printed.err
        return printed.out

    return run


def _parser() -> argparse.ArgumentParser:
    from airflow.cli.cli_parser import AirflowHelpFormatter, _add_command

    parser = argparse.ArgumentParser(prog="airflow", formatter_class=AirflowHelpFormatter)
    subparsers = parser.add_subparsers()
    for command in commands():
        _add_command(subparsers, command)
    return parser


def stopped(work: Callable[[], Any]) -> Code:
    with pytest.raises(Stopped) as caught:
        work()
    return caught.value.stop.code


def next_run_publishes(site: RefreshSite, rows: int) -> None:
    assert site.refresh(rows, run=site.folder.parent.name).rows == rows
    assert site.counts() == [rows] * len(site.cluster.nodes)


INTRODUCTION: Final = "Runbook: ways out of a hold"


def test_a_table_that_a_dead_stage_task_locked_is_given_up(
    site: RefreshSite,
    operator: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = site.cluster
    connect(monkeypatch, own, tmp_path, conn_id="clickhouse_independent")
    init_independent(own)
    independent = IndependentSite(own, DATABASE, tmp_path, (own.endpoints[0],), table="exchange_rates")
    own.refuse(2, r"^\s*INSERT INTO .* FORMAT Native")
    stopped(lambda: independent.stage(rows_query(7)))
    assert independent.record().record.phase is Phase.STAGING
    assert "artifact folder" in operator("Locked or staging, and its task is dead", "abandon")
    assert independent.record().record.phase is Phase.ABORTED


def test_a_prepared_operation_of_a_dag_that_is_gone_is_abandoned(
    site: RefreshSite, operator: Callable[..., str]
) -> None:
    title = "Prepared, and its DAG is gone"
    site.stage(rows_query(3), run="gone")
    assert "PREPARED" in operator(INTRODUCTION, "status", status=2)
    assert "abandon" in operator(INTRODUCTION, "explain", status=2)
    assert "ABORTED" in operator(title, "abandon")
    operator(INTRODUCTION, "explain")
    next_run_publishes(site, 4)


def test_an_entry_that_is_not_seen_is_resolved(site: RefreshSite, operator: Callable[..., str]) -> None:
    staged = site.stage(rows_query(3), run="cut")
    # The statement is cut off on its way.
    site.cluster.refuse(1, r"^\s*(EXCHANGE|RENAME)\b")
    assert stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2))) is Code.ENTRY_NOT_SEEN
    site.cluster.clear_faults()
    assert "ENTRY_NOT_SEEN" in operator(INTRODUCTION, "explain", status=2)
    assert "ABORTED" in operator("The entry is not seen", "resolve")
    next_run_publishes(site, 5)


def test_bad_data_is_rolled_back(site: RefreshSite, operator: Callable[..., str]) -> None:
    site.refresh(6, run="good", retention=DAY)
    bad = site.refresh(7, run="bad", retention=DAY)
    assert "6" in operator("Bad data is live", "rollback", named=bad.operation_id[: len(PLACEHOLDER)])
    assert site.counts() == [6, 6, 6]
    next_run_publishes(site, 8)


def test_tables_that_are_left_over_are_listed_dropped_and_forgotten(
    site: RefreshSite, operator: Callable[..., str]
) -> None:
    title = "Tables are left over"
    site.refresh(3, run="left_over first", retention=DAY)
    site.refresh(9, run="left_over second", retention=DAY)
    kept = next(item.name for item in site.record().record.retained)
    before = site.tables()
    died_while_staging(site)
    (left,) = site.tables() - before
    assert left in operator(title, "orphans")
    prefix = f"{TABLE}__dpone_"
    assert left in operator(title, "--drop", named=left.removeprefix(prefix))
    assert site.tables() == before
    site.cluster.execute(f"DROP TABLE {DATABASE}.{kept} ON CLUSTER analytics SYNC")
    site.cluster.execute(f"CREATE TABLE {DATABASE}.{kept} ON CLUSTER analytics (id UInt64) ENGINE = Log")
    assert kept in operator(title, "--forget", named=kept.removeprefix(prefix))
    site.cluster.execute(f"DROP TABLE {DATABASE}.{kept} ON CLUSTER analytics SYNC")
    next_run_publishes(site, 5)


def test_a_lost_control_table_is_recovered(site: RefreshSite, operator: Callable[..., str]) -> None:
    title = "The control table was dropped or emptied"
    site.refresh(3, run="lost_control first")
    staged = site.stage(rows_query(9), run="lost_control second")
    lose_control_table(site.cluster)
    assert stopped(lambda: site.publish(staged)) is Code.CONTROL_TABLE_MISSING
    assert staged.candidate in operator(title, "init", "--print-sql")
    assert staged.candidate in site.tables()
    operator(title, "init", "--reason")
    next_run_publishes(site, 5)


def test_a_replica_that_is_gone_for_ever_is_retired(site: RefreshSite, operator: Callable[..., str]) -> None:
    title = "A replica is gone for ever"
    site.refresh(3, run="gone_for_ever first")
    staged = site.stage(rows_query(9), run="gone_for_ever second")
    site.cluster.pause_worker(2)
    late = stopped(lambda: site.publish(staged, waits=replace(QUICK, publish=2)))
    assert late is Code.PARTIAL_IN_PROGRESS
    without_second_replica(site.cluster, [])
    shown = operator(INTRODUCTION, "explain", status=2)
    assert "--retire s1/r2" in shown
    for section, line in of_page("sql"):
        assert section == title
        found = re.fullmatch(r"SYSTEM DROP REPLICA 'r2' FROM TABLE (\S+);", line)
        assert found is not None
        drop_replica(site.cluster, found[1].replace(f"{TABLE}__dpone_{PLACEHOLDER}", staged.candidate))
    assert Phase.COMMITTED.value in operator(title, "resolve", "--retire")
    wait_until(lambda: site.cluster.scalar(f"SELECT count() FROM {DATABASE}.{TABLE}", node=3) == 9)
    assert site.refresh(5, run="gone_for_ever next").rows == 5


def test_no_command_of_the_page_is_left_out(request: pytest.FixtureRequest) -> None:
    """The last one: it counts what the others ran."""
    ours = [item for item in request.session.items if item.path == request.path]
    if len(ours) != 8:
        pytest.fail(f"{len(ours)} of this file's tests were chosen; this one needs all")
    assert set(of_page("bash")) == RUN
