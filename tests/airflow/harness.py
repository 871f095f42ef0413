"""A real Airflow for tests: scheduler, DAG processor, API server and, on request, triggerer.

    with LocalAirflow(dags_folder, connections={"ch": "dpone-clickhouse://..."}) as airflow:
        run_id = airflow.trigger("orders")
        assert airflow.wait_run("orders", run_id) == "success"

Nothing of Airflow is imported here: tests talk to it over its public REST API, as a user would. The metadata
database is SQLite, which takes one writer at a time, so requests are sent one after the other.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from scripts.lib.processes import descendants, die_with_parent, send, session_members
from tests.airflow.launch import PRELOAD

Component = Literal["api-server", "scheduler", "dag-processor", "triggerer"]
Setting = str | int | float | bool

CHECKOUT: Final = Path(__file__).resolve().parents[2]
BOOT_SECONDS: Final = 240.0
VERSION: Final = tuple(int(part) for part in version("apache-airflow").split(".")[:2])
TAKES_COMMANDS: Final = VERSION >= (3, 2)
"""Whether ``airflow`` takes commands from providers."""
POLL_SECONDS: Final = (0.1, 0.5)
"""The first pause between two requests, and the longest. Each request takes time from what is waited for."""
FINISHED_RUN: Final = frozenset({"success", "failed"})
UNMAPPED: Final = -1

# Under what name the health report lists a component.
_HEALTH_NAME: Final[Mapping[Component, str]] = {
    "api-server": "metadatabase",
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}

_CONFIG: Final[Mapping[str, Mapping[str, Setting]]] = {
    "core": {
        "executor": "LocalExecutor",
        "parallelism": 4,
        "load_examples": False,
        "dags_are_paused_at_creation": False,
        "min_serialized_dag_update_interval": 0,
        "auth_manager": "tests.airflow.auth.PickyAuthManager",
        "simple_auth_manager_users": "admin:admin,viewer:viewer",
        # The default looks the name up in DNS, which a test machine may not have.
        "hostname_callable": "socket.gethostname",
    },
    "api": {"host": "127.0.0.1", "workers": 1, "maximum_page_limit": 1000},
    "scheduler": {
        "scheduler_idle_sleep_time": 0.5,
        "trigger_timeout_check_interval": 2,
        # A worker killed by a test is noticed within half a minute instead of five.
        "task_instance_heartbeat_timeout": 25,
        "task_instance_heartbeat_timeout_detection_interval": 5,
    },
    "dag_processor": {
        "parsing_processes": 1,
        "refresh_interval": 2,
        "bundle_refresh_check_interval": 2,
        # A file that changed is parsed again at once; this is for those that did not.
        "min_file_process_interval": 600,
        "stale_dag_threshold": 1200,
    },
    "usage_data_collection": {"enabled": False},
}


class AirflowStartError(RuntimeError):
    """A component ended or was not healthy in time; the text has the end of its log."""


class AirflowApiError(RuntimeError):
    """The REST API refused a request.

    Attributes:
        status: the HTTP status.
        body: the answer's text.
    """

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: HTTP {status}: {body[:2000]}")
        self.status = status
        self.body = body


@dataclass(frozen=True)
class TaskInstance:
    """One task instance as the REST API shows it.

    ``id`` is new for every try. ``pid`` is the process that runs the user's code, while it runs.
    ``map_index`` is -1 for a task that is not mapped. ``raw`` is the whole answer.
    """

    task_id: str
    map_index: int
    state: str | None
    try_number: int
    max_tries: int
    id: str
    pid: int | None
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """Read one entry of the API's answer."""
        names = ("task_id", "map_index", "state", "try_number", "max_tries", "id", "pid")
        return cls(**{name: raw[name] for name in names}, raw=raw)


@dataclass(frozen=True)
class _LastParse:
    """When a DAG file was last read with success, and when with an import error; None: never."""

    success: str | None
    error: str | None


