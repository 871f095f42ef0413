"""The control table: what it is, how it is read through every replica, and the row that names it.

It is a KeeperMap table, so each replica has its own facade over the same rows in Keeper. It is created
by ``airflow dpone init`` alone, and nothing ever drops, truncates or recreates it or deletes a row: a
table that was lost looks exactly like one that never was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from airflow_provider_dpone.clickhouse.replicas import Fields, section
from airflow_provider_dpone.clickhouse.sql import (
    SqlSyntaxError,
    TokenKind,
    identifier,
    qualified,
    string,
    tokens,
    unquote,
)
from airflow_provider_dpone.publication.canonical import Json, canonical_json, digest, sha256_hex
from airflow_provider_dpone.publication.identity import PROTOCOL
from airflow_provider_dpone.publication.record import SENTINEL_KEY, Row
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped

AUTHORITY_SCHEMA: Final = "dpone.authority.v1"

COLUMNS: Final = (
    ("target_key", "String"),
    ("operation_id", "String"),
    ("fence_token", "String"),
    ("phase", "String"),
    ("dispatch_epoch", "UInt64"),
    ("write_id", "String"),
    ("payload", "String"),
    ("payload_sha256", "FixedString(64)"),
)
"""Names and types, in order. What a compare-and-swap is conditioned on is a column of its own."""

_PRIMARY_KEY: Final = "target_key"
COMMENT: Final = "Authority of airflow-provider-dpone, one row per table. Never drop, truncate or edit it."
_AUTHORITY_ID: Final = re.compile(r"[0-9a-f]{32}")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ControlTable:
    """Where the control table is. Its Keeper path follows from its name."""

    database: str = "dpone"
    name: str = "authority_v1"

    def __post_init__(self) -> None:
        for part in (self.database, self.name):
            if not _PLAIN_NAME.fullmatch(part):
                raise ValueError("the control table's names are letters, digits and underscores")

    @property
    def qualified(self) -> str:
        """Its name in SQL."""
        return qualified(self.database, self.name)

    @property
    def keeper_path(self) -> str:
        """Its path in Keeper, below the server's ``keeper_map_path_prefix``."""
        return f"/{self.database}/{self.name}"

    @property
    def structure(self) -> str:
        """The digest of the structure that it must have on every replica."""
        engine = _engine_words(f"KeeperMap({string(self.keeper_path)}) PRIMARY KEY {_PRIMARY_KEY}")
        return _structure(engine, [(name, type_, "") for name, type_ in COLUMNS])

    def create(self, cluster: str) -> str:
        """Return the statement that creates the facades that are missing."""
        columns = ", ".join(f"{identifier(name)} {type_}" for name, type_ in COLUMNS)
        return (
            f"CREATE TABLE IF NOT EXISTS {self.qualified} ON CLUSTER {identifier(cluster)} ({columns}) "
            f"ENGINE = KeeperMap({string(self.keeper_path)}) PRIMARY KEY {_PRIMARY_KEY} "
            f"COMMENT {string(COMMENT)}"
        )

    def create_database(self, cluster: str) -> str:
        """Return the statement that creates its database where that is missing."""
        return (
            f"CREATE DATABASE IF NOT EXISTS {identifier(self.database)} ON CLUSTER {identifier(cluster)} "
            "ENGINE = Atomic"
        )

    def insert(self, row: Row, *, strict: bool = False) -> str:
        """Return the INSERT of one row. Only with ``keeper_map_strict_mode`` does it refuse an existing key.

        :param strict: write that setting into the statement, for people who run it by hand.
        """
        values = (
            string(row.target_key),
            string(row.operation_id),
            string(row.fence_token),
            string(row.phase),
            str(row.dispatch_epoch),
            string(row.write_id),
            string(row.payload),
            string(row.payload_sha256),
        )
        names = ", ".join(identifier(name) for name, _ in COLUMNS)
        settings = "SETTINGS keeper_map_strict_mode = 1, async_insert = 0 " if strict else ""
        return f"INSERT INTO {self.qualified} ({names}) {settings}VALUES ({', '.join(values)})"


def structure_sections(control: ControlTable) -> tuple[str, ...]:
    """Return the sections ``control`` (one row, if the table exists) and ``column`` (one per column)."""
    where = f"WHERE database = {string(control.database)}"
    return (
        section(
            "control",
            {"engine_full": "engine_full", "comment": "comment"},
            f"FROM system.tables {where} AND name = {string(control.name)}",
        ),
        section(
            "column",
            {"position": "position", "name": "name", "type": "type", "default_kind": "default_kind"},
            f"FROM system.columns {where} AND table = {string(control.name)}",
        ),
    )


def rows_section(control: ControlTable, database: str, table: str) -> str:
    """Return the section ``row``: the sentinel's row and the target's row, each with its ``_version``.

    The target's key depends on the authority id, which is in the sentinel's row. It is computed on the
    server, so that one statement suffices; ``publication.identity.target_key`` is the same digest.
    """
    before, after = _key_text_around_authority_id(database, table)
    target_key = f"lower(hex(SHA256(concat({string(before)}, operation_id, {string(after)}))))"
    keys = (
        f"SELECT {string(SENTINEL_KEY)} AS key UNION ALL SELECT {target_key} AS key "
        f"FROM {control.qualified} WHERE target_key = {string(SENTINEL_KEY)}"
    )
    return section("row", _row_fields(), f"FROM {control.qualified} WHERE target_key IN ({keys})")


