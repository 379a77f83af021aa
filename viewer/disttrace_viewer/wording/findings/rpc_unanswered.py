"""A remote call is not answered: who waits for whom, and what runs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.trace.model import Location, Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import ended

RUNS = "Look at what that function does there: a lock, a loader, a call that waits for the caller."
BUSY = (
    "See whether all threads of that worker (num_worker_threads) run calls that wait, whether it is"
    " stopped, and who sets the future of a function that answers later (async_execution)."
)
WAITS = (
    "Follow what it waits in: a call that waits for its own caller, or for one who waits for it,"
    " never comes back."
)
MISSING = "Look at what those do that have not come."
ENDED = "See why that worker is gone while others still call it."


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A remote call, or an exchange of all workers."""

    wait: Wait
    who: Sequence[int]
    waited_ns: int
    to: object
    callee: int | None
    """The process that bears that name."""
    end: End | None
    """How that one ended, or that it lives."""
    running: Op | None
    """What it runs for others, or the caller where that takes its last thread."""
    begun: bool
    """Whether that may be what was called."""
    at: Frame | None
    """Where the thread that runs it stands."""
    blocked: Op | None
    """What that thread waits in."""
    around: Op | None
    """The operation in which all workers come together."""
    missing: Sequence[int]
    stands: Mapping[int, Location]
    meanwhile: Sequence[tuple[Op, Frame | None]] = ()
    """What others have run for long, and where, while these are missing."""


def summary(trace: Trace, found: Unanswered) -> str:
    """Who waits for which answer, and what becomes of it."""
    op = found.around or found.wait.op
    waited = (
        f"{sentences.have_been(trace, found.who)} waiting in {sentences.operation(trace, op)} at"
        f" {sentences.line(op)} for {sentences.span(found.waited_ns)}"
    )
    if found.around is not None:
        if found.running is not None:
            worker = trace.processes[found.running.process].label
            does = _inside(trace, found, found.running)
            return f"{waited}: all workers have come, and {worker} {does}."
        if not found.missing:
            return f"{waited}: all workers have come."
        missing = sentences.processes(trace, found.missing)
        places = [
            f"{trace.processes[p].label} is at {sentences.is_at(at)}"
            for p, at in found.stands.items()
        ]
        places += [
            f"{trace.processes[run.process].label} is inside {_function(run)}{_at(where)}, and"
            f" {missing} may wait for that"
            for run, where in found.meanwhile
        ]
        return f"{'; '.join([f'{waited}: {missing} never came', *places])}."
    return f"{waited}: {_there(trace, found)}."


def follows(trace: Trace, op: Op, wait: Wait) -> str:
    """Who waits for that in turn."""
    who = sentences.subject(trace, [wait.process])
    return f"{who} waits in {sentences.call(trace, op)}."


def _there(trace: Trace, found: Unanswered) -> str:
    if found.callee is None:
        return f"of {found.to} no journal was found"
    worker = f"{found.to} ({trace.processes[found.callee].label})"
    if found.end is not None and found.end.over and found.running is None:
        return f"{worker} {ended(found.end)}"
    if found.running is None:
        return f"{worker} has not begun it, or has answered with a future that is not set yet"
    if found.running.process != found.callee:
        caller = trace.processes[found.running.process].label
        worker = f"no thread of {caller} is free to take the answer in: it"
    elif not found.begun:
        worker += " has not begun it and"
    return f"{worker} {_inside(trace, found, found.running)}"


def _inside(trace: Trace, found: Unanswered, running: Op) -> str:
    function = _function(running)
    if found.blocked is not None:
        return f"runs {function}, which waits in {sentences.call(trace, found.blocked)}"
    return f"is inside {function}{_at(found.at)}"


def _function(running: Op) -> object:
    return running.call.args.get("func") or "it"


def _at(where: Frame | None) -> str:
    return "" if where is None else f" at {sentences.is_at(where)}"


def hint(found: Unanswered) -> str:
    """What to look at."""
    if found.missing:
        return RUNS if found.meanwhile else MISSING
    if found.blocked is not None:
        return WAITS
    if found.running is not None:
        return RUNS
    return ENDED if found.end is not None and found.end.over else BUSY
