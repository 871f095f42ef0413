"""What every replica shows, read in one statement.

The statement goes to one server, which asks every replica by ``clusterAllReplicas(cluster, view(...))``.
That numbers the replicas by its own ``system.clusters``, in order of shard and replica, so an answer is
mapped to its replica by construction and never by a host name that a server gives itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from airflow_provider_dpone.clickhouse import control_table
from airflow_provider_dpone.clickhouse.canonical_digest import (
    DIGEST_SETTINGS,
    canonical_digest_select,
    digest_settings,
)
from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.errors import (
    REPLICA_CODES,
    ConnectFailed,
    ErrorCode,
    ReplyLost,
    ServerError,
    stopped,
)
from airflow_provider_dpone.clickhouse.exact import LOAD_SETTINGS, content_digest_select
from airflow_provider_dpone.clickhouse.grants import Grants
from airflow_provider_dpone.clickhouse.progress import RunningQueries
from airflow_provider_dpone.clickhouse.replicas import (
    READ_SETTINGS,
    Answers,
    Fields,
    from_all_replicas,
    from_contacted,
    int_of,
    member_of,
    member_section,
    members_of,
    next_sequence,
    section,
    server_identity,
    server_section,
)
from airflow_provider_dpone.clickhouse.server import Server, Settings
from airflow_provider_dpone.clickhouse.sql import SqlSyntaxError, Token, TokenKind, string, tokens, unquote
from airflow_provider_dpone.clickhouse.table_comment import split_comment
from airflow_provider_dpone.clickhouse.table_definition import (
    INDEPENDENT_ENGINE,
    REPLICATED_ENGINE,
    ColumnDefinition,
    DefinitionError,
    TableDefinition,
    admit_engine,
    normalized_engine_full,
    parse,
    schema_digest,
)
from airflow_provider_dpone.publication.canonical import digest
from airflow_provider_dpone.publication.content import CanonicalDigest
from airflow_provider_dpone.publication.decide import ContentCheck
from airflow_provider_dpone.publication.facts import (
    ControlFacts,
    Dependent,
    Observation,
    ReplicaFacts,
    Replication,
    TableFacts,
)
from airflow_provider_dpone.publication.identity import target_key
from airflow_provider_dpone.publication.inventory import Inventory, admit
from airflow_provider_dpone.publication.record import (
    SENTINEL_KEY,
    Content,
    ContentDigest,
    Row,
    StoredRecord,
    decode,
)
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.ports import Target

OBSERVE_TIMEOUT: Final = 60.0
"""How many seconds one look at the cluster may take."""

CONTENT_TIMEOUT: Final = 4 * 3600.0
"""How many seconds the content digest of a table may take."""

_ASKED: Final = frozenset({*LOAD_SETTINGS, *DIGEST_SETTINGS})
_ASKED_SETTINGS: Final = sorted(_ASKED)

NOTHING_LOADED: Final = 2**32 - 1
"""As the moment of its last load: a dictionary that holds no rows which could be old. Used, it asks the table."""

_NO_CONTROL_ROWS: Final = frozenset(
    {ErrorCode.UNKNOWN_TABLE, ErrorCode.UNKNOWN_DATABASE, ErrorCode.UNKNOWN_IDENTIFIER}
)
"""Codes that mean that the control table, or a column of it, is not there on some replica."""

_PATIENCE_BETWEEN_REPLICAS: Final[Settings] = {
    # A replica that accepts a connection and is then silent must not hold the others up for long.
    "receive_timeout": 20,
    "send_timeout": 20,
}


@dataclass(slots=True)
class Catalog:
    """Looks at all replicas; implements :class:`routes.ports.Catalog`.

    :ivar internal_replication: what the route needs the cluster to be configured for; ``None``: either.
    :ivar fewest_replicas: with fewer, a look is refused; operators may look at a single one that is left.
    :ivar running: where a comparison is found by whoever stops the task.
    """

    server: Server
    target: Target
    control: ControlTable = field(default_factory=ControlTable)
    internal_replication: bool | None = True
    content_timeout: float = CONTENT_TIMEOUT
    fewest_replicas: int = 2
    running: RunningQueries = field(default_factory=RunningQueries)
    _inventory: Inventory | None = None
    _columns: dict[str, tuple[ColumnDefinition, ...]] = field(default_factory=dict)
    _settings: frozenset[str] = frozenset()

    @property
    def inventory(self) -> Inventory:
        """The replicas as the last :meth:`observe` found them."""
        if self._inventory is None:
            raise RuntimeError("nothing was observed yet")
        return self._inventory

    def observe(self, tables: Collection[str]) -> Observation:
        """Look at all replicas in one statement; see :meth:`routes.ports.Catalog.observe`.

        A second statement is needed only where the first one can't work: a replica is away, or the
        control table doesn't exist somewhere.
        """
        # As long as nothing is known of the control table, the statement assumes that it exists.
        return self._observe(tables, with_rows=True)

    def observe_tables(self, tables: Collection[str]) -> Observation:
        """Look at tables without the control table's rows; see :meth:`routes.ports.Tables.observe_tables`."""
        return self._observe(tables, with_rows=False)

    def _observe(self, tables: Collection[str], *, with_rows: bool) -> Observation:
        names = sorted({*tables})
        without_unreachable = False
        while True:
            sequence = next_sequence()
            try:
                reply = self.server.read(
                    self._statement(names, with_rows=with_rows),
                    settings={
                        **READ_SETTINGS,
                        **_PATIENCE_BETWEEN_REPLICAS,
                        "skip_unavailable_shards": without_unreachable,
                    },
                    timeout=OBSERVE_TIMEOUT,
                )
            except ServerError as error:
                if error.code == ErrorCode.CLUSTER_DOESNT_EXIST:
                    raise Stopped(
                        Stop(
                            Code.UNKNOWN_CLUSTER,
                            f"The server knows no cluster named {self.target.cluster!r}.",
                            facts={"cluster": self.target.cluster},
                        )
                    ) from None
                if error.code in _NO_CONTROL_ROWS and with_rows:
                    with_rows = False
                elif error.code in REPLICA_CODES and not without_unreachable:
                    without_unreachable = True
                else:
                    raise self._not_seen(error) from None
            except (ConnectFailed, ReplyLost) as error:
                raise stopped(error, "Looking at the replicas") from None
            else:
                return self._observation(sequence, names, Answers.of(reply.rows))

    def _not_seen(self, error: ServerError) -> Stopped:
        """Map an error of a look; where a grant is missing, tell all that are, and not one at a time."""
        if error.code == ErrorCode.ACCESS_DENIED:
            independent = self.internal_replication is False
            grants = Grants(self.server, self.target, self.control, independent=independent)
            if (stop := grants.check()) is not None:
                return Stopped(stop)
        return stopped(error, "Looking at the replicas")

    def content(self, table: str) -> ContentCheck:
        """Compute the content digest of ``table`` on every replica; see :meth:`routes.ports.Catalog.content`."""
        if table not in self._columns:
            self.observe([table])
        if (columns := self._columns.get(table)) is None:
            raise Stopped(Stop(Code.CANDIDATE_DIFFERS, f"Table {table!r} is not there to be compared."))
        independent = self.inventory.independent
        database, settings = self.target.database, READ_SETTINGS
        if independent:
            select = canonical_digest_select(database, table, columns)
            settings = {**READ_SETTINGS, **digest_settings(select, self._settings)}
        else:
            select = content_digest_select(database, table, [column.name for column in columns])
        sequence = next_sequence()
        try:
            with self.running.reading(self.server, self.target.cluster, self.inventory.aliases) as query_id:
                reply = self.server.read(
                    "SELECT toUInt32(_shard_num) AS replica, * "
                    f"FROM clusterAllReplicas({string(self.target.cluster)}, "
                    f"view({select}))",
                    settings={**settings, "skip_unavailable_shards": 0},
                    timeout=self.content_timeout,
                    query_id=query_id,
                )
        except ServerError as error:
            if error.code == ErrorCode.UNKNOWN_TABLE:
                raise Stopped(
                    Stop(Code.CANDIDATE_DIFFERS, f"Table {table!r} is missing on a replica.")
                ) from None
            raise stopped(error, f"Computing the content of {table!r}") from None
        except (ConnectFailed, ReplyLost) as error:
            raise stopped(error, f"Computing the content of {table!r}") from None
        found: dict[str, Content] = {}
        for replica, rows, *sums in reply.rows:
            kind = CanonicalDigest if independent else ContentDigest
            found[self.inventory.aliases[int(str(replica)) - 1]] = kind(int(str(rows)), *map(str, sums))
        if missing := [alias for alias in self.inventory.aliases if alias not in found]:
            raise Stopped(
                Stop(Code.REPLICA_NOT_OBSERVED, f"{', '.join(missing)} gave no content digest of {table!r}.")
            )
        return ContentCheck(sequence, found)

    def dictionary_loads(self, dictionaries: Collection[Dependent]) -> dict[str, dict[Dependent, int]]:
        """Tell when each replica loaded each dictionary; see :meth:`routes.ports.Catalog.dictionary_loads`."""
        named = ", ".join(f"({string(one.database)}, {string(one.table)})" for one in dictionaries)
        holds_none = "(status = 'NOT_LOADED' OR type LIKE '%Direct')"
        loaded = section(
            "dictionary",
            {
                "database": "database",
                "table": "name",
                "began": f"if({holds_none}, {NOTHING_LOADED}, toUnixTimestamp(loading_start_time))",
            },
            f"FROM system.dictionaries WHERE (database, name) IN ({named}) "
            f"AND ({holds_none} OR status = 'LOADED' AND last_exception = '')",
        )
        try:
            reply = self.server.read(
                from_all_replicas(self.target.cluster, [loaded]),
                settings={**READ_SETTINGS, **_PATIENCE_BETWEEN_REPLICAS, "skip_unavailable_shards": 1},
                timeout=OBSERVE_TIMEOUT,
            )
        except (ServerError, ConnectFailed, ReplyLost) as error:
            raise stopped(error, "Looking at dictionaries") from None
        answers = Answers.of(reply.rows)
        known = {(one.database, one.table): one for one in dictionaries}
        return {
            alias: {
                known[fields["database"] or "", fields["table"] or ""]: int_of(fields["began"])
                for fields in answers.all(number, "dictionary")
            }
            for number, alias in enumerate(self.inventory.aliases, start=1)
        }

    # ---- the statement

    def _statement(self, names: Sequence[str], *, with_rows: bool) -> str:
        database = string(self.target.database)
        in_database = f"WHERE database = {database}"
        named = ", ".join(string(name) for name in names)
        per_replica = [
            server_section(),
            # currentUser() would be who asked, wherever it runs. Here it is who may do what on that server.
            section("user", {"user": "user"}, "FROM system.processes WHERE query_id = queryID()"),
            member_section(self.target.cluster),
            section("database", {"engine": "engine"}, f"FROM system.databases WHERE name = {database}"),
            section("visible", {"name": "name"}, f"FROM system.tables {in_database} LIMIT 1"),
            section(
                "settings",
                {"known": "arrayStringConcat(groupArray(name), ',')"},
                # One literal for all names: with one for each, a tenth of the look was spent on understanding them.
                f"FROM system.settings WHERE name IN splitByChar(',', {string(','.join(_ASKED_SETTINGS))})",
            ),
            *control_table.structure_sections(self.control),
        ]
        if names:
            per_replica += [
                section(
                    "table",
                    {name: name for name in _TABLE_FIELDS},
                    f"FROM system.tables {in_database} AND name IN ({named})",
                ),
                section(
                    "replication",
                    {name: name for name in _REPLICATION_FIELDS},
                    f"FROM system.replicas {in_database} AND table IN ({named})",
                ),
            ]
        if with_rows:
            per_replica.append(
                control_table.rows_section(self.control, self.target.database, self.target.table)
            )
        contacted = [
            member_section(self.target.cluster),
            section("clock", {"now": "toUnixTimestamp(now())"}, "FROM system.one"),
            *_dependent_sections(self.target),
        ]
        return f"{from_all_replicas(self.target.cluster, per_replica)} UNION ALL {from_contacted(contacted)}"

    # ---- the answer

    def _observation(self, sequence: int, names: Sequence[str], answers: Answers) -> Observation:
        members = members_of(answers.all(0, "member"))
        internal = self.internal_replication
        if internal is None:
            internal = bool(members) and members[0].internal_replication
        inventory = admit(
            self.target.cluster, members, internal_replication=internal, fewest=self.fewest_replicas
        )
        if isinstance(inventory, Stop):
            raise Stopped(inventory)
        if any(number > len(members) for number in answers.replicas):
            raise Stopped(_drift(f"More replicas answered than cluster {self.target.cluster!r} lists."))
        self._inventory = inventory

        engine = REPLICATED_ENGINE if internal else INDEPENDENT_ENGINE
        replicas: dict[str, ReplicaFacts] = {}
        stored: StoredRecord | None = None
        for number, alias in enumerate(inventory.aliases, start=1):
            if number not in answers.replicas:
                continue
            facts, record = self._replica(alias, number, answers, engine)
            replicas[alias] = facts
            # A version that any replica shows is stored in Keeper: the highest is the newest.
            if record is not None and (stored is None or record.version > stored.version):
                stored = record
        self._settings = _ASKED.intersection(*(facts.known_settings for facts in replicas.values()))
        if not replicas:
            raise Stopped(Stop(Code.SERVER_UNAVAILABLE, "No replica of the cluster answered."))
        for name in names:
            self._columns.pop(name, None)
        self._columns.update(_stored_columns(answers))
        clock = answers.one(0, "clock") or {}
        return Observation(
            sequence=sequence,
            server_time=int(clock.get("now") or 0),
            inventory=inventory,
            replicas=replicas,
            record=stored,
            dependents=_dependents(self.target, answers),
        )

    def _replica(
        self, alias: str, number: int, answers: Answers, engine: str
    ) -> tuple[ReplicaFacts, StoredRecord | None]:
        server = answers.one(number, "server")
        if server is None:
            raise Stopped(Stop(Code.REPLICA_NOT_OBSERVED, f"{alias} did not say which server it is."))
        listed = answers.all(number, "member")
        own = [member_of(fields).alias for fields in listed if fields["local"] == "1"]
        if len(own) == 1 and own != [alias]:
            raise Stopped(_drift(f"The server that answers as {alias} lists itself as {own[0]}."))
        database = answers.one(number, "database")
        control, stored = self._control(number, answers)
        replication = {fields["table"]: _replication(fields) for fields in answers.all(number, "replication")}
        facts = ReplicaFacts(
            alias=alias,
            server=server_identity(server),
            version=server["version"] or "",
            user=(answers.one(number, "user") or {}).get("user") or "",
            inventory_digest=Inventory(self.target.cluster, members_of(listed)).digest,
            database_engine=database["engine"] if database else None,
            sees_database=answers.one(number, "visible") is not None,
            known_settings=frozenset(((answers.one(number, "settings") or {}).get("known") or "").split(",")),
            tables={
                fields["name"] or "": _table(
                    fields,
                    replication.get(fields["name"]),
                    engine,
                )
                for fields in answers.all(number, "table")
            },
            control=control,
        )
        return facts, stored

    def _control(self, number: int, answers: Answers) -> tuple[ControlFacts, StoredRecord | None]:
        rows = {
            row.target_key: (row, version)
            for row, version in map(control_table.row_of, answers.all(number, "row"))
        }
        structure = control_table.structure_digest(
            answers.one(number, "control"), answers.all(number, "column")
        )
        sentinel = rows.pop(SENTINEL_KEY, None)
        if sentinel is None:
            return ControlFacts(structure, None, None, None), None
        authority_id, adopted = control_table.authority_of(sentinel[0])
        key = target_key(authority_id, self.target.database, self.target.table)
        found: tuple[Row, int] | None = rows.get(key)
        if found is None:
            return ControlFacts(structure, authority_id, None, None, adopted), None
        row, version = found
        stored = StoredRecord(decode(row), row.write_id, version)
        return ControlFacts(structure, authority_id, row.write_id, version, adopted), stored


