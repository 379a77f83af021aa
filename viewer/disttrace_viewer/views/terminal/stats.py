"""Paints where the time goes: two sentences, then tables that fit the width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.text import Text

from disttrace_viewer.analysis.statistics import FAMILY, Statistics
from disttrace_viewer.analysis.what_if import WhatIf, WhatIfOutcome
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.views.terminal import DIM, HEAD, WAIT
from disttrace_viewer.views.terminal.console import Column, TextConsole, paint_table
from disttrace_viewer.wording.differences import WHAT_IF, path_note, stretch, what_if_sentence
from disttrace_viewer.wording.names import duration, file_name, number, size, spans

ROWS, RANKS, ORIGINS = 20, 12, 5
"""Rows shown before the rest is counted."""
STANDS_OUT = 0.1
"""Part of all waiting from which on its origin is named as the one to look at."""
LOUD = 0.5
"""A share of waiting from here on is marked."""
_KEYS = {"line": ("line",), "group": (FAMILY,), "op": ("op",), "rank": ("op",)}


def paint(
    statistics: Statistics, out: TextConsole, *, by: str | None = None, whole: bool = True
) -> None:
    """The sentences, the tables by ``by`` (None: by operation, group and line), ranks and wait
    states; not ``whole``: not all could be read."""
    for one in sentences(statistics, whole=whole):
        out.wrapped(Text(one, HEAD))
    keys = ("op", FAMILY, "line") if by is None else _KEYS[by]
    if by != "rank":
        _operations(statistics, keys, out)
    _ranks(statistics, out, everybody=by == "rank")
    _origins(statistics, out)
    _states(statistics, out)


def sentences(statistics: Statistics, *, whole: bool = True) -> tuple[str, ...]:
    """The tables in two sentences."""
    ranks = statistics.ranks
    sums = ranks.select(pl.exclude("process").sum()).row(0, named=True)
    count = ranks.height
    if not sums["communicating_ns"] and not whole:
        return ("No communication could be read; what is missing stands below.",)
    if not count or not sums["communicating_ns"]:
        return ("Nothing was communicated.", "So no rank waited.")
    each = duration(sums["communicating_ns"] // count) + (" each" if count > 1 else "")
    share = sums["waiting_ns"] / sums["communicating_ns"]
    first = (
        f"{number(count, 'rank')}, {each} communicating,"
        f" {share:.0%} of it waiting for the last to arrive."
    )
    origins = statistics.origins
    if not origins.height:
        return first, "No rank made others wait by being late."
    top = origins.row(0, named=True)
    if top["mean_ns"] is None:
        return first, f"{_never(statistics, top)}; `disttrace diagnose` tells more."
    who = _name(statistics, top["process"], capital=True)
    if top["caused_ns"] < STANDS_OUT * sums["waiting_ns"]:
        return (
            first,
            f"No rank stands out among those that were late: {who[0].lower()}{who[1:]} most.",
        )
    return first, f"{who} made others wait {duration(top['caused_ns'])}, {_origin(top)}."


def _never(statistics: Statistics, row: dict[str, Any]) -> str:
    """Who is to blame for what never completed, by the findings."""
    waited = duration(row["caused_ns"])
    if row["process"] is None:
        return f"{waited} of waiting is for what never completed; no finding blames a rank for it"
    at = f" (at {_short(row['line'])})" if row["line"] else ""
    who = _name(statistics, row["process"], capital=True)
    return f"{who}{at} made others wait {waited} for what never completed"


def _origin(row: dict[str, object]) -> str:
    mean, line = row["mean_ns"], row["line"]
    assert isinstance(mean, int)
    where = _short(line if isinstance(line, str) else None)
    return f"{duration(mean)} before {where} in {row['count']:,} of {row['of']:,} calls"


def _operations(statistics: Statistics, keys: Sequence[str], out: TextConsole) -> None:
    table = statistics.by(keys)
    total = int(table["total_ns"].sum())
    shown = table.head(ROWS).to_dicts()
    titles = {"op": "op", FAMILY: "group", "line": "line"}
    columns = []
    for key in keys:
        cells = [_short(row[key]) if key == "line" else str(row[key] or "?") for row in shown]
        columns.append(Column(titles[key], cells, right=False))
    shares = [row["waiting_ns"] / max(1, row["total_ns"]) for row in shown]
    columns += [
        Column("calls", [f"{row['calls']:,}" for row in shown]),
        Column("bytes", [size(row["bytes"]) if row["bytes"] else "" for row in shown], dear=3),
        Column("total", [duration(row["total_ns"]) for row in shown]),
        Column("median", [duration(row["median_ns"]) for row in shown], dear=2),
        Column("p99", [duration(row["p99_ns"]) for row in shown], dear=5),
        Column("max", [duration(row["max_ns"]) for row in shown], dear=6),
        Column("waiting", [f"{share:.0%}" for share in shares], loud=[s >= LOUD for s in shares]),
        Column(
            "last to arrive",
            [_last(statistics, row["last_to_arrive"]) for row in shown],
            right=False,
            dear=1,
        ),
        Column("algbw", [_rate(row["algbw"]) for row in shown], dear=7),
        Column("busbw", [_rate(row["busbw"]) for row in shown], dear=4),
    ]
    clocks = {row["clock"] for row in shown} - {None}
    whose = ""
    if "device" in clocks:
        whose = ", by the device's clock" + (" where that is known" if len(clocks) > 1 else "")
    out.heading(
        "operations", f"calls and totals of all ranks; bandwidth from the last arrival on{whose}"
    )
    paint_table(columns, out)
    rest = table.slice(ROWS)
    if rest.height:
        part = int(rest["total_ns"].sum()) / max(1, total)
        out.put((f"  and {number(rest.height, 'more row')}, {part:.0%} of the total (--json)", DIM))


def _ranks(statistics: Statistics, out: TextConsole, *, everybody: bool) -> None:
    table = statistics.ranks.sort("made_others_wait_ns", descending=True, maintain_order=True)
    if not table.height:
        return
    count = table.height if everybody or table.height <= RANKS else RANKS - 1
    shown = table.head(count).to_dicts()
    columns = [
        Column("rank", [_name(statistics, row["process"]) for row in shown], right=False),
        Column("life", [duration(row["wall_ns"]) for row in shown], dear=2),
        Column("communicating", [duration(row["communicating_ns"]) for row in shown], dear=1),
        Column("waited", [duration(row["waiting_ns"]) for row in shown]),
        Column("made others wait", [duration(row["made_others_wait_ns"]) for row in shown]),
        Column("outside", [duration(row["outside_ns"]) for row in shown], dear=1),
    ]
    out.heading("ranks", "who made others wait comes first")
    paint_table(columns, out)
    rest = table.slice(count)
    if rest.height:
        waited, caused = (rest[name].to_list() for name in ("waiting_ns", "made_others_wait_ns"))
        processes = statistics.waits.exchanges.trace.processes
        who = spans(rank for p in rest["process"] if (rank := processes[p].rank) is not None)
        text = (
            f"{number(rest.height, 'more rank')} ({who}) waited {duration(min(waited))} to"
            f" {duration(max(waited))} and made others wait at most {duration(max(caused))}"
        )
        out.wrapped(Text(text, DIM), "  ", "  ")


def _origins(statistics: Statistics, out: TextConsole) -> None:
    origins = statistics.origins
    if not origins.height:
        return
    out.heading("before which line the time went", "own delay, without delay from waiting")
    for row in origins.head(ORIGINS).iter_rows(named=True):
        if row["mean_ns"] is None:
            out.wrapped(_never(statistics, row), "  ", "    ")
            continue
        text = Text.assemble(
            (_name(statistics, row["process"], capital=True), "bold"),
            f" late by {_origin(row)}; others waited ",
            (duration(row["caused_ns"]), WAIT),
        )
        out.wrapped(text, "  ", "    ")
    if origins.height > ORIGINS:
        rest = origins.slice(ORIGINS)
        waited = duration(int(rest["caused_ns"].sum()))
        out.put((f"  and {number(rest.height, 'more line')}: {waited}", DIM))


def _states(statistics: Statistics, out: TextConsole) -> None:
    table = statistics.states.to_dicts()
    wall = sum(row["time_ns"] for row in table)
    columns = [
        Column("state", [row["state"] for row in table], right=False),
        Column("times", ["" if row["count"] is None else f"{row['count']:,}" for row in table]),
        Column("time", [duration(row["time_ns"]) for row in table]),
        Column("share", [f"{row['time_ns'] / max(1, wall):.1%}" for row in table]),
    ]
    out.heading("wait states", f"they add up to the lives of all ranks, {duration(wall)}")
    paint_table(columns, out)


def _last(statistics: Statistics, found: Sequence[dict[str, int]] | None) -> str:
    if not found:
        return ""
    times = sum(one["count"] for one in found)
    text = f"{_name(statistics, found[0]['process'])} x{found[0]['count']:,}"
    return text if len(found) == 1 else f"{text} of {times:,}"


def _name(statistics: Statistics, process: int, *, capital: bool = False) -> str:
    label = statistics.waits.exchanges.trace.processes[process].label
    return label[0].upper() + label[1:] if capital else label


def _short(line: str | None) -> str:
    return "?" if line is None else file_name(line)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{size(round(rate))}/s"


ANSWERS, STRETCHES = 5, 8
"""Rows shown before the rest is counted."""


def paint_what_if(what_if: WhatIf, answers: Sequence[WhatIfOutcome], out: TextConsole) -> None:
    """A sentence for each answer."""
    if not answers:
        return
    out.heading("what if", WHAT_IF)
    trace = what_if.schedule.waits.exchanges.trace
    for answer in answers[:ANSWERS]:
        out.wrapped(what_if_sentence(what_if, answer, trace), "  ", "    ")
    if len(answers) > ANSWERS:
        rest = number(len(answers) - ANSWERS, "smaller one")
        out.put((f"  and {rest} (--json)", DIM))


def paint_critical_path(stretches: pl.DataFrame, trace: JobTrace, out: TextConsole) -> None:
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
        out.put((f"  and {count}, {share:.0%} (--json)", DIM))
