"""Paints the merged order: time, lanes with what stands on them, and words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatchmethod

from rich.text import Text

from disttrace_viewer.views.terminal import BAD, DIM, NUMBER, WAIT
from disttrace_viewer.views.terminal.paint.console import HOLD, TextConsole
from disttrace_viewer.views.terminal.rows import (
    Arrival,
    CollectiveRow,
    EndRow,
    Failed,
    Flight,
    Folded,
    FoldRow,
    GapRow,
    LocalRow,
    Mark,
    MessageRow,
    Row,
)
from disttrace_viewer.wording.names import Lane, Names
from disttrace_viewer.wording.quantities import duration, few, number, offset, size

SIGNS = {
    Mark.DONE: ("●", ""),
    Mark.LAST: ("◆", WAIT),
    Mark.FLYING: ("◐", "bold yellow"),
    Mark.MISSING: ("○", BAD),
    Mark.FAILED: ("✗", BAD),
    Mark.UNKNOWN: ("◌", DIM),
    Mark.PART: ("◍", WAIT),
}
LEGEND = (
    (Mark.DONE, "arrived"),
    (Mark.LAST, "arrived last"),
    (Mark.FLYING, "in flight"),
    (Mark.MISSING, "missing"),
    (Mark.PART, "some missing"),
    (Mark.FAILED, "failed"),
    (Mark.UNKNOWN, "end not seen"),
)
ARRIVALS = 6
"""Arrivals shown one by one; of more, the first and the last ones."""
FOLDED = 4
"""Kinds of rows told of one fold: those that took longest."""
LAST = 3
"""Processes named that arrived last in folded rows."""
NOTABLE_NS = 1_000
"""A shorter wait is none."""


class SequencePainter:
    """Rows beside the lanes of one report."""

    def __init__(
        self,
        names: Names,
        lanes: Sequence[Lane],
        out: TextConsole,
        *,
        places: bool = False,
    ) -> None:
        self.names, self.lanes, self.out, self.places = names, lanes, out, places
        self._wide = max([3, *(len(lane.label) + 1 for lane in lanes)])

    def rows(self, rows: Sequence[Row]) -> None:
        """The heads of the lanes, then all rows."""
        if not rows:
            return
        self.head(rows)
        for row in rows:
            self.paint(row)

    def head(self, rows: Sequence[Row]) -> None:
        """Labels of the lanes, and the signs that occur below."""
        labels = "".join(f"{lane.label:<{self._wide}}" for lane in self.lanes)
        used = {mark for row in rows for _, mark in row.marks}
        legend = Text(style=DIM)
        for mark, word in LEGEND:
            if mark in used and (mark is not Mark.DONE or len(used) > 1):
                legend.append(f"{SIGNS[mark][0]}{HOLD}{word.replace(' ', HOLD)}  ")
        margin = Text.assemble((f"{'seconds':>10}  ", DIM), (labels, "bold"))
        self.out.wrapped(legend, margin, Text(" " * margin.cell_len))

    @singledispatchmethod
    def paint(self, row: Row) -> None:
        """One row of any kind."""
        raise TypeError(f"no such row: {type(row).__name__}")

    @paint.register
    def _(self, row: CollectiveRow) -> None:
        text = Text.assemble((f"#{row.seq} ", NUMBER), (row.op, self._loud(row)))
        for part in (row.reduce_op, row.tensors):
            text.append(f" {part}" if part else "")
        if row.root is not None:
            text.append(f" root {row.root}")
        if not row.group.startswith("default group"):
            text.append(f" in {row.group}")
        if row.within:
            text.append(f" ({row.within})", DIM)
        if row.differs:
            text.append(f" {row.differs} differ", WAIT)
        if row.took_ns is not None:
            text.append(f"  {duration(row.took_ns)}", DIM)
        if len(row.arrivals) > 1:
            text.append_text(self._arrivals(row.arrivals, len(row.missing)))
        self._put(row, text)
        for where, processes in row.places:
            self._more(Text.assemble((f"{self.names.processes(processes)} at {where}", WAIT)))
        if row.missing:
            self._more(Text.assemble(("missing: ", BAD), few(row.missing, 6)))

    @paint.register
    def _(self, row: MessageRow) -> None:
        verb = "recv" if row.missing == "send" else "send"
        text = Text.assemble((f"#{row.seq} ", NUMBER), (verb, self._loud(row)))
        text.append(f" {_bare(row.source)} → {_bare(row.destination)}")
        if row.bytes is not None:
            text.append(f" {size(row.bytes)}", DIM)
        if row.tag is not None:
            text.append(f" tag {row.tag}", DIM)
        if not row.group.startswith("default group"):
            text.append(f" in {row.group}")
        if row.within:
            text.append(f" ({row.within})", DIM)
        if row.took_ns is not None:
            text.append(f"  {duration(row.took_ns)}", DIM)
        if row.waiter and row.waited_ns >= NOTABLE_NS:
            text.append(f"; {_bare(row.waiter)} waited {duration(row.waited_ns)}", WAIT)
        self._put(row, text)
        if row.missing:
            other = row.source if row.missing == "send" else row.destination
            self._more(Text.assemble((f"no {row.missing} by {other}", BAD)))

    @paint.register
    def _(self, row: LocalRow) -> None:
        text = Text.assemble((row.op, self._loud(row)))
        text.append(f" {row.what}" if row.what else "")
        text.append(f" {size(row.bytes)}" if row.bytes is not None else "", DIM)
        text.append(f"  {duration(row.took_ns)}" if row.took_ns is not None else "", DIM)
        self._put(row, text)

    @paint.register
    def _(self, row: FoldRow) -> None:
        one = row.folded[0] if len(row.folded) == 1 else None
        like = "this" if row.rows == 1 else f"these {row.rows}"
        text = Text.assemble((f"x {row.times:,} more like {like}", NUMBER))
        text.append(f" until {offset(row.until_ns)}", DIM)
        if one is None:
            text.append(f", one in {duration(row.each_ns)}", DIM)
            self._between(text)
            for folded in row.folded[:FOLDED]:
                self._between(Text.assemble(f"  {folded.what}", self._spread(folded)))
            if len(row.folded) > FOLDED:
                rest = number(len(row.folded) - FOLDED, "quicker kind")
                self._between(Text(f"  and {rest}", style=DIM))
        else:
            text.append_text(self._spread(one))
            self._between(text)

    def _spread(self, folded: Folded) -> Text:
        """``: median 12 ms, max 253 ms; last: 2 x22, 0 x18``."""
        median, most = duration(folded.median_ns), duration(folded.max_ns)
        text = Text.assemble((f": median {median}, max {most}", DIM))
        if folded.last:
            names = [f"{self.names.short[p]}{HOLD}x{count:,}" for p, count in folded.last[:LAST]]
            others = sum(count for _, count in folded.last[LAST:])
            names += [f"others{HOLD}x{others:,}"] if others else []
            text.append(f"; last: {', '.join(names)}", WAIT)
        return text

    @paint.register
    def _(self, row: GapRow) -> None:
        self._between(
            Text(f"… {number(row.rows, 'row')} not shown, until {offset(row.until_ns)}", style=DIM)
        )

    @paint.register
    def _(self, row: EndRow) -> None:
        text = Text.assemble((self.names.processes(row.processes), BAD), f" {row.what}")
        text.append(f"  {row.place}" if row.place else "", DIM)
        self._put(row, text)

    # -- parts -------------------------------------------------------------------------------

    def _loud(self, row: Row) -> str:
        if row.failures:
            return BAD
        return "bold yellow" if row.flights else "bold"

    def _arrivals(self, arrivals: Sequence[Arrival], missing: int) -> Text:
        first, last = arrivals[0], arrivals[-1]
        if last.offset_ns < NOTABLE_NS and not missing:
            return Text("; all at once", style=DIM)
        shown = list(arrivals[1:]) if len(arrivals) <= ARRIVALS else [last]
        text = Text.assemble((f"; {self.names.short[first.process]}", DIM))
        if len(arrivals) > ARRIVALS:
            text.append(f", {len(arrivals) - 2:,} others", DIM)
        for one in shown:
            late = one is last and not missing
            text.append(f", {self.names.short[one.process]}{HOLD}", WAIT if late else DIM)
            text.append(f"+{duration(one.offset_ns)}", WAIT if late else DIM)
            text.append(" last" if late else "", WAIT)
        return text

    def _put(self, row: Row, text: Text) -> None:
        if self.places:
            where = getattr(row, "place", None)
            text.append(f"  {where}" if where and not row.flights else "", DIM)
        first = Text.assemble((f"{offset(row.at_ns):>10}  ", DIM), self._lanes(row))
        self.out.wrapped(text, first, self._margin(2))
        for flight in row.flights:
            self._more(self.flight(flight))
        for failure in row.failures:
            self._more(self.failure(failure))

    def _more(self, text: Text) -> None:
        self.out.wrapped(text, self._margin(), self._margin(2))

    def _between(self, text: Text) -> None:
        dots = "".join(f"{'╎':<{self._wide}}" for _ in self.lanes)
        self.out.wrapped(text, Text(f"{'':10}  {dots}", style=DIM), self._margin())

    def _margin(self, indent: int = 0) -> Text:
        return Text(f"{'':10}  {self._idle()}{'':{indent}}", style=DIM)

    def _idle(self) -> str:
        return "".join(f"{'│':<{self._wide}}" for _ in self.lanes)

    def flight(self, flight: Flight) -> Text:
        """``rank 0 in flight for 12.3 s at train.py:42 step``."""
        who = self.names.processes(flight.processes)
        state = "in flight for"
        if flight.ended:
            many = len(flight.processes) > 1
            last = "last heard of" if flight.silent else "they ended" if many else "it ended"
            state = f"{'were' if many else 'was'} in flight when {last}, for"
        text = Text.assemble((f"{who} {state} {duration(flight.age_ns)}", "bold yellow"))
        text.append(f" at {flight.place}" if flight.place else "")
        return text

    def failure(self, failure: Failed) -> Text:
        """``rank 0: ValueError: ... at train.py:42 step``."""
        who = self.names.processes(failure.processes)
        text = Text.assemble((f"{who}: {failure.error}", BAD))
        text.append(f" at {failure.place}" if failure.place else "")
        return text

    def _lanes(self, row: Row) -> Text:
        marks = dict(row.marks)
        low, high = min(marks, default=0), max(marks, default=-1)
        arrow = row.arrow if isinstance(row, MessageRow) else None
        joined = arrow is not None or isinstance(row, CollectiveRow)
        text = Text()
        for lane in range(len(self.lanes)):
            inside = joined and low <= lane < high
            if lane in marks:
                sign, style = SIGNS[marks[lane]]
                text.append(sign, style)
            else:
                text.append("─" if joined and low < lane < high else "│", DIM)
            text.append(("─" if inside else " ") * (self._wide - 1), DIM)
        if arrow is not None and arrow[0] != arrow[1]:
            # The head stands beside the receiver, on the side of the sender.
            right = arrow[1] > arrow[0]
            place = arrow[1] * self._wide + (-1 if right else 1)
            text = Text.assemble(text[:place], "▶" if right else "◀", text[place + 1 :])
        return text


def _bare(name: str) -> str:
    return name.removeprefix("rank ")
