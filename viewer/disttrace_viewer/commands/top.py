"""`disttrace top DIR`: what every process does now, while a job runs or hangs."""

from __future__ import annotations

import argparse

from disttrace_viewer.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to read, and how often."""
    common.add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="one snapshot (also without terminal)")
    parser.add_argument(
        "--interval",
        type=common.seconds,
        default=1.0,
        metavar="S",
        help="refresh interval in seconds (default: 1)",
    )
    common.add_look(parser)


def execute(args: argparse.Namespace) -> int:
    """Write one snapshot, or refresh until interrupted; 0, or ``ViewerError`` with 2."""
    from disttrace_viewer.api import follow, show

    look = {"width": args.width, "color": common.color(args)}
    if args.once or not follow(
        lambda: common.read(args, quiet=True), interval_s=args.interval, **look
    ):
        show(common.read(args), **look)
    return 0
