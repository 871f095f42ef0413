"""DAGs that the tests of the harness run: an automatic retry, mapped tasks, a deferral, a task that waits."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, Context, dag, get_current_context, task


class Sleeper(BaseOperator):
    """Defers for some seconds and returns what try it resumed in."""

    def __init__(self, *, seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def execute(self, context: Context) -> None:
        """Hand over to the triggerer."""
        trigger = TimeDeltaTrigger(timedelta(seconds=self.seconds))
        self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Context, event: Any) -> int:
        """Go on in a worker."""
        return int(context["ti"].try_number)


@dag(schedule=None)
def probe_retry_and_map() -> None:
    """Its first task fails once; the second one is mapped."""

    @task(retries=1, retry_delay=timedelta(seconds=1))
    def flaky() -> int:
        number: int = get_current_context()["ti"].try_number
        if number == 1:
            raise RuntimeError("the first try fails on purpose")
        return number

    @task
    def twice(x: int) -> int:
        return 2 * x

    flaky() >> twice.expand(x=[1, 2, 3])


@dag(schedule=None)
def probe_deferral() -> None:
    """Defers for longer than a worker lingers after a deferral."""
    Sleeper(task_id="sleeper", seconds=12)


@dag(schedule=None)
def probe_wait() -> None:
    """Waits for its death in the first try."""

    @task(retries=1, retry_delay=timedelta(seconds=1))
    def waiter() -> str:
        if get_current_context()["ti"].try_number == 1:
            time.sleep(300)
        return "second try"

    waiter()


probe_retry_and_map()
probe_deferral()
probe_wait()
