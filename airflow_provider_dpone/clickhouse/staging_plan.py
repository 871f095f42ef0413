"""The plan of a staging: structure, column mapping and grants, fixed before the source is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from airflow_provider_dpone.clickhouse.create_table import (
    ClauseDifference,
    ColumnDefinition,
    DefinitionError,
    TableDefinition,
    admit_engine,
    ddl_text,
    describe_columns,
    described,
    differences,
    format_query,
    from_ddl,
    parse,
    schema_digest,
    structure_text,
)
from airflow_provider_dpone.clickhouse.errors import (
    REPLICA_CODES,
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stop_with,
    stopped,
    summary,
)
from airflow_provider_dpone.clickhouse.exact import (
    InexactTypeError,
    LoadColumn,
    exact_select,
    text_carrier,
)
from airflow_provider_dpone.clickhouse.grants import READ_ON_FILE, Grants
from airflow_provider_dpone.clickhouse.schema_change import StructurePlan, StructureRefusal, plan_structure
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.source_access import SourceAccess
from airflow_provider_dpone.clickhouse.sql import identifier
from airflow_provider_dpone.publication.canonical import Json, digest
from airflow_provider_dpone.publication.facts import Observation
from airflow_provider_dpone.publication.stop import Code, Stopped
from airflow_provider_dpone.routes.ports import Log, StagePlan, Target
from airflow_provider_dpone.sources import RowsLoad, SelectLoad, SourceColumn, StreamLoad
from airflow_provider_dpone.values import ClusterRefresh


@dataclass(frozen=True, slots=True)
class Planned:
    """The adapter's part of a plan.

    :ivar definition: what the candidate shall be.
    :ivar columns: what is loaded, in the source's order.
    :ivar aliases: the replicas, in the cluster's order.
    :ivar settings: those of the settings that a load may need which every replica knows.
    :ivar selects: the server reads the source itself, by a query.
    """

    definition: TableDefinition
    source_columns: tuple[SourceColumn, ...]
    columns: tuple[LoadColumn, ...]
    aliases: tuple[str, ...]
    settings: frozenset[str]
    selects: bool


_ASK_SECONDS: Final = 60.0

_BUSY_CODES: Final = frozenset(
    {*REPLICA_CODES, ErrorCode.MEMORY_LIMIT_EXCEEDED, ErrorCode.TOO_MANY_SIMULTANEOUS_QUERIES}
)
"""Codes that say nothing about what was asked: a later try may be answered."""


class Planner:
    """Fixes what will be staged. It reads no row of the source and changes nothing."""

    def __init__(
        self,
        server: Server,
        target: Target,
        refresh: ClusterRefresh,
        access: SourceAccess,
        log: Log,
        grants: Grants,
        *,
        engine: str,
    ) -> None:
        """Prepare; nothing is read yet.

        :param engine: the only engine that the target and the candidate may have.
        """
        self._server = server
        self._target = target
        self._refresh = refresh
        self._access = access
        self._log = log
        self._grants = grants
        self._engine = engine

    def plan(self, observation: Observation) -> StagePlan:
        """Fix structure, column mapping and grants. Reads no row of the source, changes nothing.

        :raises Stopped: ``STRUCTURE_MISSING``, ``STRUCTURE_REFUSED``, ``SCHEMA_MISMATCH``,
            ``TYPE_NOT_EXACT``, ``UNSUPPORTED_TARGET``, ``MISSING_GRANT``, ``BAD_INPUT``, ``SOURCE_FAILED``,
            and what reading from the server raises.
        """
        self._grants.require()
        load = self._access.load()
        if selects := isinstance(load, SelectLoad):
            columns = self._columns_on(self._server)
        else:
            self._grants.require(table_functions=True)
            columns = load.columns
        structure = self._structure(self._live(observation), load, columns)
        if isinstance(load, RowsLoad):
            load = self._access.stream(load, [column.type for column in structure.columns])
            columns = load.columns
            if load.note:
                self._log(f"{self._target}: {load.note}")
        loaded = _load_columns(columns, structure.columns, load)
        aliases = observation.inventory.aliases
        refresh, target = self._refresh, self._target
        return StagePlan(
            digest=digest(
                "dpone/stage-plan.v1",
                self._access.source.identity(),
                [target.cluster, target.database, target.table],
                schema_digest(structure.definition),
                [[column.name, column.carrier, column.target] for column in loaded],
                [refresh.replication_mode, refresh.on_schema_change],
            ),
            schema_difference=tuple(str(difference) for difference in structure.differences),
            payload=Planned(
                structure.definition, columns, loaded, aliases, _known_settings(observation), selects
            ),
        )

    def require_source(self, plan: StagePlan, alias: str, server: Server) -> None:
        """Check that another server, which is the one to read the source, may read it and sees the same columns.

        :param alias: of that server.
        :raises Stopped: ``MISSING_GRANT``, ``BAD_INPUT``; ``SCHEMA_MISMATCH``: the query has other columns there.
        """
        planned = planned_of(plan)
        if not planned.selects:
            if stop := self._grants.check_directly({alias: server}, table_functions=True):
                raise Stopped(stop)
            return
        if self._columns_on(server) != planned.source_columns:
            raise stop_with(
                Code.SCHEMA_MISMATCH,
                f"The source's query has other columns on {alias}, which is to read it, than on the server that was "
                "asked first.",
                facts={"replica": alias},
            )

    def _columns_on(self, server: Server) -> tuple[SourceColumn, ...]:
        def described(sql: str) -> tuple[SourceColumn, ...]:
            doing = "Describing the source's query"
            rows = self._read(doing, f"DESCRIBE TABLE (\n{sql}\n)", Code.BAD_INPUT, server)
            return tuple(SourceColumn(str(row["name"]), str(row["type"])) for row in rows)

        return self._access.columns(described)

    def _live(self, observation: Observation) -> TableDefinition | None:
        table = observation.table(self._target.table)
        if table is None:
            return None
        try:
            definition = parse(table.create_query)
        except DefinitionError as error:
            raise stop_with(Code.UNSUPPORTED_TARGET, f"{self._target} can't be rebuilt: {error}.") from None
        if refusal := admit_engine(definition, self._engine):
            raise stop_with(Code.UNSUPPORTED_TARGET, f"{self._target} can't be replaced: {refusal.message}.")
        return definition

    def _structure(
        self,
        live: TableDefinition | None,
        load: SelectLoad | StreamLoad | RowsLoad,
        columns: tuple[SourceColumn, ...],
    ) -> StructurePlan:
        """Decide the candidate's structure and which of its columns the source fills."""
        mode = self._refresh.on_schema_change
        given = self._given() if live is None or mode != "refuse" else None
        named = not isinstance(load, StreamLoad) or _named(load, columns, live, given)
        match plan_structure(live, given, [(column.name, column.type) for column in columns], mode):
            case StructurePlan() as structure:
                if refusal := admit_engine(structure.definition, self._engine):
                    raise stop_with(
                        Code.STRUCTURE_REFUSED, f"The structure can't be used: {refusal.message}."
                    )
                return structure
            case StructureRefusal() as refused:
                raise _structure_refused(refused, self._target, len(columns), named=named)

    def _given(self) -> TableDefinition | None:
        """Return what the DAG author wrote, in the server's own words."""
        refresh = self._refresh
        doing = "Reading the given structure"
        try:
            if refresh.structure is not None:
                text = structure_text(refresh.structure, self._engine)
            elif refresh.ddl is not None:
                text = ddl_text(refresh.ddl)
            else:
                return None
            ((formatted,),) = (row.values() for row in self._read(doing, format_query(text)))
            definition = from_ddl(str(formatted), self._engine)
            rows = self._read(doing, describe_columns(definition))
            return described(definition, [{name: str(value) for name, value in row.items()} for row in rows])
        except DefinitionError as error:
            raise stop_with(Code.STRUCTURE_REFUSED, f"The given structure can't be used: {error}.") from None

    def _read(
        self, doing: str, sql: str, refused: Code = Code.STRUCTURE_REFUSED, server: Server | None = None
    ) -> list[dict[str, object]]:
        """Ask a server about something that the DAG author wrote; an error is an answer to that."""
        try:
            return (server or self._server).read(sql, timeout=_ASK_SECONDS).dicts()
        except ServerError as error:
            if error.code == ErrorCode.ACCESS_DENIED:
                raise self._denied(error, doing) from None
            if error.code in _BUSY_CODES:
                raise stopped(error, doing) from None
            raise stop_with(
                refused,
                f"{doing} failed: {summary(error)}.",
                facts={"exception_code": error.code, "exception_name": error.name},
            ) from None
        except (ConnectFailed, ReplyLost) as error:
            raise stopped(error, doing) from None

    def _denied(self, error: ServerError, doing: str) -> Stopped:
        """Name the grant, where it is the one that some releases want for ``input()`` and ``null()``."""
        stop = self._grants.lacking([READ_ON_FILE]) if error.mentions(str(READ_ON_FILE)) else None
        return stopped(error, doing) if stop is None else Stopped(stop)


