"""Paints a report: head, findings, initialization, sequence, and what is in flight at the end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from disttrace_viewer.views.terminal import BAD, DIM, HEAD, WAIT
from disttrace_viewer.views.terminal.header import Line
from disttrace_viewer.views.terminal.init_phase import Phase
from disttrace_viewer.views.terminal.paint.console import TextConsole
from disttrace_viewer.views.terminal.paint.sequence import SequencePainter
from disttrace_viewer.views.terminal.report import Report
from disttrace_viewer.views.terminal.rows import Flight
from disttrace_viewer.wording.quantities import duration, number, offset

FLIGHTS = 12
PHASES = 8
_LABEL = 14


def paint(report: Report, out: TextConsole, *, places: bool = False, verbose: bool = False) -> None:
    """Everything, from the head to what is in flight; ``places`` adds a call site to each row,
    ``verbose`` what could not be captured.
    """
    for line in report.header:
        if verbose or not line.verbose:
            _line(line, out)
    _findings(report, out)
    _initialization(report.initialization, out)
    sequence = report.sequence
    out.heading("what happened", _count(report))
    SequencePainter(report.names, sequence.lanes, out, places=places).rows(sequence.rows)
    _flights(report, out)


def _line(line: Line, out: TextConsole) -> None:
    text = Text.assemble(*line.words)
    if line.label is None:
        out.wrapped(text, Text(), Text("  "))
    else:
        margin = Text(f"  {line.label:<{_LABEL}}", style=DIM)
        out.wrapped(text, margin, Text(" " * margin.cell_len))


def _count(report: Report) -> str:
    if not report.sequence.total:
        return "nothing that passes the filters"
    return f"{number(report.sequence.total, 'step')} in the order of their begins"


def _findings(report: Report, out: TextConsole) -> None:
    if report.findings or report.said:
        out.heading("findings", "disttrace diagnose tells more")
    for severity, summary in report.findings:
        style = {"error": BAD, "warning": WAIT}.get(severity, DIM)
        out.wrapped(Text(summary), Text(f"  {severity:<8} ", style=style), Text(" " * 11))
    for sentence in report.said:
        out.wrapped(Text(sentence, style=DIM), Text("  "), Text("  "))


def _initialization(phases: Sequence[Phase], out: TextConsole) -> None:
    if not phases:
        return
    out.heading("initialization")
    stuck = [phase for phase in phases if phase.took_ns is None]
    shown = [p for p in phases if p.took_ns is not None][: max(0, PHASES - len(stuck))]
    for phase in [p for p in phases if p in stuck[:PHASES] or p in shown]:
        text = Text.assemble((phase.name, HEAD), f": {phase.what}")
        if phase.took_ns is None:
            text.append("  not ready", BAD)
        else:
            text.append(f"  {duration(phase.took_ns)}", DIM)
        out.wrapped(text, Text(f"{offset(phase.at_ns):>10}  ", style=DIM), Text(" " * 14))
    if len(phases) > PHASES:
        out.line((f"{'':12}and {number(len(phases) - PHASES, 'more line')}", DIM))


def _flights(report: Report, out: TextConsole) -> None:
    """The product: what nobody has come back from."""
    if not report.flights:
        return
    title = "in flight when they ended"
    if any(flight.silent for flight in report.flights):
        title = "last known in flight"
    if not all(flight.ended for flight in report.flights):
        title = "in flight now"
    out.heading(title, "the innermost operation of each thread, oldest first")
    for flight in (*report.flights[:FLIGHTS], *report.samples[:FLIGHTS]):
        _flight(report, flight, out)
    if len(report.flights) > FLIGHTS:
        out.line((f"  and {number(len(report.flights) - FLIGHTS, 'more operation')}", DIM))


def _flight(report: Report, flight: Flight, out: TextConsole) -> None:
    who = report.names.processes(flight.processes)
    link = "" if flight.outside else "in "
    text = Text.assemble((who, "bold yellow"), f" {link}{flight.what}")
    if flight.place:
        text.append(f" at {flight.place}")
    gone = ""
    if flight.ended and not flight.outside:
        gone = "  (last heard of in it)" if flight.silent else "  (ended in it)"
    age = Text(f"  {duration(flight.age_ns):>9}  ", style="bold yellow")
    out.wrapped(Text.assemble(text, (gone, DIM)), age, Text(" " * 13))
