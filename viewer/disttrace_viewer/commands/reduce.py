"""``disttrace reduce``: journals into states of about a kilobyte each, where they lie."""

from __future__ import annotations

import argparse
import sys

from disttrace_viewer.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    common.add(parser, "dirs")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="STATES",
        help="a folder, which other hosts may write to as well, or a file *.states.jsonl.gz",
    )
    common.add(parser, "--engine")


def execute(args: argparse.Namespace) -> int:
    """Write the states; 0, or 1 where journals could not be read."""
    from disttrace_viewer.api.verdict import write_states

    with common.taken_down():
        report = common.progress()
        count, unread = write_states(args.dirs, args.output, engine=args.engine, progress=report)
    lost = f"; {unread} journals could not be read" if unread else ""
    sys.stderr.write(f"disttrace: {count} states in {args.output}{lost}\n")
    return 1 if unread else 0
