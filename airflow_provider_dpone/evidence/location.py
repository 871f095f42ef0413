"""Where the evidence lies, and whether every worker can see it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_dpone import options

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_LOCAL_EXECUTORS: Final = frozenset({"LocalExecutor", "SequentialExecutor", "DebugExecutor"})


def evidence_root() -> ObjectStoragePath:
    """Return the folder of the evidence.

    :raises ValueError: it is a folder of this machine, and tasks may run on other machines; or the path is
        none of Airflow's object storage.
    """
    from airflow.sdk import ObjectStoragePath

    configured = options.text(options.EVIDENCE_PATH)
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    try:
        root = ObjectStoragePath(configured or (home / "dpone" / "evidence").as_uri())
        local = root.protocol in ("", "file", "local")
    except (ImportError, ValueError):
        raise ValueError(
            f"[{options.SECTION}] {options.EVIDENCE_PATH.name} is no path of Airflow's object storage: check "
            "it, and install the provider of its storage"
        ) from None
    if local and (elsewhere := remote_executor()) and not options.flag(options.EVIDENCE_PATH_IS_SHARED):
        raise ValueError(
            f"the evidence would lie on this machine alone, and {elsewhere} runs tasks on others: set "
            f"[{options.SECTION}] {options.EVIDENCE_PATH.name} to a shared storage, or declare a shared folder "
            f"with {options.EVIDENCE_PATH_IS_SHARED.name} = True"
        )
    return root


def remote_executor() -> str | None:
    """Return the first executor that may run tasks on other machines, by its class's name."""
    from airflow.configuration import conf

    # Worker pods of the KubernetesExecutor are often configured with LocalExecutor; Airflow marks them.
    if os.environ.get("AIRFLOW_IS_K8S_EXECUTOR_POD"):
        return "KubernetesExecutor"
    # "team=Executor,alias:module.Executor;other=..." are all forms of the option.
    configured = str(conf.get("core", "executor")).replace(";", ",")
    for entry in configured.split(","):
        name = entry.strip().rpartition("=")[2].rpartition(":")[2].rpartition(".")[2]
        if name and name not in _LOCAL_EXECUTORS:
            return name
    return None
