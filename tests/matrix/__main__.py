"""Runs the matrix: ``python -m tests.matrix [--fresh] [--seconds N] [cell ...]``; a cell is ``3.1.8-3.11``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Final

from tests.matrix import report
from tests.matrix.cells import STEPS, Cell, Result, cells, fingerprint

MOST: Final = {"units": 300.0, "refresh": 540.0}
"""Seconds that a step may take."""

LEAST: Final = {"units": 90.0, "refresh": 300.0}
"""Seconds that must be left for a step to begin."""


def main() -> int:
    """Run what has no result for the present code, as long as the time lasts; end with how many tests passed."""
    parser = argparse.ArgumentParser(prog="scripts/test-matrix")
    parser.add_argument("cells", nargs="*", metavar="cell", help="such as 3.1.8-3.11; all by default")
    parser.add_argument("--fresh", action="store_true", help="run again what has a result")
    parser.add_argument("--seconds", type=float, default=27 * 60, help="after which nothing more is begun")
    options = parser.parse_args()
    known = {f"{cell.airflow}-{cell.python}": cell for cell in cells()}
    if unknown := set(options.cells) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wanted = {known[name] for name in options.cells} if options.cells else set(known.values())
    deadline = time.monotonic() + options.seconds
    code = fingerprint()
    results: list[Result] = []
    for cell in known.values():
        for step in STEPS:
            result = _result(cell, step, code, deadline, wanted=cell in wanted, fresh=options.fresh)
            results.append(result)
            print(_line(cell, result), flush=True)
    report.write(results)
    print(report.last_line(results))
    return 1 if any(result.failed for result in results) or not any(r.passed for r in results) else 0


def _result(cell: Cell, step: str, code: str, deadline: float, *, wanted: bool, fresh: bool) -> Result:
    def not_run(why: str) -> Result:
        return Result(cell.airflow, cell.python, step, not_run=why)

    if (why := cell.why_not(step)) is not None:
        return not_run(why)
    kept = Result.read(cell.file(step))
    current = kept is not None and kept.fingerprint == code and not kept.failed
    if kept is not None and current and not (wanted and fresh):
        return kept
    if not wanted:
        return not_run("not asked for")
    left = deadline - time.monotonic()
    if left < LEAST[step]:
        return not_run("the time was up; call it again")
    print(f"{cell}: {step} ...", flush=True)
    try:
        cell.install()
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{cell}: {type(error).__name__}")
        return not_run("its packages could not be installed")
    return cell.run(step, min(MOST[step], deadline - time.monotonic()))


def _line(cell: Cell, result: Result) -> str:
    if result.not_run is not None:
        return f"{cell}: {result.step}: not run: {result.not_run}"
    return f"{cell}: {result.step}: {report.last_line([result])} in {result.seconds:.0f} s"


sys.exit(main())