def row_section(control: ControlTable, target_key: str) -> str:
    """Return the section ``row`` with the one row of ``target_key``, if it exists."""
    return section("row", _row_fields(), f"FROM {control.qualified} WHERE target_key = {string(target_key)}")


def all_rows_section(control: ControlTable) -> str:
    """Return the section ``row`` with the row of every target, the sentinel's left out."""
    return section(
        "row", _row_fields(), f"FROM {control.qualified} WHERE target_key != {string(SENTINEL_KEY)}"
    )


def structure_digest(control: Fields | None, columns: Iterable[Fields]) -> str | None:
    """Return the digest of what a replica shows: columns, engine and Keeper path; ``None`` without a table.

    UUIDs and comments are not in it: replicas may have different ones.
    """
    if control is None:
        return None
    ordered = sorted(columns, key=lambda c: int(c["position"] or 0))
    described = [(c["name"] or "", c["type"] or "", c["default_kind"] or "") for c in ordered]
    return _structure(_engine_words(control["engine_full"] or ""), described)


def row_of(fields: Fields) -> tuple[Row, int]:
    """Return a row of the control table and its version.

    :raises Stopped: ``RECORD_INVALID``: a value is missing.
    """
    try:
        texts = {name: fields[name] or "" for name, _ in COLUMNS}
        epoch, version = int(texts.pop("dispatch_epoch")), int(fields["version"] or "")
    except (KeyError, ValueError):
        raise Stopped(
            Stop(Code.RECORD_INVALID, "A row of the control table lacks a value.", facts={})
        ) from None
    return Row(**texts, dispatch_epoch=epoch), version


# ---- the sentinel


def sentinel_row(authority_id: str, write_id: str, adopted: Collection[str] = ()) -> Row:
    """Return the row that names the control table's authority.

    :param adopted: lost authorities whose tables this one may replace.
    :raises ValueError: an id is not 32 hex digits.
    """
    if not all(_AUTHORITY_ID.fullmatch(one) for one in (authority_id, *adopted)):
        raise ValueError("an authority id is 32 hex digits")
    body: dict[str, Json] = {"schema": AUTHORITY_SCHEMA, "authority_id": authority_id}
    if adopted:
        body["adopted"] = sorted(adopted)
    payload = canonical_json(body)
    return Row(
        target_key=SENTINEL_KEY,
        operation_id=authority_id,
        fence_token="",
        phase="AUTHORITY",
        dispatch_epoch=0,
        write_id=write_id,
        payload=payload,
        payload_sha256=sha256_hex(payload),
    )


def authority_id_of(row: Row) -> str:
    """Return the authority id in the sentinel's row; as :func:`authority_of`."""
    return authority_of(row)[0]


def authority_of(row: Row) -> tuple[str, frozenset[str]]:
    """Return the authority id in the sentinel's row, and the lost authorities that it adopted.

    :raises Stopped: ``RECORD_NEWER`` for a schema that this release doesn't know, ``CONTROL_TABLE_INVALID``
        for anything else that is not exactly such a row.
    """
    try:
        payload = json.loads(row.payload)
    except ValueError:
        payload = None
    schema = payload.get("schema") if isinstance(payload, dict) else None
    if isinstance(schema, str) and schema != AUTHORITY_SCHEMA and schema.startswith("dpone.authority."):
        raise Stopped(
            Stop(
                Code.RECORD_NEWER, f"The control table's own row has the schema {schema!r}, which is unknown."
            )
        )
    listed = payload.get("adopted", []) if isinstance(payload, dict) else []
    adopted = (
        frozenset(one for one in listed if isinstance(one, str)) if isinstance(listed, list) else frozenset()
    )
    ids = all(_AUTHORITY_ID.fullmatch(one) for one in (row.operation_id, *adopted))
    if not ids or row != sentinel_row(row.operation_id, row.write_id, adopted):
        raise Stopped(
            Stop(
                Code.CONTROL_TABLE_INVALID,
                "The control table's own row is not what `airflow dpone init` writes.",
            )
        )
    return row.operation_id, adopted


def _row_fields() -> dict[str, str]:
    return {**{name: identifier(name) for name, _ in COLUMNS}, "version": "_version"}


def _key_text_around_authority_id(database: str, table: str) -> tuple[str, str]:
    """Split the canonical JSON that a target's key is the digest of at the place of the authority id."""
    # NUL can't be in a name; in JSON it is written \u0000, and the id's place comes before the names.
    before, _, after = canonical_json([f"{PROTOCOL}/target", "\0", database, table]).partition("\\u0000")
    return before, after


def _structure(engine: list[str], columns: list[tuple[str, str, str]]) -> str:
    return digest("dpone/control-structure.v1", engine, [list(column) for column in columns])


def _engine_words(engine_full: str) -> list[str]:
    """Return the engine's text as words, whatever its spacing and quoting."""
    try:
        found = tokens(engine_full)
    except SqlSyntaxError:
        return [engine_full]
    return [
        repr(unquote(token.text)) if token.kind is TokenKind.STRING else unquote(token.text)
        for token in found
    ]
