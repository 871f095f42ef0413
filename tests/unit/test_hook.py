"""The hook: what an Airflow connection means."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ServerError
from airflow_provider_dpone.hooks.clickhouse import DponeClickHouseHook, connection_settings


def connection(extra: dict[str, Any] | None = None, **changes: Any) -> Connection:
    import json

    fields: dict[str, Any] = {
        "conn_id": "ch",
        "conn_type": "dpone_clickhouse",
        "host": "ch1",
        "login": "app",
        "password": "s3cret",
        "extra": json.dumps(extra or {}),
    }
    return Connection(**(fields | changes))


def test_defaults_are_plain_http_with_verification_prepared() -> None:
    settings = connection_settings(connection())
    assert settings.hosts == (("ch1", 8123),)
    assert (settings.user, settings.password) == ("app", "s3cret")
    assert (settings.secure, settings.verify) == (False, True)
    assert (settings.connect_timeout, settings.read_timeout) == (10.0, 300.0)
    assert connection_settings(connection(login=None, password=None)).user == "default"


def test_connections_of_the_official_type_are_accepted() -> None:
    assert connection_settings(connection(conn_type="clickhouse")).hosts == (("ch1", 8123),)


def test_another_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="has the type 'postgres'; it must be one of dpone_clickhouse"):
        connection_settings(connection(conn_type="postgres"))


@pytest.mark.parametrize(
    ("value", "secure"), [(True, True), ("true", True), ("Yes", True), (1, True), ("1", True)]
)
def test_secure_is_what_it_says(value: object, secure: bool) -> None:
    settings = connection_settings(connection({"secure": value}))
    assert settings.secure is secure
    assert settings.hosts == (("ch1", 8443),)


@pytest.mark.parametrize("value", [False, "false", "False", "no", "0", 0, "", None])
def test_the_text_false_is_false(value: object) -> None:
    assert connection_settings(connection({"secure": value})).secure is False


@pytest.mark.parametrize("key", ["secure", "verify"])
def test_a_flag_that_is_neither_is_refused_by_name_and_not_by_value(key: str) -> None:
    with pytest.raises(ValueError, match=f"extra '{key}' of connection 'ch' must be true or false") as caught:
        connection_settings(connection({key: "perhaps-s3cret"}))
    assert "s3cret" not in str(caught.value)


def test_certificates_timeouts_and_settings_are_taken() -> None:
    settings = connection_settings(
        connection(
            {
                "verify": "off",
                "ca_cert": "/ca.pem",
                "client_cert": "/c.pem",
                "client_cert_key": "/k.pem",
                "connect_timeout": "3",
                "send_receive_timeout": 60,
                "session_settings": {"max_threads": 2, "log_queries": True, "max_memory_usage": "1"},
                "compress": True,
            }
        )
    )
    assert settings.verify is False
    assert (settings.ca_cert, settings.client_cert, settings.client_key) == ("/ca.pem", "/c.pem", "/k.pem")
    assert (settings.connect_timeout, settings.read_timeout) == (3.0, 60.0)
    assert settings.session_settings == {"max_threads": "2", "log_queries": "1", "max_memory_usage": "1"}


def test_client_kwargs_are_looked_into_and_the_extra_itself_goes_first() -> None:
    settings = connection_settings(
        connection({"client_kwargs": {"ca_cert": "/inner.pem", "secure": True}, "secure": "false"})
    )
    assert (settings.ca_cert, settings.secure) == ("/inner.pem", False)


def test_session_settings_may_be_json_text_as_the_form_gives_them() -> None:
    assert connection_settings(connection({"session_settings": '{"a": 1}'})).session_settings == {"a": "1"}


@pytest.mark.parametrize(
    "extra",
    [
        {"session_settings": "no json"},
        {"session_settings": [1]},
        {"session_settings": {"a": [1]}},
        {"client_kwargs": "x"},
        {"connect_timeout": "soon"},
        {"connect_timeout": 0},
        {"connect_timeout": True},
        {"send_receive_timeout": "inf"},
        {"hosts": 5},
        {"hosts": ["a:b"]},
        {"hosts": [""]},
        {"hosts": [1]},
        {"hosts": ["ch2:"]},
        {"hosts": ["ch2:0"]},
        {"hosts": ["ch2:65536"]},
        {"hosts": ["http://ch2"]},
        {"replicas": ["ch1"]},
        {"replicas": "ch1:8123"},
        {"replicas": {"r1": "ch1"}},
        {"replicas": {"s1/r0": "ch1"}},
        {"replicas": {" s1/r1": "ch1"}},
        {"ca_cert": 1},
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_key(extra: dict[str, Any]) -> None:
    (key,) = extra
    with pytest.raises(ValueError, match=f"extra '{key}' of connection 'ch'"):
        connection_settings(connection(extra))


@pytest.mark.parametrize(
    "hosts",
    ["ch2, ch3:8124 ,[::1]:9,fe80::1", ["ch2", "ch3:8124", "[::1]:9", "fe80::1"]],
)
def test_further_hosts_come_after_the_first_and_once(hosts: object) -> None:
    settings = connection_settings(connection({"hosts": hosts}, port=8123))
    assert settings.hosts == (("ch1", 8123), ("ch2", 8123), ("ch3", 8124), ("::1", 9), ("fe80::1", 8123))
    assert connection_settings(connection({"hosts": "ch1"})).hosts == (("ch1", 8123),)


def test_hosts_alone_are_enough_and_none_is_refused() -> None:
    assert connection_settings(connection({"hosts": "ch2"}, host=None)).hosts == (("ch2", 8123),)
    with pytest.raises(ValueError, match="names no host"):
        connection_settings(connection(host=None))


@pytest.mark.parametrize(
    "replicas",
    [
        {"s1/r1": "ch1:9", "s1/r2": " ch2 ", "s1/r3": "[2001:db8::1]:9", "s1/r10": "2001:db8::2"},
        '{"s1/r1": "ch1:9", "s1/r2": "ch2", "s1/r3": "[2001:db8::1]:9", "s1/r10": "[2001:db8::2]"}',
    ],
)
def test_each_replica_may_have_an_address_and_the_first_hosts_port(replicas: object) -> None:
    settings = connection_settings(connection({"replicas": replicas, "hosts": "ch9:7"}, port=8124))
    assert settings.replicas == {
        "s1/r1": ("ch1", 9),
        "s1/r2": ("ch2", 8124),
        "s1/r3": ("2001:db8::1", 9),
        "s1/r10": ("2001:db8::2", 8124),
    }
    assert connection_settings(connection({"secure": True, "replicas": {"s1/r1": "a"}})).replicas == {
        "s1/r1": ("a", 8443)
    }


@pytest.mark.parametrize("nothing", [{}, "", "{}", None])
def test_no_map_of_replicas_is_none(nothing: object) -> None:
    assert connection_settings(connection({"replicas": nothing})).replicas == {}


@pytest.mark.parametrize(
    "endpoint",
    [
        *("s3cret:", "s3cret:port", "s3cret:0", "s3cret:65536", "s3cret:-1", "s3cret:٨١٢٣", "s3cret:8123:9"),
        *("", ":8123", "[s3cret]:8123", "[::1", "[::1]s3cret", "[]:8123", "http://s3cret:8123", "s3cret/x"),
        *("a@s3cret", "s3cret 1", 8123, ["s3cret"], None),
    ],
)
def test_an_address_that_is_none_is_refused_by_key_and_replica_and_not_by_value(endpoint: object) -> None:
    wanted = "extra 'replicas' of connection 'ch' must be a JSON object with host or host:port for s1/r2"
    with pytest.raises(ValueError, match=wanted) as caught:
        connection_settings(connection({"replicas": {"s1/r1": "ch1", "s1/r2": endpoint}}))
    assert "s3cret" not in str(caught.value)


def test_nothing_shows_the_password() -> None:
    assert "s3cret" not in repr(connection_settings(connection()))


class FakeServer:
    def __init__(self, answer: Exception | list[list[object]]) -> None:
        self.answer = answer

    def read(self, sql: str, **_: object) -> Any:
        from airflow_provider_dpone.clickhouse.server import ReadReply

        if isinstance(self.answer, Exception):
            raise self.answer
        return ReadReply(("version", "user", "clusters"), self.answer, "", {})


def hook(
    monkeypatch: pytest.MonkeyPatch, answer: Exception | list[list[object]], port: int
) -> DponeClickHouseHook:
    found = DponeClickHouseHook("ch")
    monkeypatch.setattr(DponeClickHouseHook, "get_connection", lambda *_: connection(port=port))
    monkeypatch.setattr(found, "_server", FakeServer(answer))
    return found


def test_testing_a_connection_shows_version_user_and_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    ok, text = hook(monkeypatch, [["26.9.2.1", "app", ["analytics"]]], 8123).test_connection()
    assert ok
    assert text == "ClickHouse 26.9.2.1 as user app; clusters: analytics"


def test_a_refused_connection_is_explained_without_the_servers_text(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ServerError(516, "AUTHENTICATION_FAILED", "app: s3cret is wrong")
    ok, text = hook(monkeypatch, error, 8123).test_connection()
    assert not ok
    assert "516 AUTHENTICATION_FAILED" in text
    assert "s3cret" not in text


def test_the_native_port_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    ok, text = hook(
        monkeypatch, ConnectFailed("the server did not accept a connection"), 9000
    ).test_connection()
    assert not ok
    assert "HTTP is on 8123" in text


def test_a_missing_certificate_file_is_named_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        DponeClickHouseHook,
        "get_connection",
        lambda *_: connection({"secure": True, "ca_cert": "/no/such/ca.pem"}),
    )
    ok, text = DponeClickHouseHook("ch").test_connection()
    assert not ok
    assert "check ca_cert" in text
