"""Paints what a run would have taken without something, and what its length is made of."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich.text import Text

from disttrace_viewer.analysis.timing.critical_path import OUTSIDE, TRANSFER
from disttrace_viewer.analysis.timing.what_if import Outcome, WhatIf
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.terminal.paint.console import DIM, TextConsole
from disttrace_viewer.views.terminal.paint.table import Column, paint_table
from disttrace_viewer.wording.names import names_of
from disttrace_viewer.wording.places import file_name
from disttrace_viewer.wording.quantities import duration, number

ANSWERS, STRETCHES = 5, 8
"""Rows shown before the rest is counted."""


def paint_what_if(what_if: WhatIf, answers: Sequence[Outcome], out: TextConsole) -> None:
    """A sentence for each answer."""
    if not answers:
        return
    out.heading("what if", "the run's times once more, without what others did not need")
    trace = what_if.schedule.waits.exchanges.trace
    for answer in answers[:ANSWERS]:
        out.wrapped(Text(sentence(what_if, answer, trace)), Text("  "), Text("    "))
    if len(answers) > ANSWERS:
        rest = number(len(answers) - ANSWERS, "smaller one")
        out.line((f"  and {rest} (--json)", DIM))


def sentence(what_if: WhatIf, answer: Outcome, trace: Trace) -> str:
    """``Without rank 2's excess the run would have taken 41.2 s instead of 58.9 s (-30 %).``"""
    without = answer.without
    if without.group is not None:
        left_out = f"Without the transfers of the {names_of(trace).group(without.group)}"
    else:
        who = [] if without.rank is None else [f"rank {without.rank}'s excess"]
        who += [] if without.host is None else [f"the excess on {without.host}"]
        left_out = "Without " + (" and ".join(who) or "the excess")
    if without.line is not None:
        left_out += f" before {file_name(without.line)}"
    elif without.rank is not None and (line := _most(what_if, without.rank, trace)) is not None:
        left_out += f" (most of it before {file_name(line)})"
    if not answer.saved_ns:
        return f"{left_out} the run would have taken as long."
    return (
        f"{left_out} the run would have taken {duration(answer.wall_ns)} instead of"
        f" {duration(what_if.wall_ns)} (-{answer.saved_share:.0%})."
    )


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
        Column("what", [_what(row) for row in shown], right=False),
    ]
    out.heading("critical path", f"what made the run {duration(whole)} long, and nothing else did")
    paint_table(columns, out)
    rest = stretches.slice(STRETCHES)
    if rest.height:
        share = int(rest["time_ns"].sum()) / whole
        out.line((f"  and {number(rest.height, 'more stretch')}, {share:.0%} (--json)", DIM))


def _what(row: dict[str, object]) -> str:
    op, line = row["op"], row["line"]
    at = file_name(line) if isinstance(line, str) else "?"
    if row["kind"] == OUTSIDE:
        return "after its last operation" if op is None else f"before {op} at {at}"
    return f"{'transfer' if row['kind'] == TRANSFER else 'call'} of {op} at {at}"


def _most(what_if: WhatIf, rank: int, trace: Trace) -> str | None:
    """The line before which most of a rank's excess is, if half of it and more."""
    mine = [p.index for p in trace.processes if p.rank == rank]
    lines = what_if.excess.filter(pl.col("process").is_in(mine)).group_by("line")
    sums = lines.agg(pl.col("excess_ns").sum()).sort("excess_ns", "line", descending=[True, False])
    if not sums.height or 2 * sums["excess_ns"][0] < sums["excess_ns"].sum():
        return None
    line = sums["line"][0]
    return line if isinstance(line, str) else None
