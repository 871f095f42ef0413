"""Runs the parts of the proof: ``python -m tests.proof [part ...] [--histories N] [--fresh]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.proof import parts
from tests.proof.oracle import Broken


def main() -> int:
    """Run the named parts, all of them by default; end with how many cases passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof")
    parser.add_argument("parts", nargs="*", metavar="part")
    parser.add_argument("--histories", type=int, default=100_000, help="how many random histories")
    parser.add_argument("--fresh", action="store_true", help="start the random histories anew")
    options = parser.parse_args()
    known: dict[str, Callable[[], int]] = {
        "exploration": parts.explore,
        "faults": parts.faults,
        "histories": lambda: parts.histories(options.histories, fresh=options.fresh),
        "mutants": parts.mutants,
    }
    if unknown := set(options.parts) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    passed = 0
    for name in options.parts or known:
        print(f"{name} ...", flush=True)
        try:
            count = known[name]()
        except Broken as broken:
            print(f"{name}: {broken}\n{passed} passed, 1 failed")
            return 1
        print(f"{name}: {count:,}", flush=True)
        passed += count
    print(f"{passed} passed")
    return 0


sys.exit(main())