class LocalAirflow:
    """One Airflow installation in a temporary folder, from the packages of the running Python.

    Args:
        dags_folder: the DAG files. Files that are added or changed later are seen within a few seconds.
        connections: connection id -> URI, or a mapping that becomes the JSON form (``conn_type``, ``host``).
        config: section -> option -> value, on top of the harness's own settings.
        env: further environment variables of all components and thereby of all tasks.
        triggerer: whether to start a triggerer; without one, deferred tasks wait for ever.
        preload: whether tasks find the provider imported: they start in less time than a user's do.

    Attributes:
        env: the environment of all components.
        sessions: the process sessions of all components that ever ran.
    """

    def __init__(
        self,
        dags_folder: Path,
        *,
        connections: Mapping[str, str | Mapping[str, Any]] | None = None,
        config: Mapping[str, Mapping[str, Setting]] | None = None,
        env: Mapping[str, str] | None = None,
        triggerer: bool = False,
        preload: bool = False,
    ) -> None:
        self.preload = preload
        self.dags_folder = dags_folder
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.home = Path(tempfile.mkdtemp(prefix="airflow-"))
        self.components: tuple[Component, ...] = ("api-server", "scheduler", "dag-processor")
        if triggerer:
            self.components += ("triggerer",)
        self.env = self._environment(connections or {}, config or {}, env or {})
        self._processes: dict[Component, subprocess.Popen[bytes]] = {}
        self.sessions: set[int] = set()
        self._tokens: dict[str, str] = {}
        self._one_request_at_a_time = threading.Lock()
        # Requests stay on this machine, whatever proxy the environment names.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def _environment(
        self,
        connections: Mapping[str, str | Mapping[str, Any]],
        config: Mapping[str, Mapping[str, Setting]],
        extra: Mapping[str, str],
    ) -> dict[str, str]:
        own: dict[str, dict[str, Setting]] = {
            "core": {
                "dags_folder": str(self.dags_folder),
                "execution_api_server_url": f"{self.url}/execution/",
                "simple_auth_manager_passwords_file": str(self.home / "passwords.json"),
                "fernet_key": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            },
            # Longer than any transaction here; the default of 5 s makes the scheduler give up under load.
            "database": {"sql_alchemy_conn": f"sqlite:///{self.home}/airflow.db?timeout=15"},
            "api": {"base_url": self.url, "port": self.port, "secret_key": secrets.token_hex(16)},
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        # Else every process compiles the provider and the DAG files again.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["AIRFLOW_HOME"] = str(self.home)
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(CHECKOUT), *filter(None, [environment.get("PYTHONPATH")])]
        )
        for layer in (_CONFIG, own, config):
            for section, options in layer.items():
                for option, value in options.items():
                    environment[f"AIRFLOW__{section}__{option}".upper()] = str(value)
        for conn_id, connection in connections.items():
            text = connection if isinstance(connection, str) else json.dumps(connection)
            environment[f"AIRFLOW_CONN_{conn_id.upper()}"] = text
        return environment | dict(extra)

    # --- Life ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_all(self) -> None:
        """Boot everything and wait until all of it is healthy.

        Raises:
            AirflowStartError: something was not healthy within `BOOT_SECONDS`; whatever ran is stopped again.
        """
        try:
            shutil.copyfile(_migrated_database(), self.home / "airflow.db")
            (self.home / "passwords.json").write_text(
                json.dumps({user: user for user in ("admin", "viewer")})
            )
            for component in self.components:
                self._launch(component)
            self._wait_healthy(["api-server"])
            # The API that tasks use is built at its first request, for 5 s. That is better spent here, while the
            # other components boot, than in the first task.
            self._send("GET", "/execution/health", None, {}, BOOT_SECONDS)
            self._wait_healthy(self.components)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill every process of this Airflow, running tasks included, and remove its folder."""
        # Nothing here outlives the test, so nobody is asked to finish in good order: that takes up to 20 s.
        for session in self.sessions:
            _kill_session(session)
        for process in self._processes.values():
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.home, ignore_errors=True)

    def start(self, component: Component) -> None:
        """Start a component that does not run, and wait until it is healthy.

        Raises:
            AirflowStartError: it was not healthy in time.
        """
        self._launch(component)
        self._wait_healthy([component])

    def terminate(self, component: Component, timeout: float = 60.0) -> None:
        """Ask a component to end in good order (SIGTERM) and wait for it.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        process = self._processes.pop(component)
        process.terminate()
        process.wait(timeout)

    def kill(self, component: Component) -> None:
        """Kill a component and all its children at once (SIGKILL), as a lost machine would."""
        process = self._processes.pop(component)
        _kill_session(process.pid)
        process.wait()

    def restart(self, component: Component) -> None:
        """End a component in good order and start it again."""
        self.terminate(component)
        self.start(component)

    def _launch(self, component: Component) -> None:
        command = [sys.executable, "-m", "tests.airflow.launch"]
        if self.preload and component != "api-server":
            command.append(PRELOAD)
        command.append(component)
        if component in ("scheduler", "triggerer"):
            command.append("--skip-serve-logs")  # its port is fixed, and the log files are on this machine
        with self._log_file(component).open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._processes[component] = process
        self.sessions.add(process.pid)

    def _wait_healthy(self, components: Collection[Component]) -> None:
        started = time.monotonic()
        for _ in _until(BOOT_SECONDS):
            for component, process in self._processes.items():
                if process.poll() is not None:
                    raise AirflowStartError(f"{component} ended:\n{self.component_log(component)}")
            health = self._health()
            if all(_is_healthy(health, component) for component in components):
                return
        late = [component for component in components if not _is_healthy(self._health(), component)]
        logs = "\n".join(f"--- {component}\n{self.component_log(component)}" for component in late)
        raise AirflowStartError(
            f"not healthy {time.monotonic() - started:.0f} s after the start: {late}\n{logs}"
        )

    def _health(self) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = self._send("GET", "/api/v2/monitor/health", None, {})
        except (OSError, AirflowApiError):
            return {}
        return answer

    def component_log(self, component: Component, lines: int = 40) -> str:
        """The last lines of what a component printed."""
        log = self._log_file(component)
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""

    def _log_file(self, component: Component) -> Path:
        return self.home / f"{component}.log"

    # --- Requests ------------------------------------------------------------------------------------------

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one request to the REST API as an administrator; returns the decoded answer.

        Args:
            path: below ``/api/v2``, with a leading slash.

        Raises:
            AirflowApiError: any status but 2xx.
        """
        return self._send(method, f"/api/v2{path}", body, self.authorization())

    def authorization(self) -> Mapping[str, str]:
        """The header by which a request is an administrator's."""
        return {"Authorization": f"Bearer {self.token()}"}

    def token(self, user: Literal["admin", "viewer"] = "admin") -> str:
        """A token of a user: the API takes it as a bearer's, and pages as the cookie ``_token``."""
        if user not in self._tokens:
            login = {"username": user, "password": user}
            self._tokens[user] = self._send("POST", "/auth/token", login, {})["access_token"]
        return self._tokens[user]

    def page(self, path: str, token: str | None = None) -> tuple[int, Mapping[str, str], str]:
        """Load a page as a browser does; returns the status, the headers by lower-case name, and the text.

        Args:
            path: with a leading slash.
            token: of the user who is logged in; None: nobody is.
        """
        headers = {} if token is None else {"Cookie": f"_token={token}"}
        request = urllib.request.Request(self.url + path, headers=headers)
        with self._one_request_at_a_time:
            try:
                answer = self._opener.open(request, timeout=60)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                found = {name.lower(): value for name, value in answer.headers.items()}
                return answer.status, found, answer.read().decode()

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        timeout: float = 60.0,
    ) -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": "application/json", "Content-Type": "application/json", **headers},
        )
        with self._one_request_at_a_time:
            try:
                with self._opener.open(request, timeout=timeout) as response:
                    text = response.read()
            except urllib.error.HTTPError as error:
                raise AirflowApiError(
                    method, path, error.code, error.read().decode(errors="replace")
                ) from None
        return json.loads(text) if text else None

    def cli(self, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run ``airflow <arguments>`` in this installation; standard output and error are captured apart."""
        return subprocess.run(
            [sys.executable, "-m", "tests.airflow.launch", *arguments],
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def dpone(self, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run ``airflow dpone <arguments>``, or what stands for it where Airflow takes no commands from providers."""
        if TAKES_COMMANDS:
            return self.cli("dpone", *arguments, timeout=timeout)
        return subprocess.run(
            [sys.executable, "-m", "airflow_provider_dpone", *arguments],
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    # --- DAGs and runs -------------------------------------------------------------------------------------

    def add_connection(self, conn_id: str, connection: Mapping[str, Any]) -> None:
        """Store a connection: ``conn_type`` and, as needed, ``host``, ``port``, ``login``, ``password``,
        ``schema``, ``extra`` (a mapping). One of the same name is replaced.
        """
        body = dict(connection) | {"connection_id": conn_id}
        if isinstance(body.get("extra"), Mapping):
            body["extra"] = json.dumps(body["extra"])
        try:
            self.api("POST", "/connections", body)
        except AirflowApiError as error:
            if error.status != 409:
                raise
            self.api("PATCH", f"/connections/{_quote(conn_id)}", body)

    def add_dag(self, dag_id: str, source: str) -> None:
        """Write ``<dag_id>.py`` into the DAGs folder and wait until Airflow has parsed exactly this text.

        Raises:
            AssertionError: it does not import; the text has the import error.
            TimeoutError: it does not define a DAG of that name, or is not parsed in time.
        """
        before = self._last_parse(dag_id)
        file = self.dags_folder / f"{dag_id}.py"
        unseen = file.with_suffix(".part")  # the processor must never read half a file
        unseen.write_text(source)
        unseen.replace(file)
        for _ in _until(60.0):
            last = self._last_parse(dag_id)
            if last.error is not None and last.error != before.error:
                raise AssertionError(f"{file.name}:\n{self.import_errors()[file.name]}")
            if last.success is not None and last.success != before.success:
                return
        raise TimeoutError(f"{file.name} is not parsed\n{self.component_log('dag-processor')}")

    def _last_parse(self, dag_id: str) -> _LastParse:
        try:
            success = self.api("GET", f"/dags/{_quote(dag_id)}")["last_parsed_time"]
        except AirflowApiError as error:
            if error.status != 404:
                raise
            success = None
        errors = self.api("GET", "/importErrors")["import_errors"]
        times = {error["filename"]: error["timestamp"] for error in errors}
        return _LastParse(success, times.get(f"{dag_id}.py"))

    def wait_parsed(self, dag_id: str, timeout: float = 60.0) -> None:
        """Wait until a DAG can be triggered.

        Raises:
            AssertionError: a DAG file does not import; the text has the import errors.
            TimeoutError: no file defines this DAG.
        """
        for _ in _until(timeout):
            try:
                if not self.api("GET", f"/dags/{_quote(dag_id)}")["is_stale"]:
                    return
            except AirflowApiError as error:
                if error.status != 404:
                    raise
            errors = self.import_errors()
            if errors:
                raise AssertionError("\n".join(f"{name}:\n{trace}" for name, trace in errors.items()))
        raise TimeoutError(f"no DAG {dag_id} after {timeout:.0f} s\n{self.component_log('dag-processor')}")

    def import_errors(self) -> dict[str, str]:
        """File name -> stack trace, for each DAG file that does not import."""
        found = self.api("GET", "/importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in found}

    def trigger(self, dag_id: str, run_id: str | None = None, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run without a logical date, as soon as the DAG is known; returns the run id."""
        self.wait_parsed(dag_id)
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf or {})}
        if run_id is not None:
            body["dag_run_id"] = run_id
        answer: str = self.api("POST", f"/dags/{_quote(dag_id)}/dagRuns", body)["dag_run_id"]
        return answer

    def run_state(self, dag_id: str, run_id: str) -> str:
        """The present state of a run."""
        state: str = self.api("GET", _run_path(dag_id, run_id))["state"]
        return state

    def wait_run(
        self,
        dag_id: str,
        run_id: str,
        timeout: float = 120.0,
        states: Collection[str] = FINISHED_RUN,
    ) -> str:
        """Wait until a run is in one of these states, by default until it has ended; returns the state.

        Raises:
            TimeoutError: it is not; the text has the states of the tasks and the scheduler's last lines.
        """
        for _ in _until(timeout):
            state = self.run_state(dag_id, run_id)
            if state in states:
                return state
        tasks = [(task.task_id, task.map_index, task.state) for task in self.task_instances(dag_id, run_id)]
        raise TimeoutError(
            f"run {run_id} of {dag_id} is {state} after {timeout:.0f} s: {tasks}\n"
            f"{self.component_log('scheduler')}"
        )

    def clear(
        self,
        dag_id: str,
        run_id: str,
        task_ids: Sequence[str | tuple[str, int]],
        *,
        downstream: bool = False,
        upstream: bool = False,
        only_failed: bool = False,
    ) -> None:
        """Clear tasks of a run, as the button in the web interface does. A pair names one mapped instance."""
        self.api(
            "POST",
            f"/dags/{_quote(dag_id)}/clearTaskInstances",
            {
                "dry_run": False,
                "dag_run_id": run_id,
                "task_ids": [task if isinstance(task, str) else list(task) for task in task_ids],
                "include_downstream": downstream,
                "include_upstream": upstream,
                "only_failed": only_failed,
                "only_running": False,
                "reset_dag_runs": True,
            },
        )

    # --- Task instances ------------------------------------------------------------------------------------

    def task_instances(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """All task instances of a run, mapped ones one by one."""
        answer = self.api("GET", f"{_run_path(dag_id, run_id)}/taskInstances?limit=1000")
        return [TaskInstance.of(raw) for raw in answer["task_instances"]]

    def task_instance(
        self, dag_id: str, run_id: str, task_id: str, map_index: int = UNMAPPED
    ) -> TaskInstance:
        """One task instance in its present try."""
        return TaskInstance.of(self.api("GET", _task_path(dag_id, run_id, task_id, map_index)))

    def wait_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str | None],
        timeout: float = 60.0,
        map_index: int = UNMAPPED,
    ) -> TaskInstance:
        """Wait until a task instance is in one of these states.

        Raises:
            TimeoutError: it is not.
        """
        for _ in _until(timeout):
            task = self.task_instance(dag_id, run_id, task_id, map_index)
            if task.state in states:
                return task
        raise TimeoutError(f"{task_id}[{map_index}] of {run_id} is {task.state} after {timeout:.0f} s")

    def set_task_state(
        self, dag_id: str, run_id: str, task_id: str, state: Literal["success", "failed", "skipped"]
    ) -> None:
        """Mark a task, as the button in the web interface does."""
        self.api("PATCH", _task_path(dag_id, run_id, task_id, UNMAPPED), {"new_state": state})

    def xcom(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        key: str = "return_value",
        map_index: int = UNMAPPED,
    ) -> Any:
        """One XCom value.

        Raises:
            AirflowApiError: there is none (status 404).
        """
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_quote(task_id)}/xcomEntries/{_quote(key)}"
        return self.api("GET", f"{path}?map_index={map_index}&stringify=false")["value"]

    def task_log(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        try_number: int = 1,
        map_index: int = UNMAPPED,
    ) -> str:
        """The log of one try, one JSON object a line, as the web interface would show it."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_quote(task_id)}/logs/{try_number}"
        answer = self.api("GET", f"{path}?full_content=true&map_index={map_index}")
        return "\n".join(line if isinstance(line, str) else json.dumps(line) for line in answer["content"])

    def kill_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        map_index: int = UNMAPPED,
        *,
        process: Literal["task", "supervisor", "both"] = "both",
        number: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Signal a running task: the process with the user's code, the supervisor that watches it, or both.

        Killing both is what a lost worker looks like; killing the supervisor alone leaves the user's code
        running while Airflow starts the next try.

        Raises:
            AssertionError: the task does not run.
        """
        task = self.task_instance(dag_id, run_id, task_id, map_index)
        scheduler = self._processes["scheduler"].pid
        ours = {one.pid: one for one in descendants(scheduler)}
        if task.pid is None or task.pid not in ours:
            raise AssertionError(f"{task_id} does not run: {task.state}")
        supervisor = ours[task.pid].parent
        if process in ("supervisor", "both"):
            send(supervisor, number)
        if process in ("task", "both"):
            send(task.pid, number)


# --- Helpers -----------------------------------------------------------------------------------------------


@contextmanager
def _scratch_home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="airflow-migrate-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _migrated_database() -> Path:
    """An empty metadata database of this Airflow version, made once and kept: migrating takes 8 s."""
    kept = CHECKOUT / ".cache" / f"airflow-{version('apache-airflow')}.db"
    if kept.exists():
        return kept
    with _scratch_home() as home:
        env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        env |= {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=env,
            cwd=home,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise AirflowStartError(f"airflow db migrate failed:\n{done.stdout}{done.stderr}")
        kept.parent.mkdir(exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        # One file, without a write-ahead log beside it.
        with sqlite3.connect(home / "airflow.db") as database:
            database.execute("VACUUM INTO ?", (str(fresh),))
        database.close()
        fresh.replace(kept)
    return kept


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until(seconds: float) -> Iterator[None]:
    """Poll: yields now and then, at least once, until the time is up."""
    deadline = time.monotonic() + seconds
    pause, longest = POLL_SECONDS
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(pause)
        pause = min(1.5 * pause, longest)


def _is_healthy(health: Mapping[str, Any], component: Component) -> bool:
    report: Mapping[str, Any] = health.get(_HEALTH_NAME[component]) or {}
    return report.get("status") == "healthy"


def _kill_session(session: int, seconds: float = 20.0) -> None:
    """Kill all members of a session, again until there are none: one may fork while others are being killed.

    Components lead sessions of their own, and everything that they start stays in them.
    """
    deadline = time.monotonic() + seconds
    while members := session_members(session):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still there after SIGKILL: {members}")
        for process in members:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.02)


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{_quote(dag_id)}/dagRuns/{_quote(run_id)}"


def _task_path(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    mapped = "" if map_index == UNMAPPED else f"/{map_index}"
    return f"{_run_path(dag_id, run_id)}/taskInstances/{_quote(task_id)}{mapped}"
