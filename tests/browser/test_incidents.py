"""The page in fourteen incidents: it says what ``airflow dpone explain`` says, in the window of somebody who reads.

What must be said is written beside each builder (:class:`Said`). The command says some of it in sentences for which
the page has a place: a cell of the matrix, a mark. Statements of a repair are no matter of the page; it says who shows
them.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from airflow_provider_dpone.publication.explanation import WAYS, Way
from airflow_provider_dpone.publication.stop import Code
from tests.airflow.bench import RUN_SECONDS, Bench
from tests.airflow.harness import LocalAirflow
from tests.browser.chromium import Visitor
from tests.browser.conftest import Judge, api_server_with
from tests.browser.reading import ReceiptPage
from tests.browser.situations import Situation
from tests.cluster import APP_PASSWORD, APP_USER, CLUSTER_NAME, wait_until
from tests.integration import incident_site
from tests.integration.incident_site import INCIDENTS, Said
from tests.integration.refresh_site import RefreshSite

pytestmark = [pytest.mark.airflow, pytest.mark.cluster]

READERS: Final = {True: "Affected", False: "Not affected", None: "Not known"}
READERS_SEE: Final = {
    "committed": "new data is live",
    "pending": "old data is live",
    "not observed": "can't be read",
}
IN_CELLS: Final = {
    "holds the new generation; the old one is kept next to it": {"Target": "new", "Candidate": "old"},
    "holds the old generation; the new one is kept next to it": {"Target": "old", "Candidate": "new"},
    "shows the table that was published last": {"Readers see": "new data is live"},
    "can't be read": {"Readers see": "can't be read"},
    "in progress": {"Queue entry": "in progress"},
    "finished": {"Queue entry": "finished"},
    "finished, exception code 0": {"Queue entry": "finished"},
    "failed, exception code 164 (READONLY)": {"Queue entry": "failed: 164 READONLY"},
}


IN_OTHER_WORDS: Final = {
    # The page of the holder is for readers of its DAG: what names another DAG is left out.
    9: {
        "PREPARED: DAG other_dag, run holder, task stage": (
            "phase PREPARED",
            "DAG other_dag Run holder Stage task stage",
        ),
        "PREPARED since ": ("Prepared 20",),
        "(DAG dag, run mine, task stage) was refused at": ("An operation of another DAG was refused at",),
    },
    # The page can't know whether a stage task still runs; Airflow's page around it does.
    10: {
        "the staging of DAG dag, run second did not end": (
            "DAG dag Run second Stage task stage",
            "phase ADMITTED",
        ),
        "The table is untouched": ("This operation has changed nothing for readers",),
        "ADMITTED when it was heard of last, at": ("Admitted 20",),
        "(DAG dag, run second, task stage) was heard of last at": ("Recorded at 20",),
        "its stage task is running, failed, or died": ("If it has failed, its log says why",),
        WAYS[Way.STAGE]: ("a retry stages anew",),
    },
}
"""What a page says with its own words: incident -> part of the command's text -> parts of the page's."""


def assert_says(receipt: ReceiptPage, said: Said, number: int) -> None:
    """The page tells what must be said."""
    # What the refreshed look shows of the replicas is read as one.
    replicas = receipt.replicas
    receipt.open_evidence()
    text = receipt.text
    own_words = IN_OTHER_WORDS.get(number, {})
    assert said.operation is not None
    assert said.operation[:16] in receipt.headline
    for part in (*said.plain, *said.words):
        for own in own_words.get(part, (part,)):
            assert_has(own, replicas, text)
    if said.code is not None:
        assert said.code in receipt.what, text
    for alias, state in said.states.items():
        assert replicas[alias]["Readers see"] == READERS_SEE[state], replicas
    for alias, live in said.live.items():
        assert replicas[alias]["Target"].split()[0] == live, replicas
    for way in said.next:
        for own in own_words.get(WAYS[way], (WAYS[way],)):
            assert own.replace("`", "") in receipt.next, text
    if said.status:
        assert receipt.never == set(said.never)
    # What is not prepared speaks for itself alone: another operation may be about to change what readers see.
    safe = "Untouched" if number == 10 else READERS[said.affected]
    assert receipt.safe.startswith(safe), receipt.safe
    commands = receipt.commands
    for begin in said.commands:
        assert any(one.startswith(f"airflow dpone {begin}") for one in commands), commands
    assert all(CLUSTER_NAME in one for one in commands)
    for secret in ("127.0.0.1", APP_USER, APP_PASSWORD, "SELECT number", "EXCHANGE TABLES"):
        assert secret not in text


def assert_has(part: str, replicas: object, text: str) -> None:
    """A part of the command's text is on the page: as it is, or in the cells that say the same."""
    assert isinstance(replicas, dict)
    if (of_replica := re.fullmatch(r"(s\d/r\d): (.*?)(?: \(looked at now\))?", part)) is not None:
        alias, what = of_replica.groups()
        if what.startswith("EXCHANGE TABLES"):
            assert re.search(rf"airflow dpone explain shows the statement for .*{alias}", text), text
            return
        if what in IN_CELLS:
            for column, begin in IN_CELLS[what].items():
                assert replicas[alias][column].startswith(begin), (part, replicas)
            return
    assert part in text, text


