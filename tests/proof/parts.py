"""The parts of the proof that ``scripts/prove`` runs, each with its results in one JSON file."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from airflow_provider_dpone.publication.stop import Stop
from tests.exploration.scopes import WIDE, hunting
from tests.proof.made import made
from tests.proof.oracle import Broken
from tests.simulation.mutants import MUTANTS
from tests.simulation.ports import KEY, Fault
from tests.simulation.run import Calm, History, seeded

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "proof"
REGRESSIONS = ROOT / "tests" / "simulation" / "regressions.txt"
CHUNK = 500
CAUGHT = (Broken, RuntimeError, ValueError)
UNIT_FILES = (
    "classify",
    "decide",
    "decide_cleanup",
    "decide_resolve",
    "queue",
    "receipt",
    "record",
    "replica_stages",
    "permit",
)
MUTANT_SEEDS = 1_000
MUTANT_STATES = 40_000


def write(name: str, results: Any) -> None:
    """Store a part's results."""
    BUILD.mkdir(parents=True, exist_ok=True)
    target = BUILD / f"{name}.json"
    partial = target.with_suffix(".partial")
    stamped = {"sources": sources(), "made": made(), "results": results}
    partial.write_text(json.dumps(stamped, sort_keys=True) + "\n")
    partial.replace(target)


def read(name: str) -> Any:
    """Return a part's results; ``None`` if it was not run, or with other code."""
    path = BUILD / f"{name}.json"
    stamped = json.loads(path.read_text()) if path.exists() else {}
    return stamped["results"] if stamped.get("sources") == sources() else None


