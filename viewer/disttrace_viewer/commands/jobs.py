"""``disttrace jobs``: which launches left journals in a folder."""

from __future__ import annotations

import argparse
import dataclasses

from disttrace_viewer.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    common.add(parser, "dirs")
    parser.add_argument("--json", action="store_true", help="the list as JSON")
    common.add_look(parser)


def execute(args: argparse.Namespace) -> int:
    """List them, newest first; 0, or ``ViewerError`` with 2."""
    from disttrace_viewer.api.reading import jobs, print_jobs

    found = jobs(list(args.dirs))
    if args.json:
        common.write_json({"format": 1, "jobs": [dataclasses.asdict(job) for job in found]})
    else:
        print_jobs(found, width=args.width, color=args.color)
    return 0
