"""``disttrace serve``: what the jobs of this host know of themselves, for a monitoring system."""

from __future__ import annotations

import argparse

from disttrace_viewer.commands import common

PORT = 9465


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "dirs", nargs="*", metavar="DIR", help="journal folders, where /tmp is unusable"
    )
    parser.add_argument(
        "--prometheus",
        action="store_true",
        required=True,
        help="metrics in Prometheus' text format, at /metrics",
    )
    parser.add_argument(
        "--port", type=int, default=PORT, help="port to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--address", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name under which clients reach this host",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print the metrics once, for node_exporter's textfile collector",
    )
    parser.epilog = "Serves all jobs of this user on this host. Run one on each host."


def execute(args: argparse.Namespace) -> int:
    """Serve until interrupted; ``ViewerError`` where the address cannot be used."""
    from disttrace_viewer.api import metrics, serve

    if args.once:
        common.write(metrics(args.dirs).encode())
    else:
        serve(args.address, args.port, args.dirs, args.host)
    return 0
