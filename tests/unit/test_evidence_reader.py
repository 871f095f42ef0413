"""Reading, rebuilding and pruning the evidence, on a local folder and on an object storage."""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from airflow_provider_dpone import composition
from airflow_provider_dpone.cli import evidence as cli
from airflow_provider_dpone.evidence import objects
from airflow_provider_dpone.evidence.prune import PruneResult, prune
from airflow_provider_dpone.evidence.reader import EvidenceReader, clusters
from airflow_provider_dpone.evidence.store import EvidenceStore
from airflow_provider_dpone.publication.prune import ClusterNow, TrailFacts, needed
from airflow_provider_dpone.publication.record import AuthorityRecord, Phase
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.publication.trail import Admission, Body, CandidateIntent, CompareAndSwap, Pruned
from tests.unit.builders import AUTHORITY, REPLICATED_PHASES, in_phase, record
from tests.unit.evidence_entries import ENTRIES
from tests.unit.test_evidence import mounted

OPERATIONS = [f"{n:02x}" * 32 for n in range(1, 10)]
START = datetime(2026, 1, 1, 23, 59, 50, tzinfo=UTC)
LATER = START + timedelta(days=100)


@pytest.fixture(params=["file", "memory"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectStoragePath:
    if request.param == "file":
        return ObjectStoragePath((tmp_path / "evidence").as_uri())
    return mounted(monkeypatch, MemoryFileSystem())


class Site:
    """A store whose entries are a second apart."""

    def __init__(self, root: ObjectStoragePath) -> None:
        self.root = root
        self.reader = EvidenceReader(root, "analytics")
        times = (START + timedelta(seconds=n) for n in itertools.count())
        self.store = EvidenceStore(
            root, cluster="analytics", writer="ti-1", about={"operator": "ann"}, now=lambda: next(times)
        )

    def write(self, operation: str, *wanted: Body) -> None:
        for body in wanted:
            self.store.write(operation, body)

    def prune(
        self,
        *records: AuthorityRecord,
        tables: Collection[str] | None = (),
        older_than: timedelta = timedelta(days=90),
        dry_run: bool = False,
    ) -> PruneResult:
        def existing(database: str, names: Collection[str]) -> frozenset[str] | None:
            assert database == "mart"
            return None if tables is None else frozenset(tables) & frozenset(names)

        return prune(
            self.reader,
            self.store,
            records,
            existing,
            older_than=older_than,
            dry_run=dry_run,
            now=lambda: LATER,
        )


@pytest.fixture
def site(root: ObjectStoragePath) -> Site:
    return Site(root)


def body(kind: str, **changes: Any) -> Body:
    found: Body = replace(ENTRIES[kind].body, **changes)
    return found


def candidate(number: int) -> Body:
    return body("intent", table=f"orders__dpone_{number}", attempt=str(number))


def whole(number: int, table: str = "orders") -> tuple[Body, ...]:
    """The trail of an operation that was prepared."""
    return (
        body("admission", table=table),
        candidate(number),
        body("staged"),
        body("compare-and-swap"),
        body("compare-and-swap-outcome"),
    )


# ---- the list


def test_operations_are_listed_newest_first_over_midnight(site: Site) -> None:
    for operation in OPERATIONS:
        site.write(operation, *whole(1))
    listed = site.reader.operations(limit=100)
    assert [one.operation_id for one in listed] == OPERATIONS[::-1]
    assert {one.at[:10] for one in listed} == {"2026-01-01", "2026-01-02"}
    assert (listed[0].database, listed[0].table, listed[0].state) == ("mart", "orders", "PREPARED")


def test_a_list_is_bounded_and_reads_no_more_than_it_returns(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for operation in OPERATIONS:
        site.write(operation, *whole(1))
    read: list[str] = []
    real = objects.read

    def counted(path: ObjectStoragePath) -> bytes:
        read.append(str(path))
        return real(path)

    monkeypatch.setattr(objects, "read", counted)
    assert len(site.reader.operations(limit=3)) == 3
    assert len(read) == 3


def test_a_list_is_filtered_by_target(site: Site) -> None:
    for number, operation in enumerate(OPERATIONS[:4]):
        site.write(operation, *whole(number, table=("orders", "events")[number % 2]))
    listed = site.reader.operations(limit=10, target=("mart", "events"))
    assert [one.operation_id for one in listed] == [OPERATIONS[3], OPERATIONS[1]]
    assert site.reader.operations(limit=10, target=("mart", "nothing")) == ()


def test_an_operation_with_several_tries_is_listed_once_by_its_last(site: Site) -> None:
    site.write(OPERATIONS[0], *whole(1))
    site.write(OPERATIONS[1], *whole(2))
    site.write(OPERATIONS[0], *whole(3))
    assert [one.operation_id for one in site.reader.operations(limit=10)] == [OPERATIONS[0], OPERATIONS[1]]


def test_the_state_is_the_last_that_was_stored(site: Site) -> None:
    site.write(OPERATIONS[0], body("admission"))

    def state() -> str:
        return site.reader.operations(limit=1)[0].state

    assert state() == "ADMITTED"
    site.write(OPERATIONS[0], body("staged"))
    assert state() == "STAGED"
    for version, phase in enumerate((Phase.PREPARED, Phase.DISPATCHING), 7):
        site.write(OPERATIONS[0], body("compare-and-swap-outcome", phase=phase, version=version))
        assert state() == phase
    conflict = body("compare-and-swap-outcome", phase=Phase.BOUND, outcome="conflict", version=None)
    site.write(OPERATIONS[0], conflict)
    assert state() == "DISPATCHING"
    site.write(OPERATIONS[0], body("receipt", version=9))
    assert state() == "COMMITTED"
    site.write(OPERATIONS[0], body("compare-and-swap-outcome", phase=Phase.COMPLETED_RETAINING, version=10))
    assert state() == "COMPLETED_RETAINING"


def test_what_a_volume_has_of_its_own_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "a cluster" / "index").mkdir(parents=True)
    (tmp_path / "a cluster").rename(tmp_path / "a%20cluster")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".DS_Store").write_text("")
    root = ObjectStoragePath(f"file://{tmp_path}")
    found = clusters(root)
    assert "a cluster" in found
    assert "lost+found" not in found
    assert [EvidenceReader(root, name).operation_ids() for name in found] == [[]] * len(found)


def test_an_empty_store_has_an_empty_list(site: Site) -> None:
    assert site.reader.operations(limit=10) == ()
    assert site.reader.reindex().operations == 0


# ---- one trail


def test_a_trail_is_whole_and_in_order(site: Site) -> None:
    site.write(OPERATIONS[0], *(entry.body for entry in ENTRIES.values()))
    trail = site.reader.trail(site.reader.find(OPERATIONS[0][:8]))
    assert [entry.body for entry in trail.entries] == [entry.body for entry in ENTRIES.values()]
    assert trail.unknown == ()


@pytest.mark.parametrize("prefix", ["", "0101", "0101010", "../../..", "ffffffff", "01010101*"])
def test_a_prefix_that_names_no_operation_is_refused(site: Site, prefix: str) -> None:
    site.write(OPERATIONS[0], body("admission"))
    with pytest.raises(ValueError, match=r"operation"):
        site.reader.find(prefix)


def test_a_prefix_that_names_two_is_refused(site: Site) -> None:
    for end in ("0", "1"):
        site.write("0101010101" + end, body("admission"))
    with pytest.raises(ValueError, match="2 operations"):
        site.reader.find("01010101")


def test_entries_that_cannot_be_used_are_named_and_left_alone(site: Site) -> None:
    site.write(OPERATIONS[0], body("admission"), candidate(1))
    folder = site.reader.folder / OPERATIONS[0]
    (name,) = [n for n in objects.names(folder) if n.startswith("intent")]
    later = objects.read(folder / name).replace(b"evidence-intent.v1", b"evidence-intent.v2")
    objects.create(folder, "intent.2.-.create.w.0.000001.json", later)
    objects.create(folder, "staged.2.-.ready.w.0.000001.json", later[:40])
    trail = site.reader.trail(OPERATIONS[0])
    assert len(trail.entries) == 2
    assert trail.newer
    assert {unknown.newer for _, unknown in trail.unknown} == {True, False}


# ---- rebuilding the list


def test_a_list_that_was_lost_is_rebuilt_the_same(site: Site) -> None:
    for number, operation in enumerate(OPERATIONS):
        site.write(operation, *whole(number))
    before = [(str(path), objects.read(path)) for path, _ in site.reader.listed()]
    assert site.reader.reindex().added == 0
    for path, _ in list(site.reader.listed())[::2]:
        objects.delete(path)
    done = site.reader.reindex()
    assert (done.operations, done.added, done.removed) == (9, 5, 0)
    assert [(str(path), objects.read(path)) for path, _ in site.reader.listed()] == before


def test_what_has_no_trail_is_taken_off_the_list(site: Site) -> None:
    for operation in OPERATIONS[:2]:
        site.write(operation, body("admission"))
    for name in objects.names(site.reader.folder / OPERATIONS[0]):
        objects.delete(site.reader.folder / OPERATIONS[0] / name)
    objects.remove_folder(site.reader.folder / OPERATIONS[0])
    assert [one.operation_id for one in site.reader.operations(limit=10)] == [OPERATIONS[1]]
    assert site.reader.reindex().removed == 1
    assert len(list(site.reader.listed())) == 1


def test_a_list_entry_that_was_cut_off_is_no_operation_until_it_is_rebuilt(site: Site) -> None:
    site.write(OPERATIONS[0], body("admission"))
    ((path, _),) = site.reader.listed()
    data = objects.read(path)
    path.fs.pipe_file(path.path, data[:10])
    assert site.reader.operations(limit=10) == ()
    done = site.reader.reindex()
    assert (done.added, done.repaired) == (0, 1)
    assert [one.operation_id for one in site.reader.operations(limit=10)] == [OPERATIONS[0]]


# ---- pruning


LAST = replace(in_phase(Phase.COMPLETED), operation_id="ff" * 32)


def test_ended_operations_that_nothing_needs_are_deleted_whole(site: Site) -> None:
    for number, operation in enumerate(OPERATIONS[:3]):
        site.write(operation, *whole(number))
    done = site.prune(LAST)
    assert done == PruneResult(tuple(OPERATIONS[:3]), {})
    assert objects.names(site.reader.folder) == ["audit", "index"] or site.reader.operation_ids() == []
    assert site.reader.operations(limit=10) == ()
    assert list(site.reader.listed()) == []
    # What was deleted stays known, and so does that there was something.
    (audit,) = objects.names(site.reader.folder / "audit")
    kept = json.loads(objects.read(site.reader.folder / "audit" / audit))
    assert kept["body"] == {"operations": OPERATIONS[:3], "older_than": 90 * 24 * 3600}
    assert kept["about"] == {"operator": "ann"}
    assert site.store.knows_cluster()
    assert site.prune(LAST) == PruneResult((), {})


def test_a_dry_run_deletes_and_writes_nothing(site: Site) -> None:
    site.write(OPERATIONS[0], *whole(1))
    before = site.reader.trail(OPERATIONS[0])
    assert site.prune(LAST, dry_run=True).deleted == (OPERATIONS[0],)
    assert site.reader.trail(OPERATIONS[0]) == before
    assert objects.names(site.reader.folder / "audit") == []


def test_young_trails_are_kept_without_being_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write(OPERATIONS[0], *whole(1))
    monkeypatch.setattr(EvidenceReader, "trail", None)
    done = site.prune(LAST, older_than=timedelta(days=365))
    assert done == PruneResult((), {"it is too young": 1})


def test_an_old_operation_with_a_young_entry_is_kept(site: Site) -> None:
    site.write(OPERATIONS[0], *whole(1))
    EvidenceStore(site.root, cluster="analytics", writer="late", now=lambda: LATER).write(
        OPERATIONS[0], body("cleanup")
    )
    assert site.prune(LAST).kept == {"it is too young": 1}


def test_less_than_a_day_is_refused(site: Site) -> None:
    with pytest.raises(ValueError, match="at least 1 day"):
        site.prune(older_than=timedelta(hours=23))


def test_a_deletion_that_was_cut_short_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, operation in enumerate(OPERATIONS[:2]):
        site.write(operation, *whole(number))
    real, left = objects.delete, [4]

    def delete(path: ObjectStoragePath) -> None:
        if not left[0]:
            raise objects.unavailable("deleting ended with ConnectionError")
        left[0] -= 1
        real(path)

    for calls in range(1, 14):
        monkeypatch.setattr(objects, "delete", delete)
        left[0] = calls
        try:
            site.prune(LAST)
        except Stopped:
            assert site.reader.operation_ids() != []
    monkeypatch.setattr(objects, "delete", real)
    site.prune(LAST)
    assert site.reader.operation_ids() == []
    assert list(site.reader.listed()) == []


def test_an_entry_that_comes_while_it_is_pruned_stays(site: Site) -> None:
    site.write(OPERATIONS[0], *whole(1))
    late = EvidenceStore(site.root, cluster="analytics", writer="late")

    def existing(_: str, __: Collection[str]) -> frozenset[str]:
        late.write(OPERATIONS[0], candidate(9))
        return frozenset()

    prune(
        site.reader,
        site.store,
        (LAST,),
        existing,
        older_than=timedelta(days=90),
        dry_run=False,
        now=lambda: LATER,
    )
    (intent,) = late.intents(OPERATIONS[0])
    assert intent.attempt.attempt_id == "9"


def test_nothing_is_deleted_that_could_not_be_written_down(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write(OPERATIONS[0], *whole(1))

    def refuse(_: EvidenceStore, operation_id: str, pruned: Body) -> None:
        assert operation_id == ""
        assert isinstance(pruned, Pruned)
        raise objects.unavailable("writing ended with ConnectionError")

    monkeypatch.setattr(EvidenceStore, "write", refuse)
    with pytest.raises(Stopped):
        site.prune(LAST)
    assert len(site.reader.trail(OPERATIONS[0]).entries) == 5


# ---- what is needed


OLD = TrailFacts(
    operation_id=OPERATIONS[0],
    newest="2026-01-01T00:00:00.000000Z",
    target=("mart", "orders"),
    authority_id=AUTHORITY,
    prepared=True,
    candidates=(("mart", "orders__dpone_1"),),
    newer=False,
)
BEFORE = "2026-02-01T00:00:00.000000Z"
NOW = ClusterNow((LAST,), {"mart": frozenset()})


def why(facts: TrailFacts = OLD, now: ClusterNow = NOW) -> str | None:
    return needed(facts, now, before=BEFORE)


def test_an_operation_that_is_in_no_record_any_more_is_not_needed() -> None:
    assert why() is None


@pytest.mark.parametrize("phase", REPLICATED_PHASES)
def test_the_operation_that_a_record_names_is_always_needed(phase: Phase) -> None:
    now = replace(NOW, records=(replace(in_phase(phase), operation_id=OPERATIONS[0]),))
    assert why(now=now) == "it is the last operation of its target"


def test_so_is_one_whose_table_a_record_keeps() -> None:
    retaining = in_phase(Phase.COMPLETED_RETAINING)
    item = replace(retaining.retained[0], operation_id=OPERATIONS[0])
    now = replace(NOW, records=(replace(LAST, retained=(item,)),))
    assert why(now=now) == "a table of it is still kept"


@pytest.mark.parametrize("name", ["orders__dpone_1", "orders__dpone_1_parked"])
def test_so_is_one_whose_table_exists_though_no_record_knows_it(name: str) -> None:
    for prepared in (True, False):
        facts = replace(OLD, prepared=prepared)
        assert why(facts, replace(NOW, tables={"mart": frozenset({name})})) == "a table of it still exists"


def test_so_is_one_whose_tables_cannot_be_seen() -> None:
    assert why(now=replace(NOW, tables={})) == "it can't be seen whether its tables still exist"


def test_so_is_one_that_a_later_release_wrote_to() -> None:
    assert "upgrade the provider" in str(why(replace(OLD, newer=True)))


def test_so_is_a_prepared_one_whose_target_has_no_record_to_tell_its_end() -> None:
    wanted = "no record of its target tells that it has ended"
    assert why(now=replace(NOW, records=())) == wanted
    assert why(replace(OLD, authority_id="b" * 32)) == wanted
    assert why(now=replace(NOW, records=(record(table="other"),))) == wanted


def test_one_that_never_came_to_a_record_is_not_needed_once_its_tables_are_gone() -> None:
    assert why(replace(OLD, prepared=False), replace(NOW, records=())) is None


def test_one_without_a_target_is_kept() -> None:
    assert why(replace(OLD, target=None, prepared=False)) == "its target is not known"


def test_facts_are_taken_from_the_trail() -> None:
    entries = [ENTRIES[k] for k in (Admission.kind, CandidateIntent.kind, CompareAndSwap.kind)]
    facts = TrailFacts.of(OPERATIONS[0], entries, newer=False)
    assert facts.target == ("mart", "orders")
    assert facts.prepared
    assert facts.names == (("mart", "orders__dpone_1"), ("mart", "orders__dpone_1_parked"))
    assert facts.newest == entries[-1].at


# ---- the commands


@pytest.fixture
def commands(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(composition, "evidence_reader", lambda _: site.reader)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return site


def arguments(output: str = "table", **more: Any) -> Namespace:
    found = {"cluster": "analytics", "output": output, "database": None, "table": None, "limit": 50}
    return Namespace(**(found | more))


def test_list_and_show_answer_people_and_programs(commands: Site, capsys: pytest.CaptureFixture[str]) -> None:
    commands.write(OPERATIONS[0], *(entry.body for entry in ENTRIES.values()))
    cli.list_operations(arguments())
    assert f"mart.orders  {OPERATIONS[0][:16]}" in capsys.readouterr().out
    cli.list_operations(arguments("json", database="mart", table="orders"))
    (listed,) = json.loads(capsys.readouterr().out)["operations"]
    assert listed["operation"] == OPERATIONS[0]
    cli.show(arguments(operation=OPERATIONS[0][:12]))
    shown = capsys.readouterr().out
    for words in (
        "admitted on s1/r1, s1/r2",
        "COMMITTED: s1/r1 committed",
        "EXCHANGE sent, reply lost",
        "ann",
    ):
        assert words in shown
    cli.show(arguments("json", operation=OPERATIONS[0]))
    assert [e["kind"] for e in json.loads(capsys.readouterr().out)["entries"]] == list(ENTRIES)
    cli.reindex(arguments())
    assert "1 operations are on the list" in capsys.readouterr().out


def test_a_later_releases_entry_is_shown_as_such(commands: Site, capsys: pytest.CaptureFixture[str]) -> None:
    commands.write(OPERATIONS[0], body("admission"))
    data = b'{"schema":"dpone.clickhouse.evidence-admission.v2"}'
    objects.create(commands.reader.folder / OPERATIONS[0], "admission.-.-.admitted.w.0.000009.json", data)
    cli.show(arguments(operation=OPERATIONS[0]))
    assert "upgrade the provider" in capsys.readouterr().out
    cli.show(arguments("json", operation=OPERATIONS[0]))
    assert "upgrade the provider" in json.loads(capsys.readouterr().out)["left_alone"][0]["why"]


@pytest.mark.parametrize(
    ("command", "more"),
    [
        (cli.list_operations, {"limit": 0}),
        (cli.list_operations, {"limit": 10_000}),
        (cli.list_operations, {"table": "orders"}),
        (cli.show, {"operation": "ab"}),
        (cli.show, {"operation": "ab" * 32}),
        (cli.prune, {"older_than": "90", "conn_id": "c", "dry_run": True}),
        (cli.prune, {"older_than": "-1d", "conn_id": "c", "dry_run": True}),
        (cli.prune, {"older_than": "9999999d", "conn_id": "c", "dry_run": True}),
    ],
)
def test_bad_input_is_refused_politely(
    commands: Site, capsys: pytest.CaptureFixture[str], command: Any, more: Any
) -> None:
    with pytest.raises(SystemExit) as end:
        command(arguments("json", **more))
    assert end.value.code == 1
    assert json.loads(capsys.readouterr().out)["stop"]["code"] == Code.BAD_INPUT
