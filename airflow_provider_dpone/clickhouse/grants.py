"""The grants that a refresh needs, and which of them the connection's user lacks.

They are asked for before anything is changed: a user who may swap a table and not read the queue would
leave a swap that nobody can follow.

The server is asked for the effective grants in one statement, ``SHOW GRANTS WITH IMPLICIT FINAL``, and only
for what seems missing a ``CHECK GRANT`` follows: some checks are switched off by the server's configuration,
which only that statement knows. Servers before these statements (24.8 is one) show the grants of the user
and of the enabled roles. There a grant that the configuration may make superfluous is not asked for.

Statements on the cluster are checked by the server that gets them, and run with full rights on the others.
Reads are checked on every replica, and fail there by themselves.

Independent tables are told directly what to do, so there each replica asks for the grants of that, by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Final

from airflow_provider_dpone.clickhouse.control_table import ControlTable
from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ErrorCode, ReplyLost, ServerError, stopped
from airflow_provider_dpone.clickhouse.server import Server
from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    Token,
    TokenKind,
    identifier,
    qualified,
    tokens,
    unquote,
)
from airflow_provider_dpone.publication.identity import candidate_name
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped
from airflow_provider_dpone.routes.ports import Target

EVERYWHERE: Final = "*.*"

_PARENTS: Final = {
    "ALTER UPDATE": "ALTER TABLE",
    "ALTER TABLE": "ALTER",
    "CREATE TEMPORARY TABLE": "CREATE ARBITRARY TEMPORARY TABLE",
    "CREATE ARBITRARY TEMPORARY TABLE": "CREATE",
    "CREATE DATABASE": "CREATE",
    "CREATE TABLE": "CREATE",
    "DROP TABLE": "DROP",
    "REMOTE": "SOURCES",
    "SHOW TABLES": "SHOW",
}
"""The group that each privilege belongs to, as ``system.privileges`` has it; all belong to ALL."""


@dataclass(frozen=True, slots=True)
class RequiredGrant:
    """One privilege that is needed.

    :ivar scope: what it is needed on, as GRANT writes it.
    :ivar why: what it is needed for.
    :ivar names: the exact tables that it is needed on, where less than the scope would do.
    :ivar configurable: the server's release or configuration may make it superfluous.
    :ivar probe: a statement that reads no data and changes nothing, which is refused without the grant. It decides
        where a release may want the grant or not.
    """

    privilege: str
    scope: str
    why: str
    database: str = ""
    names: tuple[str, ...] = ()
    configurable: bool = False
    probe: str = ""

    def __str__(self) -> str:
        return f"{self.privilege} ON {self.scope}"


READ_ON_FILE: Final = RequiredGrant(
    "READ",
    "FILE",
    "load a file, and read a given structure: input() and null(), which read no file of the server",
    configurable=True,
    probe="DESCRIBE TABLE input('x String')",
)
"""Releases from about 26.9 want it for table functions that make rows out of nothing. Older ones don't."""


def _engine(name: str, why: str) -> RequiredGrant:
    """Return the grant to create a table of an engine: whether it is needed is a matter of a server's configuration."""
    return RequiredGrant("TABLE ENGINE", name, why, configurable=True)


ENGINE_OF_ITS_OWN: Final = _engine("MergeTree", "create a table on a replica")