@cache
def sources() -> str:
    """Return a digest of everything that the results rest on."""
    total = hashlib.sha256()
    for folder in ("airflow_provider_dpone", "tests/simulation", "tests/exploration", "tests/proof"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            total.update(path.relative_to(ROOT).as_posix().encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def explore() -> int:
    """Explore the wide scopes; return how many."""
    results = []
    for scope in WIDE:
        started = time.monotonic()
        found = scope.explore(MOST_STATES)
        seconds = time.monotonic() - started
        how = "all of them" if found.complete else f"the nearest, {found.depth} steps deep"
        print(
            f"  {scope.name}: {found.states:,} states, {found.transitions:,} transitions, {how}, {seconds:.0f} s",
            flush=True,
        )
        results.append(
            {
                "scope": scope.name,
                "replicas": scope.replicas,
                "workers": len(scope.workers),
                "budget": {k: v for k, v in scope.budget._asdict().items() if v},
                "states": found.states,
                "transitions": found.transitions,
                "depth": found.depth,
                "complete": found.complete,
                "ends": dict(found.ends),
                "seconds": round(seconds, 1),
            }
        )
        write("exploration", results)
    return len(results)


MOST_STATES = 1_000_000
"""Bound of one scope: about a gigabyte and two minutes."""


def faults() -> int:
    """Try each fault at each call of a calm history; return how many were tried."""
    counts: Counter[tuple[str, str, str, int, str]] = Counter()
    for tables, replicas in (("replicated", 2), ("replicated", 3), ("independent", 2), ("independent", 3)):
        independent = tables == "independent"
        calm = Calm()
        History(calm, replicas=replicas, independent=independent).run()
        for number, point in enumerate(calm.points):
            for fault in Fault:
                history = History(Calm({number: fault}), replicas=replicas, independent=independent)
                history.run()
                counts[tables, point, fault.value, replicas, outcome(history)] += 1
    rows = [
        {
            "tables": tables,
            "point": point,
            "fault": fault,
            "replicas": replicas,
            "class": end,
            "count": count,
        }
        for (tables, point, fault, replicas, end), count in sorted(counts.items())
    ]
    write("faults", rows)
    return sum(counts.values())


def outcome(history: History) -> str:
    """The class of a history's end: the phase of the target's record, and what the first run's tasks were told."""
    stored = history.world.stored(KEY)
    phase = stored.record.phase.value if stored else "nothing staged"
    told: list[Stop] = history.ops[0].stops
    return f"{phase}, after {told[0].category.value}" if told else phase


def histories(count: int, *, fresh: bool) -> int:
    """Run seeded histories in two processes, going on where an earlier run of the same code stopped.

    :returns: how many passed.
    :raises Broken: a seed failed. It is added to the regressions.
    """
    progress = None if fresh else read("histories")
    if progress is None:
        progress = {"done": [], "seconds": 0.0, "cpu_seconds": 0.0, "ends": {}}
    done = set(progress["done"])
    starts = [start for start in range(0, count, CHUNK) if start not in done]
    ends = Counter(progress["ends"])
    before, started = progress["seconds"], time.monotonic()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for start, failed, seen, cpu in pool.map(_chunk, starts):
            if failed is not None:
                seed, why = failed
                with REGRESSIONS.open("a") as file:
                    file.write(f"{seed} {why.splitlines()[0]}\n")
                pool.shutdown(cancel_futures=True)
                raise Broken(f"seed {seed}: {why}")
            done.add(start)
            ends.update(seen)
            progress.update(
                done=sorted(done),
                independent=len(done) * CHUNK // 2,
                ends=dict(ends),
                seconds=round(before + time.monotonic() - started, 1),
                cpu_seconds=round(progress["cpu_seconds"] + cpu, 1),
            )
            write("histories", progress)
            if len(done) % 20 == 0:
                print(f"  {len(done) * CHUNK:,} histories, {progress['seconds']:.0f} s", flush=True)
    return len(done) * CHUNK


def _chunk(start: int) -> tuple[int, tuple[int, str] | None, Counter[str], float]:
    ends: Counter[str] = Counter()
    began = time.process_time()
    # A history is small: collecting once for many costs less than looking for garbage all the time.
    gc.disable()
    for seed in range(start, start + CHUNK):
        if seed % 50 == 0:
            gc.collect()
        history = seeded(seed)
        try:
            history.run()
        except Exception as error:  # noqa: BLE001 - whatever a history ends with, its seed is what must be known
            return start, (seed, f"{type(error).__name__}: {error}"), ends, time.process_time() - began
        ends[outcome(history)] += 1
    return start, None, ends, time.process_time() - began


def mutants() -> int:
    """Look for each planted bug in each layer; return how many were caught by at least one.

    :raises Broken: a planted bug was caught by no layer.
    """
    rows: dict[str, dict[str, str]] = {}
    for name, mutant in MUTANTS.items():
        with mutant():
            rows[name] = {
                "exploration": _caught_by_exploration(name),
                "simulation": _caught_by_simulation(),
                "unit": _caught_by_unit_tests(name),
            }
        print(f"  {name}: " + ", ".join(f"{k}: {v}" for k, v in rows[name].items() if v), flush=True)
        write("mutants", rows)
        if not any(rows[name].values()):
            raise Broken(f"the planted bug {name} was caught by no layer")
    return len(rows)


def _caught_by_exploration(name: str) -> str:
    for scope in hunting(name):
        try:
            scope.explore(MUTANT_STATES)
        except CAUGHT as caught:
            return str(caught).splitlines()[0]
    return ""


def _caught_by_simulation() -> str:
    from tests.simulation.test_histories import directed

    for number in range(-1, MUTANT_SEEDS):
        try:
            if number < 0:
                for history in directed():
                    history.run()
            else:
                seeded(number).run()
        except CAUGHT as caught:
            return str(caught).splitlines()[0]
    return ""


def _caught_by_unit_tests(name: str) -> str:
    files = [f"tests/unit/test_{file}.py" for file in UNIT_FILES]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "tests.proof.plant",
        "-p",
        "no:cacheprovider",
        *files,
    ]
    env = {**os.environ, "DPONE_PLANTED_BUG": name}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode == 0:
        return ""
    if done.returncode != 1:
        raise RuntimeError(f"the unit tests did not run: {done.stdout[-2000:]}")
    failed = next(line for line in done.stdout.splitlines() if line.startswith("FAILED"))
    return failed.split()[1].removeprefix("tests/unit/")
