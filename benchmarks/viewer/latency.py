"""Tables of added time per operation, from the figures of the measuring loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.recorder.interleave import CPU, WALL
from benchmarks.recorder.series import BARE, Variants, added, ratio, spread
from benchmarks.recorder.tracers import OURS, STACKS
from benchmarks.report import Table, Verdict

Result = Mapping[str, Any]
ABSENT = "-"


def table(title: str, result: Result, *, note: str = "") -> Table:
    """Microseconds that each tracer adds to one operation: CPU, with the wall time in brackets."""
    figures = result["figures"]
    names = list(dict.fromkeys(name for case in figures.values() for name in case[CPU]))
    compared = OURS in names and STACKS in names
    columns = ("operation", *names, *((f"{OURS} / {STACKS}",) if compared else ()))
    rows = []
    for case, clocks in figures.items():
        cells = [_cell(clocks, name) for name in names]
        cells += [_number(ratio(clocks[CPU], OURS, STACKS))] if compared else []
        rows.append((case, *cells))
    unseen = not_recorded(result)
    if unseen:
        note += f" **Not recorded, so of no worth:** {'; '.join(unseen)}."
    return Table(title, columns, tuple(rows), note.strip())


def not_recorded(result: Result) -> list[str]:
    """Cases whose journal holds another number of begins than there were calls."""
    return [
        f"{case} ({begun} begins of {issued} calls)"
        for case, (issued, begun) in result["recorded"].items()
        if begun != issued
    ]


def against(
    what: str, result: Result, cases: Iterable[str], other: str, limit: float
) -> list[Verdict]:
    """Ours in units of another tracer, in the worst of ``cases``; nothing without that tracer."""
    figures = result["figures"]
    ratios = {case: ratio(figures[case][CPU], OURS, other) for case in cases}
    known = {case: value for case, value in ratios.items() if value is not None}
    if not known:
        return []
    worst = max(known, key=lambda case: known[case])
    label = worst if len(ratios) == 1 else f"worst: {worst}"
    sure = not any(line.startswith(worst + " (") for line in not_recorded(result))
    goal = f"{what}: at most {limit:g} of {other}, {', '.join(ratios)}"
    return [
        Verdict(goal, f"{_number(known[worst])} ({label})", known[worst] <= limit if sure else None)
    ]


def microseconds(variants: Variants, name: str) -> float:
    """What a tracer adds, in microseconds; of the bare program, what it takes."""
    found = spread(variants[name]) if name == BARE else added(variants, name)
    return found.median / 1e3


def _cell(clocks: Mapping[str, Variants], name: str) -> str:
    if name not in clocks[CPU]:
        return ABSENT
    cpu, wall = (microseconds(clocks[clock], name) for clock in (CPU, WALL))
    return f"{_number(cpu)} ({_number(wall)})"


def _number(value: float | None) -> str:
    if value is None:
        return ABSENT
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
    )
