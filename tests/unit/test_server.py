"""The HTTP boundary against small servers that misbehave on purpose."""

from __future__ import annotations

import datetime
import ipaddress
import json
import pickle
import socket
import ssl
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_provider_dpone.clickhouse.errors import ConnectFailed, ReplyLost, ServerError, stopped, summary
from airflow_provider_dpone.clickhouse.server import ConnectionSettings, Server
from airflow_provider_dpone.publication.stop import Code

SECRET = "pass-w0rd-geheim"
EXCHANGE = "EXCHANGE TABLES d.a AND d.b ON CLUSTER c"


@dataclass
class Heard:
    """One request as the fake server received it; ``body`` is raw, chunk headers included."""

    head: bytes = b""
    body: bytes = b""

    @property
    def url_parameters(self) -> dict[str, str]:
        target = self.head.split(b" ", 2)[1].decode()
        return {name: values[-1] for name, values in parse_qs(urlsplit(target).query).items()}

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines) if name}


Behaviour = Callable[[socket.socket, Heard], None]


@dataclass
class FakeServer:
    """Accepts connections one by one and plays ``behaviours`` in order, the last one for ever."""

    behaviours: list[Behaviour]
    tls: ssl.SSLContext | None = None
    requests: list[Heard] = field(default_factory=list)
    connections: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._done.set()
        for thread in (self._thread, *self._threads):
            thread.join(5)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except TimeoutError:
                # What is still waiting to be accepted is served before the end.
                if self._done.is_set():
                    return
                continue
            behaviour = self.behaviours[min(self.connections, len(self.behaviours) - 1)]
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(raw, behaviour))
            thread.start()
            self._threads.append(thread)

    def _serve(self, raw: socket.socket, behaviour: Behaviour) -> None:
        raw.settimeout(5)
        try:
            connection = self.tls.wrap_socket(raw, server_side=True) if self.tls else raw
        except (ssl.SSLError, OSError):
            raw.close()
            return
        with connection:
            heard = Heard()
            while b"\r\n\r\n" not in heard.head:
                piece = connection.recv(65536)
                if not piece:
                    return
                heard.head += piece
            head, _, heard.body = heard.head.partition(b"\r\n\r\n")
            heard.head = head + b"\r\n"
            self.requests.append(heard)
            behaviour(connection, heard)


def read_body(connection: socket.socket, heard: Heard) -> None:
    """Read until the declared length, the final chunk, or the end of the stream."""
    length = heard.headers.get("content-length")
    while not (len(heard.body) >= int(length) if length else heard.body.endswith(b"0\r\n\r\n")):
        piece = connection.recv(65536)
        if not piece:
            return
        heard.body += piece


def answer(text: str, status: str = "200 OK", headers: dict[str, str] | None = None) -> Behaviour:
    """Read everything, then answer completely."""
    lines = {"X-ClickHouse-Summary": '{"written_rows":"3"}', "X-ClickHouse-Server-Display-Name": "fake"}
    lines |= {"Content-Length": str(len(text.encode())), **(headers or {})}

    def play(connection: socket.socket, heard: Heard) -> None:
        read_body(connection, heard)
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        connection.sendall(f"HTTP/1.1 {status}\r\n{head}\r\n{text}".encode())

    return play


def clickhouse_error(code: int, name: str, text: str, status: str = "500 Internal Server Error") -> Behaviour:
    body = f"Code: {code}. DB::Exception: {text}. ({name}) (version 26.9.2.1 (official build))"
    return answer(body, status, {"X-ClickHouse-Exception-Code": str(code)})


def reset(connection: socket.socket, heard: Heard) -> None:
    """RST after the whole request was read."""
    read_body(connection, heard)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def hang_up(connection: socket.socket, heard: Heard) -> None:
    """FIN after the whole request was read, without a reply."""
    read_body(connection, heard)


