"""``disttrace diff A B``: what the ranks of one run do otherwise than those of another."""

from __future__ import annotations

import argparse

from disttrace_viewer.commands import common

ALIKE, DIFFERENT, UNKNOWN = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("a", metavar="A", help="journal directory of the run as it was")
    parser.add_argument("b", metavar="B", help="journal directory of the run as it is now")
    parser.add_argument("--rank", metavar="N", help="only these ranks: 0,3-5")
    parser.add_argument(
        "--jobs",
        nargs=2,
        default=(None, None),
        metavar=("ID", "ID"),
        help="the job in A and the job in B, by id or the beginning of it (default: the newest)",
    )
    parser.add_argument("--json", action="store_true", help="a JSON object (docs/json.md)")


def execute(args: argparse.Namespace) -> int:
    """Print the differences; 0 where there are none, 1 where there are, 2 where journals miss."""
    from disttrace_viewer.api.difference import diff

    found = diff(args.a, args.b, ranks=args.rank, jobs=args.jobs)
    if args.json:
        common.write_json(found.to_dict())
    else:
        found.print()
    if not found.alike:
        return DIFFERENT
    return UNKNOWN if found.incomplete else ALIKE
