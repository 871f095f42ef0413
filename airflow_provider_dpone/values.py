"""The values a DAG author writes: what to refresh, and what the table looks like.

They are plain frozen data. Nothing connects, reads or runs when one is built; a mistake that can be seen
without a server is a ``ValueError`` that names the argument, raised while the DAG is parsed.

Airflow renders nested values by assignment, which a frozen value refuses. So operators keep the value as
it was written and render a copy with :meth:`ClusterRefresh.rendered` when they run. For the same reason the
list of rendered fields is not called ``template_fields``: Airflow would find it and assign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal, Self, get_args

KiB: Final = 1024
MiB: Final = 1024 * KiB
GiB: Final = 1024 * MiB

ReplicationMode = Literal["internal", "external"]
"""Who copies rows between replicas: the table's engine, or whoever writes to all of them."""

OnSchemaChange = Literal["refuse", "append", "replace"]
"""What to do when the source's columns are not the table's."""

OnDependents = Literal["report", "refuse"]
"""What to do when views, dictionaries or policies hang on the table's name."""

SettingValue = str | int | float | bool
Render = Callable[[str], str]


class FrozenMapping(Mapping[str, Any]):
    """A mapping that cannot change, keeps its order, and can be hashed. Equal only in the same order."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self._items: dict[str, Any] = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMapping):
            return tuple(self._items.items()) == tuple(other._items.items())
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def _named(value: object, argument: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{argument} must not be empty: write its name")
    if "\0" in value:
        raise ValueError(f"{argument} must not contain NUL")


def _one_of(value: str, argument: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, allowed))}")


def _expressions(value: str | Sequence[str] | None, argument: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    expressions = (value,) if isinstance(value, str) else tuple(value)
    for expression in expressions:
        _named(expression, argument)
    return expressions


def _known_keys(data: Mapping[str, Any], owner: type[Any]) -> dict[str, Any]:
    known = {field.name for field in fields(owner)}
    if unknown := sorted(set(data) - known):
        raise ValueError(
            f"{owner.__name__} has no argument {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )
    return dict(data)


def _refuse_newer(version: int, owner: type[Any], newest: int) -> None:
    if version > newest:
        raise ValueError(
            f"this {owner.__name__} was written by a newer release (version {version}, this one reads up to "
            f"{newest}): upgrade the provider"
        )


@dataclass(frozen=True, slots=True)
class TableStructure:
    """What a table looks like. Name, engine, UUID and place in Keeper are not the author's and not here.

    An entry of ``order_by``, ``partition_by``, ``primary_key`` or ``sample_by`` that is exactly the name of a
    column means that column and is quoted; anything else is a SQL expression and is taken as it is.

    :param columns: Name of each column -> its declaration: a type, and if wanted ``DEFAULT``, ``CODEC``,
        ``COMMENT``, ``TTL`` and so on, as ``CREATE TABLE`` has them behind the name. The order is kept.
    :param order_by: The sorting key. ``()`` is a table without one; it has to be said, never guessed.
    :param partition_by: The partition key.
    :param primary_key: The primary key where it is shorter than the sorting key.
    :param sample_by: The sampling expression.
    :param ttl: Rules that move or recompress data. Rules that delete or roll up rows are refused later,
        because the rows of such a table cannot be proven.
    :param settings: Settings of the table's engine.
    :param comment: The table's comment. The provider adds its own mark to it.
    :param indexes: Declarations as ``CREATE TABLE`` has them behind ``INDEX``.
    :param projections: The same behind ``PROJECTION``.
    :param constraints: The same behind ``CONSTRAINT``.
    :raises ValueError: No column, an empty name or declaration, or NUL in one of them.
    """

    columns: Mapping[str, str]
    order_by: str | Sequence[str]
    partition_by: str | Sequence[str] | None = None
    primary_key: str | Sequence[str] | None = None
    sample_by: str | None = None
    ttl: str | Sequence[str] | None = None
    settings: Mapping[str, SettingValue] = FrozenMapping()
    comment: str | None = None
    indexes: Sequence[str] = ()
    projections: Sequence[str] = ()
    constraints: Sequence[str] = ()

    __version__: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Normalise every collection to an immutable one and check what needs no server."""
        columns = FrozenMapping(self.columns)
        if not columns:
            raise ValueError("columns must not be empty: write {'name': 'Type'}")
        for name, declaration in columns.items():
            _named(name, "a name in columns")
            _named(declaration, f"columns[{name!r}]")
        if self.order_by is None:
            raise ValueError("order_by is missing: write the sorting key, or () for a table without one")
        frozen: dict[str, Any] = {
            "columns": columns,
            "order_by": _expressions(self.order_by, "order_by"),
            "partition_by": _expressions(self.partition_by, "partition_by"),
            "primary_key": _expressions(self.primary_key, "primary_key"),
            "ttl": _expressions(self.ttl, "ttl"),
            "settings": FrozenMapping(sorted(dict(self.settings or {}).items())),
            "indexes": _expressions(self.indexes, "indexes") or (),
            "projections": _expressions(self.projections, "projections") or (),
            "constraints": _expressions(self.constraints, "constraints") or (),
        }
        if self.sample_by is not None:
            _named(self.sample_by, "sample_by")
        for name, value in frozen["settings"].items():
            _named(name, "a name in settings")
            match value:
                case str() | int() | float():
                    pass
                case _:
                    raise ValueError(f"settings[{name!r}] must be a string or a number")
        for name, value in frozen.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Self:
        """Build one from a dict with the same names; ``columns`` may be a dict or a list of pairs.

        :raises ValueError: An unknown name, a missing one, or what the constructor refuses.
        """
        arguments = _known_keys(data, cls)
        for required in ("columns", "order_by"):
            if required not in arguments:
                raise ValueError(f"{required} is missing from the structure")
        arguments["columns"] = FrozenMapping(
            arguments["columns"]
            if isinstance(arguments["columns"], Mapping)
            else [(name, declaration) for name, declaration in arguments["columns"]]
        )
        return cls(**arguments)

    def rendered(self, render: Render) -> Self:
        """A copy in which ``render`` was applied to every string, names and setting values included."""

        def each(value: Any) -> Any:
            match value:
                case str():
                    return render(value)
                case tuple():
                    return tuple(each(item) for item in value)
                case Mapping():
                    return FrozenMapping((render(name), each(item)) for name, item in value.items())
                case _:
                    return value

        return type(self)(**{field.name: each(getattr(self, field.name)) for field in fields(self)})

    def serialize(self) -> dict[str, Any]:
        """Plain data. Columns are a list of pairs, because a stored dict may come back in another order."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in data.items():
            if isinstance(value, tuple):
                data[name] = list(value)
        data["columns"] = [[name, declaration] for name, declaration in self.columns.items()]
        data["settings"] = dict(self.settings)
        return data

    @classmethod
    def deserialize(cls, data: Mapping[str, Any], version: int) -> Self:
        """The value that :meth:`serialize` wrote. Raises ``ValueError`` for a version newer than this one."""
        _refuse_newer(version, cls, cls.__version__)
        return cls.from_mapping(data)


@dataclass(frozen=True, slots=True)
class ClusterRefresh:
    """Which table of which cluster gets new contents.

    :param clickhouse_conn_id: The Airflow connection to any server of the cluster.
    :param cluster: The cluster's name in ``remote_servers``.
    :param database: The table's database; its engine has to be Atomic.
    :param table: The table whose contents are replaced.
    :param max_source_bytes: The largest source that may be staged, in bytes: the encoded body of a streamed
        source, the bytes written to the candidate by a query on the server. There is no default.
    :param structure: What the table looks like where it does not exist yet, or with
        ``on_schema_change="replace"`` from now on.
    :param ddl: The same as the text of a ``CREATE TABLE`` without name, UUID, ON CLUSTER and without the
        Keeper path and replica arguments of the engine. Not together with ``structure``.
    :param replication_mode: ``internal`` for replicated tables, ``external`` for independent ones.
    :param on_schema_change: What to do with a source whose columns are not the table's.
    :param on_dependents: What to do when other objects hang on the table's name.
    :param retain_predecessor: How long the replaced table is kept after the new one is live, by the server's
        clock and in whole seconds. Without it, cleanup drops the replaced table at once. A kept table never
        blocks the next refresh.
    :raises ValueError: An argument is missing or wrong; the message names it.
    """

    clickhouse_conn_id: str
    cluster: str
    database: str
    table: str
    max_source_bytes: int = 0
    structure: TableStructure | None = None
    ddl: str | None = None
    replication_mode: ReplicationMode = "internal"
    on_schema_change: OnSchemaChange = "refuse"
    on_dependents: OnDependents = "report"
    retain_predecessor: timedelta | None = None

    __version__: ClassVar[int] = 1
    templated_fields: ClassVar[tuple[str, ...]] = (
        "clickhouse_conn_id",
        "cluster",
        "database",
        "table",
        "structure",
        "ddl",
    )

    def __post_init__(self) -> None:
        """Check what needs no server."""
        for argument in ("clickhouse_conn_id", "cluster", "database", "table"):
            _named(getattr(self, argument), argument)
        size: object = self.max_source_bytes
        if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
            raise ValueError(
                "max_source_bytes must be a positive number of bytes: write the largest source you expect, "
                "for example max_source_bytes=2 * GiB"
            )
        _one_of(self.replication_mode, "replication_mode", get_args(ReplicationMode))
        _one_of(self.on_schema_change, "on_schema_change", get_args(OnSchemaChange))
        _one_of(self.on_dependents, "on_dependents", get_args(OnDependents))
        match self.retain_predecessor:
            case None:
                pass
            case timedelta() as kept if kept >= timedelta(0) and not kept.microseconds:
                pass
            case _:
                raise ValueError(
                    "retain_predecessor must be a timedelta of whole seconds, for example timedelta(days=2)"
                )
        if self.structure is not None and not isinstance(self.structure, TableStructure):
            raise ValueError("structure must be a TableStructure; use ClusterRefresh.from_mapping for a dict")
        if self.ddl is not None:
            _named(self.ddl, "ddl")
            if self.structure is not None:
                raise ValueError("structure and ddl say the same thing: write one of them")
        if self.on_schema_change == "replace" and self.structure is None and self.ddl is None:
            raise ValueError(
                "on_schema_change='replace' needs structure or ddl: the new structure is never guessed"
            )

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Self:
        """Build one from a dict with the same names.

        ``structure`` may be a dict too, ``retain_predecessor`` a number of seconds.

        :raises ValueError: An unknown name, a missing one, or what the constructor refuses.
        """
        arguments = _known_keys(data, cls)
        for required in ("clickhouse_conn_id", "cluster", "database", "table"):
            if required not in arguments:
                raise ValueError(f"{required} is missing")
        if isinstance(arguments.get("structure"), Mapping):
            arguments["structure"] = TableStructure.from_mapping(arguments["structure"])
        match arguments.get("retain_predecessor"):
            case bool():
                pass  # refused by the constructor
            case int() | float() as seconds:
                arguments["retain_predecessor"] = timedelta(seconds=seconds)
        return cls(**arguments)

    def rendered(self, render: Render) -> Self:
        """A new value in which ``render`` was applied to every templated string, the structure's included.

        :raises ValueError: What came out is refused by the constructor, for example an empty name.
        """
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in self.templated_fields:
            match arguments[name]:
                case str() as template:
                    arguments[name] = render(template)
                case TableStructure() as structure:
                    arguments[name] = structure.rendered(render)
        return type(self)(**arguments)

    def serialize(self) -> dict[str, Any]:
        """Plain data for XCom and for expanded tasks."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data["structure"] = None if self.structure is None else self.structure.serialize()
        kept = self.retain_predecessor
        data["retain_predecessor"] = None if kept is None else int(kept.total_seconds())
        return data

    @classmethod
    def deserialize(cls, data: Mapping[str, Any], version: int) -> Self:
        """The value that :meth:`serialize` wrote. Raises ``ValueError`` for a version newer than this one."""
        _refuse_newer(version, cls, cls.__version__)
        return cls.from_mapping(data)
