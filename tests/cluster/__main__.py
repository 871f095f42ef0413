"""``python -m tests.cluster up``: a cluster for hands, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading

from tests.cluster.local import LocalCluster
from tests.cluster.spec import ADMIN_USER, APP_PASSWORD, APP_USER, CLUSTER_NAME


def main(arguments: list[str]) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="start a cluster and print its addresses as one line of JSON")
    up.add_argument("--replicas", type=int, default=2, choices=(2, 3, 4))
    up.add_argument(
        "--port", type=int, default=0, help="where the load balancer listens; any free port if left out"
    )
    up.add_argument("--external", action="store_true", help="internal_replication = false")
    up.add_argument("--no-secret", action="store_true", help="leave <secret> out of remote_servers")
    options = parser.parse_args(arguments)

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: ended.set())
    with LocalCluster(
        replicas=options.replicas,
        internal_replication=not options.external,
        secret=not options.no_secret,
        load_balancer_port=options.port,
    ) as cluster:
        users = {ADMIN_USER: "", APP_USER: APP_PASSWORD}
        print(json.dumps({**cluster.addresses, "cluster": CLUSTER_NAME, "users": users}), flush=True)
        for node, endpoint in zip(cluster.nodes, cluster.endpoints, strict=True):
            print(f"node {node}: http://{endpoint}/", file=sys.stderr)
        print(f"load balancer: http://{cluster.load_balancer}/", file=sys.stderr, flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
