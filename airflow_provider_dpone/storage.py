"""Where evidence and artifacts lie, and whether every worker can see them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_dpone import options
from airflow_provider_dpone.options import Option

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_LOCAL_EXECUTORS: Final = frozenset({"LocalExecutor", "SequentialExecutor", "DebugExecutor"})


def evidence_root() -> ObjectStoragePath:
    """Return the folder of the evidence.

    :raises ValueError: it is a folder of this machine, and tasks may run on other machines; or the path is
        none of Airflow's object storage.
    """
    return _shared_root(options.EVIDENCE_PATH, options.EVIDENCE_PATH_IS_SHARED, "evidence")


def artifact_root() -> ObjectStoragePath:
    """Return the folder of the artifacts.

    :raises ValueError: as :func:`evidence_root`, which is asked, too; or it is the evidence's folder, or in it.
    """
    root = _shared_root(options.ARTIFACT_PATH, options.ARTIFACT_PATH_IS_SHARED, "artifacts")
    evidence = evidence_root()
    if _is_in(root, evidence):
        raise ValueError(
            f"[{options.SECTION}] {options.ARTIFACT_PATH.name} lies in {options.EVIDENCE_PATH.name}: give the "
            "artifacts a folder of their own, since they are rows, large, and soon deleted"
        )
    return root


def is_local(folder: ObjectStoragePath) -> bool:
    """Tell whether a folder lies on a disk of this machine."""
    return folder.protocol in ("", "file", "local")


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


def _shared_root(path: Option, declared: Option, what: str) -> ObjectStoragePath:
    """Return the folder that an option names, which all workers must see.

    :param declared: the option that declares a local folder to be shared.
    :param what: what lies there; where the option is empty, the folder in ``AIRFLOW_HOME/dpone`` as well.
    :raises ValueError: it can't be shared, or used.
    """
    from airflow.sdk import ObjectStoragePath

    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    try:
        root = ObjectStoragePath(options.text(path) or (home / "dpone" / what).as_uri())
        local = is_local(root)
    except (ImportError, ValueError):
        raise ValueError(
            f"[{options.SECTION}] {path.name} is no path of Airflow's object storage: check it, and install the "
            "provider of its storage"
        ) from None
    if local and (elsewhere := remote_executor()) and not options.flag(declared):
        raise ValueError(
            f"the {what} would lie on this machine alone, and {elsewhere} runs tasks on others: set "
            f"[{options.SECTION}] {path.name} to a shared storage, or declare a shared folder with "
            f"{declared.name} = True"
        )
    return root


def _is_in(folder: ObjectStoragePath, other: ObjectStoragePath) -> bool:
    """Tell whether a folder is another one, or lies in it."""
    if folder.protocol != other.protocol and not (is_local(folder) and is_local(other)):
        return False
    return f"{folder.path.rstrip('/')}/".startswith(f"{other.path.rstrip('/')}/")
