"""ON CLUSTER statements: which objects they name, which grants they need, and their text on each host.

All functions here are pure. They work on *canonical* text, that is what ``formatQuerySingleLine`` of a real server
makes of a statement: one line, no comments, keywords in capitals, one form per clause.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tests.cluster.sql import Kind, Token, quote_name, quote_string, tokenize

_TABLE_KINDS = ("TABLE", "VIEW", "DICTIONARY")
_DDL_WORDS = (
    *(
        "ALTER",
        "ATTACH",
        "BACKUP",
        "CHECK",
        "CREATE",
        "DELETE",
        "DETACH",
        "DROP",
        "EXCHANGE",
        "GRANT",
        "KILL",
    ),
    *("MOVE", "OPTIMIZE", "RENAME", "REPLACE", "RESTORE", "REVOKE", "SYSTEM", "TRUNCATE", "UNDROP", "UPDATE"),
)


class UnsupportedStatementError(ValueError):
    """The emulation does not know this form of ON CLUSTER statement."""


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A table, view or dictionary; `database` is empty until `qualify` has filled it."""

    database: str
    name: str
    start: int

    def __str__(self) -> str:
        return f"{quote_name(self.database)}.{quote_name(self.name)}"


@dataclass(frozen=True, slots=True)
class Grant:
    """A privilege on something, as CHECK GRANT and error 497 name it."""

    privilege: str
    target: str

    def __str__(self) -> str:
        return f"{self.privilege} ON {self.target}"


@dataclass(frozen=True, slots=True)
class OnClusterStatement:
    """A canonical statement that has an ON CLUSTER clause.

    Attributes:
        text: the whole statement.
        cluster: the cluster's name.
        clause: offsets of ``ON CLUSTER name`` in the text.
        action: what it does, such as CREATE, DROP, RENAME, EXCHANGE, ALTER.
        kind: on what: TABLE, VIEW, DICTIONARY, DATABASE, or empty.
        names: the objects it names; for RENAME and EXCHANGE in pairs.
        replaces: whether an existing object is replaced (CREATE OR REPLACE).
        engine: of a created table; empty if none is given.
        explicit_uuid: offsets of ``UUID '...'``, if there is one.
        commands: first keywords of each ALTER command.
    """

    text: str
    cluster: str
    clause: tuple[int, int]
    action: str
    kind: str = ""
    names: tuple[ObjectName, ...] = ()
    replaces: bool = False
    engine: str = ""
    explicit_uuid: tuple[int, int] | None = None
    commands: tuple[str, ...] = ()
    materialized: bool = False

    @property
    def pairs(self) -> tuple[tuple[ObjectName, ObjectName], ...]:
        """The (from, to) pairs of RENAME and EXCHANGE."""
        return tuple(zip(self.names[::2], self.names[1::2], strict=True))


def may_have_on_cluster(sql: str) -> bool:
    """A cheap look at a raw statement: only if this is true is it worth parsing."""
    tokens = tokenize(sql)
    return bool(tokens) and tokens[0].is_word(*_DDL_WORDS) and _find_clause(tokens) is not None


def parse(text: str) -> OnClusterStatement | None:
    """The statement, or None if this canonical text has no ON CLUSTER clause.

    Raises:
        UnsupportedStatementError: names are where this parser does not look for them.
    """
    tokens = tokenize(text)
    if not tokens or not tokens[0].is_word(*_DDL_WORDS):
        return None
    found = _find_clause(tokens)
    if found is None:
        return None
    cluster_token, clause = found
    parser = _Parser(text, tokens, cluster_token.value, clause)
    return parser.statement()


def _find_clause(tokens: list[Token]) -> tuple[Token, tuple[int, int]] | None:
    """The cluster's token and the extent of the clause, which comes before any parenthesis or query."""
    for index, token in enumerate(tokens[:-2]):
        if token.is_mark("(") or token.is_word("SELECT", "WHERE", "ENGINE"):
            return None
        name = tokens[index + 2]
        if token.is_word("ON") and tokens[index + 1].is_word("CLUSTER"):
            if name.is_name or name.kind is Kind.STRING:
                return name, (token.start, name.end)
            if name.is_mark("{"):  # a macro that the server did not quote
                return None
    return None