def receipt_of(visitor: Visitor, said: Said, dag_id: str = "dag") -> ReceiptPage:
    """Open the receipt of the operation, paused, as soon as the page has read the cluster or says why it can't."""
    path = f"/dpone/dags/{dag_id}/operations/{said.operation}/{CLUSTER_NAME}?still=true"

    def read() -> bool:
        assert visitor.open(path).status == 200
        return "did not answer within" not in ReceiptPage(visitor.page).facts

    # A cluster that has lost something answers late at first, and the page says so.
    wait_until(read, timeout=60)
    return ReceiptPage(visitor.page)


@pytest.mark.parametrize(
    "number", [n for n in INCIDENTS if n not in (1, 12)], ids=lambda n: f"{n:02}_{INCIDENTS[n].__name__}"
)
def test_incident(number: int, visitor: Visitor, judge: Judge, site: RefreshSite) -> None:
    said = INCIDENTS[number](site)
    receipt = receipt_of(visitor, said, "other_dag" if number == 9 else "dag")
    assert_says(receipt, said, number)
    judge()


def test_incident_01_replica_down_before_admission(visitor: Visitor, judge: Judge, bench: Bench) -> None:
    """It leaves no evidence, since nothing was admitted: the tab says so, and the log beside it has the reason."""
    dag_id, page = "refresh_checked", visitor.page
    bench.run(dag_id)
    bench.cluster.kill_node(2)
    run_id = f"{dag_id}-{uuid4().hex[:8]}"
    bench.airflow.trigger(dag_id, run_id, {"database": bench.database})
    bench.airflow.wait_task(dag_id, run_id, "stage", ["failed"], RUN_SECONDS)
    refused = Situation(dag_id, run_id, "stage")
    visitor.open(refused.receipt)
    assert visitor.shown().startswith("No publication belongs to this task")
    assert "or it was refused or has not begun: then its log says more" in visitor.shown()
    judge()
    page.goto(visitor.url + refused.task_page)
    for said in (Code.REPLICA_UNAVAILABLE, "s1/r2"):
        expect(page.locator("body")).to_contain_text(said)
    visitor.open(f"/dpone/?target={bench.database}")
    assert "Need attention" not in visitor.shown()
    assert "Published" in visitor.shown()


def test_incident_12_control_table_dropped(
    visitor: Visitor, judge: Judge, site: RefreshSite, connected_airflow: LocalAirflow
) -> None:
    own = incident_site.with_own_control_table(site)
    with api_server_with(connected_airflow, AIRFLOW__DPONE__CONTROL_TABLE=own.control.name):
        said = INCIDENTS[12](own)
        assert_says(receipt_of(visitor, said), said, 12)
        judge()
