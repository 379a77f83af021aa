"""`disttrace top DIR`: what every process does now, while a job runs or hangs."""

from __future__ import annotations

import argparse
import time

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from disttrace_viewer.commands import common
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.views.terminal.paint.console import Paper, paper
from disttrace_viewer.views.terminal.paint.top import snapshot
from disttrace_viewer.views.terminal.top import snapshot_of
from disttrace_viewer.wording.names import names_of

REST = 3
"""Reading takes at most one part in so many and one of the time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to read, and how often."""
    common.add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="one snapshot (also without terminal)")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between (default: 1)"
    )
    parser.add_argument("--width", type=int, metavar="COLUMNS", help="instead of the terminal's")
    parser.add_argument("--no-color", action="store_true", help="also NO_COLOR")


def execute(args: argparse.Namespace) -> int:
    """Write one snapshot, or refresh until interrupted; 0, or ``ViewerError`` with 2."""
    out = paper(width=args.width, color=False if args.no_color else None)
    if args.once or not out.console.is_terminal:
        out.print(_picture(args))
        return 0
    try:
        _follow(args, out)
    except KeyboardInterrupt:
        pass  # the way to leave
    return 0


def _follow(args: argparse.Namespace, out: Paper) -> None:
    with Live(console=out.console, screen=True, auto_refresh=False) as live:
        while True:
            started = time.monotonic()
            try:
                picture = _picture(args, rows=out.console.height)
            except ViewerError as error:
                # A job that has not begun to write yet is waited for.
                picture = Text(f"{error}\n\nwaiting for journals (Ctrl-C leaves)")
            live.update(picture, refresh=True)
            spent = time.monotonic() - started
            time.sleep(max(args.interval - spent, REST * spent, 0.05))


def _picture(args: argparse.Namespace, rows: int | None = None) -> RenderableType:
    trace = common.read(args, quiet=rows is not None)
    return snapshot(snapshot_of(trace), names_of(trace), rows)
