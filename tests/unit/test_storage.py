"""Where evidence and artifacts lie: a folder that every worker sees, or a refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_provider_dpone import storage

SetOptions = Callable[..., None]
Root = Callable[[], ObjectStoragePath]


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> SetOptions:
    monkeypatch.setenv("AIRFLOW_HOME", "/home/airflow")
    monkeypatch.delenv("AIRFLOW_IS_K8S_EXECUTOR_POD", raising=False)

    def set_options(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"AIRFLOW__{name.upper()}", value)

    set_options(core__executor="LocalExecutor")
    return set_options


@pytest.fixture(params=["evidence", "artifact"])
def what(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(what: str) -> Root:
    return {"evidence": storage.evidence_root, "artifact": storage.artifact_root}[what]


def test_the_default_folders_are_in_airflows_home(options: SetOptions) -> None:
    assert storage.evidence_root().path == "/home/airflow/dpone/evidence"
    assert storage.artifact_root().path == "/home/airflow/dpone/artifacts"


@pytest.mark.parametrize(
    "executor",
    [
        "CeleryExecutor",
        "LocalExecutor,CeleryExecutor",
        "airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor",
        "near:LocalExecutor,far:my.module.OtherExecutor",
        "LocalExecutor;team=CeleryExecutor",
    ],
)
@pytest.mark.parametrize("path", ["", "file:///shared/dpone", "/shared/dpone"])
def test_a_local_folder_is_refused_where_tasks_run_elsewhere(
    options: SetOptions, executor: str, path: str, what: str, root: Root
) -> None:
    options(core__executor=executor, dpone__evidence_path="memory://evidence")
    options(**{f"dpone__{what}_path": path})
    with pytest.raises(ValueError, match=f"{what}_path to a shared storage"):
        root()
    options(**{f"dpone__{what}_path_is_shared": "True"})
    assert root().protocol in ("file", "")


def test_a_shared_folder_of_evidence_is_no_word_about_the_artifacts(options: SetOptions) -> None:
    options(
        core__executor="CeleryExecutor",
        dpone__evidence_path="/shared/evidence",
        dpone__evidence_path_is_shared="True",
        dpone__artifact_path="/here/artifacts",
    )
    assert storage.evidence_root().path == "/shared/evidence"
    with pytest.raises(ValueError, match="the artifacts would lie on this machine alone"):
        storage.artifact_root()


@pytest.mark.parametrize(
    ("evidence", "artifacts"),
    [
        ("/shared/dpone", "/shared/dpone"),
        ("/shared/dpone", "file:///shared/dpone/"),
        ("file:///shared/dpone/", "/shared/dpone/artifacts"),
        ("memory://bucket/dpone", "memory://bucket/dpone/rows"),
    ],
)
def test_artifacts_in_the_evidence_are_refused(options: SetOptions, evidence: str, artifacts: str) -> None:
    options(dpone__evidence_path=evidence, dpone__artifact_path=artifacts)
    with pytest.raises(ValueError, match="artifact_path lies in evidence_path"):
        storage.artifact_root()


@pytest.mark.parametrize(
    ("evidence", "artifacts"),
    [
        ("/shared/dpone", "/shared/dpone-artifacts"),
        ("/shared/dpone/evidence", "/shared/dpone"),
        ("memory://bucket/dpone", "/bucket/dpone"),
        ("/bucket/dpone", "memory://bucket/dpone/rows"),
    ],
)
def test_artifacts_beside_the_evidence_are_accepted(
    options: SetOptions, evidence: str, artifacts: str
) -> None:
    options(dpone__evidence_path=evidence, dpone__artifact_path=artifacts)
    assert storage.artifact_root() == ObjectStoragePath(artifacts)


@pytest.mark.parametrize(
    "executor", ["LocalExecutor", "airflow.executors.local_executor.LocalExecutor", "near:LocalExecutor"]
)
def test_a_local_executor_may_use_a_local_folder(options: SetOptions, executor: str) -> None:
    options(core__executor=executor)
    assert storage.remote_executor() is None


def test_a_worker_pod_is_recognised_whatever_executor_it_was_given(
    options: SetOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    options(core__executor="LocalExecutor")
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    assert storage.remote_executor() == "KubernetesExecutor"


def test_a_path_without_a_storage_is_refused(options: SetOptions, what: str, root: Root) -> None:
    options(**{f"dpone__{what}_path": "nosuch://bucket/x"})
    with pytest.raises(ValueError, match=f"{what}_path is no path of Airflow's object storage"):
        root()
