"""What a cluster should be (`ClusterSpec`) and where a running one is reached (`Endpoint`). Plain data."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

CLUSTER_NAME = "analytics"
INDEPENDENT_CLUSTER_NAME = "independent"
"""The same servers once more, always without internal replication."""
SHARD_MACRO = "01"
CONTROL_DATABASE = "dpone"
DATABASE_PREFIX = "mart"
APP_USER = "dpone_app"
APP_PASSWORD = "dpone-app"
ADMIN_USER = "default"
LOCALHOST = "127.0.0.1"
QUEUE_STAND_IN = "emulated.distributed_ddl_queue"
"""The table that every server has in place of system.distributed_ddl_queue, which throws in an embedded server."""


class Endpoint(NamedTuple):
    """Host and TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class User:
    """A further user of the cluster's servers; the password may be empty.

    `grants` are complete statements (``GRANT SELECT ON mart*.*``). `settings` go into a profile of the user's own.
    """

    name: str
    grants: tuple[str, ...] = ()
    password: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Everything that distinguishes one cluster from another.

    Attributes:
        replicas: number of servers, 2 to 4, all in one shard.
        internal_replication: the flag of the shard in ``remote_servers``.
        secret: whether the cluster has a ``<secret>``, so that distributed queries run as the user who asked.
        users: users beside ``default`` (everything allowed, no password) and ``dpone_app``.
        chdb_folders: installed ``chdb`` package per node number; nodes without one use the running interpreter's.
        worker_retry_seconds: how long an emulated DDL worker waits after an error that it must retry; ClickHouse
            waits 5 s.
        load_balancer_port: where the load balancer listens; 0 for any port that is free.
    """

    replicas: int = 2
    internal_replication: bool = True
    secret: bool = True
    users: tuple[User, ...] = ()
    chdb_folders: Mapping[int, Path] = field(default_factory=dict)
    worker_retry_seconds: float = 1.0
    load_balancer_port: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.replicas <= 4:
            raise ValueError("a cluster has 2 to 4 replicas")

    @property
    def nodes(self) -> range:
        """The node numbers, from 1."""
        return range(1, self.replicas + 1)

    def chdb_folder(self, node: int) -> Path:
        """The ``chdb`` package that this node runs.

        Raises:
            ModuleNotFoundError: none was named and the running interpreter has none.
        """
        if node in self.chdb_folders:
            return self.chdb_folders[node]
        package = importlib.util.find_spec("chdb")
        if package is None or package.origin is None:
            raise ModuleNotFoundError("chdb-core is not installed for this interpreter")
        return Path(package.origin).parent

    def to_json(self) -> str:
        """A text that `from_json` turns into an equal value."""
        return json.dumps(
            {
                "replicas": self.replicas,
                "internal_replication": self.internal_replication,
                "secret": self.secret,
                "users": [
                    {
                        "name": user.name,
                        "grants": list(user.grants),
                        "password": user.password,
                        "settings": dict(user.settings),
                    }
                    for user in self.users
                ],
                "chdb_folders": {str(node): str(folder) for node, folder in self.chdb_folders.items()},
                "worker_retry_seconds": self.worker_retry_seconds,
                "load_balancer_port": self.load_balancer_port,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> ClusterSpec:
        """The inverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        fields["users"] = tuple(User(**{**user, "grants": tuple(user["grants"])}) for user in fields["users"])
        fields["chdb_folders"] = {int(node): Path(folder) for node, folder in fields["chdb_folders"].items()}
        return cls(**fields)
