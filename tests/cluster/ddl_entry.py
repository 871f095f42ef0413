"""The text that ClickHouse keeps in ZooKeeper for one ON CLUSTER statement (format version 5), and host ids.

Pure functions; the layout was taken from ClickHouse's ``DDLTask``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.cluster.spec import Endpoint
from tests.cluster.sql import escape, quote_string, unescape

_VERSION = 5
_NO_TRACE = "tracing: 00000000-0000-0000-0000-000000000000\n0\n\n0"
_SETTING = re.compile(r"(\w+) = (?:'((?:[^'\\]|\\.)*)'|([^,]+))")


def host_id(endpoint: Endpoint) -> str:
    """A host as it appears in znode names: letters, digits and "_" stay, the rest of the name is %-escaped."""
    escaped = re.sub(r"[^A-Za-z0-9_]", lambda match: f"%{ord(match[0]):02X}", endpoint.host)
    return f"{escaped}:{endpoint.port}"


def parse_host_id(text: str) -> Endpoint:
    """The inverse of `host_id`."""
    host, _, port = text.rpartition(":")
    return Endpoint(re.sub(r"%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), host), int(port))


@dataclass(frozen=True, slots=True)
class DDLEntry:
    """One ON CLUSTER statement in the queue.

    Attributes:
        query: canonical text, with its ON CLUSTER clause.
        hosts: every host that executes it.
        initiator: the server that enqueued it, by its own name.
        settings: the settings that its initiator had changed.
        initial_query_id: of the client's request.
    """

    query: str
    hosts: tuple[Endpoint, ...]
    initiator: Endpoint
    settings: Mapping[str, str] = field(default_factory=dict)
    initial_query_id: str = ""
    version: int = _VERSION

    def to_text(self) -> str:
        """The content of the znode."""
        hosts = ",".join(f"'{host_id(host)}'" for host in self.hosts)
        lines = [
            f"version: {self.version}",
            f"query: {escape(self.query)}",
            f"hosts: [{hosts}]",
            f"initiator: {host_id(self.initiator)}",
        ]
        if self.settings:
            lines.append("settings: " + ", ".join(f"{k} = {_literal(v)}" for k, v in self.settings.items()))
        return "\n".join([*lines, _NO_TRACE, f"initial_query_id: {self.initial_query_id}", ""])

    @classmethod
    def from_text(cls, text: str) -> DDLEntry:
        """The inverse of `to_text`."""
        fields = dict(line.split(": ", 1) for line in text.split("\n") if ": " in line)
        return cls(
            version=int(fields["version"]),
            query=unescape(fields["query"]),
            hosts=tuple(parse_host_id(host) for host in re.findall(r"'([^']*)'", fields["hosts"])),
            initiator=parse_host_id(fields["initiator"]),
            settings={
                match[1]: unescape(match[2]) if match[2] is not None else match[3]
                for match in _SETTING.finditer(fields.get("settings", ""))
            },
            initial_query_id=fields.get("initial_query_id", ""),
        )


def _literal(value: str) -> str:
    return value if re.fullmatch(r"-?\d+(\.\d+)?", value) else quote_string(value)


@dataclass(frozen=True, slots=True)
class ExecutionStatus:
    """What a host wrote when it had finished: an error code (0 is success) and the message."""

    code: int
    message: str

    def to_text(self) -> str:
        """The content of the ``finished`` znode."""
        return f"{self.code}\n{escape(self.message)}"

    @classmethod
    def from_text(cls, text: str) -> ExecutionStatus:
        """The inverse of `to_text`."""
        code, _, message = text.partition("\n")
        return cls(int(code), unescape(message))
