"""A real PostgreSQL for tests and benchmarks, in a temporary folder and gone afterwards."""

from __future__ import annotations

from tests.postgres.server import LocalPostgres, PostgresNotFoundError

__all__ = ["LocalPostgres", "PostgresNotFoundError"]
