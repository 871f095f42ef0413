"""A plugin of pytest that plants one bug for the whole session: ``-p tests.proof.plant``.

``DPONE_PLANTED_BUG`` names it. The session is then expected to fail.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from tests.simulation.mutants import MUTANTS

_planted = ExitStack()


def pytest_sessionstart() -> None:
    """Plant the bug."""
    _planted.enter_context(MUTANTS[os.environ["DPONE_PLANTED_BUG"]]())


def pytest_sessionfinish() -> None:
    """Take it out."""
    _planted.close()
