"""``disttrace stats``: where the time goes, by operation, rank and line."""

from __future__ import annotations

import argparse

from disttrace_viewer.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    common.add(parser, "dirs", "--job", "--engine")
    parser.add_argument("--json", action="store_true", help="the tables as JSON (docs/json.md)")
    parser.add_argument(
        "--by",
        choices=("line", "group", "op", "rank"),
        help="one row per line, group, operation or rank (default: operation, group and line)",
    )
    parser.add_argument(
        "--from", dest="from_", metavar="TIME", help="+12.3s, unix seconds or an ISO time"
    )
    parser.add_argument("--to", metavar="TIME", help="the end, given like --from")
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="rank=N",
        help="what the run would have taken without it: rank=2, line=loader.py:34, host=node7,"
        " group=ID; several with commas between (default: the most costly)",
    )
    common.add_look(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the tables; 0, or ``ViewerError`` with 2."""
    from disttrace_viewer.api.verdict import others, print_others

    trace = common.read(args)
    beside = others(args.dirs, args.job, trace.model)
    stats = trace.stats(from_=args.from_, to=args.to)
    if args.json:
        values = stats.to_dict(args.by, asked=args.what_if)
        values["others"] = [one.to_dict() for one in beside]
        common.write_json(values)
    else:
        stats.print(by=args.by, asked=args.what_if, width=args.width, color=args.color)
        print_others(beside, width=args.width, color=args.color)
    return 0
