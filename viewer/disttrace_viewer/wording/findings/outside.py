"""What those do for whom others wait while they are in no communication themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.analysis.process_ends import SILENT, End
from disttrace_viewer.evidence.recorded import DRAINING
from disttrace_viewer.trace.model import Location, Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Failure, Frame
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import HELD, NOWHERE, ended
from disttrace_viewer.wording.findings import missing_evidence

ASKED = "Find who should bring about what is asked for there, and what it does instead."
"""What to do about a store that is asked again and again."""
COMMUNICATE = (
    "See whether they come to it when they are through with the others: whoever waits may be ahead"
    " of them, or they passed this call over."
)
"""What to do about those that are all at work while others wait for them."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What a process is at that takes no part."""

    end: End
    at: Frame | None = None
    """Where it is, or asked for its end."""
    inside: Frame | None = None
    """What that line has called."""
    newest: Op | None = None
    """What it does again and again."""
    last: Op | None = None
    """What it did last in communication."""
    lacks: frozenset[str] = frozenset()
    """What its evidence does not hold."""
    frozen_ns: int = 0
    """For how long no Python ran in it."""
    before: Location | None = None
    """Where it was last seen before the others gave up, of one that broke after that."""


def where(trace: Trace, found: Mapping[int, Doing], *, named: bool = False) -> str:
    """A clause per place: ``; rank 2 is at loader.py:9 in load, not in any collective``.

    ``named``: they were named just before, so all of them at one place are ``it`` or ``they``.
    """
    alike = sentences.together((_doing(trace, one), process) for process, one in found.items())
    clauses = []
    for who in alike.values():
        many = len(who) > 1
        subject = sentences.processes(trace, who)
        if named and len(alike) == 1:
            subject = "they" if many else "it"
        clauses.append(f"{subject} {_doing(trace, found[who[0]], many=many)}")
    return "; " + ", ".join(clauses) if clauses else ""


def _doing(trace: Trace, one: Doing, *, many: bool = False) -> str:
    are, at = "are" if many else "is", ""
    if one.at is not None:
        at = f" at {sentences.is_at(one.at, one.inside)}"
    if one.end.over and one.end.how != SILENT:
        before = ""
        if one.before is not None:
            seen = f"{'were' if many else 'was'} last seen at {sentences.is_at(one.before)}"
            before = f"{seen} until they gave up, and "
        return f"{before}{ended(one.end, many=many)}{at}"
    if one.end.held is not None:
        return f"{are} {HELD[one.end.held]}{at}"
    if one.newest is not None:
        what = f"{sentences.operation(trace, one.newest)} at {sentences.line(one.newest)}"
        if one.newest.call.kind == "store":
            return f"{'ask' if many else 'asks'} again and again ({what})"
        return f"{'communicate' if many else 'communicates'} with others ({what})"
    if at and one.last is not None and one.last.call.op == DRAINING:
        return f"{are}{at}, after {DRAINING} at {sentences.line(one.last)}"
    if at:
        return f"{are}{at}, {NOWHERE}"
    since = "" if one.last is None else f" since {sentences.operation(trace, one.last)}"
    if "position" in one.lacks:
        return missing_evidence.nowhere(one.lacks, since, many=many)
    if one.frozen_ns:
        return (
            f"{'have' if many else 'has'} been frozen for {sentences.span(one.frozen_ns)}{since}:"
            " no Python ran in it (a library call that holds the GIL, or SIGSTOP)"
        )
    return f"{are} {NOWHERE}{since}"


def stopped(trace: Trace, processes: Sequence[int], *, alive: bool) -> str:
    """What to find where none of those runs, and how those go on that live."""
    pids = " ".join(str(trace.processes[p].pid) for p in processes)
    go_on = f"; unless a debugger has it, `kill -CONT {pids}` on its host lets it go on"
    if len(processes) > 1:
        go_on = f"; those that no debugger has go on by `kill -CONT` ({pids}) on their hosts"
    return (
        f"Find what stopped {'it' if len(processes) == 1 else 'them'}: a debugger, a scheduler or"
        f" a checkpointing tool that suspends jobs, or Ctrl-Z in a terminal{go_on * alive}."
    )


def raised(failure: Failure) -> str:
    """``ValueError: no file at loader.py:9 in load``, of a thread that an exception ended."""
    where = innermost(failure.stack)
    return failure.chain[0] + ("" if where is None else f" at {sentences.is_at(where)}")
