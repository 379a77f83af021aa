"""Paints the merged order: time, lanes with what stands on them, and words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from disttrace_viewer.views.terminal import BAD, DIM, HOLD, WAIT
from disttrace_viewer.views.terminal.paint.console import TextConsole
from disttrace_viewer.views.terminal.rows import Mark, Row
from disttrace_viewer.wording.names import Lane, offset

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
        used = {mark for row in rows for _, mark in row.marks}
        legend = Text(style=DIM)
        for mark, word in LEGEND:
            if mark in used and (mark is not Mark.DONE or len(used) > 1):
                legend.append(f"{SIGNS[mark][0]}{HOLD}{word.replace(' ', HOLD)}  ")
        margin = Text.assemble((f"{'seconds':>10}  ", DIM), (labels, "bold"))
        self.out.wrapped(legend, margin, Text(" " * margin.cell_len))

    def _row(self, row: Row) -> None:
        if row.between:
            for text in (row.text, *row.below):
                self.out.wrapped(text, self._margin("╎"), self._margin("│"))
            return
        text = row.text.copy()
        if self.places and row.place:
            text.append(f"  {row.place}", DIM)
        first = Text.assemble((f"{offset(row.at_ns or 0):>10}  ", DIM), self._lanes(row))
        self.out.wrapped(text, first, self._margin("│", 2))
        for text in row.below:
            self.out.wrapped(text, self._margin("│"), self._margin("│", 2))

    def _margin(self, sign: str, indent: int = 0) -> Text:
        lanes = "".join(f"{sign:<{self._wide}}" for _ in self.lanes)
        return Text(f"{'':10}  {lanes}{'':{indent}}", style=DIM)

    def _lanes(self, row: Row) -> Text:
        marks = dict(row.marks)
        low, high = min(marks, default=0), max(marks, default=-1)
        text = Text()
        for lane in range(len(self.lanes)):
            inside = row.joined and low <= lane < high
            if lane in marks:
                sign, style = SIGNS[marks[lane]]
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