_TABLE_FIELDS: Final = (
    "name",
    "uuid",
    "engine",
    "engine_full",
    "create_table_query",
    "comment",
    "total_rows",
    "total_bytes",
)
_REPLICATION_FIELDS: Final = (
    "table",
    "zookeeper_name",
    "zookeeper_path",
    "replica_name",
    "is_readonly",
    "is_session_expired",
    "queue_size",
    "log_max_index",
    "log_pointer",
    "total_replicas",
    "active_replicas",
    "lost_part_count",
    "zookeeper_exception",
)
_NAMING_ENGINES: Final = (
    "Alias",
    "Buffer",
    "Dictionary",
    "Distributed",
    "LiveView",
    "MaterializedView",
    "View",
    "WindowView",
)
"""Engines of objects that name another table."""


def _replication(fields: Fields) -> Replication:
    return Replication(
        zookeeper_name=fields["zookeeper_name"] or "",
        zookeeper_path=fields["zookeeper_path"] or "",
        replica_name=fields["replica_name"] or "",
        is_readonly=fields["is_readonly"] == "1",
        is_session_expired=fields["is_session_expired"] == "1",
        queue_size=int_of(fields["queue_size"]),
        log_max_index=int_of(fields["log_max_index"]),
        log_pointer=int_of(fields["log_pointer"]),
        total_replicas=int_of(fields["total_replicas"]),
        active_replicas=int_of(fields["active_replicas"]),
        lost_parts=int_of(fields["lost_part_count"]),
        keeper_error=bool(fields["zookeeper_exception"]),
    )


