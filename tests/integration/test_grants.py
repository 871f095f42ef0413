"""A user with exactly the documented grants can do the whole cycle, and each missing one is noticed before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from airflow_provider_dpone.clickhouse.authority import Authority
from airflow_provider_dpone.clickhouse.catalog import Catalog
from airflow_provider_dpone.clickhouse.ddl_queue import DdlQueue
from airflow_provider_dpone.clickhouse.grants import (
    Grants,
    RequiredGrant,
    missing_grants,
    required_grants,
    required_grants_of_init,
    statements,
)
from airflow_provider_dpone.clickhouse.initialise import initialise
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.permit import Permit
from airflow_provider_dpone.publication.statement import Drop, Exchange, Rename, Statement
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.cluster_refresh import preflight
from airflow_provider_dpone.routes.ports import Reply, Stored, Target
from tests.cluster import LocalCluster
from tests.cluster.spec import APP_PASSWORD, APP_USER, CLUSTER_NAME, User
from tests.integration import control

pytestmark = pytest.mark.cluster

DATABASE = "mart"
TARGET = Target(CLUSTER_NAME, DATABASE, "orders")
REQUIRED = required_grants(TARGET)
PASSWORD = "p"
# REMOTE brings CREATE TEMPORARY TABLE along on these servers, and so does CREATE TABLE.
IMPLIED = {"CREATE TEMPORARY TABLE ON *.*"}


def user(name: str, grants: Sequence[RequiredGrant], *, on: str = "`mart`.*") -> User:
    """A user with these grants, those on the database ``mart`` given on ``on`` instead.

    In a configuration file the statements don't name the grantee.
    """
    texts = [text.partition(" TO ")[0].replace("`mart`.*", on) for text in statements(grants, name)]
    return User(name, grants=tuple(texts), password=PASSWORD)


def without(index: int) -> list[RequiredGrant]:
    return [grant for n, grant in enumerate(REQUIRED) if n != index]


@pytest.fixture(scope="module")
def strict() -> Iterator[LocalCluster]:
    """A cluster with a user of exactly the documented grants, and one more for each grant that is missing."""
    users = [
        user("exact", REQUIRED),
        user("prefixed", REQUIRED, on="`mart`.`orders`*"),
        user("initialiser", required_grants_of_init()),
        user("nothing", []),
        *(user(f"without_{n}", without(n)) for n in range(len(REQUIRED))),
    ]
    with LocalCluster(users=users) as running:
        initialise(connect(running, "initialiser"), CLUSTER_NAME)
        running.execute(f"CREATE DATABASE {DATABASE} ON CLUSTER {CLUSTER_NAME}")
        yield running


def connect(cluster: LocalCluster, name: str, password: str = PASSWORD) -> Server:
    return Server(ConnectionSettings((cluster.endpoints[0],), user=name, password=password))


def test_init_needs_no_more_than_its_grants(strict: LocalCluster) -> None:
    assert initialise(connect(strict, "initialiser"), CLUSTER_NAME).statements == ()


@pytest.mark.parametrize("name", ["exact", "prefixed"])
def test_the_documented_grants_are_enough_for_the_whole_cycle(strict: LocalCluster, name: str) -> None:
    server = connect(strict, name)
    assert missing_grants(server, REQUIRED) == ()
    catalog, queue = Catalog(server, TARGET), DdlQueue(server)
    authority = Authority(server, CLUSTER_NAME)
    candidate = f"orders__dpone_{name}"

    def send(statement: Statement) -> None:
        token = f"dpone1:grants:{name}:{type(statement).__name__}"
        permit = Permit(token=token, epoch=1, write_id="w")
        assert queue.send(permit, statement, token) == Reply(answered=True, exception_code=0)
        assert {row.exception_code for row in queue.read(token)[1]} == {0}

    def create(table: str) -> None:
        server.once(
            f"CREATE TABLE {DATABASE}.{table} ON CLUSTER {CLUSTER_NAME} (id UInt64, name String) "
            f"ENGINE = {control.REPLICATED} ORDER BY id"
        )
        server.once(f"INSERT INTO {DATABASE}.{table} VALUES (1, 'a')")

    authority_id = catalog.observe([]).authority_id
    assert authority_id is not None
    create(candidate)
    send(Rename(CLUSTER_NAME, DATABASE, candidate, "orders"))
    create(f"{candidate}_2")
    record = control.record(authority_id, DATABASE, f"orders_{name}")
    created = authority.write(None, record, "w0")
    assert isinstance(created, Stored)
    assert isinstance(authority.write(created.stored, record.moved(changed_at=2), "w1"), Stored)
    assert catalog.content(f"{candidate}_2").digests["s1/r1"].rows == 1
    send(Exchange(CLUSTER_NAME, DATABASE, "orders", f"{candidate}_2"))
    assert set(catalog.observe(["orders", f"{candidate}_2"]).replicas["s1/r2"].tables) == {
        "orders",
        f"{candidate}_2",
    }
    send(Drop(CLUSTER_NAME, DATABASE, f"{candidate}_2"))
    server.once("KILL QUERY WHERE query_id = 'none'")
    strict.execute(f"DROP TABLE {DATABASE}.orders ON CLUSTER {CLUSTER_NAME} SYNC")


@pytest.mark.parametrize("index", range(len(REQUIRED)), ids=[str(grant) for grant in REQUIRED])
def test_each_missing_grant_is_named(strict: LocalCluster, index: int) -> None:
    lacking = {str(grant) for grant in missing_grants(connect(strict, f"without_{index}"), REQUIRED)}
    assert lacking == {str(REQUIRED[index])} - IMPLIED


def test_a_user_without_grants_is_told_all_of_them(strict: LocalCluster) -> None:
    stop = Grants(connect(strict, "nothing"), TARGET).check()
    assert stop is not None
    assert stop.code is Code.MISSING_GRANT
    assert "INSERT ON `mart`.*" in stop.message
    assert "GRANT SELECT, INSERT, CREATE TABLE, DROP TABLE ON `mart`.* TO `nothing`" in stop.next_action
    with pytest.raises(Stopped):
        Grants(connect(strict, "nothing"), TARGET).require()


def test_a_user_with_all_grants_passes_in_one_request(strict: LocalCluster) -> None:
    before = strict.request_count()
    grants: preflight.Grants = Grants(connect(strict, "exact"), TARGET)
    assert grants.check(table_functions=False) is None
    assert strict.request_count() == before + 1
    assert Grants(connect(strict, "default", ""), TARGET).check() is None


def test_the_user_of_the_local_cluster_has_what_it_needs(strict: LocalCluster) -> None:
    assert Grants(connect(strict, APP_USER, APP_PASSWORD), TARGET).check() is None


def test_a_server_that_can_not_be_asked_is_a_stop(strict: LocalCluster) -> None:
    with pytest.raises(Stopped) as caught:
        Grants(connect(strict, "exact", "wrong"), TARGET).check()
    assert caught.value.stop.code is Code.SERVER_ERROR


def test_an_older_server_is_asked_in_two_steps(strict: LocalCluster) -> None:
    """24.8 knows neither WITH IMPLICIT FINAL nor CHECK GRANT; what its configuration may waive is not asked."""
    strict.answer_error(None, "^SHOW GRANTS WITH IMPLICIT", 62, count=2)
    assert missing_grants(connect(strict, "exact"), REQUIRED) == ()
    lacking = {str(grant) for grant in missing_grants(connect(strict, "nothing"), REQUIRED)}
    assert lacking == {str(grant) for grant in REQUIRED if not grant.configurable}
    strict.clear_faults()
