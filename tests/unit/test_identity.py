"""What a retry shares, and what makes a new operation."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from airflow_provider_dpone.publication.canonical import canonical_json, digest
from airflow_provider_dpone.publication.identity import candidate_name, correlation_token, is_uuid, target_key
from airflow_provider_dpone.publication.inventory import Inventory, Member, admit
from airflow_provider_dpone.publication.stop import Code, Stop
from tests.unit.builders import IDENTITY, KEY, inventory


def test_the_operation_id_is_stable_over_processes() -> None:
    assert IDENTITY.operation_id(KEY) == replace(IDENTITY).operation_id(KEY)
    assert re.fullmatch(r"[0-9a-f]{64}", IDENTITY.operation_id(KEY))


@pytest.mark.parametrize(
    "change",
    [
        {"deployment_id": "other"},
        {"dag_id": "other"},
        {"run_id": "other"},
        {"task_id": "other"},
        {"map_index": 0},
        {"series": "1"},
    ],
)
def test_each_part_of_the_identity_makes_another_operation(change: dict[str, object]) -> None:
    assert replace(IDENTITY, **change).operation_id(KEY) != IDENTITY.operation_id(KEY)  # type: ignore[arg-type]


def test_another_target_is_another_operation() -> None:
    assert IDENTITY.operation_id(KEY) != IDENTITY.operation_id(target_key("a", "mart", "other"))


@pytest.mark.parametrize("change", [{"run_id": "other"}, {"series": "1"}])
def test_a_publication_is_the_same_over_its_runs(change: dict[str, object]) -> None:
    assert replace(IDENTITY, **change).publication_key(KEY) == IDENTITY.publication_key(KEY)  # type: ignore[arg-type]


def test_parts_cannot_be_shifted_into_each_other() -> None:
    assert digest("d", "ab", "c") != digest("d", "a", "bc")
    assert digest("d", "a") != digest("e", "a")


def test_canonical_json_refuses_what_has_no_one_text() -> None:
    with pytest.raises(TypeError):
        canonical_json({"rows": 1.5})  # type: ignore[dict-item]
    assert canonical_json({"b": [1, None], "a": "ü"}) == '{"a":"ü","b":[1,null]}'


def test_the_token_is_short_plain_ascii() -> None:
    token = correlation_token("f" * 64, "publish", 2**63, "0" * 32)
    assert re.fullmatch(r"[A-Za-z0-9_.:-]{1,128}", token)


def test_the_candidates_name_shows_the_target_and_fits_a_file_name() -> None:
    assert candidate_name("orders", "1f") == "orders__dpone_1f"
    assert len(candidate_name("x" * 300, "f" * 16)) < 120
    assert candidate_name("naïve `name`", "1f") == "table__dpone_1f"


def test_the_nil_uuid_is_no_identity() -> None:
    assert is_uuid("00000000-0000-4000-8000-00000000000a")
    assert not is_uuid("00000000-0000-0000-0000-000000000000")
    assert not is_uuid("something")


def members(*rows: tuple[int, int, str, int, bool]) -> list[Member]:
    return [Member(*row) for row in rows]


TWO = [(1, 1, "a", 9000, True), (1, 2, "b", 9000, True)]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], Code.UNKNOWN_CLUSTER),
        ([*TWO, (2, 1, "c", 9000, True)], Code.UNSUPPORTED_TOPOLOGY),
        (TWO[:1], Code.UNSUPPORTED_TOPOLOGY),
        ([TWO[0], (1, 2, "a", 9000, True)], Code.UNSUPPORTED_TOPOLOGY),
        ([TWO[0], (1, 1, "b", 9000, True)], Code.UNSUPPORTED_TOPOLOGY),
        ([TWO[0], (1, 2, "b", 9000, False)], Code.REPLICATION_MODE_MISMATCH),
        ([(1, 1, "a", 9000, False), (1, 2, "b", 9000, False)], Code.REPLICATION_MODE_MISMATCH),
    ],
    ids=[
        "unknown cluster",
        "two shards",
        "one replica",
        "one endpoint twice",
        "one replica number twice",
        "mixed flags",
        "wrong flag",
    ],
)
def test_each_topology_that_is_refused(rows: list[tuple[int, int, str, int, bool]], code: Code) -> None:
    refused = admit("analytics", members(*rows), internal_replication=True)
    assert isinstance(refused, Stop)
    assert refused.code is code


def test_hosts_never_appear_in_a_refusal() -> None:
    refused = admit("c", members((1, 1, "secret-host", 9000, True)), internal_replication=True)
    assert "secret-host" not in str(refused)


def test_the_inventory_digest_does_not_depend_on_order_and_changes_with_each_semantic_part() -> None:
    two = inventory(2)
    assert Inventory(two.cluster, two.members[::-1]).digest == two.digest
    first = two.members[0]
    for changed in (
        replace(first, host_name="x"),
        replace(first, port=1),
        replace(first, replica=7),
        replace(first, shard=2),
        replace(first, internal_replication=False),
    ):
        assert Inventory(two.cluster, (changed, two.members[1])).digest != two.digest
    assert Inventory("other", two.members).digest != two.digest


def test_admitted_members_keep_the_order_of_their_numbers() -> None:
    admitted = admit("c", members(*TWO[::-1]), internal_replication=True)
    assert isinstance(admitted, Inventory)
    assert admitted.aliases == ("s1/r1", "s1/r2")
    assert admitted.alias_at("b", 9000) == "s1/r2"
    assert admitted.alias_at("b", 9001) is None
