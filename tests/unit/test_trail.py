"""The entries of the trail: their bytes are a contract with every release that comes later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_dpone.evidence.layout import EntryName, entry_name
from airflow_provider_dpone.publication import decide
from airflow_provider_dpone.publication.admission import Slot
from airflow_provider_dpone.publication.classify import ReplicaState
from airflow_provider_dpone.publication.decide_resolve import CloseUnpublished, Disarm, Resolved
from airflow_provider_dpone.publication.queue import NotSeen, read_queue
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code, Stop
from airflow_provider_dpone.publication.telling import told
from airflow_provider_dpone.publication.trail import (
    KINDS,
    Classification,
    Entry,
    Unknown,
    dump_entry,
    in_order,
    json_schemas,
    load_entry,
    schema_of,
)
from airflow_provider_dpone.publication.witness import admission_warnings, slot_found, witness
from tests.unit.builders import (
    ACTIVE,
    COMMITTED,
    PENDING,
    generation,
    in_phase,
    inventory,
    observation,
    queue_row,
    record,
    stored,
    swap,
)
from tests.unit.evidence_entries import ENTRIES

GOLDEN = Path(__file__).parents[1] / "golden" / "evidence"

kinds = pytest.mark.parametrize("kind", KINDS)


def loaded(data: str) -> Entry:
    found = load_entry(data.encode())
    assert isinstance(found, Entry), found
    return found


def unknown(data: str) -> Unknown:
    found = load_entry(data.encode())
    assert isinstance(found, Unknown)
    return found


@kinds
def test_golden_entries_of_the_first_release_stay_readable_and_are_written_the_same(kind: str) -> None:
    golden = (GOLDEN / f"v1-{kind}.json").read_text().rstrip("\n")
    assert loaded(golden) == ENTRIES[kind]
    assert dump_entry(ENTRIES[kind]) == golden


@kinds
def test_an_entry_is_what_its_schema_says(kind: str) -> None:
    schema = json_schemas()[schema_of(kind)]
    entry = json.loads(dump_entry(ENTRIES[kind]))
    jsonschema.validate(entry, schema)
    for wrong in ({"kind": "other"}, {"body": {**entry["body"], "more": 1}}, {"schema": "dpone.other.v1"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**entry, **wrong}, schema)


@kinds
def test_a_later_version_is_left_alone_with_the_advice_to_upgrade(kind: str) -> None:
    text = dump_entry(ENTRIES[kind]).replace(schema_of(kind), schema_of(kind).replace(".v1", ".v2"))
    found = unknown(text)
    assert found.newer
    assert "upgrade the provider" in str(found)


def test_so_is_a_kind_or_an_envelope_that_is_not_known() -> None:
    text = dump_entry(ENTRIES["intent"])
    assert unknown(text.replace("evidence-intent", "evidence-other").replace('"intent"', '"other"')).newer
    assert unknown('{"schema":"dpone.clickhouse.evidence-intent.v9","all":"different"}').newer


@pytest.mark.parametrize(
    "data", ["", "{", "[]", "null", "7", '{"schema":7}', dump_entry(ENTRIES["intent"])[:-9], "\x00"]
)
def test_what_was_cut_off_proves_nothing(data: str) -> None:
    found = unknown(data)
    assert not found.newer
    assert "proves nothing" in str(found)


@kinds
def test_a_changed_field_is_noticed(kind: str) -> None:
    entry = json.loads(dump_entry(ENTRIES[kind]))
    for body in ({**entry["body"], "more": 1}, dict(list(entry["body"].items())[1:])):
        found = unknown(json.dumps({**entry, "body": body}))
        assert not found.newer


@kinds
def test_a_name_tells_what_an_entry_says(kind: str) -> None:
    entry = ENTRIES[kind]
    name = entry_name(entry)
    assert name.endswith(f".ti-1.00000000.{entry.sequence:06d}.json")
    parsed = EntryName.parse(name)
    assert parsed is not None
    mark = entry.body.mark
    assert (parsed.kind, parsed.version, parsed.word) == (kind, mark.version, mark.word)
    assert len(name) < 255


def test_the_longest_name_fits_a_disk() -> None:
    body = replace(ENTRIES["cleanup"].body, table="t" * 64 + "__dpone_" + "a" * 16 + "_parked")  # type: ignore[arg-type]
    writer = "0197a1b2-0000-7000-8000-0123456789ab.00000000"
    assert len(entry_name(replace(ENTRIES["cleanup"], body=body, writer=writer))) < 255


@kinds
def test_an_entry_is_told_in_one_line(kind: str) -> None:
    line = told(ENTRIES[kind].body)
    assert line
    assert "\n" not in line


def test_a_writers_own_order_counts_even_if_its_clock_was_set_back() -> None:
    first, second, third = (
        replace(ENTRIES["intent"], sequence=n, at=f"2026-01-02T03:04:{at:02d}.000000Z")
        for n, at in ((1, 30), (2, 10), (3, 40))
    )
    other = replace(ENTRIES["staged"], writer="ti-2.00000000", at="2026-01-02T03:04:35.000000Z")
    assert in_order([third, other, second, first]) == (first, second, other, third)


# ---- what is written down about a decision


def seen_by(decided: Any, phase: Phase, queue: Any = None, *shown: Any) -> Classification | None:
    of = stored(in_phase(phase))
    return witness(of, decided, observation(of, *shown) if shown else None, queue)


def test_a_proof_names_every_replica_with_both_uuids() -> None:
    found = seen_by(decide.Commit("query-0000000007", "q", ()), Phase.TERMINAL, None, COMMITTED, COMMITTED)
    assert found is not None
    assert (found.aggregate, found.category, found.version) == ("COMMITTED", None, 5)
    assert {r.state for r in found.replicas} == {ReplicaState.COMMITTED}
    assert [(r.queue, r.exception_code) for r in found.replicas] == [("finished", 0)] * 2
    for replica in found.replicas:
        assert replica.names is not None
        assert (replica.names.target, replica.names.candidate) == (
            generation("00000000-0000-4000-8000-00000000000b").uuid,
            generation("00000000-0000-4000-8000-00000000000a").uuid,
        )


def test_a_running_swap_shows_which_replica_is_behind() -> None:
    of = in_phase(Phase.BOUND)
    assert of.publication is not None
    rows = [queue_row(of, 1), queue_row(of, 2, **ACTIVE)]
    queue = read_queue(rows, sequence=3, dispatch=of.publication, statement=swap(of), inventory=inventory())
    stop = Stop(Code.PARTIAL_IN_PROGRESS, "...")
    found = witness(stored(of), decide.Wait(stop), observation(stored(of), COMMITTED, PENDING), queue)
    assert found is not None
    assert (found.aggregate, found.category) == ("PARTIAL_IN_PROGRESS", stop.category)
    assert [(r.state, r.queue) for r in found.replicas] == [
        (ReplicaState.COMMITTED, "finished"),
        (ReplicaState.PENDING, "in progress"),
    ]


def test_what_was_not_looked_at_is_not_made_up() -> None:
    found = seen_by(decide.Wait(Stop(Code.ENTRY_NOT_SEEN, "...")), Phase.DISPATCHING, NotSeen())
    assert found is not None
    assert found.observed_at is None
    for replica in found.replicas:
        assert (replica.state, replica.names, replica.queue) == (None, None, None)


@pytest.mark.parametrize(
    ("decided", "phase", "aggregate"),
    [
        (decide.DispatchSwap(), Phase.PREPARED, "DISPATCHABLE"),
        (decide.Rearm(), Phase.DISPATCHING, "PERMIT_UNUSED"),
        (decide.Bind("e", "q"), Phase.DISPATCHING, "BOUND"),
        (decide.StoreReceipt("e", "q", ()), Phase.BOUND, "TERMINAL"),
        (decide.Abort(Stop(Code.TARGET_MOVED, "...")), Phase.PREPARED, "TARGET_MOVED"),
        (Disarm(), Phase.BOUND, "DISARMABLE"),
        (CloseUnpublished(), Phase.TERMINAL, "NOT_PUBLISHED"),
    ],
)
def test_each_step_that_moves_the_record_is_witnessed(decided: Any, phase: Phase, aggregate: str) -> None:
    found = seen_by(decided, phase, None, PENDING, PENDING)
    assert found is not None
    assert found.aggregate == aggregate


@pytest.mark.parametrize(
    "decided",
    [decide.ReadCatalogs(), decide.ReadQueue(), decide.VerifyContent(), decide.Done(), Resolved()],
)
def test_a_step_that_only_reads_is_not(decided: Any) -> None:
    assert seen_by(decided, Phase.BOUND, None, PENDING, PENDING) is None


def test_the_same_conclusion_later_is_no_change() -> None:
    found = seen_by(decide.Commit("e", "q", ()), Phase.TERMINAL, None, COMMITTED, COMMITTED)
    assert found is not None
    assert replace(found, observed_at=9_999).says_the_same(found)
    assert not replace(found, epoch=99).says_the_same(found)
    assert not found.says_the_same(None)


def test_admission_warns_of_what_is_worth_a_look() -> None:
    of = record(published_order_key="2026-01-05", retained=in_phase(Phase.COMPLETED_RETAINING).retained)
    slot = Slot(stored(of), None, None)
    warnings = admission_warnings(slot, 2, order_key="2026-01-02")
    assert len(warnings) == 4
    for words in ("2 objects depend", "is superseded", "older than what is published", "still kept"):
        assert any(words in warning for warning in warnings)
    assert admission_warnings(Slot(None, None, None), 0, order_key=None) == ()


def test_the_slot_that_was_found_is_named() -> None:
    assert slot_found(None) is None
    found = slot_found(stored(record()))
    assert found is not None
    assert (found.version, found.write_id, found.phase) == (5, "w5", Phase.PREPARED)
