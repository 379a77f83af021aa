"""Paints a snapshot of all processes: who waits for whom, then a line per process."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from disttrace_viewer.views.terminal.paint.console import BAD, DIM, GOOD, HEAD, WAIT
from disttrace_viewer.views.terminal.top import Now, Snapshot, Wait
from disttrace_viewer.wording.names import Names
from disttrace_viewer.wording.quantities import clock_time, duration, few, number, size

LONG_NS = 10_000_000_000
"""From here on an operation in flight is shown as trouble."""
QUIET_NS = 6_000_000_000
"""Three heartbeats without a sign of life."""
SHOWN_WAITS = 8
_STATES = {"running": GOOD, "ended": DIM, "failed": BAD, "silent": BAD, "stopped": WAIT}


def snapshot(values: Snapshot, names: Names, rows: int | None = None) -> RenderableType:
    """Everything, in at most about ``rows`` lines: the ones in flight longest come first then."""
    head = Text.assemble(
        (clock_time(values.at_ns), HEAD),
        ("   live" if values.live else "   nobody runs any more: this is the end", DIM),
    )
    if values.problems:
        head.append(f"   {number(values.problems, 'problem')} in the journals", WAIT)
    waits = [_wait(wait, names) for wait in values.waits[:SHOWN_WAITS]]
    if len(values.waits) > SHOWN_WAITS:
        waits.append(Text(f"  and {len(values.waits) - SHOWN_WAITS} more waits", style=DIM))
    room = None if rows is None else max(3, rows - len(waits) * 2 - 5)
    shown: Sequence[Now] = values.processes
    if room is not None and len(shown) > room:
        shown = sorted(shown, key=lambda p: -(p.age_ns or 0))[:room]
    parts: list[RenderableType] = [head, *waits, Text(), _table(shown)]
    if len(shown) < len(values.processes):
        left = len(values.processes) - len(shown)
        parts.append(Text(f"  and {number(left, 'more process', 'more processes')}", style=DIM))
    return Group(*parts)


def _wait(wait: Wait, names: Names) -> Text:
    style = BAD if wait.age_ns >= LONG_NS else WAIT
    one = len(wait.waiting) == 1
    text = Text.assemble(("  ", ""), (names.processes(wait.waiting), "bold"))
    whom = few(wait.missing, 6) if wait.missing else "a key"
    text.append(f" {'waits' if one else 'wait'} for ")
    text.append(whom, style)
    text.append(f" in {wait.what}")
    text.append(f"  {duration(wait.age_ns)}", style)
    return text


def _table(processes: Sequence[Now]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style=DIM, expand=False)
    table.add_column("process", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("in flight", overflow="fold", ratio=1)
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("ops/s", justify="right", no_wrap=True)
    table.add_column("B/s", justify="right", no_wrap=True)
    table.add_column("seen", justify="right", no_wrap=True)
    for one in processes:
        table.add_row(*_cells(one))
    return table


def _cells(one: Now) -> tuple[Text, ...]:
    long = one.age_ns is not None and one.age_ns >= LONG_NS
    doing = Text(one.doing, style="bold" if one.doing else "")
    if not one.doing and one.state == "running":
        doing = Text("outside communication", style=DIM)
    if one.place:
        doing.append(f" at {one.place}", "")
    quiet = one.state == "running" and one.sign_ns >= QUIET_NS
    return (
        Text(one.name),
        Text(one.state, style=_STATES.get(one.state, "")),
        doing,
        Text("" if one.age_ns is None else duration(one.age_ns), style=BAD if long else WAIT),
        Text("" if one.ops_per_s is None else f"{one.ops_per_s:.0f}"),
        Text("" if one.bytes_per_s is None else size(round(one.bytes_per_s))),
        Text(duration(one.sign_ns), style=WAIT if quiet else DIM),
    )