class _Parser:
    """Walks the tokens once, from the first keyword."""

    def __init__(self, text: str, tokens: list[Token], cluster: str, clause: tuple[int, int]) -> None:
        self._text = text
        self._tokens = tokens
        self._cluster = cluster
        self._clause = clause
        self._index = 0

    def statement(self) -> OnClusterStatement:
        action = self._next().text.upper()
        match action:
            case "CREATE" | "REPLACE" | "ATTACH":
                return self._create(action)
            case "DROP" | "DETACH" | "TRUNCATE" | "UNDROP":
                return self._drop(action)
            case "RENAME" | "EXCHANGE":
                return self._rename(action)
            case "ALTER":
                return self._alter()
            case "OPTIMIZE" | "DELETE" | "UPDATE":
                self._skip("TABLE", "FROM")
                return self._build(action, kind="TABLE", names=(self._name(),))
            case _:
                return self._build(action)

    def _create(self, action: str) -> OnClusterStatement:
        replaces = action == "REPLACE"
        if self._skip("OR"):
            self._skip("REPLACE")
            replaces = True
        self._skip("TEMPORARY")
        materialized = self._skip("MATERIALIZED")
        kind = self._next().text.upper()
        self._skip_if_exists()
        if kind == "DATABASE":
            name = self._next()
            database = ObjectName(database=name.value, name="*", start=name.start)
            return self._build(action, kind=kind, names=(database,))
        if kind not in _TABLE_KINDS:
            return self._build(action, kind=kind)
        names = (self._name(),)
        uuid = None
        if self._peek_word("UUID"):
            uuid = (self._next().start, self._next().end)
        return self._build(
            action,
            kind=kind,
            names=names,
            replaces=replaces,
            engine=self._engine(),
            explicit_uuid=uuid,
            materialized=materialized,
        )

    def _drop(self, action: str) -> OnClusterStatement:
        self._skip("TEMPORARY")
        kind = self._next().text.upper()
        self._skip_if_exists()
        if kind == "DATABASE":
            name = self._next()
            database = ObjectName(database=name.value, name="*", start=name.start)
            return self._build(action, kind=kind, names=(database,))
        if kind not in _TABLE_KINDS:
            return self._build(action, kind=kind)
        names = [self._name()]
        while self._skip_mark(","):
            names.append(self._name())
        return self._build(action, kind=kind, names=tuple(names))

    def _rename(self, action: str) -> OnClusterStatement:
        kind = self._next().text.upper().removesuffix("S")
        if kind not in ("TABLE", "DICTIONARY", "DICTIONARIE"):
            raise UnsupportedStatementError(f"{action} {kind} ON CLUSTER is not emulated")
        self._skip_if_exists()
        names: list[ObjectName] = []
        while True:
            names.append(self._name())
            if not self._skip("TO", "AND"):
                raise UnsupportedStatementError(f"{action} without TO or AND")
            names.append(self._name())
            if not self._skip_mark(","):
                return self._build(action, kind="TABLE", names=tuple(names))

    def _alter(self) -> OnClusterStatement:
        kind = self._next().text.upper()
        if kind != "TABLE":
            return self._build("ALTER", kind=kind)
        name = self._name()
        commands = []
        depth = 0
        for index, token in enumerate(self._tokens):
            if token.start < self._clause[1]:
                continue
            # The server writes each command in parentheses of its own: (UPDATE x = 1 WHERE y), (ADD COLUMN z).
            if token.is_mark("("):
                if depth == 0:
                    commands.append(
                        " ".join(word.text.upper() for word in self._tokens[index + 1 : index + 3])
                    )
                depth += 1
            elif token.is_mark(")"):
                depth -= 1
        return self._build("ALTER", kind=kind, names=(name,), commands=tuple(commands))

    def _build(
        self,
        action: str,
        *,
        kind: str = "",
        names: tuple[ObjectName, ...] = (),
        replaces: bool = False,
        engine: str = "",
        explicit_uuid: tuple[int, int] | None = None,
        commands: tuple[str, ...] = (),
        materialized: bool = False,
    ) -> OnClusterStatement:
        return OnClusterStatement(
            text=self._text,
            cluster=self._cluster,
            clause=self._clause,
            action=action,
            kind=kind,
            names=names,
            replaces=replaces,
            engine=engine,
            explicit_uuid=explicit_uuid,
            commands=commands,
            materialized=materialized,
        )

    def _engine(self) -> str:
        for word, equals, engine in zip(self._tokens, self._tokens[1:], self._tokens[2:], strict=False):
            if word.start > self._clause[1] and word.is_word("ENGINE") and equals.is_mark("="):
                return engine.value
        return ""

    def _name(self) -> ObjectName:
        first = self._next()
        if not first.is_name:
            raise UnsupportedStatementError(f"expected a name, found {first.text!r}")
        if self._skip_mark("."):
            return ObjectName(database=first.value, name=self._next().value, start=first.start)
        return ObjectName(database="", name=first.value, start=first.start)

    def _next(self) -> Token:
        if self._index >= len(self._tokens):
            raise UnsupportedStatementError("the statement ends too early")
        token = self._tokens[self._index]
        self._index += 1
        return token

    def _peek_word(self, *words: str) -> bool:
        return self._index < len(self._tokens) and self._tokens[self._index].is_word(*words)

    def _skip(self, *words: str) -> bool:
        if self._peek_word(*words):
            self._index += 1
            return True
        return False

    def _skip_mark(self, mark: str) -> bool:
        if self._index < len(self._tokens) and self._tokens[self._index].is_mark(mark):
            self._index += 1
            return True
        return False

    def _skip_if_exists(self) -> None:
        while self._skip("IF", "NOT", "EXISTS", "EMPTY"):
            pass


