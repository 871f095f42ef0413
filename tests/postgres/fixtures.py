"""pytest fixtures: one PostgreSQL for the whole session. Loaded by ``tests/conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import LocalPostgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """A server, started at the first use. A test makes schemas of its own in it."""
    with LocalPostgres() as running:
        yield running