def check_created(planned: Planned, name: str, uuids: Mapping[str, str], observation: Observation) -> None:
    """Compare a created table with the plan, clause by clause, on each replica that should have it.

    :param uuids: alias -> UUID of the table there.
    :raises Stopped: ``CANDIDATE_DIFFERS``, with the clauses per replica.
    """
    wanted = planned.definition
    problems: dict[str, dict[str, Json]] = {}
    for alias, uuid in uuids.items():
        facts = observation.replicas.get(alias)
        table = facts.tables.get(name) if facts else None
        if table is None:
            problems[alias] = {"exists": False}
        elif table.uuid != uuid:
            problems[alias] = {"uuid": table.uuid}
        else:
            try:
                found = differences(wanted, parse(table.create_query))
            except DefinitionError:
                problems[alias] = {"readable": False}
                continue
            if found:
                problems[alias] = {difference.clause: _how(difference) for difference in found}
    if problems:
        clauses = dict.fromkeys(clause for found in problems.values() for clause in found)
        raise stop_with(
            Code.CANDIDATE_DIFFERS,
            f"The candidate is not what was asked for on {', '.join(problems)}: {', '.join(clauses)}.",
            replicas=problems,
        )


def _known_settings(observation: Observation) -> frozenset[str]:
    """Return the settings of a load that every replica knows."""
    known = [facts.known_settings for facts in observation.replicas.values()]
    return frozenset.intersection(*known) if known else frozenset()