def qualify(statement: OnClusterStatement, database: str) -> OnClusterStatement:
    """The statement with `database` put before every name that has none."""
    text = statement.text
    for name in sorted(statement.names, key=lambda name: -name.start):
        if not name.database:
            text = f"{text[: name.start]}{quote_name(database)}.{text[name.start :]}"
    return statement if text == statement.text else _reparsed(text)


def with_uuids(statement: OnClusterStatement, uuid: UUID, inner_uuid: UUID) -> OnClusterStatement:
    """The statement as the initiator enqueues it: a created table has the same UUID on every host.

    A UUID that the caller gave is kept. `inner_uuid` is for the table that a materialized view stores its rows in.
    """
    creates = statement.action in ("CREATE", "REPLACE") and statement.kind in _TABLE_KINDS
    if not creates or statement.explicit_uuid is not None:
        return statement
    start, end = statement.clause
    text = statement.text
    before, clause, after = text[:start].rstrip(), text[start:end], text[end:]
    inner = ""
    if statement.materialized and not any(token.is_word("TO") for token in tokenize(after)[:1]):
        inner = f" TO INNER UUID '{inner_uuid}'"
    return _reparsed(f"{before} UUID '{uuid}' {clause}{inner}{after}")


def text_for_host(statement: OnClusterStatement) -> str:
    """The statement as each host executes it: without ON CLUSTER.

    KeeperMap tables lose their UUID too. KeeperMap registers a table under table UUID + server UUID, and the server
    UUID of every embedded server is empty, so one table UUID on two of them is taken for the same table. Each host
    makes its own UUID instead; stand-alone servers would share one.
    """
    start, end = statement.clause
    text = f"{statement.text[:start].rstrip()} {statement.text[end:].lstrip()}".strip()
    if statement.engine == "KeeperMap" and statement.explicit_uuid is not None:
        uuid_start, uuid_end = statement.explicit_uuid
        text = f"{text[:uuid_start].rstrip()} {text[uuid_end:].lstrip()}"
    return text


def needs_leader(statement: OnClusterStatement) -> bool:
    """Whether one replica of a shard executes it for all, if the table is a replicated one."""
    if statement.action == "ALTER":
        local = ("MODIFY SETTING", "RESET SETTING")
        return bool(statement.names) and not any(
            command in local or command.startswith(("FREEZE", "UNFREEZE")) for command in statement.commands
        )
    return statement.action in ("OPTIMIZE", "TRUNCATE") and statement.kind == "TABLE"


def required_grants(statement: OnClusterStatement) -> tuple[Grant, ...]:
    """What the caller needs, in the order in which it is checked. The hosts themselves check nothing.

    Raises:
        UnsupportedStatementError: the emulation does not know what this statement needs.
    """
    cluster = Grant("CLUSTER", "*.*")
    return (cluster, *_grants_on_objects(statement))


