"""Receipts and stops: small, complete, and free of what must never leave the worker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_dpone.publication.facts import Dependent
from airflow_provider_dpone.publication.receipt import (
    MAX_DEPENDENTS,
    STAGE_SCHEMA,
    StageReceipt,
    dump,
    json_schemas,
    load_stage_receipt,
    publication_receipt,
    settled_receipt,
    stale_dictionaries,
)
from airflow_provider_dpone.publication.record import MAX_RETAINED, Phase
from airflow_provider_dpone.publication.stop import MEANINGS, Category, Code, Stop, Stopped
from tests.unit.builders import CONTENT, NEW_UUID, OLD_UUID, in_phase

STAGED = StageReceipt(
    schema=STAGE_SCHEMA,
    operation_id="o" * 64,
    cluster="analytics",
    database="mart",
    table="orders",
    candidate="orders__dpone_1",
    candidate_sql="`mart`.`orders__dpone_1`",
    candidate_uuid=NEW_UUID,
    rows=10,
    bytes=100,
    content=CONTENT,
    live_rows=None,
    replicas=("s1/r1", "s1/r2"),
)


@pytest.mark.parametrize(
    "phase", [Phase.PREPARED, Phase.DISPATCHING, Phase.BOUND, Phase.TERMINAL, Phase.ABORTED]
)
def test_there_is_no_receipt_before_the_proof(phase: Phase) -> None:
    with pytest.raises(ValueError, match="proves no publication"):
        publication_receipt(in_phase(phase), replayed=False)


def test_a_receipt_shows_each_replica_before_and_after() -> None:
    receipt = publication_receipt(in_phase(Phase.COMMITTED), replayed=False)
    assert [r.alias for r in receipt.replicas] == ["s1/r1", "s1/r2"]
    for replica in receipt.replicas:
        assert (replica.before.target, replica.before.candidate) == (OLD_UUID, NEW_UUID)
        assert (replica.after.target, replica.after.candidate) == (NEW_UUID, OLD_UUID)
        assert replica.queue == "finished"
    assert receipt.statement == "EXCHANGE"


@pytest.mark.parametrize(
    ("seconds", "behind"),
    [
        ({"s1/r1": 1, "s1/r2": 1}, ""),
        # In the second of the commit the load may have read the old table.
        ({"s1/r1": 1, "s1/r2": 0}, "s1/r2"),
        ({"s1/r1": -5, "s1/r2": 1}, "s1/r1"),
        ({"s1/r2": 1}, "s1/r1"),
        ({}, "s1/r1, s1/r2"),
    ],
)
def test_a_dictionary_that_was_not_seen_to_load_since_the_swap_is_named_with_its_replicas(
    seconds: dict[str, int], behind: str
) -> None:
    record = in_phase(Phase.COMMITTED)
    assert record.committed_at is not None
    names = Dependent("mart", "names", "Dictionary")
    loads = {alias: {names: record.committed_at + after} for alias, after in seconds.items()}
    warnings = stale_dictionaries(record, [names], loads)
    if not behind:
        assert warnings == ()
        return
    (warning,) = warnings
    assert f"mart.names was not seen to load since the swap on {behind}:" in warning


def test_after_cleanup_the_candidates_name_is_free() -> None:
    receipt = publication_receipt(in_phase(Phase.COMPLETED), replayed=False)
    assert receipt.state is Phase.COMPLETED
    assert all(r.after.candidate is None for r in receipt.replicas)
    assert receipt.retained == ()


def test_a_kept_predecessor_is_listed_by_name_and_uuid() -> None:
    receipt = publication_receipt(in_phase(Phase.COMPLETED_RETAINING), replayed=False)
    assert [(r.table, r.uuid) for r in receipt.retained] == [("orders__dpone_1", OLD_UUID)]
    assert all(r.after.candidate == OLD_UUID for r in receipt.replicas)


def test_a_first_publication_is_a_rename() -> None:
    receipt = publication_receipt(in_phase(Phase.COMMITTED, predecessor=None), replayed=True)
    assert receipt.statement == "RENAME"
    assert receipt.replayed
    assert all(r.before.target is None and r.after.candidate is None for r in receipt.replicas)


def test_the_largest_receipt_fits_into_xcom() -> None:
    kept = in_phase(Phase.COMPLETED_RETAINING)
    item = replace(kept.retained[0], name="t" * 90)
    large = replace(
        kept, retained=(item,) * MAX_RETAINED, dependents=("d" * 120,) * MAX_DEPENDENTS, order_key="k" * 100
    )
    assert len(json.dumps(dump(publication_receipt(large, replayed=False)))) < 16 * 1024


def test_a_stage_receipt_survives_xcom() -> None:
    assert load_stage_receipt(json.loads(json.dumps(dump(STAGED)))) == STAGED


@pytest.mark.parametrize(
    "value", [None, "text", {}, {"schema": "other"}, [1], {**dump(STAGED), "rows": "10"}]
)
def test_anything_else_than_a_stage_receipt_is_refused_with_the_way_out(value: object) -> None:
    with pytest.raises(Stopped) as stopped:
        load_stage_receipt(value)
    assert stopped.value.stop.code is Code.BAD_INPUT
    assert "staged=stage.output" in stopped.value.stop.next_action


def test_a_settled_operation_is_answered_from_the_record() -> None:
    done = in_phase(Phase.COMPLETED)
    later = replace(done, operation_id="later", settled=done.remembered("later"))
    settled = later.find_settled(done.operation_id)
    assert settled is not None
    receipt = settled_receipt(later, settled, replayed=True)
    assert (receipt.state, receipt.uuid, receipt.replayed) == (Phase.COMPLETED, NEW_UUID, True)
    assert not settled_receipt(later, settled, replayed=False).replayed


def test_the_published_schemas_are_the_ones_in_the_docs() -> None:
    docs = Path(__file__).parents[2] / "docs" / "schemas"
    for name, schema in json_schemas().items():
        assert json.loads((docs / f"{name.removeprefix('dpone.clickhouse.')}.json").read_text()) == schema


def test_every_code_has_a_category_a_meaning_and_a_next_action() -> None:
    assert set(MEANINGS) == set(Code)
    for code, meaning in MEANINGS.items():
        assert isinstance(code.category, Category)
        assert meaning.meaning.endswith((".", ")"))
        assert meaning.next_action.endswith(".")
        assert code.value.startswith("DPONE_CLICKHOUSE_CLUSTER_")


def test_a_stop_says_what_happened_and_what_is_next() -> None:
    stop = Stop(Code.PARTIAL_TERMINAL, "mart.orders: ...", replicas={"s1/r1": {"state": "committed"}})
    text = str(Stopped(stop))
    assert text.startswith("DPONE_CLICKHOUSE_CLUSTER_PARTIAL_TERMINAL: mart.orders")
    assert "Next: Never repeat the swap" in text
    assert "s1/r1: state=committed" in text
    assert json.loads(json.dumps(stop.as_json()))["category"] == "partial_terminal"
