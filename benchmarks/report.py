"""What a benchmark says: lines with a ratio, a table for people, and a section of a JSON file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. ``ratio`` is named in the JSON; ``passed`` is what the project asks for."""

    name: str
    ours: float
    theirs: float
    unit: str
    ratio: float
    wanted: str
    passed: bool


def show(results: Sequence[Result]) -> int:
    """Print the table and the count; returns the exit status."""
    print(f"{'what':48} {'ours':>10} {'other':>10} {'':9} {'ratio':>7}  wanted")
    for r in results:
        mark = "ok" if r.passed else "MISSED"
        print(f"{r.name:48} {r.ours:10.3f} {r.theirs:10.3f} {r.unit:9} {r.ratio:7.3f}  {r.wanted}: {mark}")
    passed = sum(r.passed for r in results)
    print(f"{passed} passed, {len(results) - passed} failed")
    return 0 if passed == len(results) else 1


def write(file: Path, results: Sequence[Result], conditions: str, *, section: str | None = None) -> None:
    """Write the results and what they were measured under; what else is in the file stays.

    :param section: the name under which they stand; ``None`` for the protocol's, which stand at the top.
    """
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    measured = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "conditions": conditions,
        "results": [asdict(result) for result in results],
    }
    body = {**kept, **measured} if section is None else {**kept, section: measured}
    file.write_text(json.dumps(body, indent=2) + "\n")


def _commit() -> str:
    """Return the commit that was measured."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
