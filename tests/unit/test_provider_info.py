"""What Airflow is told about the provider, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

import airflow_provider_dpone
from airflow_provider_dpone import options
from airflow_provider_dpone.get_provider_info import get_provider_info

MOST_IMPORT_MILLISECONDS = 50


def test_the_information_is_what_airflows_schema_allows() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_the_entry_point_names_the_function() -> None:
    found = [point for point in entry_points(group="apache_airflow_provider") if "dpone" in point.value]
    assert [point.load()() for point in found] == [get_provider_info()]


def test_every_name_in_it_can_be_imported() -> None:
    info = get_provider_info()
    for entry in info["connection-types"]:
        assert named(entry["hook-class-name"]).conn_type == entry["connection-type"]
    for command in info["cli"]:
        assert callable(named(command))
    for part in ("operators", "hooks", "triggers"):
        for entry in info[part]:
            for module in entry["python-modules"]:
                import_module(module)


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_the_official_connection_type_is_not_taken_over() -> None:
    assert [entry["connection-type"] for entry in get_provider_info()["connection-types"]] == [
        "dpone_clickhouse"
    ]


@pytest.mark.parametrize("name", sorted(set(airflow_provider_dpone.__all__)))
def test_every_public_name_is_there_when_it_is_asked_for(name: str) -> None:
    assert getattr(airflow_provider_dpone, name) is not None
    assert name in dir(airflow_provider_dpone)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such"):
        airflow_provider_dpone.no_such  # noqa: B018 - asking is the test


def _in_a_new_process(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_package_imports_nothing_of_airflow() -> None:
    assert (
        _in_a_new_process(
            "import sys, json, airflow_provider_dpone; "
            "print(json.dumps([name for name in sys.modules if name.split('.')[0] in ('airflow', 'urllib3')]))"
        )
        == []
    )


def test_importing_the_operators_is_cheap() -> None:
    """A DAG file is read again and again. The best of three runs counts, since the machine has other work."""
    code = (
        "import json, sys, time, airflow.sdk, airflow.sdk.exceptions\n"
        "from airflow.sdk import DAG, BaseOperator\n"
        "before = time.process_time()\n"
        "import airflow_provider_dpone.operators\n"
        "spent = (time.process_time() - before) * 1000\n"
        "heavy = [name for name in sys.modules if name.startswith(('airflow_provider_dpone.routes.',"
        " 'airflow_provider_dpone.clickhouse.server'))]\n"
        "print(json.dumps([spent, heavy]))"
    )
    spent = []
    for _ in range(3):
        milliseconds, heavy = _in_a_new_process(code)
        assert heavy == []
        spent.append(milliseconds)
        if milliseconds < MOST_IMPORT_MILLISECONDS:
            return
    pytest.fail(f"importing the operators took {spent} ms, and may take {MOST_IMPORT_MILLISECONDS}")


@pytest.mark.parametrize("option", options.OPTIONS.values(), ids=lambda option: option.name)
def test_every_option_is_read_as_it_is_documented(
    option: options.Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"AIRFLOW__DPONE__{option.name.upper()}"
    monkeypatch.delenv(variable, raising=False)
    read: Any = {"string": options.text, "float": options.seconds, "boolean": options.flag}[option.kind]
    kind: Any = {"string": str, "float": float, "boolean": lambda value: value == "True"}[option.kind]
    assert read(option) == kind(option.default)
    declared = get_provider_info()["config"]["dpone"]["options"][option.name]
    assert declared["default"] == option.default


@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf", "nan", ""])
def test_a_length_of_time_that_is_none_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("AIRFLOW__DPONE__PUBLISH_TIMEOUT", value)
    with pytest.raises(ValueError, match=r"\[dpone\] publish_timeout"):
        options.seconds(options.PUBLISH_TIMEOUT)


def test_a_flag_that_is_neither_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DPONE__EVIDENCE_PATH_IS_SHARED", "perhaps")
    with pytest.raises(ValueError, match=r"\[dpone\] evidence_path_is_shared must be True or False"):
        options.flag(options.EVIDENCE_PATH_IS_SHARED)
