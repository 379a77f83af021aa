"""`disttrace view DIR`: what happened, in order, across ranks, in the terminal."""

from __future__ import annotations

import argparse

from disttrace_viewer.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to read, what to show, how to show it."""
    common.add(parser, "dirs", "--job", "--engine")
    show = parser.add_argument_group("what to show")
    show.add_argument("--rank", metavar="RANKS", help="only what these ranks took part in: 0,3-5")
    show.add_argument(
        "--op", action="append", default=[], help="only this operation: all_reduce, 'store.*'"
    )
    show.add_argument(
        "--last", type=common.whole(1, "whole number"), metavar="N", help="only the last N rows"
    )
    look = common.add_look(parser)
    look.add_argument("--places", action="store_true", help="add the call site to every row")


def execute(args: argparse.Namespace) -> int:
    """Write the report to standard output; 0, or ``ViewerError`` with 2."""
    trace = common.read(args)
    from disttrace_viewer.api.verdict import others, print_others

    trace.print(
        ranks=args.rank,
        ops=[part for value in args.op for part in value.split(",")],
        last=args.last,
        places=args.places,
        width=args.width,
        color=args.color,
    )
    beside = others(args.dirs, args.job, trace.model)
    print_others(beside, width=args.width, color=args.color)
    return 0
