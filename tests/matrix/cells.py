"""What is run where, and what became of it. A cell is one Airflow on one Python; each has an environment of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self
from xml.etree import ElementTree

from scripts.lib.bootstrap import pin, uv_environment

ROOT: Final = Path(__file__).parents[2]
ENVIRONMENTS: Final = ROOT / ".cache" / "matrix"
BUILD: Final = ROOT / "build" / "matrix"
LOCK: Final = ROOT / "requirements" / "dev.txt"

AIRFLOWS: Final = ("3.1.8", "3.2.2", "3.3.2")
PYTHONS: Final = ("3.11", "3.12", "3.13")

BOUNDS: Final[Mapping[str, tuple[str, ...]]] = {
    # Its API server can't build its models with a newer one, and does not start.
    "3.2.2": ("fastapi<0.137",),
}
"""What a release of Airflow needs and doesn't say. Its official constraints, which are no package, are older."""

UNITS: Final = tuple(
    f"tests/unit/test_{name}.py"
    for name in (
        "operators",
        "habits",
        "trigger",
        "hook",
        "provider_info",
        "identity_from_context",
        "operators_examples",
        "values",
    )
)
REFRESH: Final = ("tests/airflow/test_habits.py",)
"""One refresh by a real scheduler, API server, DAG processor and triggerer, on the local cluster."""

STEPS: Final = {"units": UNITS, "refresh": REFRESH}

CODE: Final = (
    "airflow_provider_dpone",
    "example_dags",
    "pyproject.toml",
    "scripts/lib/processes.py",
    "tests/airflow",
    "tests/cluster",
    "tests/conftest.py",
    "tests/golden",
    "tests/unit/builders.py",
    *UNITS,
)
"""What the results depend on."""

TOOLS: Final = (
    "apache-airflow-providers-openlineage",
    "apache-airflow-providers-postgres",
    "clickhouse-connect",
    "docker",
    "editables",
    "hatchling",
    "hypothesis",
    "jsonschema",
    "kazoo",
    "lz4",
    "psycopg2-binary",
    "pyarrow",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "statsd",
    "testcontainers",
    "zstandard",
    "aiohttp",
)
"""What the tests need beside Airflow. Each release of Airflow gets the versions that fit it."""

SERVERS: Final = ("chdb-core", "clickhouse-cityhash")
"""At the locked version: the servers are the same everywhere."""

TOLD: Final = (
    "apache-airflow",
    "apache-airflow-task-sdk",
    "apache-airflow-providers-openlineage",
    "pydantic",
    "sqlalchemy",
    "urllib3",
)
"""Whose versions the results name."""

