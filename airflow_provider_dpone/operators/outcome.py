"""What Airflow does with each reason to stop. The one place where categories become exceptions of Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

from airflow_provider_dpone.compat import AirflowException, AirflowFailException
from airflow_provider_dpone.publication.stop import Category, Stop, Stopped


def failure(stop: Stop) -> AirflowException:
    """Return the exception for a task that stopped: one that Airflow retries, or one that it doesn't."""
    match stop.category:
        case Category.REFUSED | Category.CONTRADICTION | Category.PARTIAL_TERMINAL:
            return AirflowFailException(str(stop))
        case Category.CONFLICT:
            return AirflowFailException(str(stop))
        case Category.RETRYABLE:
            return AirflowException(str(stop))
        case Category.IN_PROGRESS:
            return AirflowException(f"The work is STILL RUNNING, and everything is kept. {stop}")
        case Category.NOT_OBSERVED:
            return AirflowException(
                f"The state is NOT OBSERVABLE at the moment, and everything is kept. {stop}"
            )
        case _:
            assert_never(stop.category)


@contextmanager
def airflow_outcome() -> Iterator[None]:
    """Turn whatever ends the block into an exception of Airflow, without foreign text.

    The text of an exception that nobody thought of may hold a password, a host, SQL or a row. So only its
    type and the place where it was raised are told.
    """
    try:
        yield
    except AirflowException:
        raise
    except Stopped as stopped:
        raise failure(stopped.stop) from None
    except Exception as error:  # noqa: BLE001 - see above
        raise AirflowException(_withheld(error)) from None


def _withheld(error: Exception) -> str:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = ""
    if last is not None:
        module = last.tb_frame.f_globals.get("__name__", "?")
        place = f" in {module}, line {last.tb_lineno}"
    return (
        f"An unexpected {type(error).__name__} was raised{place}. Its text is withheld, because it may hold "
        "secrets or data. The target is as the last proven step left it; a retry observes first."
    )