def required_grants(
    target: Target,
    control: ControlTable | None = None,
    *,
    table_functions: bool = False,
    independent: bool = False,
) -> tuple[RequiredGrant, ...]:
    """Return what stage, publish and cleanup of one table need. What the source reads comes on top.

    A prefix grant on the table (``mart.orders*``) is enough where ``mart.*`` is written: candidates have
    the table's name in front.

    :param table_functions: a file is loaded, or ``structure=`` or ``ddl=`` is read.
    :param independent: the tables don't replicate themselves, so that every replica is told directly what to do.
        A load is then ended where it runs, which needs no grant: the query is the user's own.
    """
    control = control or ControlTable()
    names = (target.table, candidate_name(target.table, ""))
    in_database = f"{identifier(target.database)}.*"

    def on_target(privilege: str, why: str) -> RequiredGrant:
        return RequiredGrant(privilege, in_database, why, target.database, names)

    def on_control(privilege: str, why: str) -> RequiredGrant:
        return RequiredGrant(privilege, control.qualified, why, control.database, (control.name,))

    def on_system(table: str, why: str) -> RequiredGrant:
        return RequiredGrant("SELECT", qualified("system", table), why, "system", (table,), configurable=True)

    swap = "rename; swap" if independent else "swap"
    kill = RequiredGrant("KILL QUERY", EVERYWHERE, "end the own load when its task is ended")
    return (
        RequiredGrant("CLUSTER", EVERYWHERE, "send statements to all replicas", configurable=True),
        RequiredGrant("REMOTE", EVERYWHERE, "read all replicas in one statement"),
        RequiredGrant("CREATE TEMPORARY TABLE", EVERYWHERE, "use the table functions of such a statement"),
        *(() if independent else (kill,)),
        on_system("clusters", "know the replicas"),
        on_system("replicas", "know the state of replication"),
        on_system("distributed_ddl_queue", "follow the one statement that makes new data live"),
        on_system("processes", "find the own load when its reply was lost"),
        on_control("SELECT", "read the control record"),
        on_control("INSERT", "create the control record"),
        on_control("ALTER UPDATE", "move the control record by compare-and-swap"),
        on_target("SELECT", f"compare contents; {swap}"),
        on_target("INSERT", f"load the candidate; {swap}"),
        on_target("CREATE TABLE", f"create the candidate; {swap}"),
        on_target("DROP TABLE", f"drop candidates and predecessors; {swap}"),
        ENGINE_OF_ITS_OWN if independent else _engine("ReplicatedMergeTree", "create the candidate"),
        *((READ_ON_FILE,) if table_functions else ()),
    )


def needed_directly(grants: Iterable[RequiredGrant], database: str) -> tuple[RequiredGrant, ...]:
    """Return those of the grants for which every independent replica asks by itself.

    They create, load, rename, compare and drop its tables, and look for the own load.
    """
    return tuple(
        grant
        for grant in grants
        if grant.database == database
        or grant.names == ("processes",)
        or grant in (ENGINE_OF_ITS_OWN, READ_ON_FILE)
    )


def required_grants_of_init(control: ControlTable | None = None) -> tuple[RequiredGrant, ...]:
    """Return what ``airflow dpone init`` needs, which is run once, preferably as an administrator."""
    control = control or ControlTable()
    in_database = f"{identifier(control.database)}.*"

    def on_control(privilege: str, why: str) -> RequiredGrant:
        return RequiredGrant(privilege, in_database, why, control.database, (control.name,))

    everywhere = required_grants(Target("", control.database, control.name), control)
    return (
        *(
            grant
            for grant in everywhere
            if grant.database in ("", "system") and grant.privilege not in ("KILL QUERY", "TABLE ENGINE")
        ),
        RequiredGrant("SHOW TABLES", EVERYWHERE, "see whether published tables exist"),
        on_control("CREATE DATABASE", "create the control table's database"),
        on_control("CREATE TABLE", "create the control table"),
        on_control("SELECT", "prove it on every replica"),
        on_control("INSERT", "write the authority row"),
        _engine("KeeperMap", "create the control table"),
    )


def statements(grants: Iterable[RequiredGrant], user: str) -> tuple[str, ...]:
    """Return the GRANT statements that give all of these to ``user``."""
    return tuple(
        f"GRANT {', '.join(grant.privilege for grant in group)} ON {scope} TO {identifier(user)}"
        for scope, group in groupby(grants, key=lambda grant: grant.scope)
    )


# ---- what the user has


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A name, or all names that begin with ``prefix``."""

    prefix: str
    open_end: bool

    def covers(self, name: str) -> bool:
        return name.startswith(self.prefix) if self.open_end else name == self.prefix


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """One privilege on one scope, as SHOW GRANTS shows it; ``revoked`` for a REVOKE that cuts out a part.

    :ivar database: pattern of the database, or of the object of a privilege without database.
    :ivar table: pattern of the table; ``None`` for a privilege without database.
    """

    privilege: str
    database: _Pattern
    table: _Pattern | None
    revoked: bool = False

    def covers(self, privilege: str, database: str, table: str) -> bool:
        """Tell whether it gives (or takes) ``privilege`` on a table, or everywhere if both are empty."""
        if privilege not in _with_members(self.privilege):
            return False
        if not database:
            return self.table == self.database == _Pattern("", open_end=True)
        return self.table is not None and self.database.covers(database) and self.table.covers(table)


def parse_grants(lines: Iterable[str]) -> tuple[HeldGrant, ...]:
    """Read the answer to SHOW GRANTS.

    What can't be read, and grants on single columns, are left out: they give nothing that is needed.
    """
    return tuple(held for line in lines for held in _parse_line(line))


def missing(required: Sequence[RequiredGrant], held: Sequence[HeldGrant]) -> tuple[RequiredGrant, ...]:
    """Return what of ``required`` the held grants don't give."""
    return tuple(grant for grant in required if not _is_held(grant, held))


