"""Where processes are that others wait for while they are in no communication themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from disttrace_viewer.analysis.liveness import DISK, STOPPED
from disttrace_viewer.analysis.operation import frame, innermost
from disttrace_viewer.analysis.peer_addresses import words
from disttrace_viewer.analysis.process_ends import ALIVE, CLEAN, MISSED_NS, SILENT
from disttrace_viewer.findings.case import Case
from disttrace_viewer.trace.model import Location
from disttrace_viewer.wording import sentences

ASKED = "Find who should bring about what is asked for there, and what it does instead."
"""What to do about a store that is asked again and again."""


def where(case: Case, processes: Iterable[int], *, named: bool = False) -> str:
    """A clause per place: ``; rank 2 is at loader.py:9 in load, not in any collective``.

    ``named``: they were named just before, so all of them at one place are ``it`` or ``they``.
    """
    texts: dict[tuple[str, str], list[int]] = {}
    for process in processes:
        texts.setdefault((doing(case, process, many=False), doing(case, process, many=True)), [])
        texts[doing(case, process, many=False), doing(case, process, many=True)].append(process)
    clauses = []
    for (one, many), who in texts.items():
        subject = sentences.processes(case.evidence.trace, who)
        if named and len(texts) == 1:
            subject = "they" if len(who) > 1 else "it"
        clauses.append(f"{subject} {many if len(who) > 1 else one}")
    return "; " + ", ".join(clauses) if clauses else ""


def doing(case: Case, process: int, *, many: bool) -> str:
    """What a process is at that takes no part, to follow it as a subject."""
    evidence = case.evidence
    end, are = evidence.ends[process], "are" if many else "is"
    if end.over and end.how != SILENT:
        left = innermost(end.asked_at) if end.how == CLEAN else None
        at = "" if left is None else f" at {sentences.is_at(left)}"
        return f"{words(evidence, process, many=many)}{at}"
    if end.held == STOPPED:
        return f"{are} stopped (SIGSTOP, or a debugger){_at(case, process)}"
    if end.held == DISK:
        return f"{are} in uninterruptible sleep (disk, NFS or a driver){_at(case, process)}"
    newest = case.at_work(process)
    if newest is not None:
        what = sentences.operation(evidence.trace, newest)
        at = sentences.place(frame(evidence.trace, newest))
        if newest.call.kind == "store":
            return f"{'ask' if many else 'asks'} again and again ({what} at {at})"
        return f"{'communicate' if many else 'communicates'} with others ({what} at {at})"
    if evidence.stands(process) is not None:
        return f"{are}{_at(case, process)}, not in any collective"
    last = evidence.last.get(process)
    since = "" if last is None else f" since {sentences.operation(evidence.trace, last)}"
    frozen = frozen_ns(case, process)
    if frozen and evidence.trace.processes[process].heartbeat_ns is not None:
        return (
            f"{'have' if many else 'has'} been frozen for {sentences.span(frozen)}{since}: no"
            " Python ran in it (a library call that holds the GIL, or SIGSTOP)"
        )
    return f"{are} not in any collective{since}"


def _at(case: Case, process: int) -> str:
    where = case.evidence.stands(process)
    if where is None:
        return ""
    return f" at {sentences.is_at(where, case.evidence.inside(process))}"


def frozen_ns(case: Case, process: int) -> int:
    """For how long a process gave no sign of life until the last one of the others.

    A journal without definitions has no clock, and its times are no signs.
    """
    processes = case.evidence.trace.processes
    others = [p.last_ns for p in processes if not p.losses]
    silent = max(others, default=0) - processes[process].last_ns
    return silent if silent > MISSED_NS else 0


def at_work_hint(case: Case, processes: Iterable[int]) -> str:
    """What to do about those that are all at work while others wait for them."""
    newest = [op for p in processes if (op := case.at_work(p)) is not None]
    if all(op.call.kind == "store" for op in newest):
        return ASKED
    return (
        "See whether they come to it when they are through with the others: whoever waits may be"
        " ahead of them, or they passed this call over."
    )


def failed_threads(case: Case, process: int) -> Iterator[str]:
    """Exceptions that ended threads of a process whose main thread may wait for them."""
    for failure in case.evidence.trace.processes[process].failures:
        if failure.thread:
            where = innermost(failure.stack)
            at = "" if where is None else f" at {sentences.is_at(where)}"
            yield f"{failure.chain[0]}{at}"


def locations(case: Case, processes: Iterable[int]) -> tuple[Location, ...]:
    """Where they stand, or called last."""
    found = (case.evidence.whereabouts(p) for p in processes)
    return tuple(place for place in found if place is not None)


def short(location: Location) -> str:
    """``train.py:42``."""
    return f"{os.path.basename(location.file)}:{location.line}"


def alive(case: Case, process: int) -> bool:
    """Whether it may still come."""
    return case.evidence.ends[process].how == ALIVE
