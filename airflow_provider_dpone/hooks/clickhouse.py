"""The connection to ClickHouse as Airflow knows it.

The type is the provider's own, ``dpone_clickhouse``: registering ``clickhouse`` would take over every
connection of the official provider. Connections of that type are accepted as they are.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server

CONNECTION_TYPES: Final = ("dpone_clickhouse", "clickhouse")
"""The types of connection that are accepted."""

_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE: Final = frozenset({"0", "false", "f", "no", "n", "off"})
_REPLICA: Final = re.compile(r"s[1-9]\d*/r[1-9]\d*", re.ASCII)
_ENDPOINT: Final = re.compile(
    r"(?:\[(?P<address>[^\]]*)\]|(?P<host>[^\s:/?#@\[\]]+))(?::(?P<port>\d{1,5}))?", re.ASCII
)


class DponeClickHouseHook(BaseHook):
    """A connection to ClickHouse over HTTP.

    The connection's extra may hold: ``secure``, ``verify`` (on by default), ``ca_cert``, ``client_cert``,
    ``client_cert_key`` (paths of files), ``connect_timeout`` and ``send_receive_timeout`` (seconds), ``hosts``
    (further endpoints: a list, or text with commas, of ``host`` or ``host:port``), ``replicas`` (a dict from
    replicas, as ``s1/r1``, to ``host`` or ``host:port``) and ``session_settings`` (a dict of ClickHouse
    settings). They are looked for in ``client_kwargs`` too. Text such as ``"false"`` is understood as what it
    says. Other keys belong to other tools and are left alone.

    :param clickhouse_conn_id: The Airflow connection.
    """

    conn_name_attr = "clickhouse_conn_id"
    default_conn_name = "clickhouse_default"
    conn_type = "dpone_clickhouse"
    hook_name = "ClickHouse (dpone)"

    def __init__(self, clickhouse_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.clickhouse_conn_id = clickhouse_conn_id
        self._server: Server | None = None

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the form's fields for Airflow 3.1; newer releases take them from the provider's information."""
        from airflow_provider_dpone.compat import connection_form_widgets
        from airflow_provider_dpone.get_provider_info import get_provider_info

        return connection_form_widgets(get_provider_info()["connection-types"][0]["conn-fields"])

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return how the form's own fields look, for Airflow 3.1."""
        from airflow_provider_dpone.get_provider_info import get_provider_info

        behaviour = get_provider_info()["connection-types"][0]["ui-field-behaviour"]
        return {name.replace("-", "_"): value for name, value in behaviour.items()}

    def settings(self) -> ConnectionSettings:
        """Return where and as whom to connect.

        :raises ValueError: the connection is of another type or a value makes no sense; the message names
            the key and never holds the value.
        """
        return connection_settings(self.get_connection(self.clickhouse_conn_id))

    def get_conn(self) -> Server:
        """Return the server, not connected yet.

        :raises ValueError: as :meth:`settings`; also if a certificate file can't be loaded.
        """
        if self._server is None:
            self._server = server_of(self.get_connection(self.clickhouse_conn_id))
        return self._server

    def hurried(self, seconds: float) -> Server:
        """Return a server of its own whose every wait is bounded, not connected yet.

        :param seconds: for how long a server may be silent at most.
        :raises ValueError: as :meth:`get_conn`.
        """
        return server_of(self.get_connection(self.clickhouse_conn_id), patience=seconds)

    def read(
        self, sql: str, *, settings: Mapping[str, str | int | bool] | None = None
    ) -> list[dict[str, Any]]:
        """Run a statement that reads, and return its rows by column name. For checks between tasks.

        Integers of any width are exact, decimals are text.

        :raises TransportError: the server refused the statement or can't be reached. What the exception
            says holds neither SQL nor row values.
        """
        return self.get_conn().read(sql, settings=settings).dicts()

    def test_connection(self) -> tuple[bool, str]:
        """Ask the server for its version, the user and the clusters that it knows."""
        from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ReplyLost, ServerError, summary

        try:
            reply = self.get_conn().read(
                "SELECT version() AS version, currentUser() AS user, "
                "arraySort(groupUniqArray(cluster)) AS clusters FROM system.clusters",
                timeout=30,
            )
        except ValueError as error:
            return False, str(error)
        except (ServerError, ConnectFailed, ReplyLost) as error:
            return False, f"{summary(error)}{self._port_hint()}"
        row: dict[str, Any] = reply.dicts()[0]
        clusters = ", ".join(row["clusters"]) or "none"
        return True, f"ClickHouse {row['version']} as user {row['user']}; clusters: {clusters}"

    def _port_hint(self) -> str:
        ports = {port for _, port in self.settings().hosts}
        if ports & {9000, 9440}:
            return ". Ports 9000 and 9440 usually speak the native protocol; HTTP is on 8123 or 8443"
        return ""


def server_of(connection: Connection, *, patience: float | None = None) -> Server:
    """Return the server of an Airflow connection, not connected yet.

    :param patience: for how many seconds a server may be silent at most, whatever the connection says.
    :raises ValueError: as :func:`connection_settings`; also if a certificate file can't be loaded.
    """
    from airflow_provider_dpone.clickhouse.server import Server

    settings = connection_settings(connection)
    if patience is not None:
        settings = replace(
            settings,
            connect_timeout=min(patience, settings.connect_timeout),
            read_timeout=min(patience, settings.read_timeout),
        )
    try:
        return Server(settings)
    except OSError as error:
        raise ValueError(
            f"a certificate file of connection {connection.conn_id!r} can't be loaded "
            f"({type(error).__name__}): check ca_cert, client_cert and client_cert_key"
        ) from None


