"""What tasks and triggers of released versions handed on: this release reads it, and writes the same.

A file here is a contract with every worker that still runs an older release. Files are added for a new version of a
schema, and never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from airflow_provider_dpone.publication.receipt import (
    PublicationReceipt,
    SettledReceipt,
    StageReceipt,
    dump,
    load_stage_receipt,
    publication_receipt,
    settled_receipt,
)
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.publication.watch import (
    SeenOutcome,
    Watch,
    Why,
    Woken,
    dump_woken,
    load_woken,
)
from tests.unit.builders import CONTENT, NEW_UUID, in_phase, independent_in_phase, receipt_of

GOLDEN = Path(__file__).parents[1] / "golden"

DONE = in_phase(Phase.COMPLETED)
LATER = replace(DONE, operation_id="later", settled=DONE.remembered("later"))
KEPT = replace(
    in_phase(
        Phase.COMPLETED_RETAINING,
        dependents=("mart.daily (View)",),
        order_key="2026-01-01T00:00:00.000000Z",
        live_rows=9,
    ),
    live_rows_at_dispatch=11,
)


def _settled() -> SettledReceipt:
    found = LATER.find_settled(DONE.operation_id)
    assert found is not None
    return settled_receipt(LATER, found, replayed=True)


STAGED = StageReceipt(
    schema="dpone.clickhouse.stage-receipt.v1",
    operation_id=DONE.operation_id,
    cluster="analytics",
    database="mart",
    table="orders",
    candidate="orders__dpone_1",
    candidate_sql="`mart`.`orders__dpone_1`",
    candidate_uuid=NEW_UUID,
    rows=10,
    bytes=100,
    content=CONTENT,
    live_rows=9,
    replicas=("s1/r1", "s1/r2"),
    schema_difference=("column `note` String is new",),
    dependents=("mart.daily (View)",),
    resumed=True,
)

OWN_DONE = independent_in_phase(Phase.COMPLETED)
OWN_STAGED = replace(
    STAGED,
    schema="dpone.clickhouse.stage-receipt.external.v1",
    candidate_uuid=OWN_DONE.desired.uuid,
    content=OWN_DONE.content,
)

RECEIPTS: Mapping[str, StageReceipt | PublicationReceipt | SettledReceipt] = {
    "v1-stage": STAGED,
    "v1-stage-of-a-new-table": replace(
        STAGED, live_rows=None, schema_difference=(), dependents=(), resumed=False
    ),
    "v1-publication": publication_receipt(in_phase(Phase.COMMITTED), replayed=False),
    "v1-publication-of-a-new-table": publication_receipt(
        in_phase(Phase.COMMITTED, predecessor=None), replayed=False
    ),
    "v1-publication-retaining": publication_receipt(KEPT, replayed=True, warnings=("a view is gone",)),
    "v1-publication-completed": publication_receipt(DONE, replayed=False),
    "v1-settled": _settled(),
    "external-v1-stage": OWN_STAGED,
    "external-v1-publication": publication_receipt(independent_in_phase(Phase.COMMITTED), replayed=False),
    "external-v1-publication-of-a-new-table": publication_receipt(
        replace(independent_in_phase(Phase.COMMITTED), predecessor=None, baseline=None), replayed=False
    ),
    "external-v1-publication-retaining": publication_receipt(
        independent_in_phase(Phase.COMPLETED_RETAINING), replayed=True
    ),
    "external-v1-publication-completed": publication_receipt(OWN_DONE, replayed=False),
}

WATCH = Watch.of(in_phase(Phase.BOUND), conn_id="clickhouse_default", deadline=4_102_444_800)
SEEN = SeenOutcome(WATCH.entry, WATCH.query_digest, receipt_of(in_phase(Phase.BOUND)), 1_100)

EVENTS: Mapping[str, Woken] = {
    "v1-outcome": Woken(Why.OUTCOME, replace(WATCH, outcome=SEEN)),
    "v1-record": Woken(Why.RECORD, WATCH),
    "v1-contradiction": Woken(Why.CONTRADICTION, WATCH),
    "v1-recheck": Woken(Why.RECHECK, replace(WATCH, phase=Phase.TERMINAL)),
    "v1-deadline": Woken(Why.DEADLINE, WATCH),
    "v1-unknown_watch": Woken(Why.UNKNOWN_WATCH, WATCH),
}


def golden(folder: str, name: str) -> Any:
    return json.loads((GOLDEN / folder / f"{name}.json").read_text())


def test_every_file_is_read_here() -> None:
    assert {file.stem for file in (GOLDEN / "receipts").iterdir()} == set(RECEIPTS)
    assert {file.stem for file in (GOLDEN / "events").iterdir()} == set(EVENTS)
    assert {event.why for event in EVENTS.values()} == set(Why)


@pytest.mark.parametrize("name", RECEIPTS)
def test_receipts_of_the_first_release_stay_readable_and_are_written_the_same(name: str) -> None:
    wanted = RECEIPTS[name]
    assert dump(wanted) == golden("receipts", name)
    adapter = TypeAdapter(type(wanted))
    assert adapter.validate_json(json.dumps(golden("receipts", name))) == wanted


@pytest.mark.parametrize("name", [name for name in RECEIPTS if "-stage" in name])
def test_publish_and_cleanup_take_the_stage_receipt_of_the_first_release(name: str) -> None:
    assert load_stage_receipt(golden("receipts", name)) == RECEIPTS[name]


@pytest.mark.parametrize("name", EVENTS)
def test_events_of_the_first_release_stay_readable_and_are_written_the_same(name: str) -> None:
    assert load_woken(golden("events", name)) == EVENTS[name]
    assert dump_woken(EVENTS[name]) == golden("events", name)


@pytest.mark.parametrize(
    "newer",
    [
        {"schema": "dpone.clickhouse.stage-receipt.v2"},
        {"schema": "dpone.clickhouse.stage-receipt.v2", "unheard_of": 1},
        {"unheard_of": 1},
    ],
    ids=["schema", "schema and field", "field"],
)
def test_the_stage_receipt_of_a_newer_release_is_refused_with_the_advice_to_upgrade(
    newer: dict[str, Any],
) -> None:
    with pytest.raises(Stopped) as caught:
        load_stage_receipt({**golden("receipts", "v1-stage"), **newer})
    assert caught.value.stop.code is Code.BAD_INPUT
    assert "another release" in caught.value.stop.message
    assert "Upgrade the provider" in caught.value.stop.next_action


@pytest.mark.parametrize("name", EVENTS)
def test_the_event_of_a_newer_release_tells_nothing(name: str) -> None:
    """A worker that can't read it observes anew; whether it can read the record, it finds out there."""
    event = golden("events", name)
    assert load_woken({**event, "why": "something else"}) is None
    assert load_woken({**event, "watch": {**event["watch"], "schema": "dpone.clickhouse.watch.v2"}}) is None
