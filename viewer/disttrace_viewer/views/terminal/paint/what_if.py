"""Paints what a run would have taken without something, and what its length is made of."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich.text import Text

from disttrace_viewer.analysis.timing.what_if import Outcome, WhatIf
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.terminal import DIM
from disttrace_viewer.views.terminal.paint.console import TextConsole
from disttrace_viewer.views.terminal.paint.table import Column, paint_table
from disttrace_viewer.wording.quantities import duration, number
from disttrace_viewer.wording.what_if import WHAT_IF, path_note, sentence, stretch

ANSWERS, STRETCHES = 5, 8
"""Rows shown before the rest is counted."""


def paint_what_if(what_if: WhatIf, answers: Sequence[Outcome], out: TextConsole) -> None:
    """A sentence for each answer."""
    if not answers:
        return
    out.heading("what if", WHAT_IF)
    trace = what_if.schedule.waits.exchanges.trace
    for answer in answers[:ANSWERS]:
        out.wrapped(Text(sentence(what_if, answer, trace)), Text("  "), Text("    "))
    if len(answers) > ANSWERS:
        rest = number(len(answers) - ANSWERS, "smaller one")
        out.line((f"  and {rest} (--json)", DIM))


def paint_critical_path(stretches: pl.DataFrame, trace: Trace, out: TextConsole) -> None:
    """The largest stretches, with their share of the path."""
    whole = int(stretches["time_ns"].sum())
    if not whole:
        return
    shown = stretches.head(STRETCHES).to_dicts()
    columns = [
        Column("time", [duration(row["time_ns"]) for row in shown]),
        Column("share", [f"{row['time_ns'] / whole:.1%}" for row in shown]),
        Column("rank", [trace.processes[row["process"]].label for row in shown], right=False),
        Column("what", [stretch(row) for row in shown], right=False),
    ]
    out.heading("critical path", path_note(whole))
    paint_table(columns, out)
    rest = stretches.slice(STRETCHES)
    if rest.height:
        share = int(rest["time_ns"].sum()) / whole
        count = number(rest.height, "more stretch", "more stretches")
        out.line((f"  and {count}, {share:.0%} (--json)", DIM))
