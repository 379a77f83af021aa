"""Paints a snapshot line by line: each fits the width, all of them the rows that there are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from disttrace.journal.format import STOPPED
from disttrace_viewer.analysis.process_ends import RUNNING
from disttrace_viewer.diagnosis.positions import RankPlace
from disttrace_viewer.views.terminal import BAD, DIM, GOOD, HEAD, WAIT
from disttrace_viewer.views.terminal.console import shortened
from disttrace_viewer.views.terminal.top import FAULT, WELL, Snapshot, TopRow
from disttrace_viewer.wording.names import clock_time, number
from disttrace_viewer.wording.sentences import span

LEGEND = (
    "for: how long there; ops/s: begun in the newest 5 s; of the newest 30 s, late: others waited"
    " for it, wait: it waited for others"
)
Columns = Sequence[tuple[str, int]]
_RIGHT: Columns = (("for", 8), ("ops/s", 6), ("late", 5), ("wait", 5))
_LEAST_WHO = 14
_VERDICT_LINES = 4
_BOTH = 24
"""In fewer columns there is only the line where a rank is, and not what it does there."""


def lines(
    values: Snapshot,
    width: int,
    rows: int | None = None,
    *,
    older_ns: int = 0,
    details: Sequence[str] = (),
) -> list[Text]:
    """The picture in ``rows`` lines of at most ``width`` columns, or in as many as it takes.

    ``older_ns`` is the time since the snapshot: ages of what still lasts go on. What does not fit
    is counted in a line; where there is room, ``details`` follow, and what the columns mean.
    """
    top = [_head(values, width, older_ns), *_verdict(values, width, rows)]
    # Jobs that lived meanwhile, those first in which something is wrong.
    others = sorted(values.others, key=lambda one: one.healthy)[: None if rows is None else 2]
    top += [Text(_cut(one.sentence, width), DIM if one.healthy else WAIT) for one in others]
    top.append(Text())
    who = _width_of_who(values, width)
    # Of what is over only how long each was there is known.
    right = _RIGHT if values.live else _RIGHT[:1]
    table = [_row(row, who, width, older_ns if values.live else 0, right) for row in values.rows]
    top.append(_names(who, width, right))
    if rows is None:
        return [*top, *table]
    room = rows - len(top) - len(table)
    if room < 0:
        shown = max(1, rows - len(top) - 1)
        left = values.rows[shown:]
        count = number(sum(len(row.place.processes) for row in left), "process", "processes")
        text = f"   and {number(len(left), 'more position', 'more positions')} ({count})"
        table = [*table[:shown], Text(_cut(text, width), DIM)]
    if room > 3:
        console = Console(width=width)
        wrapped = (
            line for one in (*details, "", LEGEND) for line in Text(one).wrap(console, width)
        )
        table += [Text(), *wrapped][:room]
    return [*top, *table][:rows]


def _head(values: Snapshot, width: int, older_ns: int) -> Text:
    job = values.jobs[0] if values.jobs else ""
    more = f" and {len(values.jobs) - 1} more" if len(values.jobs) > 1 else ""
    parts = [
        number(values.processes, "process", "processes"),
        "live"
        if values.live
        else "nothing here can tell whether it runs"
        if values.silent
        else "no process runs any more",
        clock_time(values.at_ns + (older_ns if values.live else 0)),
    ]
    if values.ops_per_s is not None:
        parts.append(f"{values.ops_per_s:,.0f} ops/s")
    if values.problems:
        parts.append(f"{number(values.problems, 'problem')} in the journals")
    rest = "   ".join(parts)
    name = _cut(f"{job}{more}", max(8, width - cell_len(rest) - 3))
    text = Text.assemble((name, HEAD), "   ", rest)
    text.truncate(width, overflow="ellipsis")
    return text


def _verdict(values: Snapshot, width: int, rows: int | None) -> list[Text]:
    verdict = values.verdict
    style = BAD if verdict.level == FAULT else GOOD if verdict.level == WELL else WAIT
    doubt = " (likely)" if verdict.certainty not in (None, "certain") else ""
    more = f" And {number(verdict.more, 'more finding')}: see diagnose." if verdict.more else ""
    text = Text(f"{verdict.summary}{doubt}{more}", style)
    found = list(text.wrap(Console(width=width), width))
    most = len(found) if rows is None else max(1, min(_VERDICT_LINES, rows // 6))
    if len(found) > most:
        kept = found[:most]
        kept[-1].rstrip()
        kept[-1] = Text(_cut(f"{kept[-1].plain} ...", width, end="..."), style)
        return kept
    return found


def _width_of_who(values: Snapshot, width: int) -> int:
    """As wide as culprits need, and at most a third of the line."""
    labels = [_who(row.who) for row in values.rows]
    culprits = [_who(row.who) for row in values.rows if row.place.culprit]
    widest = max(map(cell_len, labels), default=0)
    needed = max(map(cell_len, culprits), default=0)
    return min(max(_LEAST_WHO if width < 100 else 28, needed), max(widest, 8), width // 3)


def _who(label: str) -> str:
    return label.removeprefix("ranks ").removeprefix("rank ")


def _names(who: int, width: int, right: Columns) -> Text:
    left = f"   {'ranks':<{who}} "
    names = "".join(f"{name:>{size}}" for name, size in right)
    text = Text(f"{left}{'doing':<{max(0, width - len(left) - len(names))}}{names}", DIM)
    text.truncate(width)
    return text


def _row(row: TopRow, who: int, width: int, older_ns: int, right: Columns) -> Text:
    place = row.place
    older_ns *= place.state in (RUNNING, STOPPED)
    age = span(place.longest_ns + older_ns) if place.longest_ns else ""
    style = BAD if place.culprit else WAIT if place.waits else ""
    cells = (
        (age, style),
        ("" if row.ops_per_s is None else f"{row.ops_per_s:,.0f}", ""),
        ("" if row.late is None else f"{row.late:.0%}", ""),
        ("" if row.waiting is None else f"{row.waiting:.0%}", ""),
    )
    room = width - 3 - who - 1 - sum(size for _, size in right) - 1
    # Ages are wider than their column after an hour: what stands before them gives way.
    room -= max(0, cell_len(age) + 1 - _RIGHT[0][1])
    label = _who(row.who)
    if cell_len(label) > who and len(row.ranks) > 2:
        label = f"{len(row.ranks)} ranks: {row.ranks[0]} … {row.ranks[-1]}"
    text = Text.assemble(
        (" ▶ " if place.culprit else "   ", BAD),
        (_sized(label, who), style),
        " ",
        _sized(_doing(place, room), room),
        " ",
    )
    for (cell, colour), (_, size) in zip(cells, right):
        text.append(f"{cell:>{size}}" if cell_len(cell) < size else f" {cell}", colour)
    text.truncate(width)
    return text


def _doing(row: RankPlace, room: int) -> str:
    """What and where: the place is kept whole, what stands before it gives way."""
    texts = [text.removeprefix("in ") for text in row.briefly or (row.doing,)]
    words = texts
    if row.state != RUNNING:
        words = [f"{row.word}: {what}" if what else row.word for what in texts]
    if not row.at:
        return _cut(words[0], room)
    for at in (row.at, row.at.partition(" in ")[0]):
        for what in words:
            if cell_len(what) + 2 + cell_len(at) <= room:
                return f"{what}  {at}"
    at = row.at.partition(" in ")[0]
    left = room - cell_len(at) - 2
    if row.state != RUNNING and left >= cell_len(row.word):
        return f"{_cut(words[-1], left)}  {at}"
    if room < _BOTH:
        return shortened(at, room)
    what = texts[-1] or row.word
    at = shortened(at, room - 2 - min(cell_len(what), room // 2))
    return f"{_cut(what, room - cell_len(at) - 2)}  {at}"


def _sized(text: str, size: int) -> str:
    return set_cell_size(_cut(text, size), size)


def _cut(text: str, size: int, end: str = "…") -> str:
    if cell_len(text) <= size:
        return text
    return set_cell_size(text, max(0, size - cell_len(end))).rstrip() + end