WHY_NO_REFRESH: Final = "one real refresh for each Airflow, on the oldest Python"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one step of a cell.

    :ivar not_run: why it was not run; ``None`` if it was.
    :ivar fingerprint: of the code that it ran with.
    """

    airflow: str
    python: str
    step: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    not_run: str | None = None
    fingerprint: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """Return a stored result, if there is one."""
        return cls(**json.loads(file.read_text())) if file.exists() else None


@dataclass(frozen=True, slots=True)
class Cell:
    """One Airflow on one Python."""

    airflow: str
    python: str

    def __str__(self) -> str:
        return f"Airflow {self.airflow}, Python {self.python}"

    @property
    def _environment(self) -> Path:
        return ENVIRONMENTS / f"airflow-{self.airflow}-python-{self.python}"

    @property
    def program(self) -> Path:
        """The Python of the cell's environment."""
        return self._environment / "bin" / "python"

    def file(self, step: str) -> Path:
        """Where the result of a step is kept."""
        return BUILD / f"{self.airflow}-{self.python}-{step}.json"

    def why_not(self, step: str) -> str | None:
        """Return why a step is never run in this cell; ``None`` if it is."""
        if interpreter(self.python) is None:
            return f"no Python {self.python} was found"
        if step == "refresh" and self.python != PYTHONS[0]:
            return WHY_NO_REFRESH
        return None

    def install(self) -> None:
        """Make the environment, if it is not complete.

        :raises subprocess.CalledProcessError: something can't be installed.
        """
        lock = LOCK.read_text()
        airflow = [f"apache-airflow=={self.airflow}", *BOUNDS.get(self.airflow, ())]
        wanted = [*airflow, *TOOLS, *(pin(lock, name) for name in SERVERS)]
        stamp = self._environment / ".complete"
        if stamp.exists() and stamp.read_text() == "\n".join(wanted):
            return
        found = interpreter(self.python)
        if found is None:
            raise FileNotFoundError(f"Python {self.python}")
        uv = str(Path(sys.executable).with_name("uv"))
        asked = [sys.executable, "-m", "pip", "config", "list"]
        settings = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        into = ["pip", "install", "--quiet", "--python", str(self.program)]
        for command in (
            [uv, "venv", "--quiet", "--clear", "--python", found, str(self._environment)],
            # The official constraints are no package; a resolver finds versions that fit each other.
            [uv, *into, "--compile-bytecode", *wanted],
            [uv, *into, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)],
        ):
            subprocess.run(command, check=True, env=uv_environment(settings, os.environ), cwd=ROOT)
        stamp.write_text("\n".join(wanted))

    def versions(self) -> dict[str, str]:
        """Return the versions that the results name."""
        code = (
            "import json, platform, sys; from importlib.metadata import version; "
            "print(json.dumps({'python': platform.python_version(), **{n: version(n) for n in sys.argv[1:]}}))"
        )
        done = subprocess.run([self.program, "-c", code, *TOLD], capture_output=True, text=True, check=True)
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def run(self, step: str, seconds: float) -> Result:
        """Run a step and keep its result.

        :param seconds: after which it is ended and counts as failed.
        """
        report = self.file(step).with_suffix(".xml")
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        log = self.file(step).with_suffix(".log")
        command = [str(self.program), "-m", "pytest", "-q", f"--junitxml={report}", *STEPS[step]]
        # Of the code that is there now: it may change while the tests run.
        code, started = fingerprint(), time.monotonic()
        with log.open("w") as out:
            try:
                subprocess.run(
                    command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, timeout=seconds, check=False
                )
            except subprocess.TimeoutExpired:
                out.write(f"\nended after {seconds:.0f} s\n")
        passed, failed, skipped = counts(report)
        result = Result(
            self.airflow,
            self.python,
            step,
            passed,
            failed,
            skipped,
            round(time.monotonic() - started, 1),
            None,
            code,
            self.versions(),
        )
        self.file(step).write_text(json.dumps(asdict(result), indent=1) + "\n")
        return result


def cells() -> Iterator[Cell]:
    """Yield every cell, the oldest Python of each Airflow first."""
    for python in PYTHONS:
        for airflow in AIRFLOWS:
            yield Cell(airflow, python)


def counts(report: Path) -> tuple[int, int, int]:
    """Return how many tests of a JUnit report passed, failed and were skipped. No report, no test: one failure."""
    if not report.exists():
        return 0, 1, 0
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return (0, 1, 0) if tests == 0 else (tests - failed - skipped, failed, skipped)


def interpreter(python: str) -> str | None:
    """Return a Python of this version: on ``PATH``, or among pyenv's."""
    named = shutil.which(f"python{python}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted((pyenv / "versions").glob(f"{python}.*/bin/python{python}"))
    for found in (*([named] if named else []), *map(str, kept)):
        if _works(found, python):
            return found
    return None


def _works(program: str, python: str) -> bool:
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    # A shim of pyenv is there for versions that it does not offer here.
    done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == python


def fingerprint() -> str:
    """Return a digest of the code that a result depends on, as it lies in the working copy."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CODE],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.split(b"\0")
    found = hashlib.sha256()
    for name in sorted(filter(None, files)):
        path = ROOT / name.decode()
        if path.exists():
            found.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]
