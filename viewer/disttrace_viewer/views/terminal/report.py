"""The report of `view`, as a value and painted."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from rich.text import Text

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.findings.finding import NOTE
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.views.terminal import BAD, DIM, HEAD, HOLD, WAIT
from disttrace_viewer.views.terminal.console import TextConsole
from disttrace_viewer.views.terminal.console import paint as paint_lines
from disttrace_viewer.views.terminal.diagnosis import Line, announced, where
from disttrace_viewer.views.terminal.header import (
    HeadLine,
    Phase,
    header_of,
    initialization,
    initialization_of,
)
from disttrace_viewer.views.terminal.plan import Filters, wanted_op
from disttrace_viewer.views.terminal.rows import Mark, Row
from disttrace_viewer.views.terminal.sequence import SequenceView, sequence_of
from disttrace_viewer.wording.names import (
    Lane,
    Names,
    duration,
    few,
    names_of,
    number,
    offset,
    spans,
)


@dataclass(frozen=True, slots=True)
class Overview:
    """What the painter paints."""

    names: Names
    header: Sequence[HeadLine]
    findings: tuple[tuple[str, str], ...]
    """(severity, sentence) of what ``diagnose`` tells at length."""
    announced: tuple[str, ...]
    """What the job announced itself."""
    initialization: tuple[Phase, ...]
    sequence: SequenceView
    where: tuple[Line, ...]
    """Where the ranks are, as ``diagnose`` shows it, if anything is in flight."""


def overview_of(
    trace: JobTrace,
    filters: Filters | None = None,
    verdict: Verdict | None = None,
    exchanges: Exchanges | None = None,
) -> Overview:
    """Compute the report; the verdict and the exchanges are those of the trace, where at hand.

    Raises ``ViewerError`` for filters that fit nothing in this trace, with what would.
    """
    filters, exchanges = filters or Filters(), exchanges or Exchanges(trace)
    found = verdict or verdict_on(trace, exchanges)
    case, evidence = found.case, found.case.evidence
    serious = [one for one in found.findings if one.severity != NOTE]
    _check(trace, filters)
    names = names_of(trace)
    inside = initialization_of(trace)
    flying = IN_FLIGHT & ~pl.col("lost")
    quiet = ~flying & pl.col("error").is_null()
    elsewhere = inside.clear() if filters.ops else inside.filter(quiet)
    sequence = sequence_of(evidence, exchanges, names, filters, elsewhere)
    stuck = trace.operations.select(flying.any()).item()
    return Overview(
        names=names,
        header=[*header_of(case, exchanges, names)],
        findings=tuple((one.severity, one.summary) for one in found.findings),
        announced=tuple(announced(case, found.findings)),
        initialization=initialization(names, inside),
        sequence=sequence,
        where=tuple(where(case, serious, places(case, serious), PLACES)) if stuck else (),
    )


def _check(trace: JobTrace, filters: Filters) -> None:
    ranks = {p.rank for p in trace.processes if p.rank is not None}
    for group in trace.groups:
        ranks |= set(group.ranks or ())
    if filters.ranks is not None and not filters.ranks & ranks:
        raise ViewerError(f"no such rank here; there are {spans(ranks) or 'none'}")
    ops = sorted(set(trace.calls["op"].to_list()))
    if filters.ops and not any(wanted_op(op, filters) for op in ops):
        raise ViewerError(f"no such operation here; there are {few(ops, 30)}")


PLACES = 12
PHASES = 8
_LABEL = 14


def paint(report: Overview, out: TextConsole, *, places: bool = False) -> None:
    """Everything, from the head to where the ranks are; ``places`` adds a call site to each row."""
    for beside, line in report.header:
        label = "" if beside is None else f"  {beside:<{_LABEL}}"
        out.wrapped(line, Text(label, DIM), " " * len(label) or "  ")
    _findings(report, out)
    _initialization(report.initialization, out)
    sequence = report.sequence
    steps = f"{number(sequence.total, 'step')} in the order of their begins"
    out.heading("what happened", steps if sequence.total else "nothing that passes the filters")
    SequencePainter(sequence.lanes, out, places=places).rows(sequence.rows)
    paint_lines(out, report.where)


def _findings(report: Overview, out: TextConsole) -> None:
    if report.findings or report.announced:
        out.heading("findings", "disttrace diagnose tells more")
    for severity, summary in report.findings:
        style = {"error": BAD, "warning": WAIT}.get(severity, DIM)
        out.wrapped(Text(summary), Text(f"  {severity:<8} ", style), " " * 11)
    for sentence in report.announced:
        out.wrapped(Text(sentence, DIM), "  ", "  ")


def _initialization(phases: Sequence[Phase], out: TextConsole) -> None:
    if not phases:
        return
    out.heading("initialization")
    shown = sorted(phases, key=lambda one: one.took_ns is not None)[:PHASES]
    for phase in sorted(shown, key=lambda one: one.at_ns):
        text = Text.assemble((phase.name, HEAD), f": {phase.what}")
        if phase.took_ns is None:
            text.append("  not ready", BAD)
        else:
            text.append(f"  {duration(phase.took_ns)}", DIM)
        out.wrapped(text, Text(f"{offset(phase.at_ns):>10}  ", DIM), " " * 14)
    if len(phases) > PHASES:
        out.put((f"{'':12}and {number(len(phases) - PHASES, 'more line')}", DIM))


class SequencePainter:
    """Rows beside the lanes of one report; ``places``: with the line that each was called from."""

    def __init__(self, lanes: Sequence[Lane], out: TextConsole, *, places: bool = False) -> None:
        self.lanes, self.out, self.places = lanes, out, places
        self._wide = max([3, *(len(lane.label) + 1 for lane in lanes)])

    def rows(self, rows: Sequence[Row]) -> None:
        """The heads of the lanes, then all rows."""
        if not rows:
            return
        self._head(rows)
        for row in rows:
            self._row(row)

    def _head(self, rows: Sequence[Row]) -> None:
        """Labels of the lanes, and the signs that occur below."""
        labels = "".join(f"{lane.label:<{self._wide}}" for lane in self.lanes)
        used = {mark for row in rows for mark in row.marks.values()}
        legend = Text(style=DIM)
        for mark in Mark:
            sign, _, words = mark.value
            if mark in used and (mark is not Mark.DONE or len(used) > 1):
                legend.append(f"{sign}{HOLD}{words.replace(' ', HOLD)}  ")
        margin = Text.assemble((f"{'seconds':>10}  ", DIM), (labels, "bold"))
        self.out.wrapped(legend, margin, " " * margin.cell_len)

    def _row(self, row: Row) -> None:
        if row.between:
            for text in (row.text, *row.below):
                self.out.wrapped(text, self._margin("╎"), self._margin("│"))
            return
        text = row.text.copy()
        if self.places and row.place:
            text.append(f"  {row.place}", DIM)
        first = Text.assemble((f"{offset(row.at_ns):>10}  ", DIM), self._lanes(row))
        self.out.wrapped(text, first, self._margin("│", 2))
        for text in row.below:
            self.out.wrapped(text, self._margin("│"), self._margin("│", 2))

    def _margin(self, sign: str, indent: int = 0) -> Text:
        lanes = "".join(f"{sign:<{self._wide}}" for _ in self.lanes)
        return Text(f"{'':10}  {lanes}{'':{indent}}", style=DIM)

    def _lanes(self, row: Row) -> Text:
        low, high = min(row.marks, default=0), max(row.marks, default=-1)
        text = Text()
        for lane in range(len(self.lanes)):
            inside = row.joined and low <= lane < high
            if lane in row.marks:
                sign, style, _ = row.marks[lane].value
                text.append(sign, style)
            else:
                text.append("─" if row.joined and low < lane < high else "│", DIM)
            text.append(("─" if inside else " ") * (self._wide - 1), DIM)
        if row.arrow is not None and row.arrow[0] != row.arrow[1]:
            # The head stands beside the receiver, on the side of the sender.
            right = row.arrow[1] > row.arrow[0]
            place = row.arrow[1] * self._wide + (-1 if right else 1)
            text = Text.assemble(text[:place], "▶" if right else "◀", text[place + 1 :])
        return text
