"""The command line of ``scripts/demo``: which demo is played, and how it ends."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType
from typing import Final

from scripts.lib import demo_lost_reply, demo_ui
from scripts.lib.demo_site import DemoError, say
from tests.airflow.harness import AirflowStartError
from tests.cluster.local import ClusterNotStartedError

_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end_in_order(number: int, frame: FrameType | None) -> None:
    # Ctrl-C reaches the supervisor, too, which then asks every process to end: once is enough.
    for ending in _ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """Parse the command line and play a demo. Returns the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="Two refreshes, one of them with a lost reply."
    )
    parser.add_argument(
        "--ui",
        action="store_true",
        help="instead, leave Airflow running with a publication that is done, one that waits and one on hold, "
        "until Ctrl-C",
    )
    options = parser.parse_args(arguments)
    for ending in _ENDINGS:
        signal.signal(ending, _end_in_order)
    try:
        return demo_ui.main() if options.ui else demo_lost_reply.main()
    except (DemoError, AirflowStartError, ClusterNotStartedError) as error:
        say(f"\nFAILED: {error}")
        return 1
    except SystemExit:
        say("\nStopped. Nothing is left of it.")
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
