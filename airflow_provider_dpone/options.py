"""The provider's options in ``airflow.cfg``, section ``[dpone]``: one table for reading and for documenting.

Each option can be set as ``AIRFLOW__DPONE__<NAME>`` too. Nothing is read while a DAG is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SECTION: Final = "dpone"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    :ivar default: what counts where nothing is set, as text.
    :ivar kind: Airflow's name of the type: ``string``, ``float`` or ``boolean``.
    """

    name: str
    default: str
    kind: str
    description: str
    example: str | None = None

    def describe(self) -> dict[str, Any]:
        """Return the option as a provider's information declares it."""
        return {
            "description": self.description,
            "version_added": "0.1.0",
            "type": self.kind,
            "example": self.example,
            "default": self.default,
        }


DEPLOYMENT_ID: Final = Option(
    "deployment_id",
    "default",
    "string",
    "Name of this Airflow installation. It is part of every operation's identity, so that two installations "
    "with equal DAGs that publish to one cluster are not taken for each other. Never change it while a "
    "publication is open.",
    "production",
)
EVIDENCE_PATH: Final = Option(
    "evidence_path",
    "",
    "string",
    "Folder of the durable evidence, as a path or URL of Airflow's object storage "
    "(``s3://aws_default@bucket/dpone``). Empty: ``dpone/evidence`` in ``AIRFLOW_HOME``, which is accepted "
    "with the LocalExecutor only. Every worker must see the same folder.",
    "s3://aws_default@bucket/dpone",
)
EVIDENCE_PATH_IS_SHARED: Final = Option(
    "evidence_path_is_shared",
    "False",
    "boolean",
    "Declares that ``evidence_path`` is a local folder that all workers share, such as a network mount. "
    "Without it, a local folder is refused for executors that run tasks on other machines.",
)
ARTIFACT_PATH: Final = Option(
    "artifact_path",
    "",
    "string",
    "Folder of the sealed artifacts, from which the replicas of ``replication_mode='external'`` are loaded, as a "
    "path or URL of Airflow's object storage. They are the rows themselves: up to ``max_source_bytes`` for each "
    "target that is being staged. Never in ``evidence_path``. Empty: ``dpone/artifacts`` in ``AIRFLOW_HOME``, "
    "which is accepted with the LocalExecutor only. Every worker must see the same folder.",
    "s3://aws_default@bucket/dpone-artifacts",
)
ARTIFACT_PATH_IS_SHARED: Final = Option(
    "artifact_path_is_shared",
    "False",
    "boolean",
    "Declares that ``artifact_path`` is a local folder that all workers share, as ``evidence_path_is_shared`` does.",
)
CONTROL_DATABASE: Final = Option(
    "control_database", "dpone", "string", "Database of the control table, the same on every cluster."
)
CONTROL_TABLE: Final = Option(
    "control_table", "authority_v1", "string", "Name of the control table, the same on every cluster."
)
READY_TIMEOUT: Final = Option(
    "ready_timeout",
    "600",
    "float",
    "Seconds from the end of a load until every replica holds the whole candidate, and the longest wait "
    "before the one statement is sent.",
)
PUBLISH_TIMEOUT: Final = Option(
    "publish_timeout",
    "3600",
    "float",
    "Seconds that a publish task waits for the proof from every replica. PublishOperator's publish_timeout "
    "goes first.",
)
MIN_DEFER_SECONDS: Final = Option(
    "min_defer_seconds",
    "15",
    "float",
    "Seconds that a deferrable publish task waits in its worker for the proof before it defers. Most swaps are "
    "proven sooner.",
)
CLEANUP_TIMEOUT: Final = Option(
    "cleanup_timeout", "60", "float", "Seconds that a cleanup task waits for a drop to show on every replica."
)
BUSY_TIMEOUT: Final = Option(
    "busy_timeout",
    "3600",
    "float",
    "Seconds that a stage task with on_busy='wait' waits for another operation on its target. "
    "StageOperator's busy_timeout goes first.",
)
LOAD_TIMEOUT: Final = Option(
    "load_timeout",
    "21600",
    "float",
    "Seconds for which a server may be silent during a load; one by a query on the server is silent until it "
    "ends. StageOperator's load_timeout goes first.",
)

OPTIONS: Final[Mapping[str, Option]] = {
    option.name: option
    for option in (
        DEPLOYMENT_ID,
        EVIDENCE_PATH,
        EVIDENCE_PATH_IS_SHARED,
        ARTIFACT_PATH,
        ARTIFACT_PATH_IS_SHARED,
        CONTROL_DATABASE,
        CONTROL_TABLE,
        READY_TIMEOUT,
        PUBLISH_TIMEOUT,
        MIN_DEFER_SECONDS,
        CLEANUP_TIMEOUT,
        BUSY_TIMEOUT,
        LOAD_TIMEOUT,
    )
}


def text(option: Option) -> str:
    """Return an option as it is set.

    :raises ValueError: it is set to nothing where something is needed.
    """
    from airflow.configuration import conf

    found = str(conf.get(SECTION, option.name, fallback=option.default)).strip()
    if not found and option.default:
        raise ValueError(f"[{SECTION}] {option.name} is set to nothing")
    return found


def seconds(option: Option) -> float:
    """Return an option that is a length of time, in seconds.

    :raises ValueError: it is no number, or not positive.
    """
    value = text(option)
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError(f"[{SECTION}] {option.name} must be a positive number of seconds")
    return found


def flag(option: Option) -> bool:
    """Return an option that is true or false.

    :raises ValueError: it is neither.
    """
    match text(option).lower():
        case "true" | "t" | "yes" | "1":
            return True
        case "false" | "f" | "no" | "0":
            return False
        case _:
            raise ValueError(f"[{SECTION}] {option.name} must be True or False")