def _table(fields: Fields, replication: Replication | None, engine: str) -> TableFacts:
    create_query = fields["create_table_query"] or ""
    definition = _definition(create_query)
    mark = split_comment(fields["comment"] or "")[1]
    return TableFacts(
        uuid=fields["uuid"] or "",
        engine=fields["engine"] or "",
        engine_full=normalized_engine_full(definition) if definition else fields["engine_full"] or "",
        # A table that can't be read clause by clause can't be published to, and still has an identity.
        schema_digest=schema_digest(definition) if definition else digest("dpone/unread.v1", create_query),
        engine_refusal=_engine_refusal(definition, fields["engine"] or "", engine),
        create_query=create_query,
        comment_authority=(mark.authority_id or None) if mark else None,
        rows=None if fields["total_rows"] is None else int_of(fields["total_rows"]),
        bytes=None if fields["total_bytes"] is None else int_of(fields["total_bytes"]),
        replication=replication,
    )


def _engine_refusal(definition: TableDefinition | None, observed: str, engine: str) -> str | None:
    if definition is None:
        return (
            f"its engine is {observed}, not {engine}"
            if observed != engine
            else "its definition can't be read"
        )
    refusal = admit_engine(definition, engine)
    return refusal.message if refusal else None


@lru_cache(maxsize=64)
def _definition(create_query: str) -> TableDefinition | None:
    try:
        return parse(create_query)
    except DefinitionError:
        return None