def partial(connection: socket.socket, heard: Heard) -> None:
    read_body(connection, heard)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-ClickHouse-Summary: {}\r\nContent-Length: 100\r\n\r\nonly this")


def partial_head(connection: socket.socket, heard: Heard) -> None:
    read_body(connection, heard)
    connection.sendall(b"HTTP/1.1 200 O")


def silent(connection: socket.socket, heard: Heard) -> None:
    read_body(connection, heard)
    threading.Event().wait(2)


def read_to_end(connection: socket.socket, heard: Heard) -> None:
    while piece := connection.recv(65536):
        heard.body += piece


@contextmanager
def fake(*behaviours: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[FakeServer]:
    server = FakeServer(list(behaviours), tls)
    try:
        yield server
    finally:
        server.close()


def connect(*ports: int, **more: object) -> Server:
    hosts = tuple(("127.0.0.1", port) for port in ports)
    return Server(ConnectionSettings(hosts, user="app", password=SECRET, **more))  # type: ignore[arg-type]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# ---- mutations


@pytest.mark.parametrize("behaviour", [reset, hang_up, partial, partial_head, silent])
def test_a_mutation_whose_reply_is_lost_is_sent_exactly_once(behaviour: Behaviour) -> None:
    with fake(behaviour) as fake_server:
        server = connect(fake_server.port)
        started = time.monotonic()
        with pytest.raises(ReplyLost):
            server.once(EXCHANGE, timeout=0.5)
        assert time.monotonic() - started < 1.2
        assert fake_server.connections == 1
    assert [heard.body for heard in fake_server.requests] == [EXCHANGE.encode()]
    assert server.mutations == 1


@pytest.mark.parametrize("status", ["301 Moved", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_is_not_followed_and_counts_as_a_lost_reply(status: str) -> None:
    with fake(answer("")) as elsewhere:
        location = {"Location": f"http://127.0.0.1:{elsewhere.port}/"}
        with fake(answer("", status, location)) as fake_server, pytest.raises(ReplyLost):
            connect(fake_server.port).once(EXCHANGE)
        assert fake_server.connections == 1
        assert elsewhere.connections == 0


@pytest.mark.parametrize("status", ["429 Too Many", "502 Bad Gateway", "503 Unavailable", "504 Timeout"])
def test_a_proxys_error_is_not_retried_on_a_mutation(status: str) -> None:
    with fake(answer("upstream is away", status, {"Retry-After": "0"})) as fake_server:
        with pytest.raises(ReplyLost):
            connect(fake_server.port).once(EXCHANGE)
        assert fake_server.connections == 1


def test_a_200_that_is_not_from_clickhouse_is_no_acknowledgement() -> None:
    def portal(connection: socket.socket, heard: Heard) -> None:
        read_body(connection, heard)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nlogin")

    with fake(portal) as fake_server, pytest.raises(ReplyLost):
        connect(fake_server.port).once(EXCHANGE)


def test_a_refused_connection_sends_nothing() -> None:
    server = connect(free_port())
    with pytest.raises(ConnectFailed):
        server.once(EXCHANGE)
    assert server.mutations == 0


def test_an_unresolvable_host_sends_nothing_and_is_not_named() -> None:
    server = Server(ConnectionSettings((("no-such-host.invalid", 8123),), connect_timeout=2))
    with pytest.raises(ConnectFailed) as caught:
        server.once(EXCHANGE)
    assert "invalid" not in str(caught.value)


def test_a_mutation_may_choose_another_host_only_before_its_first_byte() -> None:
    with fake(answer("")) as second:
        connect(free_port(), second.port).once(EXCHANGE)
        assert second.connections == 1
    with fake(reset) as first, fake(answer("")) as second:
        with pytest.raises(ReplyLost):
            connect(first.port, second.port).once(EXCHANGE)
        assert (first.connections, second.connections) == (1, 0)


def test_nothing_is_sent_if_the_last_word_before_it_is_no() -> None:
    def no() -> None:
        raise RuntimeError("no permit")

    with fake(answer("")) as fake_server:
        server = connect(fake_server.port)
        with pytest.raises(RuntimeError, match="no permit"):
            server.once(EXCHANGE, before_send=no)
    assert server.mutations == 0
    assert fake_server.requests == []


def test_the_last_word_is_not_asked_without_a_connection() -> None:
    asked: list[str] = []
    with pytest.raises(ConnectFailed):
        connect(free_port()).once(EXCHANGE, before_send=lambda: asked.append("asked"))
    assert asked == []


def test_a_pinned_mutation_never_goes_to_another_host() -> None:
    with fake(answer("")) as second:
        with pytest.raises(ConnectFailed):
            connect(free_port(), second.port).once(EXCHANGE, pinned=0)
        assert second.connections == 0


def test_every_mutation_has_its_own_connection_and_asks_to_close_it() -> None:
    with fake(answer("")) as fake_server:
        server = connect(fake_server.port)
        server.once(EXCHANGE)
        server.once(EXCHANGE)
        assert fake_server.connections == 2
    assert all(heard.headers["connection"] == "close" for heard in fake_server.requests)


def test_settings_of_a_mutation() -> None:
    with fake(answer("")) as fake_server:
        server = connect(
            fake_server.port, session_settings={"async_insert": "1", "max_threads": "2", "log_comment": "x"}
        )
        server.once(
            EXCHANGE, settings={"log_comment": "dpone1:t", "insert_keeper_max_retries": 20}, query_id="q"
        )
    sent = fake_server.requests[0].url_parameters
    assert sent == {
        "wait_end_of_query": "1",
        "async_insert": "0",
        "insert_keeper_max_retries": "0",
        "http_write_exception_in_output_format": "0",
        "max_threads": "2",
        "log_comment": "dpone1:t",
        "query_id": "q",
    }
    assert fake_server.requests[0].headers["x-clickhouse-user"] == "app"
    assert fake_server.requests[0].headers["x-clickhouse-key"] == SECRET


def test_the_reply_to_a_mutation() -> None:
    with fake(answer("ok\n")) as fake_server:
        reply = connect(fake_server.port).once(EXCHANGE)
    assert (reply.text, reply.server_name, reply.summary) == ("ok\n", "fake", {"written_rows": "3"})


# ---- streamed bodies


def test_a_streamed_body_goes_behind_the_statement() -> None:
    with fake(answer("")) as fake_server:
        connect(fake_server.port).once("INSERT INTO d.t FORMAT TSV", body=iter([b"1\n", b"", b"22\n"]))
    heard = fake_server.requests[0]
    assert heard.url_parameters["query"] == "INSERT INTO d.t FORMAT TSV"
    assert heard.body == b"2\r\n1\n\r\n3\r\n22\n\r\n0\r\n\r\n"


class SourceBroke(Exception):
    """Raised by a source in the middle of its rows."""


@pytest.mark.parametrize("error", [SourceBroke(), ConnectionResetError("source"), KeyboardInterrupt()])
def test_a_failing_source_cuts_the_connection_without_the_final_chunk(error: BaseException) -> None:
    def rows() -> Iterator[bytes]:
        yield b"1\n"
        raise error

    with fake(read_to_end) as fake_server:
        with pytest.raises(type(error)) as caught:
            connect(fake_server.port).once("INSERT INTO d.t FORMAT TSV", body=rows())
        assert caught.value is error
    assert fake_server.requests[0].body == b"2\r\n1\n\r\n"


def test_a_connection_that_breaks_while_streaming_is_a_lost_reply() -> None:
    def cut(connection: socket.socket, heard: Heard) -> None:
        connection.recv(1000)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with fake(cut) as fake_server:
        with pytest.raises(ReplyLost):
            connect(fake_server.port).once(
                "INSERT INTO d.t FORMAT TSV", body=(b"x" * 65536 for _ in range(500))
            )
        assert fake_server.connections == 1


def test_an_error_that_comes_before_the_end_of_the_stream_is_reported() -> None:
    def refuse(connection: socket.socket, heard: Heard) -> None:
        connection.sendall(
            b"HTTP/1.1 403 Forbidden\r\nX-ClickHouse-Exception-Code: 497\r\nContent-Length: 4\r\n\r\nnope"
        )
        connection.shutdown(socket.SHUT_WR)
        read_to_end(connection, heard)

    with fake(refuse) as fake_server, pytest.raises(ServerError) as caught:
        connect(fake_server.port).once("INSERT INTO d.t FORMAT TSV", body=(b"x" * 65536 for _ in range(50)))
    assert (caught.value.code, caught.value.name) == (497, "ACCESS_DENIED")


# ---- reads


RESULT = json.dumps(
    {
        "meta": [{"name": "n"}, {"name": "s"}],
        "data": [[340282366920938463463374607431768211455, "ä"]],
        "rows": 1,
    }
)


def test_a_read_returns_exact_numbers_by_name() -> None:
    with fake(answer(RESULT)) as fake_server:
        reply = connect(fake_server.port).read("SELECT n, s FROM t")
    assert reply.dicts() == [{"n": 2**128 - 1, "s": "ä"}]
    assert fake_server.requests[0].body == b"SELECT n, s FROM t"
    assert fake_server.requests[0].url_parameters["default_format"] == "JSONCompact"
    assert fake_server.requests[0].url_parameters["wait_end_of_query"] == "1"


@pytest.mark.parametrize("behaviour", [reset, hang_up, partial])
def test_a_read_is_repeated_within_its_bound(behaviour: Behaviour) -> None:
    with fake(behaviour, answer(RESULT)) as fake_server:
        assert connect(fake_server.port).read("SELECT 1").rows
        assert fake_server.connections == 2
    with fake(behaviour) as fake_server:
        with pytest.raises(ReplyLost):
            connect(fake_server.port).read("SELECT 1")
        assert fake_server.connections == 2


def test_a_named_read_that_is_repeated_takes_the_place_of_the_one_before() -> None:
    with fake(hang_up, answer(RESULT)) as fake_server:
        connect(fake_server.port).read("SELECT 1", query_id="its-own")
        sent = [request.url_parameters for request in fake_server.requests]
    assert [one["query_id"] for one in sent] == ["its-own"] * len(sent)
    assert {one["replace_running_query"] for one in sent} == {"1"}
    with fake(answer(RESULT)) as fake_server:
        connect(fake_server.port).read("SELECT 1")
        assert not {"query_id", "replace_running_query"} & {*fake_server.requests[0].url_parameters}


def test_a_read_fails_over_and_stays_with_the_host_that_answered() -> None:
    # Said beforehand: a kept connection that is found closed only when it is used would cost another round.
    last = answer(RESULT, headers={"Connection": "close"})
    with fake(hang_up) as first, fake(last) as second:
        server = connect(first.port, second.port)
        server.read("SELECT 1")
        server.read("SELECT 1")
        assert (first.connections, second.connections) == (1, 2)


def test_the_time_for_a_read_covers_all_its_tries() -> None:
    with fake(silent) as fake_server:
        with pytest.raises(ReplyLost):
            connect(fake_server.port).read("SELECT 1", timeout=0.3)
        assert fake_server.connections == 1


def test_a_read_with_no_reachable_host() -> None:
    with pytest.raises(ConnectFailed):
        connect(free_port(), free_port()).read("SELECT 1")


def test_an_error_behind_the_first_rows_of_a_read_is_found() -> None:
    late = '{"meta": [{"name": "n"}], "data": [1,Code: 241. DB::Exception: x. (MEMORY_LIMIT_EXCEEDED) (version 1)'
    with fake(answer(late)) as fake_server, pytest.raises(ServerError) as caught:
        connect(fake_server.port).read("SELECT 1")
    assert caught.value.name == "MEMORY_LIMIT_EXCEEDED"


def test_only_reads_go_through_read() -> None:
    with pytest.raises(ValueError, match="only a statement that reads"):
        connect(1).read("ALTER TABLE t UPDATE a = 1 WHERE 1")


# ---- errors and secrets


def test_a_server_error_keeps_foreign_text_to_itself() -> None:
    with (
        fake(
            clickhouse_error(60, "UNKNOWN_TABLE", "Table secret_db.t on host-7 doesn't exist")
        ) as fake_server,
        pytest.raises(ServerError) as caught,
    ):
        connect(fake_server.port).once("DROP TABLE secret_db.t")
    error = caught.value
    shown = (
        "".join(traceback.format_exception(error)) + repr(error) + str(error.args) + repr(pickle.dumps(error))
    )
    shown += str(stopped(error, "Reading").stop)
    assert "host-7" not in shown
    assert "doesn't exist on" not in shown
    assert str(error) == summary(error) == "60 UNKNOWN_TABLE: a table doesn't exist"
    assert error.mentions("host-7")
    assert not error.remote_host_error


def test_the_error_of_another_host_is_told_apart() -> None:
    text = (
        "There was an error on [10.0.0.2:9000]: Code: 57. DB::Exception: x (TABLE_ALREADY_EXISTS) (version 1)"
    )
    with (
        fake(clickhouse_error(57, "TABLE_ALREADY_EXISTS", text)) as fake_server,
        pytest.raises(ServerError) as caught,
    ):
        connect(fake_server.port).once(EXCHANGE)
    assert caught.value.remote_host_error
    assert "10.0.0.2" not in str(caught.value)


def test_our_own_check_in_a_query_may_speak() -> None:
    text = (
        "dpone: value does not fit column `geb. am`: while executing 'FUNCTION throwIf(greater(x, 'secret'))'"
    )
    with (
        fake(clickhouse_error(395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO", text)) as fake_server,
        pytest.raises(ServerError) as caught,
    ):
        connect(fake_server.port).once("INSERT INTO t SELECT 1")
    assert caught.value.own_message == "value does not fit column `geb. am`"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("To execute this query, it's necessary to have the grant READ ON REMOTE", "READ ON REMOTE"),
        (
            "it's necessary to have the grant SELECT(name, uuid) ON system.clusters",
            "SELECT ON system.clusters",
        ),
        ("it's necessary to have the grant CREATE TABLE ON mart.orders", "CREATE TABLE ON mart.orders"),
        ("something else about Smith", None),
    ],
)
def test_the_lacking_grant_is_named(text: str, grant: str | None) -> None:
    error = ServerError.from_text(f"Code: 497. DB::Exception: app: {text}. (ACCESS_DENIED) (version 1)")
    assert error is not None
    assert error.needed_grant == grant
    assert "Smith" not in str(error)
    assert str(error).startswith("497 ACCESS_DENIED: the user lacks ")


def test_a_throw_of_someone_else_does_not_speak() -> None:
    error = ServerError.from_text("Code: 395. DB::Exception: row 7 of Smith. (X) (version 1)")
    assert error is not None
    assert error.own_message is None
    assert "Smith" not in str(error)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (999, Code.AUTHORITY_UNAVAILABLE),
        (242, Code.AUTHORITY_UNAVAILABLE),
        (225, Code.AUTHORITY_UNAVAILABLE),
        (497, Code.MISSING_GRANT),
        (701, Code.UNKNOWN_CLUSTER),
        (279, Code.REPLICA_NOT_OBSERVED),
        (241, Code.SERVER_ERROR),
        (31337, Code.SERVER_ERROR),
    ],
)
def test_each_error_of_a_read_has_its_stop(code: int, expected: Code) -> None:
    assert stopped(ServerError(code, ""), "Reading").stop.code is expected


@pytest.mark.parametrize("error", [ConnectFailed("no"), ReplyLost("lost")])
def test_a_broken_connection_of_a_read_is_retryable(error: ConnectFailed | ReplyLost) -> None:
    assert stopped(error, "Reading").stop.code is Code.SERVER_UNAVAILABLE


def test_the_password_is_never_shown() -> None:
    server = connect(free_port())
    assert SECRET not in repr(server) + str(server) + repr(server._settings)
    with pytest.raises(ConnectFailed) as caught:
        server.once(EXCHANGE)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("field_name", ["user", "password"])
def test_a_credential_that_is_no_header_is_refused_without_showing_it(field_name: str) -> None:
    with pytest.raises(ValueError, match=f"connection's {field_name}") as caught:
        ConnectionSettings((("h", 1),), **{field_name: "geheim\r\nX: y"})  # type: ignore[arg-type]
    assert "geheim" not in str(caught.value)


def test_a_password_outside_latin_1_arrives_as_utf_8() -> None:
    with fake(answer("")) as fake_server:
        Server(ConnectionSettings((("127.0.0.1", fake_server.port),), password="пароль€")).once(EXCHANGE)
    assert fake_server.requests[0].headers["x-clickhouse-key"].encode("latin-1").decode() == "пароль€"


@pytest.mark.parametrize("name", ["query_id", "session_id", "query", "password"])
def test_reserved_parameters_are_no_session_settings(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ConnectionSettings((("h", 1),), session_settings={name: "x"})


def test_a_connection_without_host_is_refused() -> None:
    with pytest.raises(ValueError, match="no host"):
        ConnectionSettings(())


# ---- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write ca.pem, server.pem and client.pem (each with its key behind it where it has one)."""
    folder = tmp_path_factory.mktemp("tls")
    now = datetime.datetime.now(datetime.UTC)

    def build(
        name: str, issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None
    ) -> ec.EllipticCurvePrivateKey:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer_name, signer = issuer or (subject, key)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(signer_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign(signer, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = certificate.public_bytes(serialization.Encoding.PEM)
        (folder / f"{name}.pem").write_bytes(public if issuer is None else public + private)
        return key

    ca_key = build("ca", None)
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    build("server", (ca_name, ca_key))
    build("client", (ca_name, ca_key))
    return folder


def server_tls(certificates: Path, *, client_required: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem")
    if client_required:
        context.load_verify_locations(certificates / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_https_with_the_right_ca_and_a_client_certificate(certificates: Path) -> None:
    with fake(answer(RESULT), tls=server_tls(certificates, client_required=True)) as fake_server:
        server = connect(
            fake_server.port,
            secure=True,
            ca_cert=str(certificates / "ca.pem"),
            client_cert=str(certificates / "client.pem"),
        )
        server.once(EXCHANGE)
        assert server.read("SELECT 1").rows
    assert len(fake_server.requests) == 2


def test_https_with_an_unknown_ca_sends_nothing_and_says_why(certificates: Path) -> None:
    with fake(answer(RESULT), tls=server_tls(certificates)) as fake_server:
        server = connect(fake_server.port, secure=True)
        with pytest.raises(ConnectFailed, match="certificates"):
            server.once(EXCHANGE)
        with pytest.raises(ConnectFailed, match="certificates"):
            server.read("SELECT 1")
        assert connect(fake_server.port, secure=True, verify=False).once(EXCHANGE).text == RESULT
    assert len(fake_server.requests) == 1


def test_the_column_that_could_not_be_read_is_the_last_one_of_the_diagnosis() -> None:
    error = ServerError.from_text(
        "Code: 27. DB::Exception: Cannot parse input: expected '\\n': \nRow 1:\n"
        'Column 0,   name: customer_reference, type: Nullable(String), parsed text: "a"\n'
        'Column 1,   name: qty,                type: Int32, ERROR: text "\\\\N" is not like Int32\n'
        ": (at row 1)\n. (CANNOT_PARSE_INPUT_ASSERTION_FAILED) (version 1)"
    )
    assert error is not None
    assert error.diagnosed_column == "qty"
