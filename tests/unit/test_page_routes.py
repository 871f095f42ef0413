"""The page as a user meets it: who may see what, with Airflow's own security, and what hostile text does."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.app import _AuthManagerState
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from airflow.models.revoked_token import RevokedToken
from airflow.sdk import ObjectStoragePath
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_provider_dpone.evidence import objects
from airflow_provider_dpone.evidence.layout import cluster_folder
from airflow_provider_dpone.evidence.reader import EvidenceReader
from airflow_provider_dpone.evidence.store import write_index
from airflow_provider_dpone.publication.explanation import Explanation
from airflow_provider_dpone.publication.identity import OPERATOR, ROLLBACK
from airflow_provider_dpone.publication.record import Owner, Phase
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.publication.trail import Admission, OperatorAction, PublishAsked
from airflow_provider_dpone.routes.ports import Target
from airflow_provider_dpone.web.app import create_app
from airflow_provider_dpone.web.live import LiveReader
from airflow_provider_dpone.web.publications import Filter, Publications
from tests.airflow.auth import PickyAuthManager
from tests.unit.builders import COMMITTED, PENDING, in_phase
from tests.unit.page_trails import START, Evidence, about, admission, explained, held, history

READABLE, SECRET = "orders_daily", "secret_salaries"
HOSTILE = "<img src=x onerror=alert(1)>'\"</script><script>alert(2)</script>{{ 7*7 }}\u202etxt"


def manager() -> SimpleAuthManager:
    made: SimpleAuthManager = PickyAuthManager()  # type: ignore[no-untyped-call]
    return made


class Site:
    """The page over an evidence store, mounted as the api-server mounts it."""

    def __init__(self, root: ObjectStoragePath, manager: SimpleAuthManager) -> None:
        self.evidence = Evidence(root)
        self.reader = EvidenceReader(root, "analytics")
        self.looks: list[tuple[str, Target]] = []
        self.look: Callable[[str, Target], Explanation] = self._unavailable
        self.publications = Publications(lambda: {"analytics": self.reader})
        app = create_app(self.publications, LiveReader(lambda *asked: self._look(*asked), deadline=0.4))
        main = FastAPI()
        main.mount("/dpone", app)
        self.main = main
        self.anonymous = TestClient(main, raise_server_exceptions=False)
        self.viewer = self._client(manager, "ann", "VIEWER")
        self.admin = self._client(manager, "bob", "ADMIN")

    def _client(self, manager: SimpleAuthManager, name: str, role: str) -> TestClient:
        token = manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role, teams=None))
        return TestClient(self.main, cookies={"_token": token}, raise_server_exceptions=False)

    def _look(self, conn_id: str, target: Target) -> Explanation:
        self.looks.append((conn_id, target))
        return self.look(conn_id, target)

    def _unavailable(self, *_: object) -> Explanation:
        raise Stopped(Stop(Code.SERVER_UNAVAILABLE, "The server can't be reached."))

    def add(
        self,
        operation: str,
        state: str = Phase.COMPLETED,
        owner: Owner | None = None,
        *,
        publish: str | None = "publish",
        conn_id: str | None = "ch",
        **changes: Any,
    ) -> str:
        """Record an operation: what the stage task writes, and what the publish task does."""
        owner = owner or Owner(READABLE, "run-1", "stage", -1)
        operation_id = (operation * 64)[:64]
        bodies = history(state, owner=owner, operation_id=operation_id, **changes)
        first = next((n for n, body in enumerate(bodies) if isinstance(body, PublishAsked)), len(bodies))
        self.evidence.write(operation_id, bodies[:first], about(owner, conn_id=conn_id))
        if publish is not None:
            self.evidence.write(operation_id, bodies[first:], about(owner, publish, conn_id))
        return operation_id


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    # Who has which token is Airflow's business and real; what it would ask the metadata database is answered here.
    monkeypatch.setattr(RevokedToken, "is_revoked", lambda _: False)
    monkeypatch.setattr(DagModel, "get_team_name", lambda _: None)
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    # What the page shows does not depend on what a disk has kept, and some pages list hundreds of entries.
    monkeypatch.setattr("os.fsync", lambda _: None)
    made = manager()
    monkeypatch.setattr(_AuthManagerState, "instance", made)
    return Site(ObjectStoragePath((tmp_path / "evidence").as_uri()), made)


def receipt_path(operation_id: str, dag_id: str = READABLE) -> str:
    return f"/dpone/dags/{dag_id}/operations/{operation_id}/analytics"


def task_path(task_id: str, run_id: str = "run-1", dag_id: str = READABLE, index: str = "{MAP_INDEX}") -> str:
    return f"/dpone/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{index}"


ROUTES = ["/dpone/", receipt_path("a" * 64), task_path("stage"), "/dpone/no/such/page"]


# ---- who may see what


@pytest.mark.parametrize("route", ROUTES[:3])
def test_whoever_is_not_logged_in_is_refused(site: Site, route: str) -> None:
    site.add("a")
    answer = site.anonymous.get(route)
    assert answer.status_code == 401
    assert "not logged in" in answer.text
    assert "mart" not in answer.text


@pytest.mark.parametrize("route", ROUTES[:3])
def test_a_bad_cookie_or_token_is_refused(site: Site, route: str) -> None:
    site.add("a")
    assert TestClient(site.main, cookies={"_token": "no.token.this"}).get(route).status_code == 403
    assert site.anonymous.get(route, headers={"Authorization": "Bearer no.token"}).status_code == 403


def test_a_user_without_a_role_is_refused(site: Site) -> None:
    site.add("a")
    nobody = site._client(manager(), "eve", "")
    assert nobody.get(receipt_path("a" * 64)).status_code == 403
    assert nobody.get(task_path("stage")).status_code == 403
    assert "mart.orders" not in nobody.get("/dpone/").text


@pytest.mark.parametrize("route", [receipt_path("a" * 64, SECRET), task_path("stage", dag_id=SECRET)])
def test_a_dag_that_the_user_may_not_read_is_refused(site: Site, route: str) -> None:
    site.add("a", owner=Owner(SECRET, "run-1", "stage", -1))
    assert site.viewer.get(route).status_code == 403
    assert "mart.orders" not in site.viewer.get(route).text
    assert site.admin.get(route).status_code == 200


def test_an_operation_is_shown_under_its_own_dag_alone(site: Site) -> None:
    secret = site.add("a", owner=Owner(SECRET, "run-1", "stage", -1))
    assert site.viewer.get(receipt_path(secret, READABLE)).status_code == 404
    assert site.admin.get(receipt_path(secret, READABLE)).status_code == 404
    # That it exists is not told either.
    unknown = site.viewer.get(receipt_path("b" * 64, READABLE))
    known = site.viewer.get(receipt_path(secret, READABLE))
    hide = re.compile(r"nonce=\"[^\"]+\"|[ab]{64}")
    assert hide.sub("", unknown.text) == hide.sub("", known.text)


def test_the_list_shows_only_what_the_user_may_read(site: Site) -> None:
    mine = site.add("a", table="orders")
    theirs = site.add("b", owner=Owner(SECRET, "run-1", "stage", -1), table="salaries")
    held_ = site.add("c", Phase.TERMINAL, owner=Owner(SECRET, "run-2", "stage", -1), table="bonuses")
    seen = site.viewer.get("/dpone/").text
    assert mine in seen
    for secret in (theirs, held_, SECRET, "bonuses"):
        assert secret not in seen
    assert "Nothing is on hold" in seen
    assert all(one in site.admin.get("/dpone/").text for one in (mine, theirs, held_))


def test_a_rollback_belongs_to_the_dag_whose_publication_it_undoes(site: Site) -> None:
    secret = site.add("a", owner=Owner(SECRET, "run-1", "stage", -1))
    mine = site.add("b")
    site.add("c", owner=Owner(OPERATOR, secret, ROLLBACK, -1), publish=ROLLBACK)
    site.add("d", owner=Owner(OPERATOR, mine, ROLLBACK, -1), publish=ROLLBACK)
    site.add("e", owner=Owner(OPERATOR, "no operation", ROLLBACK, -1), publish=ROLLBACK)
    seen = site.viewer.get("/dpone/").text
    assert "d" * 64 in seen
    assert "c" * 64 not in seen
    assert "e" * 64 not in site.admin.get("/dpone/").text
    assert "an operator&#39;s rollback" in site.viewer.get(receipt_path("d" * 64)).text
    assert site.viewer.get(receipt_path("c" * 64)).status_code == 404
    assert site.viewer.get(receipt_path("c" * 64, OPERATOR)).status_code == 404


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
@pytest.mark.parametrize("route", ROUTES)
def test_nothing_can_be_changed(site: Site, route: str, method: str) -> None:
    assert getattr(site.admin, method)(route).status_code in (404, 405)


@pytest.mark.parametrize(
    "identifier", ["..", "../audit", "%2e%2e", "index", "audit", "a" * 63 + ".", "ä" * 64]
)
def test_an_id_that_is_none_leads_nowhere(site: Site, identifier: str) -> None:
    site.add("a")
    assert site.admin.get(receipt_path(identifier)).status_code in (404, 503)
    assert site.admin.get(f"/dpone/dags/{READABLE}/operations/{'a' * 64}/other").status_code == 404


# ---- what a page may do


def test_a_page_comes_with_a_strict_policy(site: Site) -> None:
    site.add("a")
    for answer in (*map(site.viewer.get, ROUTES), site.anonymous.get("/dpone/")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'self'" in policy
        nonces = set(re.findall(r"nonce-([^']+)'", policy))
        assert len(nonces) == 1
        assert set(re.findall(r'nonce="([^"]+)"', answer.text)) == nonces
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"(src|href)=\"(https?:)?//", answer.text)
        assert "style=" not in answer.text
        assert not re.search(r"\son\w+=", answer.text)
    first, second = (site.viewer.get("/dpone/").headers["content-security-policy"] for _ in range(2))
    assert first != second


class Elements(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.text = ""
        self.values = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        self.values += "".join(value or "" for _, value in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_text_stays_text(site: Site) -> None:
    # Airflow allows no slash in the id of a DAG, and little else.
    owner = Owner(HOSTILE.replace("/", "|"), HOSTILE, HOSTILE, -1)
    hostile: dict[str, Any] = {
        "table": HOSTILE,
        "database": HOSTILE,
        "order_key": HOSTILE,
        "dependents": (HOSTILE,),
        "plan_digest": HOSTILE,
        "candidate": HOSTILE,
    }
    operation = site.add("a", Phase.TERMINAL, owner, conn_id=HOSTILE, publish=HOSTILE, **hostile)
    admitted = history("ADMITTED", owner=owner, operation_id=operation, **hostile)[0]
    assert isinstance(admitted, Admission)
    action = OperatorAction(HOSTILE, HOSTILE, HOSTILE, Phase.BOUND, 5, 7, "ab" * 16)
    warned = replace(admitted, warnings=(HOSTILE,), schema_difference=(HOSTILE,))
    site.evidence.write(operation, [warned, action], {"operator": HOSTILE, "conn_id": HOSTILE})
    stop = Stop(Code.PARTIAL_TERMINAL, HOSTILE, next_action=HOSTILE)
    of = in_phase(Phase.TERMINAL, owner=owner, operation_id=operation, **hostile)
    shown = replace(explained(of, PENDING, PENDING), stop=stop, readers=HOSTILE, happened=(HOSTILE,))
    site.look = lambda *_: shown
    pages = [
        site.viewer.get("/dpone/").text,
        site.viewer.get(f"/dpone/?target={HOSTILE}&status={HOSTILE}").text,
    ]
    ((href),) = re.findall(r'href="\./(dags/[^"]+)"', pages[0])
    pages.append(site.viewer.get(f"/dpone/{href}").text)
    assert "On hold" in pages[-1], Elements(pages[-1]).text
    for html in pages:
        page = Elements(html)
        assert page.names.count("script") == 1
        assert "img" not in page.names
        assert "<img src=x" in page.text + page.values
        assert "{{ 7*7 }}" in page.text + page.values
        # What turns the reading direction is shown as what it is.
        assert "\u202e" not in html
        assert "\\u202e" in html


# ---- the tab of a task


def test_each_task_of_a_group_finds_its_own_publication(site: Site) -> None:
    a = site.add(
        "a", owner=Owner(READABLE, "run-1", "orders.stage", -1), publish="orders.publish", table="orders"
    )
    b = site.add(
        "b", owner=Owner(READABLE, "run-1", "events.stage", -1), publish="events.publish", table="events"
    )
    for task_id, mine, other in (
        ("orders.stage", a, b),
        ("orders.publish", a, b),
        ("events.stage", b, a),
        ("events.publish", b, a),
    ):
        shown = site.viewer.get(task_path(task_id)).text
        assert f"evidence show --cluster analytics --operation {mine[:16]}" in shown
        assert f"evidence show --cluster analytics --operation {other[:16]}" not in shown
        assert "Other publications of this run" in shown


def test_mapped_tasks_are_told_apart(site: Site) -> None:
    for index, operation in enumerate("ab"):
        site.add(operation, owner=Owner(READABLE, "run-1", "stage", index), table=f"t{index}")
    for index, operation in enumerate("ab"):
        for task_id in ("stage", "publish"):
            shown = site.viewer.get(task_path(task_id, index=str(index))).text
            assert f"--operation {operation * 16}" in shown
    assert "No publication belongs to this task" in site.viewer.get(task_path("stage")).text
    assert "No publication belongs to this task" in site.viewer.get(task_path("stage", index="7")).text


def test_a_cleared_stage_shows_its_newest_operation_and_links_the_others(site: Site) -> None:
    old, new = site.add("a"), site.add("b")
    for task_id in ("stage", "publish"):
        shown = site.viewer.get(task_path(task_id)).text
        assert f"--operation {new[:16]}" in shown
        assert "Earlier operations of this task" in shown
        assert f"operations/{old}/analytics" in shown


def test_a_publish_task_that_has_not_asked_yet_is_not_given_anything_by_guess(site: Site) -> None:
    staged = site.add("a", Phase.PREPARED, publish=None)
    shown = site.viewer.get(task_path("publish")).text
    assert "has not written any evidence yet" in shown
    assert f"operations/{staged}/analytics" in shown
    assert f"--operation {staged[:16]}" in site.viewer.get(task_path("stage")).text


@pytest.mark.parametrize(
    "path",
    [task_path("load_csv"), task_path("stage", run_id="run-2"), task_path("stage", dag_id="another_dag")],
)
def test_any_other_task_gets_a_kind_sentence(site: Site, path: str) -> None:
    site.add("a", owner=Owner(READABLE, "run-9", "stage", -1))
    answer = site.viewer.get(path)
    assert answer.status_code == 200
    assert "another kind of task, and all is well" in answer.text


def test_a_run_id_may_be_any_text(site: Site) -> None:
    run_id = "scheduled__2026-01-02T03:04:05+00:00/a b"
    site.add("a", owner=Owner(READABLE, run_id, "stage", -1))
    quoted = "scheduled__2026-01-02T03%3A04%3A05%2B00%3A00%2Fa%20b"
    assert f"--operation {'a' * 16}" in site.viewer.get(task_path("stage", run_id=quoted)).text


def test_entries_of_an_older_list_are_found_through_their_trail(site: Site) -> None:
    operation = site.add("a")
    ((path, _),) = site.reader.listed()
    data = objects.read(path)
    path.fs.pipe_file(path.path, re.sub(rb',"owner":\{[^}]+\}', b"", data))
    assert b"owner" not in objects.read(path)
    assert f"--operation {operation[:16]}" in site.viewer.get(task_path("stage")).text
    assert operation in site.viewer.get("/dpone/").text
    site.reader.reindex()
    assert objects.read(path) == data


# ---- the list


def test_what_is_on_hold_stands_on_top_however_old_it_is(site: Site) -> None:
    held_ = site.add("a", Phase.TERMINAL, table="held")
    of = in_phase(Phase.TERMINAL, operation_id=held_, table="held")
    site.evidence.write(held_, held(Code.PARTIAL_TERMINAL, of, COMMITTED, PENDING), {"operator": "ann"})
    site.add("b", Phase.BOUND, table="running")
    for number in range(60):
        site.add(f"{number:02x}", table=f"t{number % 7}")
    seen = site.viewer.get("/dpone/").text
    assert "1 on hold" in seen
    assert "1 not proven yet" in seen
    assert seen.index("mart.held") < seen.index("mart.running") < seen.index("mart.t")
    assert "PARTIAL_TERMINAL" in seen
    older = re.findall(r'href="(\./\?before=[^"]+)"', seen)
    again = site.viewer.get(f"/dpone/{older[0]}").text
    rows = [re.findall(r"operations/(\w+)/", html) for html in (seen, again)]
    assert len(set(rows[0]) | set(rows[1])) == 62
    assert "Older" not in again


def test_the_list_can_be_narrowed(site: Site) -> None:
    site.add("a", table="orders")
    site.add("b", Phase.ABORTED, table="orders")
    site.add("c", table="events")

    def listed(**wanted: str) -> set[str]:
        html = site.viewer.get("/dpone/", params=wanted).text
        return {found[0] for found in re.findall(r"operations/(\w+)/", html)}

    assert listed() == {"a", "b", "c"}
    assert listed(target="ORD") == {"a", "b"}
    assert listed(target="mart.orders", status="Published") == {"a"}
    assert listed(status="Not published") == {"b"}
    assert listed(cluster="analytics") == {"a", "b", "c"}
    assert listed(cluster="other") == set()


def test_an_attempt_that_a_later_operation_has_followed_is_given_up(site: Site) -> None:
    site.add("a", Phase.PREPARED, publish=None)
    site.add("b", "STAGED", publish=None)
    assert "Given up" not in site.viewer.get("/dpone/").text.partition("</form>")[2]
    site.add("c")
    seen = site.viewer.get("/dpone/").text.partition("</form>")[2]
    assert seen.count("Given up") == 2
    assert "Given up" in site.viewer.get(receipt_path("a" * 64)).text
    assert "Given up" not in site.viewer.get(receipt_path("c" * 64)).text


def test_a_held_operation_is_found_behind_later_attempts_that_were_never_prepared(site: Site) -> None:
    site.add("a", Phase.BOUND)
    site.add("b", "STAGED", publish=None)
    assert "1 not proven yet" in site.viewer.get("/dpone/").text


MOST_SECONDS = 0.3


@pytest.mark.parametrize("targets", [20, 1000])
def test_a_thousand_publications_are_listed_in_a_moment(
    tmp_path: Path, targets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor's time of the best of three looks counts, each by a page that knows nothing yet."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    root = ObjectStoragePath((tmp_path / "evidence").as_uri())
    evidence = Evidence(root)
    pattern = f"{0:064x}"
    evidence.write(pattern, history(Phase.COMPLETED, table="t0"), about(Owner("dag_0", "run-0", "stage", -1)))
    folder = tmp_path / "evidence" / "analytics"
    for number in range(1, 1000):
        operation, table = f"{number:064x}", f"t{number % targets}"
        owner = Owner(f"dag_{number % 30}", f"run-{number}", "stage", -1)
        if number % 200 == 199:
            evidence.write(operation, history(Phase.BOUND, owner=owner, table=table), about(owner))
            continue
        # A trail is as long as its names; only the list's own entry is read of one that has ended.
        (folder / operation).mkdir()
        for file in (folder / pattern).iterdir():
            os.link(file, folder / operation / file.name)
        body = admission(in_phase(Phase.PREPARED, owner=owner, table=table))
        at = START + timedelta(minutes=number)
        write_index(cluster_folder(root, "analytics"), operation, at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), body)
    spent = []
    for _ in range(3):
        fresh = Publications(lambda: {"analytics": EvidenceReader(root, "analytics")})
        before = time.process_time()
        found = fresh.overview(Filter(), lambda _: True)
        spent.append(time.process_time() - before)
        assert len(found.rows) == 50
    assert min(spent) < MOST_SECONDS, spent


# ---- live facts


def test_live_facts_come_through_the_connection_that_the_trail_names(site: Site) -> None:
    operation = site.add("a", Phase.BOUND)
    of = in_phase(Phase.BOUND, operation_id=operation)
    site.look = lambda *_: explained(of, COMMITTED, PENDING)
    shown = site.viewer.get(receipt_path(operation)).text
    assert '<p class="facts live">' in shown
    assert site.looks == [("ch", Target("analytics", "mart", "orders"))]


def test_a_trail_without_a_connection_shows_what_is_recorded_and_says_why(site: Site) -> None:
    operation = site.add("a", Phase.BOUND, conn_id=None)
    shown = site.viewer.get(receipt_path(operation)).text
    assert '<p class="facts kept">' in shown
    assert "did not note its connection" in shown
    assert site.looks == []


def test_what_has_ended_is_not_looked_at_again(site: Site) -> None:
    site.viewer.get(receipt_path(site.add("a")))
    site.viewer.get(receipt_path(site.add("b", Phase.ABORTED)))
    assert site.looks == []


def test_an_error_of_the_look_tells_no_secret(site: Site) -> None:
    def fail(*_: object) -> Explanation:
        raise RuntimeError("http://user:hunter2@clickhouse-1.internal:8123/?query=SELECT")

    site.look = fail
    shown = site.viewer.get(receipt_path(site.add("a", Phase.BOUND))).text
    assert "RuntimeError" in shown
    for secret in ("hunter2", "internal", "SELECT"):
        assert secret not in shown
    site.look = site._unavailable
    assert (
        "The server can&#39;t be reached."
        in site.viewer.get(receipt_path(site.add("b", Phase.BOUND, table="x"))).text
    )


def test_a_slow_cluster_holds_up_neither_its_page_nor_another(site: Site) -> None:
    slow, other = site.add("a", Phase.BOUND, table="slow"), site.add("b", table="other")
    release = threading.Event()
    of = in_phase(Phase.BOUND, operation_id=slow, table="slow")

    def look(*_: object) -> Explanation:
        release.wait(20)
        return explained(of, PENDING, PENDING)

    site.look = look
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(site.viewer.get(receipt_path(slow)).text))
    before = time.monotonic()
    asking.start()
    assert site.viewer.get(receipt_path(other)).status_code == 200
    asking.join()
    assert time.monotonic() - before < 10
    assert "did not answer within 0.4 s" in answers[0]
    assert "Recorded at 2026-01-02" in answers[0]
    # The look goes on, and nobody starts a second one meanwhile.
    assert "did not answer within" in site.viewer.get(receipt_path(slow)).text
    assert len(site.looks) == 1
    release.set()
    for _ in range(100):
        shown = site.viewer.get(receipt_path(slow)).text
        if '<p class="facts live">' in shown:
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the slow look found was never shown")
    assert len(site.looks) == 1


# ---- what goes wrong


def test_evidence_that_cannot_be_read_is_said_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[str]:
        raise objects.unavailable("listing ended with PermissionError")

    monkeypatch.setattr(objects, "names", fail)
    answer = site.viewer.get("/dpone/")
    assert answer.status_code == 503
    assert Code.EVIDENCE_UNAVAILABLE in answer.text


def test_an_unexpected_error_keeps_its_text_for_the_log(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[str]:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(objects, "names", fail)
    answer = site.viewer.get("/dpone/")
    assert answer.status_code == 500
    assert "RuntimeError" in answer.text
    assert "hunter2" not in answer.text


# ---- where it is mounted


@pytest.mark.parametrize("prefix", ["", "/data/airflow"])
def test_links_are_relative_to_where_the_page_is(site: Site, prefix: str) -> None:
    operation = site.add("a")
    client = TestClient(site.main, root_path=prefix, cookies=site.viewer.cookies)
    seen = client.get(f"{prefix}/dpone/").text
    assert f'href="./dags/{READABLE}/operations/{operation}/analytics"' in seen
    for path in (receipt_path(operation), task_path("stage", index="-1")):
        shown = client.get(f"{prefix}{path}")
        assert shown.status_code == 200
        up = "../" * (path.count("/") - 2)
        assert f'<a href="{up}">All publications</a>' in shown.text
