"""How the commands answer: text or JSON, and the exit status."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from airflow_provider_dpone.compat import AirflowNotFoundException
from airflow_provider_dpone.publication.canonical import Json
from airflow_provider_dpone.publication.stop import Code, Stop, Stopped


@contextmanager
def exit_status(output: str) -> Iterator[None]:
    """End the command with status 1 and the reason, where something stops it."""
    # As Airflow's own commands do, so that connections in the metadata database are found.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    try:
        yield
    except Stopped as stopped:
        _fail(stopped.stop, output)
    except AirflowNotFoundException as error:
        _fail(Stop(Code.BAD_INPUT, f"{error}."), output)


def _fail(stop: Stop, output: str) -> NoReturn:
    if output == "json":
        print_json({"ok": False, "stop": stop.as_json()})
    else:
        sys.stderr.write(f"{stop}\n")
    raise SystemExit(1)


def print_json(value: Mapping[str, Json]) -> None:
    """Print one JSON object."""
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_text(*parts: str, sep: str = " ") -> None:
    """Print a line."""
    sys.stdout.write(f"{sep.join(parts)}\n")


def print_log(message: str) -> None:
    """Show progress on standard error, so that standard output stays one answer."""
    sys.stderr.write(f"{message}\n")


def operator_name() -> str:
    """Return who runs the command, for the evidence."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
