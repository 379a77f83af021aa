"""A key is awaited that nobody has set: who waits, what is known of the key, who might set it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.findings import late_arrivals, outside
from disttrace_viewer.wording.findings.deadlock import SET_FIRST
from disttrace_viewer.wording.findings.late_arrivals import Held
from disttrace_viewer.wording.findings.outside import ASKED, Doing
from disttrace_viewer.wording.quantities import few

SET_LATE = "Find what held it up before that call, or allow more time: the time-out of the store."
BEHIND = (
    "A TCPStore serves one call at a time: give the thread that waits a connection of its own"
    " (store.clone(), or another TCPStore), or let it poll with check()."
)
POPPED = (
    "Find who should push once more, or who pops once too often: a count, a condition on the rank,"
    " a push that was left out."
)
ONE_STORE = (
    "Give all of them one store: the same path, or the same host and port, and none that lives in"
    " one process only (HashStore)."
)
DELETED = (
    "A key that is deleted is one that was never set, to whoever comes later: delete it when all"
    " have read it (after a barrier), or leave it."
)
LOCKED = "Find why it never gives the lock back: a delete_key that was left out, or an exception."
WHO = "Find who should set this key: whoever uses this store waits in vain for who waits for it."
IN_STEP = (
    "These keys differ in a number only: see whether somebody is a step ahead or behind (a counter,"
    " an epoch, a call that was left out), and whether each sets its own key before it waits."
)
SPELLING = "Find who should set this key, and compare its spelling and its prefixes."


@dataclass(frozen=True, slots=True)
class Awaited:
    """A key that is awaited, or several in one call."""

    wait: Wait
    who: Sequence[int]
    keys: Sequence[object]
    waited_ns: int
    behind: Sequence[Wait]
    """Waits that cannot begin, since another thread's wait has the connection to the store."""
    set_by: int | None
    """Who has set it before, or pushed first."""
    pushed: int
    popped: int
    first_set: Op | None
    deleted: Op | None
    """The call that deleted it after it had been set."""
    holder: Op | None
    """The call of another process that took it for a lock."""
    near: tuple[str, int] | None
    """The key that looks most like it, and who has set that one."""
    apart: tuple[str, int] | None
    """Another store in which this very key was set, and by whom."""
    others: Mapping[int, Doing]
    """What those are at who use the store too."""
    held: Mapping[int, Held]
    able: Sequence[Wait]
    """The waits of all who could set it, where each of them waits for who waits for it."""
    series: Sequence[Wait] = ()
    """Waits for keys that differ from it in numbers only."""


def summary(trace: Trace, found: Awaited) -> str:
    """Who waits for it, for how long, and what became of it."""
    op, late = found.wait.behind or found.wait.op, dict(found.wait.lateness)
    names = " and ".join(repr(key) for key in found.keys[:3])
    who, have = sentences.subject(trace, found.who), sentences.have(found.who)
    at, age = sentences.line(op), sentences.span(found.waited_ns)
    doing = ""
    if found.others:
        doing = f"; of those who use this store{outside.where(trace, found.others)[1:]}"
    if found.wait.polled:
        near = "" if found.set_by is not None else _near(trace, found)
        if found.holder is not None:
            near = (
                f"; {trace.processes[found.holder.process].label} has it since its"
                f" {found.holder.call.op} at {sentences.line(found.holder)}, and nobody has"
                " deleted it since"
            )
        asked = f"asked for {names} again and again for {age} ({op.call.op} at {at})"
        return f"{who} {have} {asked}{near}{doing}."
    if late:
        return (
            f"{who} waited in {op.call.op} of {names} at {at} for {age} and gave up;"
            f" {sentences.processes(trace, sorted(late))} set it"
            f" {sentences.span(min(late.values()))} later"
            f"{late_arrivals.words(trace, found.held)}."
        )
    return (
        f"{who} {have} been in {op.call.op} of {names} at {at} for {age}, and"
        f" {_unset(trace, found)}{_series(trace, found)}{_behind(trace, found.behind)}"
        f"{_able(trace, found)}{doing}."
    )


def _unset(trace: Trace, found: Awaited) -> str:
    if found.set_by is None and found.apart is not None:
        name, setter = found.apart
        first = trace.processes[setter].label
        return f"nobody has set it there; {first} has set it in another store, {name}"
    if found.set_by is None:
        return "nobody has set it" + ("" if found.behind else _near(trace, found))
    first = trace.processes[found.set_by].label
    if found.pushed:
        pushed = f"all that was pushed ({found.pushed:,}, first by {first})"
        return f"{pushed} was popped ({found.popped:,})"
    if found.deleted is None or found.first_set is None:
        return f"it was deleted after {first} had set it"
    by = trace.processes[found.deleted.process].label
    return (
        f"it is gone: {first} set it at {sentences.line(found.first_set)}, and {by} deleted"
        f" it at {sentences.line(found.deleted)}"
    )


def hint(found: Awaited, *, popped: bool) -> str:
    """What to look for; ``popped``: all that was pushed was taken out."""
    wait = found.wait
    if wait.polled:
        return ASKED if found.holder is None else LOCKED
    if wait.lateness:
        return SET_LATE
    if found.behind:
        return BEHIND
    if found.deleted is not None and found.set_by is not None and not found.pushed:
        return DELETED
    if popped:
        return POPPED
    if found.series and not found.others:  # else whoever sets them all may stand there
        return IN_STEP
    return f"{WHO} {SET_FIRST}" if found.able else SPELLING


def _series(trace: Trace, found: Awaited) -> str:
    def awaited(wait: Wait) -> str:
        names = " and ".join(repr(key) for key in wait.exchange[2:5])  # type: ignore[index]
        return f"{names} ({sentences.line(wait.op)})"

    told = sentences.together((awaited(wait), wait.process) for wait in found.series)
    waits = [
        f"{sentences.processes(trace, who)} {'wait' if len(who) > 1 else 'waits'} for {names}"
        for names, who in told.items()
    ]
    return f"; {few(waits, sentences.MANY, ', ')}" if waits else ""


def _near(trace: Trace, found: Awaited) -> str:
    if found.near is None:
        return ""
    key, setter = found.near
    return f"; the nearest key that was set is {key!r}, by {trace.processes[setter].label}"


def _able(trace: Trace, found: Awaited) -> str:
    if not found.able:
        return ""
    told = sentences.together((f"in {sentences.call(trace, w.op)}", w.process) for w in found.able)
    where = [f"{sentences.processes(trace, of)} {text}" for text, of in told.items()]
    return (
        f"; all others who use this store wait for {sentences.processes(trace, found.who)}"
        f" themselves: {sentences.listed(where)}"
    )


def _behind(trace: Trace, behind: Sequence[Wait]) -> str:
    calls = sentences.together(((w.op.call.op, sentences.line(w.op)), w.process) for w in behind)
    shown = [f"{op} of {sentences.processes(trace, who)} ({at})" for (op, at), who in calls.items()]
    if not shown:
        return ""
    return (
        "; meanwhile that thread has its process's connection to the store, behind which"
        f" {sentences.listed(shown)} {'stand' if len(shown) > 1 else 'stands'}"
    )
