"""The person at the keyboard: ends a hold with the commands that ``airflow dpone explain`` prints, and no others."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from argparse import ArgumentParser
from collections import Counter
from typing import Any

from airflow_provider_dpone.cli import definition, holds
from tests.scenarios.world import World


class NoWayOutError(AssertionError):
    """What explain names does not end the hold."""


def airflow_dpone(line: str) -> tuple[int, dict[str, Any]]:
    """Run one command line of ``airflow dpone`` in this process; return its exit status and its JSON answer."""
    name, *words = shlex.split(line.removeprefix("airflow dpone "))
    (group,) = definition.commands()
    (command,) = [each for each in group.subcommands if each.name == name]  # type: ignore[union-attr]
    parser = ArgumentParser(name)
    for argument in command.args:
        argument.add_to_parser(parser)
    arguments = parser.parse_args([*words, "--output", "json"])
    out, status = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            command.func(arguments)
        except SystemExit as end:
            status = int(str(end.code))
    return status, json.loads(out.getvalue())


def end_hold(world: World, conn_id: str, counts: Counter[str]) -> str:
    """Do what explain says; return the phase in which the operation ended, empty if it is only to be waited for.

    :param counts: what was done, by the code of the hold; added to.
    :raises NoWayOutError: it names nothing that can be done, or that failed.
    """
    site = world.site
    status, told = airflow_dpone(
        f"explain --conn-id {conn_id} --cluster {site.cluster_name} "
        f"--database {site.database} --table {site.table}"
    )
    if not told["ok"]:
        raise NoWayOutError(f"explain failed: {told}")
    if not told["held"]:
        return ""
    assert status == holds.HELD
    code = (told["stop"] or {"code": "none"})["code"].removeprefix("DPONE_CLICKHOUSE_CLUSTER_")
    for alias, replica in told["replicas"].items():
        if replica["repair"]:
            world.cluster.execute(replica["repair"], node=int(alias.rpartition("r")[2]))
            counts[f"{code}: repair"] += 1
    if told["commands"]:
        line = told["commands"][0]
        status, answer = airflow_dpone(line)
        name = line.split()[2]
        counts[f"{code}: {name}"] += 1
        if status:
            raise NoWayOutError(f"{name} after {code}: {answer}")
        return str(answer["phase"])
    if {"wait", "retry"} & {each["way"] for each in told["next"]}:
        return ""
    raise NoWayOutError(f"explain names nothing to be done for {code}: {told['next']}")