def _load_columns(
    source: Sequence[SourceColumn], table: Sequence[ColumnDefinition], load: SelectLoad | StreamLoad
) -> tuple[LoadColumn, ...]:
    """Match each source column with its column of the table, and prove that the type can be carried."""
    columns: list[LoadColumn] = []
    refused: list[LoadColumn] = []
    for given, column in zip(source, table, strict=True):
        carrier = given.type
        if carrier is None and isinstance(load, StreamLoad):
            try:
                carrier = text_carrier(column.type, load.format)
            except InexactTypeError:
                refused.append(LoadColumn(given.name, f"{load.format} text", column.type))
                continue
        columns.append(LoadColumn(given.name, carrier or column.type, column.type, given.encoding))
    try:
        exact_select(columns)
    except InexactTypeError as error:
        refused.extend(error.columns)
    if refused:
        pairs = "; ".join(f"{identifier(c.name)}: {c.carrier} into {c.target}" for c in refused)
        raise stop_with(
            Code.TYPE_NOT_EXACT,
            f"Types that can't be carried exactly: {pairs}.",
            facts={"columns": [column.name for column in refused]},
        )
    return tuple(columns)


def _named(
    load: StreamLoad,
    columns: Sequence[SourceColumn],
    live: TableDefinition | None,
    given: TableDefinition | None,
) -> bool:
    """Tell whether the columns' names may be shown. A first record that is no header holds values.

    It is taken for a header if most of it are names that the table or the given structure has.

    :raises Stopped: ``BAD_INPUT``: none of it is.
    """
    if not load.names_from_data:
        return True
    tables = [table for table in (live, given) if table is not None]
    known = sum(any(table.column(column.name) for table in tables) for column in columns)
    if tables and not known:
        raise stop_with(
            Code.BAD_INPUT,
            f"The first record of the {load.format} file names no column of the table, so it seems to be no "
            "header.",
        )
    return known * 2 > len(columns)


def _structure_refused(refused: StructureRefusal, target: Target, columns: int, *, named: bool) -> Stopped:
    match refused.reason:
        case "structure_missing":
            code = Code.STRUCTURE_MISSING
        case "duplicate_columns":
            code = Code.BAD_INPUT
        case _:
            code = Code.SCHEMA_MISMATCH
    if not named:
        return stop_with(code, f"{target}: {_unnamed(refused, columns)}")
    facts: dict[str, Json] = {}
    if refused.source_only or refused.table_only:
        facts = {"source_only": list(refused.source_only), "table_only": list(refused.table_only)}
    hint = f" For example:\n{refused.suggestion}" if refused.suggestion else ""
    return stop_with(code, f"{target}: {refused.message}.{hint}", facts=facts)


def _unnamed(refused: StructureRefusal, columns: int) -> str:
    """Say why there is no plan without the names of the source's columns."""
    why = "They are not shown, since they may be the values of a first row"
    hint = f"{why}: give options={{'header': False, 'columns': [...]}} if the file has no header."
    if refused.reason == "structure_missing":
        return f"{refused.message}. The file's first record has {columns} field(s). {hint}"
    return (
        f"the table and the file's first record, of {columns} field(s), have different columns: "
        f"{len(refused.source_only)} in the record only. {hint}"
    )


def planned_of(plan: StagePlan) -> Planned:
    if not isinstance(plan.payload, Planned):
        raise TypeError("the plan was made by another adapter")
    return plan.payload


def _how(difference: ClauseDifference) -> str:
    """Say how a clause differs, without its text: a default may hold anything."""
    match difference.expected, difference.actual:
        case "", _:
            return "added"
        case _, "":
            return "missing"
        case _:
            return "changed"
