"""Every row of the queue-status table, and every way in which rows can fail to be one entry's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dpone.publication.queue import (
    Contradictory,
    HostRow,
    HostStatus,
    NotSeen,
    QueueRow,
    Running,
    Terminal,
    Unreadable,
    normalise,
    read_queue,
)
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.statement import Exchange
from airflow_provider_dpone.publication.stop import Category, Code
from tests.unit.builders import ACTIVE, FAILED, INACTIVE, in_phase, inventory, queue_row, receipt_of, swap

DISPATCHED = in_phase(Phase.DISPATCHING)
BOUND = in_phase(Phase.BOUND)


def read(*rows: QueueRow, of: Any = DISPATCHED, replicas: int = 2) -> Any:
    return read_queue(
        rows, sequence=7, dispatch=of.publication, statement=swap(of), inventory=inventory(replicas)
    )


@pytest.mark.parametrize(
    ("status", "code", "text", "expected"),
    [
        ("Inactive", None, None, HostStatus.IN_PROGRESS),
        ("Active", None, None, HostStatus.IN_PROGRESS),
        ("Finished", 0, "", HostStatus.SUCCESS),
        ("Finished", 60, "Code: 60", HostStatus.FAILURE),
        ("Finished", None, None, HostStatus.MALFORMED),
        ("Finished", None, "", HostStatus.MALFORMED),
        ("Finished", 0, None, HostStatus.MALFORMED),
        ("Finished", 0, "an error", HostStatus.MALFORMED),
        ("Finished", 60, "", HostStatus.MALFORMED),
        ("Finished", 60, None, HostStatus.MALFORMED),
        ("Finished", -1, "an error", HostStatus.MALFORMED),
        ("Inactive", 0, "", HostStatus.MALFORMED),
        ("Active", 60, None, HostStatus.MALFORMED),
        ("Removing", None, None, HostStatus.UNREADABLE),
        ("Removing", 0, "", HostStatus.UNREADABLE),
        ("Unknown", None, None, HostStatus.UNREADABLE),
        (None, None, None, HostStatus.UNREADABLE),
        ("Finalizing", 0, "", HostStatus.UNREADABLE),
    ],
)
def test_each_status_and_exception_combination(
    status: str | None, code: int | None, text: str | None, expected: HostStatus
) -> None:
    row = replace(queue_row(DISPATCHED, 1), status=status, exception_code=code, exception_text=text)
    assert normalise(row).status is expected


@given(
    st.sampled_from(["Inactive", "Active", "Finished", "Removing", "Unknown", None, "", "finished"]),
    st.none() | st.integers(-5, 1000),
    st.none() | st.text(max_size=3),
)
def test_only_a_wellformed_finished_row_is_an_outcome(
    status: str | None, code: int | None, text: str | None
) -> None:
    row = normalise(
        replace(queue_row(DISPATCHED, 1), status=status, exception_code=code, exception_text=text)
    )
    assert (row.status is HostStatus.SUCCESS) == ((status, code, text) == ("Finished", 0, ""))
    if row.status is HostStatus.FAILURE:
        assert status == "Finished"
        assert code is not None
        assert code > 0
        assert text


def test_a_null_code_is_never_success() -> None:
    assert normalise(queue_row(DISPATCHED, 1, exception_code=None)) == HostRow(HostStatus.MALFORMED)


def test_all_finished_is_terminal_success() -> None:
    state = read(queue_row(DISPATCHED, 1), queue_row(DISPATCHED, 2))
    assert isinstance(state, Terminal)
    assert state.receipt == receipt_of(DISPATCHED)
    assert state.succeeded
    assert state.sequence == 7


def test_one_failed_and_the_others_finished_is_terminal_failure() -> None:
    state = read(queue_row(DISPATCHED, 1), queue_row(DISPATCHED, 2, **FAILED))
    assert isinstance(state, Terminal)
    assert not state.succeeded
    assert state.receipt == receipt_of(DISPATCHED, r2=60)


@pytest.mark.parametrize("busy", [ACTIVE, INACTIVE])
def test_one_replica_at_work_keeps_the_entry_running_even_if_another_failed(busy: Mapping[str, Any]) -> None:
    assert isinstance(read(queue_row(DISPATCHED, 1, **FAILED), queue_row(DISPATCHED, 2, **busy)), Running)


@pytest.mark.parametrize("status", ["Removing", "Unknown", None])
def test_one_unreadable_row_dominates_finished_ones(status: str | None) -> None:
    state = read(
        queue_row(DISPATCHED, 1),
        queue_row(DISPATCHED, 2, status=status, exception_code=None, exception_text=None),
    )
    assert isinstance(state, Unreadable)


def test_a_malformed_row_is_a_contradiction_though_the_others_are_finished() -> None:
    state = read(queue_row(DISPATCHED, 1), queue_row(DISPATCHED, 2, exception_code=None))
    assert isinstance(state, Contradictory)
    assert state.stop.code is Code.ENTRY_MALFORMED


def test_no_row_is_no_proof() -> None:
    assert read() == NotSeen()


def test_rows_of_another_token_are_not_ours() -> None:
    assert read(queue_row(DISPATCHED, 1, token="dpone1:other")) == NotSeen()


def test_a_missing_host_row_is_not_terminal() -> None:
    assert isinstance(read(queue_row(DISPATCHED, 1)), Unreadable)


def test_a_null_host_row_is_not_terminal() -> None:
    assert isinstance(read(queue_row(DISPATCHED, 1, host=None, port=None, status="Unknown")), Unreadable)


def test_an_extra_host_row_is_a_contradiction() -> None:
    state = read(queue_row(DISPATCHED, 1), queue_row(DISPATCHED, 2), queue_row(DISPATCHED, 3))
    assert isinstance(state, Contradictory)
    assert state.stop.code is Code.ENTRY_CHANGED


def test_a_duplicate_host_row_is_a_contradiction() -> None:
    state = read(queue_row(DISPATCHED, 1), queue_row(DISPATCHED, 1))
    assert isinstance(state, Contradictory)
    assert state.stop.code is Code.ENTRY_MALFORMED


def test_two_entries_with_one_token_are_a_contradiction_and_none_is_selected() -> None:
    rows = [queue_row(DISPATCHED, n, entry=e) for e in ("query-1", "query-2") for n in (1, 2)]
    state = read(*rows)
    assert isinstance(state, Contradictory)
    assert state.stop.code is Code.ENTRY_AMBIGUOUS
    assert state.stop.category is Category.CONTRADICTION


def test_another_statement_under_our_token_is_a_contradiction() -> None:
    other = Exchange("analytics", "mart", "orders", "somebody_elses")
    state = read(queue_row(DISPATCHED, 1, statement=other), queue_row(DISPATCHED, 2, statement=other))
    assert isinstance(state, Contradictory)
    assert state.stop.code is Code.ENTRY_CHANGED


def test_an_unparsable_statement_under_our_token_is_a_contradiction() -> None:
    assert isinstance(read(queue_row(DISPATCHED, 1, statement=None)), Contradictory)


@pytest.mark.parametrize("change", [{"entry": "query-0000000008"}, {"query": "EXCHANGE TABLES  changed"}])
def test_a_bound_entry_that_changed_is_a_contradiction(change: Mapping[str, Any]) -> None:
    state = read(queue_row(BOUND, 1, **change), queue_row(BOUND, 2, **change), of=BOUND)
    assert isinstance(state, Contradictory)
    assert state.stop.code is Code.ENTRY_CHANGED
