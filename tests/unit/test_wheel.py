"""What users install: the package, its type marker and its entry point, and no test equipment."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        declared = archive.read(entry_points).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"airflow_provider_dpone"}
    assert "airflow_provider_dpone/py.typed" in names
    assert "airflow_provider_dpone/web/templates/base.html" in names
    assert "get_provider_info" in declared
    assert "airflow_provider_dpone.plugins.page:DponePlugin" in declared
    assert any(name.endswith("licenses/LICENSE") for name in names)
