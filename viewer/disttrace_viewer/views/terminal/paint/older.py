"""Paints what was called before the oldest operation that is still there."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.history.minutes import Older
from disttrace_viewer.views.terminal import DIM
from disttrace_viewer.views.terminal.paint.console import TextConsole
from disttrace_viewer.views.terminal.paint.table import Column, paint_table
from disttrace_viewer.wording.places import file_name
from disttrace_viewer.wording.quantities import clock_time, duration, number

ROWS = 12


def paint_older(older: Sequence[Older], out: TextConsole) -> None:
    """A table, the longest in all first; nothing where nothing was given up."""
    if not older:
        return
    begin, end = min(one.from_ns for one in older), max(one.to_ns for one in older)
    shown = older[:ROWS]
    partial = ", of some minutes not all" if any(one.partial for one in older) else ""
    out.heading(
        f"before {clock_time(end)}",
        f"{duration(end - begin)} from {clock_time(begin)} on, given up at DISTTRACE_MAX_MB and"
        f" counted by the minute{partial}",
    )
    paint_table(
        [
            Column("operation", [one.op for one in shown], right=False),
            Column("line", [file_name(one.line) or "?" for one in shown], right=False),
            Column("ranks", [f"{len(one.ranks):,}" for one in shown], dear=2),
            Column("calls", [f"{one.calls:,}" for one in shown]),
            Column("total", [duration(one.total_ns) for one in shown]),
            Column("held up", [duration(one.held_ns) for one in shown], dear=1),
            Column("max", [duration(one.max_ns) for one in shown], dear=3),
        ],
        out,
    )
    if len(older) > ROWS:
        out.line((f"  and {number(len(older) - ROWS, 'more row')} (--json)", DIM))
