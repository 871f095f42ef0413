"""Writes ``docs/proof.json`` from the results of the proof's parts, and ``docs/proof.md`` from that.

    python -m tests.proof.report

Each part says when and of which commit it was run last: one that was not run again stays as it was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.proof import parts

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
RESULTS = ROOT / "docs" / "proof.json"
PAGE = ROOT / "docs" / "proof.md"
NOT_RUN = "Not run.\n"
LAYERS = ("exploration", "simulation", "unit")

FILES: Final[Mapping[str, Path]] = {
    **{name: parts.BUILD / f"{name}.json" for name in ("exploration", "faults", "histories", "mutants")},
    "scenarios": BUILD / "scenarios.json",
    "independent": BUILD / "scenarios-independent.json",
    "lost_load_reply": BUILD / "lost-load-reply.json",
    "soak": BUILD / "soak.json",
}
"""Where each part leaves its results, beside what they are bound to."""


def collect(last: Mapping[str, Any]) -> dict[str, Any]:
    """Return the newest result of each part: what it has left, or what was written down before."""
    return {name: _newest(last.get(name), _read(path)) for name, path in FILES.items()}


def _read(path: Path) -> Any:
    if not path.exists():
        return None
    stamped = json.loads(path.read_text())
    results = stamped["results"]
    if isinstance(results, dict) and "done" in results:
        results["count"] = len(results.pop("done")) * parts.CHUNK
    return {"made": stamped["made"], "results": results}


def _newest(before: Any, now: Any) -> Any:
    if before is None or now is None:
        return now or before
    return now if now["made"]["date"] >= before["made"]["date"] else before


def write() -> None:
    """Write both files."""
    last = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(collect(last), indent=1, sort_keys=True) + "\n")
    # From what was written: the page is the same whenever it is made again.
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


def page(results: Mapping[str, Any]) -> str:
    """Return the page of these results."""
    return f"""# What the proof rests on

Written by `scripts/prove`; don't edit. Each part names the commit that it was run with last.

Three layers try to break the same invariants (`tests/proof/oracle.py`): at most one swap
per operation and one permit per epoch; the live table is old, new, or absent before the first; success only with the
new table and its content on every replica; nothing dropped that is not proven droppable; what was given up never goes
live; and after all faults every operation ends or holds by name, with a way out.

## Exploration

The real tasks against a small modelled cluster, in every interleaving of workers, replicas and faults within a budget.
From every state a calm run of the tasks and an operator must come to an end. Scopes of independent replicas begin
before staging, the others with what is prepared.

{_part(results["exploration"], _exploration)}
## One fault at each call

A run of two refreshes with one fault at one call, for each fault and each call. How the target's record ended, and what
the task was told first.

{_part(results["faults"], _faults)}
## Random histories

Two to three replicas, one to three runs, several workers, operators, deferrals, many faults; virtual time.

{_part(results["histories"], _histories)}
## Planted bugs

Each is a mistake that a careful person could make. A checker that doesn't catch it is blind.

{_part(results["mutants"], _mutants)}
## Scenarios on real servers

{_part(results["scenarios"], _scenarios)}
## Scenarios on real servers, independent replicas

{_part(results["independent"], _scenarios)}
## Independent replicas: a lost load reply

The first replica accepts its whole load, and the reply is lost. The same operation is retried, published, and asked for
once more. A plain client that repeats its INSERT under the same fault is what it is compared with. Made on one machine
with synthetic rows: it says nothing about other networks, grants, the queue's retention, server patches or speed.

{_part(results["lost_load_reply"], _lost_load_reply)}
## Soak on real servers