def _stored_columns(answers: Answers) -> Iterator[tuple[str, tuple[ColumnDefinition, ...]]]:
    """Return the stored columns of each table, from the first replica that shows it."""
    seen: set[str] = set()
    for number in sorted(answers.replicas):
        for fields in answers.all(number, "table"):
            name = fields["name"] or ""
            definition = _definition(fields["create_table_query"] or "")
            if name not in seen and definition is not None:
                seen.add(name)
                yield name, definition.stored_columns


def _drift(message: str) -> Stop:
    return Stop(Code.INVENTORY_DRIFT, message)


# ---- what hangs on the target's name


def _dependent_sections(target: Target) -> tuple[str, ...]:
    engines = ", ".join(string(engine) for engine in _NAMING_ENGINES)
    mentions = (
        f"AND position(create_table_query, {string(target.table)}) > 0" if _is_plain(target.table) else ""
    )
    return (
        section(
            "dependent",
            {
                "database": "tupleElement(dependent, 1)",
                "table": "tupleElement(dependent, 2)",
            },
            "FROM (SELECT arrayJoin(arrayConcat(arrayZip(dependencies_database, dependencies_table), "
            "arrayZip(loading_dependent_database, loading_dependent_table))) AS dependent FROM system.tables "
            f"WHERE database = {string(target.database)} AND name = {string(target.table)})",
        ),
        section(
            "naming",
            {name: name for name in ("database", "name", "engine", "create_table_query")},
            # The server's own views name nobody's tables, and their long texts would be read each time.
            f"FROM system.tables WHERE engine IN ({engines}) AND lower(database) NOT IN "
            f"('system', 'information_schema') {mentions}",
        ),
    )


