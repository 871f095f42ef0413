"""Looks at the page in a browser, and keeps what was seen: ``python -m tests.browser [--fresh] [--pictures] [...]``.

What has passed with the present code is not run again, so the same command goes on after an interruption. Exit status
75: the time was up.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import pytest

from tests.browser import record

TIME_IS_UP = 75
FOLDER = "tests/browser"


def main() -> int:
    """Run what is left; 0 when everything has passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="run everything again")
    parser.add_argument("--pictures", action="store_true", help="write the pictures of docs/images anew")
    parser.add_argument("--minutes", type=float, default=27.0, help="begin no further test after that")
    options, arguments = parser.parse_known_args()
    if options.pictures:
        record.PICTURES.mkdir(parents=True, exist_ok=True)
        os.environ[record.PICTURES_VARIABLE] = str(record.PICTURES)
    everything = not any(not one.startswith("-") or one == "-k" for one in arguments)
    keeper = record.Keeper(
        fresh=options.fresh or options.pictures, deadline=time.monotonic() + 60 * options.minutes
    )
    status = pytest.main([*(arguments or []), *([FOLDER] if everything else [])], plugins=[keeper])
    passed, failed = keeper.counts()
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(f"{passed} passed, {failed} failed")
        return int(status)
    if keeper.left:
        print(f"browser: {keeper.left} are left; run it again to go on")
        return TIME_IS_UP
    if everything:
        record.write(keeper)
    print(f"{passed} passed")
    return 0 if passed else int(pytest.ExitCode.NO_TESTS_COLLECTED)


if __name__ == "__main__":
    sys.exit(main())
