"""Where supported releases of Airflow differ. Nothing else asks what release it runs on.

Exceptions apart, it imports what it needs when it is asked, so that a DAG file pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        TaskDeferred,
    )
except ImportError:  # Airflow 3.1
    from airflow.exceptions import (  # type: ignore[no-redef,attr-defined,assignment,unused-ignore]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        TaskDeferred,
    )

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "TaskDeferred",
    "add_command",
    "connection_form_widgets",
    "stats",
    "task_state_store",
]

_STATS_HOMES: Final = ("airflow.sdk.observability.stats", "airflow.observability.stats", "airflow.stats")
"""Where metrics are, by the newest release first: 3.3, 3.2, 3.1."""


def stats() -> Any:
    """Return Airflow's metrics, with ``incr`` and ``timing``.

    :raises ImportError: this Airflow has them nowhere that is known.
    """
    for home in _STATS_HOMES:
        try:
            return import_module(home).Stats
        except (ImportError, AttributeError):
            continue
    raise ImportError("Airflow's Stats is in none of " + ", ".join(_STATS_HOMES))


def task_state_store(context: Mapping[str, Any]) -> Any | None:
    """Return what the running task may keep over its tries (3.3 and newer), or ``None``."""
    return context.get("task_state_store")


def connection_form_widgets(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of a connection's form as Airflow 3.1 wants them: it does not read ``conn-fields``.

    :param fields: ``conn-fields`` as a provider's information declares them.
    :raises ImportError: Airflow neither has the packages of forms nor puts anything in their place; it knows that.
    """
    wtforms = import_module("wtforms")
    widgets = import_module("flask_appbuilder.fieldwidgets")
    made: dict[str, Any] = {}
    for name, field in fields.items():
        if "boolean" in field["schema"]["type"]:
            made[name] = wtforms.BooleanField(label=field["label"], description=field["description"])
        else:
            # A number is typed as text, which the hook understands.
            made[name] = wtforms.StringField(
                label=field["label"], widget=widgets.BS3TextFieldWidget(), description=field["description"]
            )
    return made


def add_command(subparsers: Any, command: Any) -> None:
    """Add one of the provider's commands to a parser, as Airflow's own command line does."""
    import_module("airflow.cli.cli_parser")._add_command(subparsers, command)
