"""The page against whoever is curious, impatient or hostile, and a list that is honest about what it left out."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_dpone.evidence import objects
from airflow_provider_dpone.publication.commands import CommandTarget, evidence_command, explain_command
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.identity import OPERATOR, ROLLBACK
from airflow_provider_dpone.publication.record import Owner, Phase
from airflow_provider_dpone.publication.stop import Code
from airflow_provider_dpone.routes.ports import Target
from airflow_provider_dpone.web import publications
from airflow_provider_dpone.web.live import LiveReader
from tests.unit.builders import COMMITTED, PENDING, in_phase
from tests.unit.page_trails import explained, held
from tests.unit.test_page_routes import READABLE, ROUTES, SECRET, Site, receipt_path, site, task_path

__all__ = ["site"]


# ---- who may see what


def test_the_tab_of_a_rollback_shows_it_to_nobody_who_may_not_read_the_dag_it_undoes(site: Site) -> None:
    secret = site.add("a", owner=Owner(SECRET, "run-1", "stage", -1), table="salaries")
    site.add("c", owner=Owner(OPERATOR, secret, ROLLBACK, -1), publish=ROLLBACK, table="salaries")
    seen = site.viewer.get(task_path(ROLLBACK, run_id=secret, dag_id=OPERATOR))
    assert "salaries" not in seen.text
    assert "c" * 16 not in seen.text


@pytest.mark.parametrize("method", ["head", "options"])
@pytest.mark.parametrize("route", ROUTES)
def test_other_methods_tell_nothing(site: Site, route: str, method: str) -> None:
    site.add("a")
    for client in (site.anonymous, site.viewer):
        answer = getattr(client, method)(route)
        assert answer.status_code in (404, 405)
        assert "mart" not in answer.text


@pytest.mark.parametrize("identifier", ["index", "audit"])
def test_the_evidences_own_folders_are_no_operations(site: Site, identifier: str) -> None:
    site.add("a")
    assert site.admin.get(receipt_path(identifier)).status_code == 404


@pytest.mark.parametrize(
    "path", [f"{receipt_path('a' * 64)}?still=<script>", f"{task_path('stage')}?still=<script>"]
)
def test_a_wrong_parameter_gets_a_page_that_does_not_repeat_it(site: Site, path: str) -> None:
    site.add("a")
    answer = site.viewer.get(path)
    assert answer.status_code == 422
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "script>" not in answer.text.replace("</script>", "").replace(">\n", "")


def test_no_address_is_redirected(site: Site) -> None:
    for path in (f"{task_path('stage', index='1')}/", "/dpone/dags/"):
        answer = site.anonymous.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
        assert answer.status_code == 404
        assert "evil.example" not in str(answer.headers)


@pytest.mark.parametrize("index", ["../../x", "%2e%2e", "1;2", "9" * 5000, "\u0663"])
def test_a_map_index_that_is_none_finds_no_mapped_task(site: Site, index: str) -> None:
    site.add("a", owner=Owner(READABLE, "run-1", "stage", 3))
    answer = site.viewer.get(task_path("stage", index=index))
    assert answer.status_code == 404 or "No publication belongs to this task" in answer.text


# ---- commands to copy


def test_a_name_that_looks_like_a_flag_is_no_flag() -> None:
    target = CommandTarget("-c", "--reason=x", "--", "-rf $(id) 'x'")
    for line in (explain_command(target), evidence_command("--reason=x", "a" * 64)):
        parser = argparse.ArgumentParser(exit_on_error=False)
        for flag in ("conn-id", "cluster", "database", "table", "operation"):
            parser.add_argument(f"--{flag}")
        found = parser.parse_args([word for word in shlex.split(line)[3:] if word != "show"])
        assert found.cluster == "--reason=x"
        assert found.table in (None, "-rf $(id) 'x'")


# ---- what the list leaves out


def a_hold(site: Site, operation: str, table: str) -> str:
    held_ = site.add(operation, Phase.TERMINAL, table=table)
    of = in_phase(Phase.TERMINAL, operation_id=held_, table=table)
    site.evidence.write(held_, held(Code.PARTIAL_TERMINAL, of, COMMITTED, PENDING), {"operator": "ann"})
    return held_


@pytest.mark.parametrize("wanted", [{"target": "events"}, {"status": "Published"}, {"cluster": "other"}])
def test_a_filter_that_hides_a_hold_does_not_say_that_there_is_none(
    site: Site, wanted: dict[str, str]
) -> None:
    a_hold(site, "a", "orders")
    site.add("b", table="events")
    assert "1 on hold" in site.viewer.get("/dpone/").text
    assert "Nothing is on hold" not in site.viewer.get("/dpone/", params=wanted).text


def test_a_list_that_was_not_searched_to_its_end_does_not_say_that_nothing_is_on_hold(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_hold(site, "a", "orders")
    for number in range(5):
        site.add(f"{number}b", table=f"t{number}")
    monkeypatch.setattr(publications, "MOST_SEARCHED", 3)
    seen = site.viewer.get("/dpone/").text
    assert "Nothing is on hold" not in seen
    assert "were searched" in seen


def test_holds_stand_on_top_even_of_a_list_that_was_not_searched_to_its_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("f", table="oldest")
    a_hold(site, "a", "orders")
    site.add("b", Phase.BOUND, table="running")
    monkeypatch.setattr(publications, "MOST_SEARCHED", 2)
    seen = site.viewer.get("/dpone/").text
    assert seen.index("mart.orders") < seen.index("mart.running")


def test_a_permit_without_a_note_needs_attention(site: Site) -> None:
    operation = site.add("a", Phase.DISPATCHING)
    for name in site.reader.names(operation):
        if name.startswith("compare-and-swap-outcome.") and "DISPATCHING" in name:
            objects.delete(site.reader.folder / operation / name)
    assert "1 not proven yet" in site.viewer.get("/dpone/").text


# ---- many at once


def look_at(reader: LiveReader, *asked: tuple[str, str]) -> list[Any]:
    async def together() -> list[Any]:
        return await asyncio.gather(*(reader.read(c, Target("analytics", "mart", t)) for c, t in asked))

    return asyncio.run(together())


def test_a_cluster_that_hangs_holds_up_no_other_and_leaves_nothing_behind() -> None:
    release = threading.Event()
    begun: list[str] = []

    def explain(conn_id: str, target: Target) -> Explanation:
        begun.append(target.table)
        if conn_id == "hangs":
            release.wait(20)
        return explained(in_phase(Phase.BOUND), PENDING, PENDING)

    reader = LiveReader(explain, deadline=0.3)
    before = threading.active_count()
    try:
        hung = look_at(reader, *(("hangs", f"t{n}") for n in range(50)))
        assert all(one.explanation is None for one in hung)
        assert threading.active_count() - before <= 6
        # Only what was really asked is said not to have answered.
        assert sum("did not answer" in one.why_not for one in hung) == len(begun)
        assert sum("not looked at" in one.why_not for one in hung) == 50 - len(begun)
        (well,) = look_at(reader, ("well", "orders"))
        assert well.explanation is not None
    finally:
        release.set()
    time.sleep(0.2)
    # Nobody waits for the others any more, so that they are not asked at all.
    assert len(begun) <= 5


def test_evidence_that_is_slow_does_not_take_the_servers_threads(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("a")
    release, lock, most, now = threading.Event(), threading.Lock(), 0, 0
    names = objects.names

    def slow(*asked: Any) -> list[str]:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        release.wait(20)
        with lock:
            now -= 1
        return names(*asked)

    monkeypatch.setattr(objects, "names", slow)
    with ThreadPoolExecutor(24) as pool:
        answers = [
            pool.submit(site.viewer.get, path)
            for path in [receipt_path("a" * 64), task_path("stage"), "/dpone/"] * 8
        ]
        time.sleep(2)
        release.set()
        assert {answer.result().status_code for answer in answers} == {200}
    assert most <= 8
