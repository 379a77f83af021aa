"""Paints initialization: a line per phase, or everything."""

from __future__ import annotations

from rich.text import Text

from disttrace_viewer.views.terminal import BAD, DIM, HEAD, WAIT
from disttrace_viewer.views.terminal.init_phase import Initialization, Made, Phase, StoreServer
from disttrace_viewer.views.terminal.init_steps import KeyUse
from disttrace_viewer.views.terminal.paint.console import TextConsole
from disttrace_viewer.views.terminal.paint.sequence import SequencePainter
from disttrace_viewer.wording.names import Names
from disttrace_viewer.wording.operations import shortened
from disttrace_viewer.wording.quantities import duration, few, number, offset

PHASES = 8
KEYS = 60


def paint_folded(way: Initialization, out: TextConsole) -> None:
    """A line per phase."""
    if not way.phases:
        return
    out.heading("initialization", "--phase init draws it in full")
    stuck = [phase for phase in way.phases if phase.took_ns is None]
    shown = [p for p in way.phases if p.took_ns is not None][: max(0, PHASES - len(stuck))]
    for phase in [p for p in way.phases if p in stuck[:PHASES] or p in shown]:
        _phase(phase, out)
    if len(way.phases) > PHASES:
        out.line((f"{'':12}and {number(len(way.phases) - PHASES, 'more line')}", DIM))


def _phase(phase: Phase, out: TextConsole) -> None:
    text = Text.assemble((phase.name, HEAD), f": {phase.what}")
    if phase.took_ns is None:
        text.append("  not ready", BAD)
    else:
        text.append(f"  {duration(phase.took_ns)}", DIM)
    out.wrapped(text, Text(f"{offset(phase.at_ns):>10}  ", style=DIM), Text(" " * 14))


def paint_full(
    way: Initialization, names: Names, out: TextConsole, *, timeless: bool = False
) -> None:
    """Who serves and who comes, the groups with their prefixes, every step, every key.

    ``timeless`` leaves out what differs from run to run.
    """
    out.heading("where they met")
    for server in way.servers:
        _store_server(server, names, out, timeless=timeless)
    out.heading("groups")
    for made in way.groups:
        _made(made, names, out, timeless=timeless)
    if not way.groups:
        out.line(("  none was made", BAD))
    out.heading("step by step", "indented: inside the one above")
    painter = SequencePainter(names, way.lanes, out, timeless=timeless)
    painter.rows(way.steps)
    if way.left_out and not timeless:
        out.line((f"{'':12}… {number(way.left_out, 'more step')} after that", DIM))
    if way.keys:
        out.heading("keys exchanged")
        _keys(way.keys, names, out)


def _store_server(server: StoreServer, names: Names, out: TextConsole, *, timeless: bool) -> None:
    out.line("  ", (server.name, HEAD))
    if server.server is not None:
        out.line("    ", ("server  ", DIM), names.process(server.server))
    elif server.kind == "tcp":
        out.line("    ", ("server  ", DIM), ("no traced process", WAIT))
    for place, client in enumerate(server.clients):
        label = ("clients" if place == 0 else "") if server.kind == "tcp" else "users"
        text = Text.assemble(
            names.processes(client.processes),
            (f" by {client.address}", ""),
        )
        if client.took_ns is not None and not timeless:
            text.append(f"  {duration(client.took_ns)}", DIM)
        out.wrapped(text, Text(f"    {label:<8}", style=DIM), Text(" " * 12))


def _made(made: Made, names: Names, out: TextConsole, *, timeless: bool) -> None:
    chain = " → ".join([*made.prefixes, *([" | ".join(made.backends)] if made.backends else [])])
    text = Text.assemble((made.name, HEAD), f" by {made.by}")
    out.wrapped(text, Text("  "), Text("    "))
    if made.place is not None:
        out.wrapped(Text(made.place), Text("    store   ", style=DIM), Text(" " * 12))
    out.wrapped(Text(chain or "none"), Text("    prefix  ", style=DIM), Text(" " * 12))
    joined = sorted(made.joined, key=lambda j: (j.rank is None, j.rank or 0))
    if not joined:
        return
    first = min(j.at_ns for j in joined)
    for one in joined[:8]:
        text = Text.assemble(names.process(one.process))
        if one.rank is not None and names.trace.processes[one.process].rank != one.rank:
            text.append(f" as {one.rank}")
        text.append("" if timeless else f"  arrived +{duration(one.at_ns - first)}", DIM)
        if one.ready_ns is None:
            text.append("  not ready", BAD)
        elif not timeless:
            took = duration(one.ready_ns - one.at_ns)
            text.append(f"  ready {offset(one.ready_ns)} after {took}")
        out.wrapped(text, Text("    member  ", style=DIM), Text(" " * 12))
    if len(joined) > 8:
        out.line((f"{'':12}and {number(len(joined) - 8, 'more member')}", DIM))
    if made.missing:
        absent = few([names.member(made.group, rank) for rank in made.missing])
        out.line(("    missing ", DIM), (absent, BAD))


def _keys(keys: tuple[KeyUse, ...], names: Names, out: TextConsole) -> None:
    place = None
    for use in keys[:KEYS]:
        if use.place != place:
            place = use.place
            out.line("  ", (place, HEAD))
        parts = []
        if use.set_by:
            parts.append(f"set by {names.processes(use.set_by)}")
        if use.read_by:
            parts.append(f"read by {names.processes(use.read_by)}")
        said = f"  {use.meaning}" if use.meaning is not None else ""
        text = Text.assemble(shortened(use.key), said, ("  " + "; ".join(parts), DIM))
        if use.waiting:
            text.append(f"; {names.processes(use.waiting)} wait for it", BAD)
        out.wrapped(text, Text("    "), Text("      "))
    if len(keys) > KEYS:
        out.line((f"    and {number(len(keys) - KEYS, 'more key')}", DIM))
