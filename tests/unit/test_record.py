"""The authority record: its bytes are a contract with every release that comes later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_dpone.publication.canonical import canonical_json, sha256_hex
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.record import (
    INDEPENDENT_SCHEMA,
    MAX_SETTLED,
    SCHEMA,
    STAGE_PHASES,
    AuthorityRecord,
    Owner,
    Phase,
    Row,
    decode,
    encode,
    json_schemas,
)
from airflow_provider_dpone.publication.stop import Code, Stopped
from tests.unit.builders import REPLICATED_PHASES, in_phase, independent_in_phase, record

GOLDEN = Path(__file__).parents[1] / "golden" / "records"


def tampered(row: Row, **fields: object) -> Row:
    """The row with payload fields changed and a matching SHA-256."""
    payload = json.loads(row.payload)
    payload["record"].update(fields)
    text = canonical_json(payload)
    return replace(row, payload=text, payload_sha256=sha256_hex(text))


RECORDS: Mapping[str, AuthorityRecord] = {
    **{f"v1-{phase.value.lower()}": in_phase(phase) for phase in REPLICATED_PHASES},
    **{f"external-v1-{phase.value.lower()}": independent_in_phase(phase) for phase in Phase},
}
"""Both kinds of records in every phase that they have, by the names of their files."""


@pytest.mark.parametrize("name", RECORDS)
def test_what_was_written_is_read_back_equal(name: str) -> None:
    found = decode(encode(RECORDS[name], "w"))
    assert found == RECORDS[name]
    assert type(found) is type(RECORDS[name])


@pytest.mark.parametrize("name", RECORDS)
def test_golden_records_of_the_first_release_stay_readable_and_are_written_the_same(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    assert decode(Row(**golden)) == RECORDS[name]
    assert encode(RECORDS[name], "w") == Row(**golden)


def test_every_golden_record_is_read_here() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(RECORDS)


@pytest.mark.parametrize("phase", sorted(STAGE_PHASES))
def test_tables_that_replicate_themselves_are_never_staged_in_the_record(phase: Phase) -> None:
    with pytest.raises(Stopped) as stopped:
        decode(replace(tampered(encode(record(), "w"), phase=phase.value), phase=phase.value))
    assert stopped.value.stop.code is Code.RECORD_INVALID
    assert "only independent tables" in stopped.value.stop.message


def test_one_kind_of_record_is_not_read_as_the_other() -> None:
    for of, other in (
        (record(), INDEPENDENT_SCHEMA),
        (independent_in_phase(Phase.PREPARED), SCHEMA),
    ):
        row = encode(of, "w")
        payload = json.loads(row.payload)
        text = canonical_json({**payload, "schema": other})
        with pytest.raises(Stopped) as stopped:
            decode(replace(row, payload=text, payload_sha256=sha256_hex(text)))
        assert stopped.value.stop.code is Code.RECORD_INVALID


def test_a_record_of_neither_kind_is_never_stored() -> None:
    fields = {name: getattr(record(), name) for name in AuthorityRecord.__dataclass_fields__}
    with pytest.raises(TypeError, match="two kinds"):
        encode(AuthorityRecord(**fields), "w")


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


@pytest.mark.parametrize("schema", [SCHEMA, INDEPENDENT_SCHEMA])
def test_the_published_schema_is_the_one_in_the_docs(schema: str) -> None:
    name = schema.removeprefix("dpone.clickhouse.")
    docs = Path(__file__).parents[2] / "docs" / "schemas" / f"{name}.json"
    assert json.loads(docs.read_text()) == json_schemas()[schema]


def test_a_record_that_could_not_be_read_back_is_not_stored() -> None:
    """Nothing would end its operation: every command reads the record first."""
    unreadable = independent_in_phase(Phase.LOCKED).moved(content=CanonicalDigest(0, ""))
    with pytest.raises(ValueError, match="sha256"):
        encode(unreadable, "w")


def test_a_kept_table_of_the_other_kind_is_not_stored() -> None:
    """Its tables would be lost: what was left of it has the UUID of no table."""
    item = independent_in_phase(Phase.COMPLETED_RETAINING).retained[0]
    with pytest.raises(ValueError, match="another one"):
        encode(record().moved(retained=(item,)), "w")
