"""The person at the keyboard: ends a hold with the commands that ``airflow dpone explain`` prints, and no others."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from typing import Any

from airflow_provider_dpone.cli import holds
from tests.scenarios.world import World


class NoWayOutError(AssertionError):
    """What explain names does not end the hold."""


def _command(
    function: Callable[[Namespace], None], operation: str | None = None, **arguments: Any
) -> tuple[int, dict[str, Any]]:
    """Run one command in this process; return its exit status and its JSON answer."""
    out, status = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            function(Namespace(output="json", operation=operation, **arguments))
        except SystemExit as end:
            status = int(str(end.code))
    return status, json.loads(out.getvalue())


def end_hold(world: World, conn_id: str, counts: Counter[str]) -> str:
    """Do what explain says; return the phase in which the operation ended, empty if it is only to be waited for.

    :param counts: what was done, by the code of the hold; added to.
    :raises NoWayOutError: it names nothing that can be done, or that failed.
    """
    site = world.site
    where = {
        "conn_id": conn_id,
        "cluster": site.cluster_name,
        "database": site.database,
        "table": site.table,
    }
    status, told = _command(holds.explain, **where)
    if "held" not in told:
        raise NoWayOutError(f"explain failed: {told}")
    if not told["held"]:
        return ""
    assert status == holds.HELD
    code = (told["stop"] or {"code": "none"})["code"].removeprefix("DPONE_CLICKHOUSE_CLUSTER_")
    for alias, replica in told["replicas"].items():
        if replica["repair"]:
            world.cluster.execute(replica["repair"], node=int(alias.rpartition("r")[2]))
            counts[f"{code}: repair"] += 1
    for line in told["commands"]:
        words = shlex.split(line)
        flags = dict(zip(words[3::2], words[4::2], strict=True))
        asked = {name.lstrip("-").replace("-", "_"): value for name, value in flags.items()}
        command = {"resolve": holds.resolve, "abandon": holds.abandon}[words[2]]
        status, answer = _command(command, **{**asked, "reason": "soak"})
        counts[f"{code}: {words[2]}"] += 1
        if status:
            raise NoWayOutError(f"{words[2]} after {code}: {answer}")
        return str(answer["phase"])
    if {"wait", "retry"} & {each["way"] for each in told["next"]}:
        return ""
    raise NoWayOutError(f"explain names nothing to be done for {code}: {told['next']}")
