"""`disttrace view DIR`: what happened, in order, across ranks, in the terminal."""

from __future__ import annotations

import argparse

from disttrace_viewer.commands import common
from disttrace_viewer.diagnosis.diagnose import diagnose
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.views.terminal.filters import Filters, parse_ranks
from disttrace_viewer.views.terminal.paint.console import paper
from disttrace_viewer.views.terminal.paint.report import paint
from disttrace_viewer.views.terminal.report import report_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to read, what to show, how to show it."""
    common.add_arguments(parser)
    show = parser.add_argument_group("what to show")
    show.add_argument("--phase", choices=("init",), help="the way in, drawn in full")
    show.add_argument("--rank", metavar="RANKS", help="only what these ranks took part in: 0,3-5")
    show.add_argument(
        "--group", action="append", default=[], help="only this group: name, id or 'default'"
    )
    show.add_argument(
        "--op", action="append", default=[], help="only this operation: all_reduce, 'store.*'"
    )
    show.add_argument("--last", type=_count, metavar="N", help="only the last N rows")
    show.add_argument(
        "--around", metavar="TIME", help="rows around +12.3s, unix seconds or an ISO time"
    )
    show.add_argument("--all", action="store_true", help="every row: no folding and no gaps")
    look = parser.add_argument_group("how to show it")
    look.add_argument("--places", action="store_true", help="add the call site to every row")
    look.add_argument("--width", type=_count, metavar="COLUMNS", help="instead of the terminal's")
    look.add_argument("--no-color", action="store_true", help="also NO_COLOR")


def execute(args: argparse.Namespace) -> int:
    """Write the report to standard output; 0, or ``ViewerError`` with 2."""
    filters = Filters(
        ranks=None if args.rank is None else parse_ranks(args.rank),
        groups=tuple(args.group),
        ops=tuple(part for value in args.op for part in value.split(",")),
        last=args.last,
        around=args.around,
        everything=args.all,
    )
    trace = common.read(args)
    _, findings = diagnose(trace)
    report = report_of(trace, filters, findings=findings, init=args.phase == "init")
    out = paper(width=args.width, color=False if args.no_color else None)
    paint(report, out, places=args.places)
    return 0


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ViewerError(f"{text!r} is no positive number")
    return int(text)
