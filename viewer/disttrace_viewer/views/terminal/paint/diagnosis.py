"""Writes the report of `diagnose`: wrapped by words at the width, with colour on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from disttrace_viewer.views.terminal import PLAIN
from disttrace_viewer.views.terminal.diagnosis import Line
from disttrace_viewer.views.terminal.paint.console import TextConsole

_DEEPEST = 44
"""A lead that takes more columns than this stands above its text."""


def paint(out: TextConsole, lines: Iterable[Line]) -> None:
    """All lines of a report."""
    for line in lines:
        if not line.text and not line.lead:
            out.blank()
            continue
        lead = Text(line.lead, line.style)
        indent = len(line.lead) if len(line.lead) <= min(_DEEPEST, out.width // 2) else 3
        if line.whole:
            out.line(lead, line.text)
        elif line.lead and line.lead[0].isdecimal():
            # "1. ERROR kind: " is the beginning of the sentence, and what follows hangs under it.
            text = Text.assemble(lead, line.text)
            out.wrapped(text, Text(""), Text("   "))
        else:
            text = Text(line.text, PLAIN if line.lead else line.style)
            out.wrapped(text, lead, Text(" " * indent))