def missing_grants(server: Server, required: Sequence[RequiredGrant]) -> tuple[RequiredGrant, ...]:
    """Return which grants the connection's user lacks on the contacted server.

    :raises Stopped: the server can't be asked.
    """
    try:
        held, legacy = _held(server)
        return tuple(grant for grant in missing(required, held) if not _is_granted(server, grant, legacy))
    except (ServerError, ConnectFailed, ReplyLost) as error:
        raise stopped(error, "Asking for the user's grants") from None


@dataclass(frozen=True, slots=True)
class Grants:
    """The grants of one target, for admission and preflight.

    :ivar independent: as for :func:`required_grants`.
    """

    server: Server
    target: Target
    control: ControlTable = field(default_factory=ControlTable)
    independent: bool = False

    def required(self, *, table_functions: bool = False) -> tuple[str, ...]:
        """Return the GRANT statements that a refresh of this target needs.

        :param table_functions: a file is loaded, or ``structure=`` or ``ddl=`` is read.
        """
        return statements(self._required(table_functions), self.server.user)

    def check(self, *, table_functions: bool = False) -> Stop | None:
        """Return what is missing as ``MISSING_GRANT``, or ``None``.

        :param table_functions: as for :meth:`required`.
        :raises Stopped: the server can't be asked.
        """
        return self.lacking(missing_grants(self.server, self._required(table_functions)))

    def check_directly(self, servers: Mapping[str, Server], *, table_functions: bool = False) -> Stop | None:
        """Return what is missing on an independent replica as ``MISSING_GRANT``, or ``None``.

        :param servers: a connection to each replica.
        :param table_functions: as for :meth:`required`.
        :raises Stopped: a replica can't be asked.
        """
        needed = needed_directly(self._required(table_functions), self.target.database)
        for alias, server in servers.items():
            if stop := self.lacking(missing_grants(server, needed)):
                return replace(
                    stop, message=f"{alias}: {stop.message}", facts={**stop.facts, "replica": alias}
                )
        return None

    def lacking(self, lacking: Sequence[RequiredGrant]) -> Stop | None:
        """Return ``MISSING_GRANT`` for these, or ``None`` if there are none."""
        if not lacking:
            return None
        needs = "; ".join(f"{grant} (to {grant.why})" for grant in lacking)
        return Stop(
            Code.MISSING_GRANT,
            f"The user {self.server.user!r} lacks {needs}.",
            next_action=f"{'; '.join(statements(lacking, self.server.user))}.",
            facts={"missing": [str(grant) for grant in lacking]},
        )

    def require(self, *, table_functions: bool = False) -> None:
        """Stop if a grant is missing.

        :param table_functions: as for :meth:`required`.
        :raises Stopped: ``MISSING_GRANT``; the server can't be asked.
        """
        if stop := self.check(table_functions=table_functions):
            raise Stopped(stop)

    def _required(self, table_functions: bool) -> tuple[RequiredGrant, ...]:
        return required_grants(
            self.target, self.control, table_functions=table_functions, independent=self.independent
        )


def _held(server: Server) -> tuple[tuple[HeldGrant, ...], bool]:
    """Return the effective grants, and whether the server is one that can't tell all of them."""
    try:
        return parse_grants(_lines(server, "SHOW GRANTS WITH IMPLICIT FINAL")), False
    except ServerError as error:
        if error.code != ErrorCode.SYNTAX_ERROR:
            raise
    [[roles]] = server.read("SELECT enabledRoles()").rows
    named = [identifier(str(role)) for role in roles] if isinstance(roles, list) else []
    return parse_grants(_lines(server, f"SHOW GRANTS FOR {', '.join(['CURRENT_USER', *named])}")), True


def _lines(server: Server, sql: str) -> list[str]:
    return [str(row[0]) for row in server.read(sql).rows]


def _is_granted(server: Server, grant: RequiredGrant, legacy: bool) -> bool:
    """Ask the server itself about a grant that SHOW GRANTS doesn't show."""
    if grant.probe:
        return _is_allowed(server, grant.probe)
    if legacy:
        return grant.configurable
    scopes = [qualified(grant.database, name) for name in grant.names] if grant.names else [grant.scope]
    return all(_check_grant(server, f"{grant.privilege} ON {scope}") for scope in scopes)


def _is_allowed(server: Server, probe: str) -> bool:
    try:
        server.read(probe)
    except ServerError as error:
        if error.code != ErrorCode.ACCESS_DENIED:
            raise
        return False
    return True