def _dependents(target: Target, answers: Answers) -> tuple[Dependent, ...]:
    engines: dict[tuple[str, str], str] = {}
    found: set[tuple[str, str]] = set()
    for fields in answers.all(0, "naming"):
        name = (fields["database"] or "", fields["name"] or "")
        engines[name] = fields["engine"] or ""
        if names_table(fields["create_table_query"] or "", target.database, target.table):
            found.add(name)
    for fields in answers.all(0, "dependent"):
        found.add((fields["database"] or "", fields["table"] or ""))
    found.discard((target.database, target.table))
    return tuple(
        Dependent(database, table, engines.get((database, table), "")) for database, table in sorted(found)
    )


@lru_cache(maxsize=1024)
def names_table(create_query: str, database: str, table: str) -> bool:
    """Tell whether a CREATE text of the server names ``database.table``.

    The server writes names in full. They stand side by side, joined by a dot (views) or a comma (engine
    arguments), or apart, as the two strings of a dictionary's source.
    """
    try:
        found = [token for token in tokens(create_query) if token.kind is not TokenKind.COMMENT]
    except SqlSyntaxError:
        return False
    for first, joint, second in zip(found, found[1:], found[2:], strict=False):
        if joint.is_symbol(".", ",") and (_value(first), _value(second)) == (database, table):
            return True
    words = [_value(token) for token in found]
    return all(
        any(word == key and value == wanted for word, value in itertools.pairwise(words))
        for key, wanted in (("TABLE", table), ("DB", database))
    )


def _value(token: Token) -> str | None:
    named = token.kind in (TokenKind.WORD, TokenKind.IDENTIFIER, TokenKind.STRING)
    return unquote(token.text) if named else None


def _is_plain(name: str) -> bool:
    return name.isascii() and name.replace("_", "a").isalnum()
