"""Writes ``docs/matrix.json`` from the results of the cells: what was run, where, and what was not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from scripts.lib.bootstrap import pin
from tests.matrix.cells import LOCK, ROOT, Result

RESULTS: Final = ROOT / "docs" / "matrix.json"


def write(results: Sequence[Result]) -> None:
    """Write the file."""
    RESULTS.write_text(json.dumps(collect(results), indent=1, sort_keys=True) + "\n")


def collect(results: Sequence[Result]) -> dict[str, Any]:
    """Return the results with the conditions of this call."""
    return {
        "made": {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "commit": _git("rev-parse", "--short=12", "HEAD"),
            "changed": bool(
                _git("status", "--porcelain", "--", "airflow_provider_dpone", "tests", "pyproject.toml")
            ),
            "cores": os.cpu_count(),
            "servers": pin(LOCK.read_text(), "chdb-core"),
        },
        "results": [asdict(result) for result in results],
    }


def last_line(results: Sequence[Result]) -> str:
    """Return ``N passed, N failed, N skipped``."""
    passed, failed, skipped = (
        sum(getattr(one, what) for one in results) for what in ("passed", "failed", "skipped")
    )
    return f"{passed} passed, {failed} failed, {skipped} skipped"


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
