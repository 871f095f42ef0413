"""From a mistake that our own checks found to the stop that refuses the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_dpone.publication.stop import Code, Stop, Stopped


@contextmanager
def bad_input() -> Iterator[None]:
    """Turn a ``ValueError`` into ``BAD_INPUT``. Only for blocks whose every ``ValueError`` is a text of ours.

    :raises Stopped: ``BAD_INPUT``.
    """
    try:
        yield
    except ValueError as error:
        text = str(error).rstrip(".")
        raise Stopped(Stop(Code.BAD_INPUT, f"{text[:1].upper()}{text[1:]}.")) from None
