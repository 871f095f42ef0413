"""Talks to a running cluster from a test: statements over HTTP, and the supervisor's control port."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import urlencode

from tests.cluster.ddl_queue import QueueRow, QueueStatus
from tests.cluster.faults import FaultKind
from tests.cluster.front import TOOL_HEADER
from tests.cluster.node_client import CODE_HEADER
from tests.cluster.spec import ADMIN_USER, Endpoint
from tests.cluster.statement_log import LoggedStatement

_TIMEOUT = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25

Target = int | Literal["load_balancer"]
"""Where a statement goes: a node number, or the port that takes another node each time."""


class ClickHouseError(RuntimeError):
    """The server answered with an error.

    Attributes:
        code: ClickHouse's error code.
        http_status: of the answer.
    """

    def __init__(self, code: int, http_status: int, text: str) -> None:
        super().__init__(text.strip())
        self.code = code
        self.http_status = http_status


class ControlError(RuntimeError):
    """The supervisor could not do what was asked."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that has been armed."""

    number: int
    _call: Callable[..., Any]

    @property
    def hits(self) -> int:
        """How many statements it has hit so far."""
        hits: int = self._call("fault_hits", number=self.number)
        return hits

    def wait_for_hit(self, timeout: float = 30.0) -> None:
        """Wait until it has hit a statement.

        Raises:
            TimeoutError: it has not within `timeout` seconds.
        """
        wait_until(lambda: self.hits > 0, timeout=timeout)

    def release(self) -> None:
        """Let go what it holds."""
        self._call("release_fault", number=self.number)