{_part(results["soak"], _soak)}"""


def _part(part: Any, shown: Callable[[Any], str]) -> str:
    if part is None:
        return NOT_RUN
    made = part["made"]
    changed = " with uncommitted changes" if made["changed"] else ""
    return (
        f"Run at {made['date']}, commit `{made['commit'][:12]}`{changed}, Python {made['python']}, "
        f"{made['cores']} cores.\n\n{shown(part['results'])}"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _exploration(found: Any) -> str:
    rows = [
        (
            one["scope"],
            one["replicas"],
            one["workers"],
            ", ".join(f"{k} {v}" for k, v in one["budget"].items()) or "none",
            f"{one['states']:,}",
            f"{one['transitions']:,}",
            "all" if one["complete"] else f"to depth {one['depth']}",
        )
        for one in found
    ]
    states, transitions = (sum(one[what] for one in found) for what in ("states", "transitions"))
    total = f"{states:,} states, {transitions:,} transitions.\n"
    head = ("scope", "replicas", "workers", "what may go wrong", "states", "transitions", "explored")
    return _table(head, rows) + "\n" + total


def _faults(found: Any) -> str:
    rows: dict[tuple[str, str, str, int], Counter[str]] = {}
    for one in found:
        key = (one.get("tables", "replicated"), one["point"], one["fault"], one["replicas"])
        rows.setdefault(key, Counter())[one["class"]] += one["count"]
    return _table(
        ("tables", "call", "fault", "replicas", "ends"),
        ((*key, "; ".join(f"{end}: {n}" for end, n in sorted(ends.items()))) for key, ends in rows.items()),
    )


def _histories(found: Any) -> str:
    each = 1000 * found["cpu_seconds"] / found["count"]
    rows = sorted(found["ends"].items(), key=lambda item: -item[1])
    kinds = f" ({found['independent']:,} of independent tables)" if "independent" in found else ""
    return f"{found['count']:,} histories passed{kinds}, {each:.1f} ms of processor time each.\n\n" + _table(
        ("ends", "histories"), ((end, f"{count:,}") for end, count in rows)
    )


def _mutants(found: Any) -> str:
    rows = [
        (name.replace("_", " "), *("caught" if layers[layer] else "" for layer in LAYERS))
        for name, layers in sorted(found.items())
    ]
    caught = sum(any(layers.values()) for layers in found.values())
    return _table(("planted bug", *LAYERS), rows) + f"\n{caught} of {len(found)} caught.\n"


def _scenarios(found: Any) -> str:
    return _table(
        ("scenario", "case", "outcome", "exchanges", "seconds"),
        ((one["name"], one["case"], one["outcome"], one["exchanges"], one["seconds"]) for one in found),
    )


def _lost_load_reply(found: Any) -> str:
    naive = "; ".join(f"{alias}: {rows:,}" for alias, rows in found["baseline_duplicate_rows"].items())
    tries = "; ".join(f"{one['task']}: {one['outcome']} {one['code']}".rstrip() for one in found["tries"])
    facts = {
        "scope": f"`{found['scope']}`",
        "fixture digest": f"`{found['fixture_digest']}`",
        "operation": f"`{found['operation']}`",
        "artifact": f"`{found['artifact']}`, {found['artifact_bytes']:,} bytes",
        "content": f"`{found['content']}`, {found['rows']:,} rows",
        "tries": tries,
        "lost replies": found["lost_replies"],
        "reads of the source": found["source_reads"],
        "loads": found["loads"],
        "swaps": found["swaps"],
        "duplicate rows": found["duplicate_rows"],
        "false successes": found["false_successes"],
        "generations": found["generations"],
        "duplicate rows of the plain client": naive,
    }
    head = ("replica", "table", "rows", "duplicate rows", "content")
    rows = [
        (one["alias"], f"`{one['table']}`", one["rows"], one["duplicate_rows"], f"`{one['content']}`")
        for one in found["replicas"]
    ]
    return _table(("fact", "value"), facts.items()) + "\n" + _table(head, rows)


def _soak(found: Any) -> str:
    return _table(
        ("figure", "value"),
        [(name.replace("_", " "), _plain(value)) for name, value in sorted(found.items())],
    )


def _plain(value: Any) -> str:
    """A number with separators; of several, each with its name."""
    match value:
        case dict():
            return "; ".join(f"{name}: {_plain(one)}" for name, one in sorted(value.items()))
        case int():
            return f"{value:,}"
        case _:
            return str(value)


if __name__ == "__main__":
    write()
