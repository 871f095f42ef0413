"""Where each object of a cluster's evidence lies.

    <cluster>/<operation id>/<kind>.<fence>.<version>.<word>.<writer>.<sequence>.json    the trail
    <cluster>/index/<day>/<time>.<target>.<operation id>.json                           the list of operations
    <cluster>/audit/<kind>. ... .json                                                   what is about no operation

A name of the trail belongs to one writer: the writer has a number that its process drew. A name of the index follows
from the admission that it is about, so that it can be written twice, and written anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from airflow_provider_dpone.publication.canonical import digest
from airflow_provider_dpone.publication.trail import Entry

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

SUFFIX: Final = ".json"
INDEX: Final = "index"
AUDIT: Final = "audit"
_LONGEST_PART: Final = 100
"""Of a name, in characters: disks take 255 for the whole."""


def cluster_folder(root: ObjectStoragePath, cluster: str) -> ObjectStoragePath:
    """Return the folder of a cluster."""
    return root / quote(cluster, safe="")


def entry_name(entry: Entry) -> str:
    """Return the name of an entry's object."""
    mark = entry.body.mark
    version = "" if mark.version is None else f"v{mark.version}"
    parts = (entry.body.kind, mark.fence[:_LONGEST_PART], version, mark.word)
    return ".".join([*(plain(part) or "-" for part in parts), entry.writer, f"{entry.sequence:06d}{SUFFIX}"])


@dataclass(frozen=True, slots=True)
class EntryName:
    """What an entry's name tells without reading the entry."""

    kind: str
    fence: str
    version: int | None
    word: str

    @classmethod
    def parse(cls, name: str) -> EntryName | None:
        """Return the parts of a name; ``None`` if it is none."""
        parts = name.split(".")
        if len(parts) < 6 or not name.endswith(SUFFIX):
            return None
        version = parts[2].removeprefix("v")
        return cls(parts[0], parts[1], int(version) if version.isdecimal() else None, parts[3])


@dataclass(frozen=True, slots=True)
class IndexName:
    """An operation in the list of operations.

    :ivar at: when its admission was written: UTC, as ``20260102T030405.678901Z``.
    :ivar target: short digest of database and table, by which a list is filtered without reading anything.
    """

    at: str
    target: str
    operation_id: str

    @classmethod
    def of(cls, at: str, database: str, table: str, operation_id: str) -> IndexName:
        """Return the place in the list of an admission that was written at ``at``."""
        return cls(name_time(at), target_digest(database, table), operation_id)

    @classmethod
    def parse(cls, name: str) -> IndexName | None:
        """Return the parts of a name; ``None`` if it is none."""
        found = re.fullmatch(r"(\d{8}T\d{6}\.\d{6}Z)\.([0-9a-f]{12})\.(\w+)\.json", name)
        return cls(found[1], found[2], found[3]) if found else None

    @property
    def day(self) -> str:
        """The folder."""
        return f"{self.at[:4]}-{self.at[4:6]}-{self.at[6:8]}"

    def __str__(self) -> str:
        return f"{self.at}.{self.target}.{plain(self.operation_id)}{SUFFIX}"


def name_time(at: str) -> str:
    """Return a time as names of the list have it."""
    return at.replace("-", "").replace(":", "")


def target_digest(database: str, table: str) -> str:
    """Return what stands for a target in the names of the list."""
    return digest("dpone/evidence-index.v1", database, table)[:12]


def plain(text: str) -> str:
    """Return ``text`` with only what is safe in any storage's names."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)