def wait_until(condition: Callable[[], bool], *, timeout: float = 30.0) -> None:
    """Poll until the condition holds, with growing pauses: what is asked has work to do.

    Raises:
        TimeoutError: it has not within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still not so after {timeout:g} s")
        time.sleep(pause)
        pause = min(1.5 * pause, _LONGEST_PAUSE)


class ClusterClient:
    """A running cluster. Node numbers begin at 1.

    Attributes:
        endpoints: HTTP endpoint of each node, through the gateway. This is what clients under test connect to.
        load_balancer: HTTP endpoint that sends each request to another node in turn.
        direct_http: the servers' own HTTP ports, past the gateway: no ON CLUSTER, no DDL queue, no faults, no log.
        direct_tcp: the servers' native ports; the addresses in system.clusters.
        control: the supervisor's control port.
        zookeeper: ZooKeeper's client port.
    """

    def __init__(self, addresses: Mapping[str, Any]) -> None:
        self.endpoints = [Endpoint(*address) for address in addresses["endpoints"]]
        self.load_balancer = Endpoint(*addresses["load_balancer"])
        self.direct_http = [Endpoint(*address) for address in addresses["direct_http"]]
        self.direct_tcp = [Endpoint(*address) for address in addresses["direct_tcp"]]
        self.control = Endpoint(*addresses["control"])
        self.zookeeper = Endpoint(*addresses["zookeeper"])
        self.addresses = dict(addresses)

    @classmethod
    def attach(cls, addresses: str) -> Self:
        """Another process's cluster, from the JSON that ``python -m tests.cluster up`` prints."""
        return cls(json.loads(addresses))

    @property
    def nodes(self) -> range:
        """All node numbers."""
        return range(1, len(self.endpoints) + 1)

    # --- Statements ------------------------------------------------------------------

    def execute(
        self,
        sql: str,
        *,
        node: Target = 1,
        user: str = ADMIN_USER,
        password: str = "",
        settings: Mapping[str, str | int] | None = None,
        parameters: Mapping[str, str] | None = None,
        observed: bool = False,
    ) -> str:
        """Run a statement and return the body of the answer.

        Args:
            sql: one statement.
            node: where to send it.
            user: as whom; ``dpone_app`` has the password `spec.APP_PASSWORD`.
            password: of that user.
            settings: URL parameters (``log_comment``, ``query_id``, ``database``...).
            parameters: values of query parameters, named without ``param_``.
            observed: whether faults may hit it and the log shows it, as if a client under test had sent it.

        Raises:
            ClickHouseError: the server answered with an error.
            ConnectionError: the connection was refused or cut.
        """
        query = {name: str(value) for name, value in (settings or {}).items()}
        query |= {f"param_{name}": value for name, value in (parameters or {}).items()}
        headers = {"X-ClickHouse-User": user, "X-ClickHouse-Key": password, "Connection": "close"}
        if not observed:
            headers[TOOL_HEADER] = "1"
        endpoint = self.load_balancer if node == "load_balancer" else self.endpoints[node - 1]
        connection = http.client.HTTPConnection(*endpoint, timeout=_TIMEOUT)
        try:
            connection.request(
                "POST", f"/?{urlencode({**query, 'wait_end_of_query': 1})}", sql.encode(), headers
            )
            response = connection.getresponse()
            body = response.read().decode(errors="replace")
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()
        code = int(response.headers.get(CODE_HEADER, "0"))
        if response.status != 200 or code:
            raise ClickHouseError(code, response.status, body)
        return body

    def query(
        self,
        sql: str,
        *,
        node: Target = 1,
        user: str = ADMIN_USER,
        password: str = "",
        settings: Mapping[str, str | int] | None = None,
        parameters: Mapping[str, str] | None = None,
        observed: bool = False,
    ) -> list[dict[str, Any]]:
        """Run a query without FORMAT clause and return its rows. Arguments and errors as in `execute`."""
        formats: dict[str, str | int] = {
            "default_format": "JSONEachRow",
            "output_format_json_quote_64bit_integers": 0,
        }
        body = self.execute(
            sql,
            node=node,
            user=user,
            password=password,
            settings={**formats, **(settings or {})},
            parameters=parameters,
            observed=observed,
        )
        return [json.loads(line) for line in body.splitlines()]

    def scalar(self, sql: str, *, node: Target = 1) -> Any:
        """The only value of a query's only row.

        Raises:
            ValueError: there are more of them, or none.
        """
        rows = self.query(sql, node=node)
        if len(rows) != 1 or len(rows[0]) != 1:
            raise ValueError(f"expected one value, got {rows!r:.200}")
        return next(iter(rows[0].values()))

    # --- Faults on client requests -----------------------------------------------------

    def refuse(self, node: int | None, match: str, count: int = 1) -> Fault:
        """Cut the connection before the server sees the statement.

        Args:
            node: which replica's statements; None is any.
            match: regular expression, searched in the statement without regard to case.
            count: how many statements.
        """
        return self._arm(FaultKind.REFUSE, node, match, count)

    def drop_response(
        self,
        node: int | None,
        match: str,
        count: int = 1,
        *,
        after: Literal["execution", "enqueue"] = "execution",
    ) -> Fault:
        """Cut the connection after the server has done it, or (ON CLUSTER only) as soon as it is in the queue."""
        kind = FaultKind.DROP_RESPONSE if after == "execution" else FaultKind.DROP_AFTER_ENQUEUE
        return self._arm(kind, node, match, count)

    def answer_error(
        self, node: int | None, match: str, code: int, count: int = 1, *, executed: bool = False
    ) -> Fault:
        """Answer with this ClickHouse error, with the statement executed or not."""
        kind = FaultKind.ERROR_AFTER if executed else FaultKind.ERROR_BEFORE
        return self._arm(kind, node, match, count, code=code)

    def delay(
        self, node: int | None, match: str, seconds: float, count: int = 1, *, executed: bool = False
    ) -> Fault:
        """Delay the statement, or (`executed`) its answer."""
        kind = FaultKind.DELAY_AFTER if executed else FaultKind.DELAY_BEFORE
        return self._arm(kind, node, match, count, seconds=seconds)

    def hold(self, node: int | None, match: str, count: int = 1, *, executed: bool = False) -> Fault:
        """Hold the statement, or (`executed`) its answer, until the fault is released."""
        kind = FaultKind.HOLD_AFTER if executed else FaultKind.HOLD_BEFORE
        return self._arm(kind, node, match, count)

    # --- Faults on the execution of queue entries ----------------------------------------

    def pause_worker(self, node: int) -> None:
        """Let this replica's DDL worker begin no further entry: its rows stay Inactive."""
        self._call("pause_worker", node=node)

    def resume_worker(self, node: int) -> None:
        """Let it go on."""
        self._call("resume_worker", node=node)

    def fail_execution(self, node: int, match: str = ".", count: int = 1, *, code: int = 164) -> Fault:
        """Let the replica answer the entry with a real error of this code, and record it.

        164 is raised by executing the statement itself read-only; any other code by ``throwIf``.
        """
        return self._arm(FaultKind.FAIL_EXECUTION, node, match, count, code=code)

    def delay_execution(self, node: int, match: str, seconds: float, count: int = 1) -> Fault:
        """Let the replica show the entry as Active for so long before it executes it."""
        return self._arm(FaultKind.DELAY_EXECUTION, node, match, count, seconds=seconds)

    def hold_execution(self, node: int, match: str = ".", count: int = 1, *, executed: bool = False) -> Fault:
        """Let the replica show the entry as Active until released; `executed` holds it after the execution."""
        kind = FaultKind.HOLD_MARK if executed else FaultKind.HOLD_EXECUTION
        return self._arm(kind, node, match, count)

    def crash_worker_before_mark(
        self, node: int, match: str = ".", count: int = 1, *, restart_after: float | None = 0.0
    ) -> Fault:
        """Let the worker die after the execution and before it records the outcome, so that it executes twice.

        It starts again after `restart_after` seconds; with None, only when `restart_worker`, or a restart of the
        node, starts it.
        """
        seconds = -1.0 if restart_after is None else restart_after
        return self._arm(FaultKind.CRASH_BEFORE_MARK, node, match, count, seconds=seconds)

    def restart_worker(self, node: int) -> None:
        """Start the worker anew, with an empty memory."""
        self._call("restart_worker", node=node)

    def worker_alive(self, node: int) -> bool:
        """Whether the worker runs, paused or not."""
        return bool(self._call("worker_alive", node=node))

    # --- Processes -----------------------------------------------------------------------

    def kill_node(self, node: int) -> None:
        """Kill a server (SIGKILL)."""
        self._call("kill_node", node=node)

    def stop_node(self, node: int) -> None:
        """Shut a server down in order (SIGTERM)."""
        self._call("stop_node", node=node)

    def start_node(self, node: int) -> None:
        """Start it again with its data; returns when it answers. Replicated tables may need seconds more."""
        self._call("start_node", node=node)

    def stop_zookeeper(self) -> None:
        """Shut ZooKeeper down."""
        self._call("stop_zookeeper")

    def start_zookeeper(self) -> None:
        """Start it again with its data; servers and workers need seconds to find it."""
        self._call("start_zookeeper")

    def running(self) -> dict[str, bool]:
        """Which processes run: ``zookeeper``, ``n1``, ``n2``..."""
        return dict(self._call("running"))

    def clear_faults(self) -> None:
        """Disarm all faults, release what they hold, and end all lies about the queue."""
        self._call("clear_faults")

    def heal(self) -> None:
        """Undo every fault: disarm, resume, restart, and wait until every replicated table can be written.

        Raises:
            ControlError: that took more than a minute.
        """
        self._call("heal")

    # --- The DDL queue ---------------------------------------------------------------------

    def queue_rows(self, match: str = "") -> list[QueueRow]:
        """What system.distributed_ddl_queue shows, for entries whose query contains `match`."""
        rows: list[QueueRow] = self._call("queue_rows", match=match)
        return rows

    def remove_queue_entry(self, entry: str) -> None:
        """Delete an entry from the queue, as its cleaner does."""
        self._call("remove_queue_entry", entry=entry)

    def duplicate_queue_entry(self, entry: str, *, execute: bool = False) -> str:
        """Append a copy of an entry, with the same query and settings; returns its name.

        By default all hosts have finished it already, so nobody executes it.
        """
        name: str = self._call("duplicate_queue_entry", entry=entry, execute=execute)
        return name

    def report_queue_row(
        self,
        match: str,
        *,
        node: int | None = None,
        status: QueueStatus | None,
        exception_code: int | None = None,
        exception_text: str | None = None,
    ) -> None:
        """Let the queue's table show these values for entries whose query matches, whatever is true.

        Any combination is possible, such as Finished without a code, or Active with an exception.
        """
        self._call(
            "override_queue",
            match=match,
            node=node,
            status=status,
            exception_code=exception_code,
            exception_text=exception_text,
            hidden=False,
        )

    def hide_queue_rows(self, match: str, *, node: int | None = None) -> None:
        """Let the queue's table show no row for entries whose query matches."""
        self._call(
            "override_queue",
            match=match,
            node=node,
            status=None,
            exception_code=None,
            exception_text=None,
            hidden=True,
        )

    # --- What went through -------------------------------------------------------------------

    def statements(self, match: str = "", since: int = 0) -> list[LoggedStatement]:
        """Statements whose text matches the regular expression, after sequence number `since`, oldest first."""
        found = self._call("statements", match=match, since=since)
        return [LoggedStatement.from_dict(fields) for fields in found]

    def last_statement(self) -> int:
        """Sequence number of the newest statement in the log: a mark for `statements(since=...)`."""
        sequence: int = self._call("last_statement")
        return sequence

    def request_count(self, node: int | None = None) -> int:
        """How many HTTP requests came, to one node or to all; the test's own are not counted."""
        counts: dict[str, int] = self._call("requests")
        return sum(count for number, count in counts.items() if node is None or int(number) == node)

    def _arm(
        self,
        kind: FaultKind,
        node: int | None,
        match: str,
        count: int,
        *,
        seconds: float = 0.0,
        code: int = 0,
    ) -> Fault:
        number: int = self._call(
            "arm_fault", kind=kind, node=node, match=match, count=count, seconds=seconds, code=code
        )
        return Fault(number, self._call)

    def _call(self, method: str, **arguments: Any) -> Any:
        connection = http.client.HTTPConnection(*self.control, timeout=_TIMEOUT)
        try:
            connection.request(
                "POST", f"/{method}", json.dumps(arguments), {"Content-Type": "application/json"}
            )
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "error" in answer:
            raise ControlError(f"{method}: {answer['error']}")
        return answer["result"]
