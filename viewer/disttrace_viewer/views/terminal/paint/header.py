"""Paints the head of the report."""

from __future__ import annotations

from rich.text import Text

from disttrace.journal.format import STOPPED
from disttrace_viewer.analysis.process_ends import EXITED, FAILED, KILLED, RUNNING, UNKNOWN
from disttrace_viewer.views.terminal import BAD, DIM, GOOD, HEAD, WAIT
from disttrace_viewer.views.terminal.header import ROLES, GroupHead, Header, JobHead
from disttrace_viewer.views.terminal.paint.console import TextConsole
from disttrace_viewer.wording.quantities import clock_time, duration, few, number, spans

LABEL = 14
GROUPS, SENTENCES = 8, 6
"""Groups and sentences shown before the rest is counted."""
_STATE_STYLES = {
    FAILED: BAD,
    KILLED: BAD,
    STOPPED: WAIT,
    RUNNING: WAIT,
    UNKNOWN: WAIT,
    EXITED: GOOD,
}


def paint(header: Header, out: TextConsole, *, verbose: bool = False) -> None:
    """Jobs, groups, what was recorded and what is missing."""
    for job in header.jobs:
        _job(job, out)
    shown = sorted(header.groups, key=lambda g: -(g.collectives + g.messages))[:GROUPS]
    for place, group in enumerate(g for g in header.groups if g in shown):
        _put(out, "groups" if place == 0 else "", _group(group))
    if len(header.groups) > GROUPS:
        _put(out, "", Text(f"and {number(len(header.groups) - GROUPS, 'more group')}", style=DIM))
    read = f"{number(header.operations, 'operation')} in {number(header.journals, 'journal')}"
    if header.clocks:
        read += f"; {header.clocks}"
    if not header.problems:
        read += "; nothing missing, damaged or dropped"
    _put(out, "recorded", Text(read))
    for sentence in header.problems[:SENTENCES]:
        _put(out, "", Text.assemble(("! ", WAIT), sentence))
    if len(header.problems) > SENTENCES:
        more = len(header.problems) - SENTENCES
        _put(
            out, "", Text.assemble(("! ", WAIT), f"and {number(more, 'more sentence')} like these")
        )
    if header.unseen and verbose:
        _put(out, "not captured", Text(" ".join(header.unseen), style=DIM))
    if header.others:
        _put(out, "also here", Text(header.others, style=DIM))


def _job(job: JobHead, out: TextConsole) -> None:
    title = Text.assemble(
        (f"job {job.letter}  " if job.letter else "", HEAD),
        (job.program or job.id, HEAD),
    )
    out.wrapped(title, Text(), Text("  "))
    when = f"{clock_time(job.start_ns)}, {duration(job.duration_ns)}"
    hosts = f"on {number(len(job.hosts), 'host')} ({few(job.hosts, 4)})"
    _put(out, "ran", Text.assemble(when, (f"  {hosts}  {job.id}", DIM)))
    plural = dict(ROLES)
    roles = ", ".join(number(count, role, plural.get(role)) for role, count in job.roles)
    line = Text(roles)
    if job.ranks:
        line.append(f"; {'rank' if len(job.ranks) == 1 else 'ranks'} {spans(job.ranks)}")
        if job.world_size:
            line.append(f" of {job.world_size}")
    if job.attempts > 1:
        line.append(f"; {job.attempts} attempts", WAIT)
    line.append("; ")
    line.append_text(_states(job))
    _put(out, "processes", line)
    if job.linked:
        _put(out, "met", Text(f"job {few(job.linked, 6)} in a store"))
    if job.torch:
        _put(out, "torch", Text(few(job.torch, 3), style=DIM))


def _states(job: JobHead) -> Text:
    if len(job.states) == 1 and job.states[0][0] == EXITED:
        return Text("all exited", style=GOOD)
    parts = [Text(f"{count} {state}", style=_STATE_STYLES[state]) for state, count in job.states]
    return Text(", ").join(parts)


def _group(group: GroupHead) -> Text:
    traffic = [
        number(count, noun)
        for count, noun in ((group.collectives, "collective"), (group.messages, "message"))
        if count
    ]
    line = Text.assemble(
        group.name, f": {group.ranks}, " if group.ranks else ": ", group.backends or "?"
    )
    line.append(f"  {', '.join(traffic) or 'unused'}", DIM)
    if group.missing:
        line.append(f"; no journal of {spans(group.missing)}", WAIT)
    return line


def _put(out: TextConsole, label: str, text: Text) -> None:
    margin = Text(f"  {label:<{LABEL}}", style=DIM)
    out.wrapped(text, margin, Text(" " * margin.cell_len))