def connection_settings(connection: Connection) -> ConnectionSettings:
    """Return what an Airflow connection says.

    :raises ValueError: the connection is of another type or a value makes no sense; the message names the
        key and never holds the value.
    """
    from airflow_provider_dpone.clickhouse.server import ConnectionSettings

    name = f"connection {connection.conn_id!r}"
    if connection.conn_type not in CONNECTION_TYPES:
        raise ValueError(
            f"{name} has the type {connection.conn_type!r}; it must be one of {', '.join(CONNECTION_TYPES)}"
        )
    extra = _Extra(connection.extra_dejson, name)
    secure = extra.flag("secure", default=False)
    default_port = 8443 if secure else 8123
    hosts = [(connection.host, connection.port or default_port)] if connection.host else []
    for host in extra.hosts("hosts", default_port):
        if host not in hosts:
            hosts.append(host)
    if not hosts:
        raise ValueError(f"{name} names no host")
    return ConnectionSettings(
        hosts=tuple(hosts),
        user=connection.login or "default",
        password=connection.password or "",
        secure=secure,
        verify=extra.flag("verify", default=True),
        ca_cert=extra.text("ca_cert"),
        client_cert=extra.text("client_cert"),
        client_key=extra.text("client_cert_key") or extra.text("client_key"),
        connect_timeout=extra.seconds("connect_timeout", default=10.0),
        read_timeout=extra.seconds("send_receive_timeout", default=300.0),
        session_settings=extra.settings("session_settings"),
        replicas=extra.replicas("replicas", hosts[0][1]),
    )


class _Extra:
    """A connection's extra, with values that may be text where something else is meant."""

    def __init__(self, extra: Mapping[str, Any], name: str) -> None:
        self._name = name
        self._values: Mapping[str, Any] = extra
        self._values = {**self._object("client_kwargs"), **extra}

    def flag(self, key: str, *, default: bool) -> bool:
        match self._get(key):
            case None:
                return default
            case bool() as value:
                return value
            case 0 | 1 as number:
                return bool(number)
            case str() as text if text.strip().lower() in _TRUE:
                return True
            case str() as text if text.strip().lower() in _FALSE:
                return False
            case _:
                raise self._wrong(key, "true or false")

    def text(self, key: str) -> str:
        match self._get(key):
            case None:
                return ""
            case str() as text:
                return text
            case _:
                raise self._wrong(key, "text")

    def seconds(self, key: str, *, default: float) -> float:
        value = self._get(key)
        if value is None:
            return default
        try:
            seconds = 0.0 if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise self._wrong(key, "a positive number of seconds")
        return seconds

    def hosts(self, key: str, default_port: int) -> list[tuple[str, int]]:
        match self._get(key):
            case None:
                return []
            case str() as text:
                entries: list[Any] = [part for part in (p.strip() for p in text.split(",")) if part]
            case list() as entries:
                pass
            case _:
                raise self._wrong(key, "a list of host or host:port")
        return [self._endpoint(key, "a list of host or host:port", entry, default_port) for entry in entries]

    def replicas(self, key: str, default_port: int) -> dict[str, tuple[str, int]]:
        given = self._object(key)
        if any(_REPLICA.fullmatch(alias) is None for alias in given):
            raise self._wrong(key, "a JSON object whose names are replicas, such as s1/r1")
        return {
            alias: self._endpoint(
                key, f"a JSON object with host or host:port for {alias}", entry, default_port
            )
            for alias, entry in given.items()
        }

    def _endpoint(self, key: str, wanted: str, entry: object, default_port: int) -> tuple[str, int]:
        """Read ``host``, ``host:port``, an IPv6 address, or ``[address]:port``."""
        text = entry.strip() if isinstance(entry, str) else ""
        if _is_ipv6(text):
            return text, default_port
        found = _ENDPOINT.fullmatch(text)
        if found is None or (found["host"] is None and not _is_ipv6(found["address"])):
            raise self._wrong(key, wanted)
        port = int(found["port"] or default_port)
        if not 0 < port < 65536:
            raise self._wrong(key, wanted)
        return found["host"] or found["address"], port

    def settings(self, key: str) -> dict[str, str]:
        settings: dict[str, str] = {}
        for name, setting in self._object(key).items():
            match setting:
                case bool():
                    settings[name] = str(int(setting))
                case str() | int() | float():
                    settings[name] = str(setting)
                case _:
                    raise self._wrong(key, "a dict of settings with text or numbers")
        return settings

    def _object(self, key: str) -> dict[str, Any]:
        """A dict, or the JSON text of one: the connection's form has text fields only."""
        value = self._get(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise self._wrong(key, "a JSON object") from None
        match value:
            case None:
                return {}
            case dict():
                return {str(name): item for name, item in value.items()}
            case _:
                raise self._wrong(key, "a JSON object")

    def _get(self, key: str) -> Any:
        value = self._values.get(key)
        # An empty field of the connection's form is no value.
        return None if isinstance(value, str) and not value.strip() else value

    def _wrong(self, key: str, wanted: str) -> ValueError:
        return ValueError(f"extra {key!r} of {self._name} must be {wanted}")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
