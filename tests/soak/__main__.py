"""Runs the soak, in parts that are kept: ``python -m tests.soak [--fresh] [--minutes 28]``."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.lib.processes import resident_bytes
from tests.cluster import LocalCluster
from tests.proof.made import made
from tests.soak.engine import Soak, SoakError, a_soak
from tests.soak.plan import publication

BUILD = Path(__file__).resolve().parents[2] / "build"
PROGRESS = BUILD / "soak-progress.json"
REPORT = BUILD / "soak.json"
PART = 25
"""Publications between two looks at everything; what is done up to a look is kept."""

_FLAT_FACTOR = 1.25
_FLAT_BYTES = 48 * 1024 * 1024
"""How much the process may grow from a fifth of its publications to the last."""

_ENOUGH_TO_MEASURE = 60


def main() -> int:
    """Run what is left; 0 when all is done, 75 when the time was up, 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publications", type=int, default=500)
    parser.add_argument("--targets", type=int, default=5)
    parser.add_argument("--seed", type=int, help="draws the troubles; default: as before, or new")
    parser.add_argument("--minutes", type=float, default=28.0, help="stop at the next part, to be resumed")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    args = parser.parse_args()
    done = _progress(args)
    print(
        f"soak: seed {done['seed']}, publications {done['done'] + 1} to {args.publications} "
        f"over {args.targets} targets",
        flush=True,
    )
    deadline = time.monotonic() + args.minutes * 60
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(replicas=2) as cluster,
        a_soak(cluster, args.targets, Path(folder)) as soak,
    ):
        try:
            _run(soak, args, done, deadline)
        except SoakError as error:
            print(f"soak: seed {done['seed']}: {error}", file=sys.stderr)
            print(f"{done['done']} passed, 1 failed")
            return 1
    if done["done"] < args.publications:
        print(f"soak: {done['done']} are done; run it again to go on")
        return 75
    report = _report(done)
    REPORT.write_text(json.dumps({"made": made(), "results": report}, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    PROGRESS.unlink()
    print(f"{done['done']} passed")
    return 0


def _run(soak: Soak, args: argparse.Namespace, done: dict[str, Any], deadline: float) -> None:
    first = done["done"]
    resident: list[int] = []
    while done["done"] < args.publications and time.monotonic() < deadline:
        started = time.monotonic()
        until = min(done["done"] + PART, args.publications)
        for number in range(done["done"], until):
            wanted = publication(done["seed"], number, targets=args.targets, nodes=len(soak.cluster.nodes))
            before = time.monotonic()
            soak.publish(wanted)
            took = time.monotonic() - before
            print(f"{number + 1:4} target{wanted.target} {took:5.1f} s  {wanted.trouble}", flush=True)
            resident.append(resident_bytes(os.getpid()))
        soak.verify()
        _keep(done, soak, until, time.monotonic() - started)
        print(f"     all targets as they must be after {until}", flush=True)
    if len(resident) >= _ENOUGH_TO_MEASURE:
        fifth, last = resident[len(resident) // 5], resident[-1]
        done["memory"] = {"publications": len(resident), "at_fifth": fifth, "at_end": last}
        if last > fifth * _FLAT_FACTOR + _FLAT_BYTES:
            raise SoakError(f"the process grew from {fifth:,} to {last:,} bytes")
    done["sessions"] += first < done["done"]
    _store(done)


def _progress(args: argparse.Namespace) -> dict[str, Any]:
    if PROGRESS.exists() and not args.fresh:
        kept: dict[str, Any] = json.loads(PROGRESS.read_text())
        if args.seed in (None, kept["seed"]):
            return kept
    seed = args.seed if args.seed is not None else int(time.time())
    return {
        "seed": seed,
        "done": 0,
        "sessions": 0,
        "seconds": 0.0,
        "calm_seconds": [],
        "stops": {},
        "ended": {},
        "troubles": {},
        "not_published": 0,
        "swaps": 0,
        "memory": None,
    }


def _keep(done: dict[str, Any], soak: Soak, until: int, seconds: float) -> None:
    """Add what a part has brought, and begin to count anew."""
    counts = soak.counts
    for name, found in (("stops", counts.stops), ("ended", counts.ended), ("troubles", counts.troubles)):
        done[name] = dict(Counter(done[name]) + found)
        found.clear()
    done["not_published"] += counts.not_published
    counts.not_published = 0
    done["calm_seconds"] += [round(one, 2) for one in soak.calm_seconds]
    soak.calm_seconds.clear()
    done["seconds"] += seconds
    done["done"] = until
    _store(done)


def _store(done: Mapping[str, Any]) -> None:
    BUILD.mkdir(exist_ok=True)
    PROGRESS.write_text(json.dumps(done))


def _report(done: Mapping[str, Any]) -> dict[str, Any]:
    calm = sorted(done["calm_seconds"])
    troubled = {name: times for name, times in done["troubles"].items() if name != "calm"}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "seed": done["seed"],
        "publications": done["done"],
        "sessions": done["sessions"],
        "minutes": round(done["seconds"] / 60, 1),
        "with_trouble": sum(troubled.values()),
        "troubles": dict(sorted(troubled.items())),
        "calm_seconds_median": round(statistics.median(calm), 2) if calm else None,
        "stops_by_code": dict(sorted(done["stops"].items())),
        "holds_ended_by": dict(sorted(done["ended"].items())),
        "closed_as_not_published": done["not_published"],
        "wrong_targets": 0,
        "orphan_tables": 0,
        "records_per_target": 1,
        "memory_bytes": done["memory"],
    }


if __name__ == "__main__":
    sys.exit(main())
