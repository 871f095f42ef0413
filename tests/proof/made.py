"""What a result is bound to: when it was made, of which commit, and on what."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]


def made() -> dict[str, object]:
    """Return what is written beside a result, as of now."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "airflow_provider_dpone", "tests")),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def _git(*arguments: str) -> str:
    return subprocess.run(
        ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
