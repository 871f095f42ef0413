"""The wheel as users install it: into an empty environment beside Airflow, alone and with each extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

import airflow_provider_dpone
from scripts.lib.bootstrap import uv_environment

CHECKOUT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = CHECKOUT / "requirements" / "dev.txt"
UV: Final = Path(sys.executable).with_name("uv")

EXTRAS: Final = {
    "": (),
    "parquet": ("pyarrow.parquet",),
    "postgres": ("airflow.providers.postgres.hooks.postgres", "pyarrow"),
    "mssql": ("airflow.providers.microsoft.mssql.hooks.mssql", "pyarrow"),
    "openlineage": ("airflow.providers.openlineage.extractors",),
}
"""Extra -> what it must bring."""

LOOK: Final = """
import importlib, sys
import airflow_provider_dpone
for name in airflow_provider_dpone.__all__:
    assert getattr(airflow_provider_dpone, name) is not None, name
from airflow_provider_dpone.get_provider_info import get_provider_info
info = get_provider_info()
for part in ("operators", "hooks", "triggers"):
    for entry in info[part]:
        for module in entry["python-modules"]:
            importlib.import_module(module)
for module in sys.argv[1:]:
    importlib.import_module(module)
from airflow.providers_manager import ProvidersManager
assert info["package-name"] in ProvidersManager().providers, "Airflow doesn't see the provider"
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_every_extra_is_tried() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == set(EXTRAS) - {""}


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra or "none")
def test_the_wheel_is_installed_beside_airflow_and_every_public_name_is_there(
    extra: str, wheel: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asked = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    env = uv_environment(settings, os.environ)
    # Always the same path, emptied each time: what one environment compiled of Airflow serves the next.
    home = tmp_path_factory.getbasetemp() / "extras"
    python = home / "bin" / "python"
    named = f"{airflow_provider_dpone.__name__.replace('_', '-')}[{extra}] @ {wheel.as_uri()}"
    commands: tuple[list[str | Path], ...] = (
        [UV, "venv", "--quiet", "--clear", "--python", sys.executable, home],
        # At the versions that the other tests ran with.
        [UV, "pip", "install", "--quiet", "--python", python, "--constraint", LOCK, named],
    )
    for command in commands:
        subprocess.run(command, check=True, env=env, timeout=300)
    done = subprocess.run(
        [python, "-I", "-X", f"pycache_prefix={home}-compiled", "-c", LOOK, *EXTRAS[extra]],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AIRFLOW_HOME": str(tmp_path / "airflow")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
