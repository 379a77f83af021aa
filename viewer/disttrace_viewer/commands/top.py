"""`disttrace top DIR`: where the ranks are now and which rank waits for which, live."""

from __future__ import annotations

import argparse

from disttrace_viewer.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to read, and how often."""
    common.add(parser, "dirs", "--job")
    parser.add_argument(
        "--once", action="store_true", help="print one snapshot (default without a terminal)"
    )
    parser.add_argument(
        "--json", action="store_true", help="one snapshot as a JSON object (docs/json.md)"
    )
    common.add(parser, "--stall")
    common.add_look(parser)


def execute(args: argparse.Namespace) -> int:
    """Write one snapshot, or refresh until `q`; 0, or ``ViewerError`` with 2."""
    from disttrace_viewer.api.live import follow, show, snapshot

    paths = list(args.dirs)
    look = {"width": args.width, "color": args.color}
    if args.json:
        common.write_json(snapshot(paths, args.job, stall_s=args.stall).to_dict())
        return 0
    with common.taken_down():
        if args.once or not follow(paths, args.job, stall_s=args.stall, **look):
            show(paths, args.job, stall_s=args.stall, **look)
    return 0