def _grants_on_objects(statement: OnClusterStatement) -> tuple[Grant, ...]:
    targets = [str(name) for name in statement.names]
    match statement.action, statement.kind:
        case (("CREATE" | "DROP" | "ATTACH" | "DETACH" | "TRUNCATE"), "DATABASE"):
            privilege = {"ATTACH": "CREATE", "DETACH": "DROP"}.get(statement.action, statement.action)
            database = f"{quote_name(statement.names[0].database)}.*"
            return (Grant(f"{privilege} DATABASE", database),)
        case (("CREATE" | "REPLACE" | "ATTACH"), ("TABLE" | "VIEW" | "DICTIONARY")):
            grants = tuple(Grant(f"CREATE {statement.kind}", target) for target in targets)
            if statement.replaces:
                grants += tuple(Grant(f"DROP {statement.kind}", target) for target in targets)
            # Where the server's configuration asks for none, it says that the caller has it.
            return grants + ((Grant("TABLE ENGINE", statement.engine),) if statement.engine else ())
        case (("DROP" | "DETACH"), ("TABLE" | "VIEW" | "DICTIONARY")):
            return tuple(Grant(f"DROP {statement.kind}", target) for target in targets)
        case "TRUNCATE" | "OPTIMIZE", "TABLE":
            return tuple(Grant(statement.action, target) for target in targets)
        case "UNDROP", "TABLE":
            return tuple(Grant("UNDROP TABLE", target) for target in targets)
        case "DELETE" | "UPDATE", "TABLE":
            return tuple(Grant(f"ALTER {statement.action}", target) for target in targets)
        case "RENAME" | "EXCHANGE", "TABLE":
            return _grants_of_renames(statement)
        case "ALTER", "TABLE":
            return tuple(Grant(_alter_privilege(command), targets[0]) for command in statement.commands)
        case "SYSTEM", _:
            return (Grant("SYSTEM", "*.*"),)
        case (("GRANT" | "REVOKE"), _):
            return (Grant("ACCESS MANAGEMENT", "*.*"),)
        case _:
            raise UnsupportedStatementError(
                f"{statement.action} {statement.kind} ON CLUSTER is not emulated".replace("  ", " ")
            )


def _grants_of_renames(statement: OnClusterStatement) -> tuple[Grant, ...]:
    grants: list[Grant] = []
    for source, target in statement.pairs:
        moves = [(source, target)] if statement.action == "RENAME" else [(source, target), (target, source)]
        for old, new in moves:
            grants += [Grant("SELECT", str(old)), Grant("DROP TABLE", str(old))]
            grants += [Grant("CREATE TABLE", str(new)), Grant("INSERT", str(new))]
    return tuple(dict.fromkeys(grants))


def _alter_privilege(command: str) -> str:
    if command.startswith(("UPDATE", "DELETE")):
        return f"ALTER {command.split()[0]}"
    if command in ("ADD COLUMN", "DROP COLUMN", "MODIFY COLUMN", "RENAME COLUMN", "MODIFY COMMENT"):
        return f"ALTER {command}"
    return "ALTER TABLE"


def substitute_parameters(text: str, parameters: dict[str, str]) -> str:
    """Put the values of query parameters into ``{name:Type}``, as the server does before it enqueues a statement."""
    tokens = tokenize(text)
    pieces = []
    position = 0
    for index in range(len(tokens) - 3):
        brace, name, colon = tokens[index : index + 3]
        if not (brace.is_mark("{") and name.is_name and colon.is_mark(":") and name.value in parameters):
            continue
        close = next(token for token in tokens[index:] if token.is_mark("}"))
        kind = text[colon.end : close.start].strip()
        value = parameters[name.value]
        match kind:
            case "Identifier":
                literal = quote_name(value)
            case "String":
                literal = quote_string(value)
            case _:
                literal = f"_CAST({quote_string(value)}, {quote_string(kind)})"
        pieces += [text[position : brace.start], literal]
        position = close.end
    return "".join([*pieces, text[position:]])


def output_clause(statement: OnClusterStatement) -> str:
    """The ``FORMAT`` clause that the answer is to have; empty if there is none."""
    cut = _output_start(statement)
    return statement.text[cut:].strip()


def without_output_clause(statement: OnClusterStatement) -> OnClusterStatement:
    """The statement as it is stored, without its FORMAT clause.

    Raises:
        UnsupportedStatementError: a SETTINGS or INTO OUTFILE clause, which the emulation would lose.
    """
    cut = _output_start(statement)
    return statement if cut == len(statement.text) else _reparsed(statement.text[:cut].rstrip())


def _output_start(statement: OnClusterStatement) -> int:
    tokens = [token for token in tokenize(statement.text) if token.start >= statement.clause[1]]
    if statement.action not in ("CREATE", "REPLACE", "ATTACH"):
        for token in tokens:
            if token.is_word("SETTINGS", "INTO"):
                raise UnsupportedStatementError(
                    f"{token.text.upper()} in {statement.action} ON CLUSTER is not emulated: send URL parameters"
                )
    if len(tokens) >= 2 and tokens[-2].is_word("FORMAT"):
        return tokens[-2].start
    return len(statement.text)


def _reparsed(text: str) -> OnClusterStatement:
    statement = parse(text)
    if statement is None:
        raise UnsupportedStatementError("the rewritten statement has no ON CLUSTER clause")
    return statement
