"""Where lines and tables go: a console of known width, with ASCII where Unicode has no place."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, NamedTuple

from rich.console import Console
from rich.text import Text

from disttrace_viewer.views.terminal import DIM, HEAD, HOLD, PLAIN, WAIT
from disttrace_viewer.views.terminal.diagnosis import Line

_PLAIN = str.maketrans("│─●◆◐○✗◌▶◀…→µ╎", "|-o@%.x?><~>u:")

_QUANTITY = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|min|h|B|kB|MB|GB)\b)")
_UNKNOWN = 80  # columns


class TextConsole(Console):
    """A console for a stream (default: standard output); colour only on a terminal.

    FORCE_COLOR asks for colour elsewhere too, NO_COLOR refuses every escape sequence; ``color``
    decides over both. Where the encoding is not UTF-8, every sign that is no ASCII is replaced.
    """

    def __init__(
        self,
        file: IO[str] | None = None,
        *,
        width: int | None = None,
        color: bool | None = None,
    ) -> None:
        refused = color is False or (color is None and bool(os.environ.get("NO_COLOR")))
        super().__init__(
            file=file,
            width=width,
            color_system=None if refused else "auto",
            no_color=refused,
            force_terminal=True if color else None,
            force_jupyter=False,  # else it shows each line as an output of its own, and writes none
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
        )
        if self.width < 1:  # COLUMNS=0: its value is no width
            self.width = _UNKNOWN
        self._is_plain = not self.encoding.lower().startswith("utf")

    def put(self, *parts: str | tuple[str, str] | Text) -> None:
        """One line, never wrapped by the console; an empty one without parts."""
        text = self.spelled(Text.assemble(*parts))
        text.rstrip()
        self.print(text, no_wrap=True, overflow="ignore", crop=False, highlight=False)

    def wrapped(self, text: Text | str, first: Text | str = "", rest: Text | str = "") -> None:
        """``text`` in the room beside a margin, which is ``first`` and then ``rest``."""
        held, first, rest = (Text.assemble(one) for one in (text, first, rest))
        room = max(24, self.width - max(first.cell_len, rest.cell_len))
        held.plain = _QUANTITY.sub(HOLD, held.plain)
        for number, line in enumerate(held.wrap(self, room) or [Text()]):
            line.plain = line.plain.replace(HOLD, " ")
            self.put(first if number == 0 else rest, line)

    def heading(self, title: str, note: str = "") -> None:
        """The name of a section."""
        self.put()
        self.put((title, HEAD), ("   " + note if note else "", DIM))

    def spelled(self, text: Text) -> Text:
        """A line with the signs that may be used here."""
        if self._is_plain:
            text = text.copy()
            text.plain = text.plain.translate(_PLAIN).encode("ascii", "replace").decode()
        return text

    def on_broken_pipe(self) -> None:
        """The reader (`| head`) has enough: rich would end the process with 1, which says more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_DEEPEST = 44
"""A lead that takes more columns than this, or half of them, is the beginning of its text."""


def paint(out: TextConsole, lines: Iterable[Line]) -> None:
    """All lines of a report."""
    for line in lines:
        if not line.text and not line.lead:
            out.put()
            continue
        lead = Text(line.lead, line.style)
        if line.whole:
            out.put(lead, line.text)
        elif line.lead[:1].isdecimal() or len(line.lead) > min(_DEEPEST, out.width // 2):
            # "1. ERROR kind: " is the beginning of the sentence, and what follows hangs under it.
            out.wrapped(Text.assemble(lead, line.text), "", "   ")
        else:
            text = Text(line.text, PLAIN if line.lead else line.style)
            out.wrapped(text, lead, " " * len(line.lead))


class Column(NamedTuple):
    """A column: its cells, and how dear it is where the width does not suffice."""

    title: str
    cells: Sequence[str]
    right: bool = True
    dear: int = 0
    """Dearer columns are left out first; 0 stays."""
    loud: Sequence[bool] = ()
    """Cells that are marked."""

    @property
    def width(self) -> int:
        """Of the longest cell."""
        return max(len(self.title), *(len(cell) for cell in self.cells), 0)


def paint_table(columns: Sequence[Column], out: TextConsole) -> None:
    """The columns for which there is room, in their order; text on the left is shortened to fit."""
    kept = list(columns)
    while _width(kept) > out.width and any(c.dear for c in kept):
        kept.remove(max(kept, key=lambda c: c.dear))
    over = max(0, _width(kept) - out.width)
    widths = [c.width for c in kept]
    for place, column in sorted(enumerate(kept), key=lambda p: -p[1].width):
        if not column.right and over:
            cut = min(over, max(0, column.width - max(len(column.title), 10)))
            widths[place] -= cut
            over -= cut
    titles = [f"{c.title:{'>' if c.right else '<'}{w}}" for c, w in zip(kept, widths, strict=True)]
    out.put((f"  {'  '.join(titles)}", DIM))
    for row in range(len(kept[0].cells)):
        text = Text("  ")
        for place, (column, width) in enumerate(zip(kept, widths, strict=True)):
            cell = shortened(column.cells[row], width)
            text.append("  " if place else "")
            loud = bool(column.loud) and column.loud[row]
            text.append(f"{cell:{'>' if column.right else '<'}{width}}", WAIT if loud else "")
        out.put(text)


def shortened(text: str, width: int) -> str:
    """Without its middle where it is longer: names differ at their ends."""
    end = width // 2
    return text if len(text) <= width else f"{text[: width - end - 1]}…{text[len(text) - end :]}"


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width + 2 for column in columns)