def _check_grant(server: Server, grant: str) -> bool:
    try:
        [[answer]] = server.read(f"CHECK GRANT {grant}").rows
    except ServerError as error:
        if error.code != ErrorCode.ACCESS_DENIED:
            raise
        # Who may not even ask does not have it.
        return False
    return str(answer) == "1"


def _is_held(grant: RequiredGrant, held: Sequence[HeldGrant]) -> bool:
    if grant == READ_ON_FILE:
        return any(_reads(h, "FILE") for h in held)
    if grant.privilege == "TABLE ENGINE":
        return any(_creates(h, grant.scope) for h in held)
    if grant.privilege == "REMOTE" and any(_reads(h, "REMOTE") for h in held):
        return True
    if grant.privilege == "CREATE TEMPORARY TABLE" and any(
        not h.revoked and "CREATE TABLE" in _with_members(h.privilege) for h in held
    ):
        # Whoever may create a table anywhere may create temporary ones.
        return True
    return all(
        any(h.covers(grant.privilege, grant.database, name) for h in held if not h.revoked)
        and not any(h.covers(grant.privilege, grant.database, name) for h in held if h.revoked)
        for name in grant.names or ("",)
    )


def _reads(held: HeldGrant, source: str) -> bool:
    """Newer servers show FILE or REMOTE as READ and WRITE on the source of that name."""
    return (
        not held.revoked and held.privilege == "READ" and held.table is None and held.database.covers(source)
    )


def _creates(held: HeldGrant, engine: str) -> bool:
    if held.revoked or "TABLE ENGINE" not in _with_members(held.privilege):
        return False
    if held.table is None:
        return held.database.covers(engine)
    return held.table == held.database == _Pattern("", open_end=True)


@cache
def _with_members(group: str) -> frozenset[str]:
    """Return a privilege and those that it includes."""
    if group in ("ALL", "ALL PRIVILEGES"):
        return _ALL
    members = {group}
    while more := {child for child, parent in _PARENTS.items() if parent in members} - members:
        members |= more
    return frozenset(members)


_ALL: Final = frozenset(
    {
        *_PARENTS,
        *_PARENTS.values(),
        "CLUSTER",
        "INSERT",
        "KILL QUERY",
        "SELECT",
        "SHOW TABLES",
        "SHOW",
        "READ",
        "TABLE ENGINE",
    }
)


def _parse_line(line: str) -> Iterator[HeldGrant]:
    try:
        found = list(tokens(line))
    except SqlSyntaxError:
        return
    verb = found[0].text if found else ""
    on = next((at for at, token in enumerate(found) if token.depth == 0 and token.is_word("ON")), None)
    if verb not in ("GRANT", "REVOKE") or on is None:
        return
    scope = _scope(found[on + 1 :])
    if scope is None:
        return
    words: list[str] = []
    whole = True
    for token in [*found[1:on], Token(TokenKind.SYMBOL, ",", found[on].start, 0)]:
        if token.depth == 0 and token.is_symbol(","):
            if whole and words:
                yield HeldGrant(" ".join(words), *scope, revoked=verb == "REVOKE")
            words, whole = [], True
        elif token.kind is TokenKind.WORD and token.depth == 0:
            words.append(token.text)
        else:
            # A list of columns: less than what is asked for.
            whole = False


def _scope(found: Sequence[Token]) -> tuple[_Pattern, _Pattern | None] | None:
    """Read ``database.table`` or one name, each with ``*`` for an open end, up to TO or FROM."""
    end = next((at for at, token in enumerate(found) if token.is_word("TO", "FROM")), len(found))
    parts: list[list[Token]] = [[]]
    for token in found[:end]:
        if token.is_symbol("."):
            parts.append([])
        else:
            parts[-1].append(token)
    patterns = [_pattern(part) for part in parts]
    match patterns:
        case [_Pattern() as only]:
            return only, None
        case [_Pattern() as database, _Pattern() as table]:
            return database, table
        case _:
            return None


def _pattern(found: Sequence[Token]) -> _Pattern | None:
    match found:
        case [star] if star.is_symbol("*"):
            return _Pattern("", open_end=True)
        case [name] if name.kind in (TokenKind.WORD, TokenKind.IDENTIFIER):
            return _Pattern(unquote(name.text), open_end=False)
        case [name, star] if name.kind in (TokenKind.WORD, TokenKind.IDENTIFIER) and star.is_symbol("*"):
            return _Pattern(unquote(name.text), open_end=True)
        case _:
            return None
