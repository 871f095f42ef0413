"""The authority record: its bytes are a contract with every release that comes later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_dpone.publication.canonical import canonical_json, sha256_hex
from airflow_provider_dpone.publication.record import (
    MAX_SETTLED,
    SCHEMA,
    Owner,
    Phase,
    Row,
    decode,
    encode,
    json_schemas,
)
from airflow_provider_dpone.publication.stop import Code, Stopped
from tests.unit.builders import REPLICATED_PHASES, in_phase, record

GOLDEN = Path(__file__).parents[1] / "golden" / "records"


def tampered(row: Row, **fields: object) -> Row:
    """The row with payload fields changed and a matching SHA-256."""
    payload = json.loads(row.payload)
    payload["record"].update(fields)
    text = canonical_json(payload)
    return replace(row, payload=text, payload_sha256=sha256_hex(text))


@pytest.mark.parametrize("phase", REPLICATED_PHASES)
def test_what_was_written_is_read_back_equal(phase: Phase) -> None:
    moved = in_phase(phase)
    assert decode(encode(moved, "w")) == moved


@pytest.mark.parametrize("phase", REPLICATED_PHASES)
def test_golden_records_of_the_first_release_stay_readable_and_are_written_the_same(phase: Phase) -> None:
    golden = json.loads((GOLDEN / f"v1-{phase.value.lower()}.json").read_text())
    assert decode(Row(**golden)) == in_phase(phase)
    assert encode(in_phase(phase), "w") == Row(**golden)


def test_an_absent_predecessor_is_carried() -> None:
    first = record(predecessor=None, live_rows=None)
    assert decode(encode(first, "w")).predecessor is None


def test_a_changed_payload_is_refused() -> None:
    row = encode(record(), "w")
    with pytest.raises(Stopped) as stopped:
        decode(replace(row, payload=row.payload.replace("orders", "others")))
    assert stopped.value.stop.code is Code.RECORD_INVALID


@pytest.mark.parametrize(
    "fields",
    [
        {"content": None},
        {"unheard_of": 1},
        {"phase": "LIMBO"},
        {"dispatch_epoch": "4"},
        {"replicas": "s1/r1"},
    ],
    ids=["missing", "additional", "unknown phase", "text for a number", "text for a list"],
)
def test_a_malformed_payload_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Stopped) as stopped:
        decode(tampered(encode(record(), "w"), **fields))
    assert stopped.value.stop.code is Code.RECORD_INVALID


@pytest.mark.parametrize(
    "columns",
    [
        {"phase": "COMMITTED"},
        {"dispatch_epoch": 9},
        {"operation_id": "x"},
        {"fence_token": "x"},
        {"target_key": "x"},
    ],
)
def test_columns_that_disagree_with_the_payload_are_refused(columns: dict[str, object]) -> None:
    with pytest.raises(Stopped) as stopped:
        decode(replace(encode(record(), "w"), **columns))  # type: ignore[arg-type]
    assert stopped.value.stop.code is Code.RECORD_INVALID


def test_a_newer_schema_is_refused_with_the_advice_to_upgrade() -> None:
    row = encode(record(), "w")
    text = row.payload.replace(SCHEMA, "dpone.clickhouse.cluster-full-refresh.v2")
    with pytest.raises(Stopped) as stopped:
        decode(replace(row, payload=text, payload_sha256=sha256_hex(text)))
    assert stopped.value.stop.code is Code.RECORD_NEWER
    assert "Upgrade" in stopped.value.stop.next_action


def test_an_oversized_record_is_refused_before_it_is_written() -> None:
    with pytest.raises(Stopped) as stopped:
        encode(record(owner=Owner("d" * 70_000, "r", "t", -1)), "w")
    assert stopped.value.stop.code is Code.RECORD_TOO_LARGE


def test_the_settled_list_is_bounded_and_keeps_the_newest() -> None:
    ended = in_phase(Phase.COMPLETED)
    for n in range(MAX_SETTLED + 5):
        ended = replace(ended, operation_id=f"op{n}", settled=ended.remembered("next"))
    remembered = ended.remembered("next")
    assert len(remembered) == MAX_SETTLED
    assert remembered[-1].operation_id == f"op{MAX_SETTLED + 4}"


def test_a_prepared_operation_that_is_followed_is_remembered_as_given_up() -> None:
    assert record().remembered("next")[-1].outcome is Phase.ABORTED


def test_the_same_operation_does_not_follow_itself() -> None:
    assert record().remembered(record().operation_id) == ()


def test_the_published_schema_is_the_one_in_the_docs() -> None:
    docs = Path(__file__).parents[2] / "docs" / "schemas" / "cluster-full-refresh.v1.json"
    assert json.loads(docs.read_text()) == json_schemas()[SCHEMA]
