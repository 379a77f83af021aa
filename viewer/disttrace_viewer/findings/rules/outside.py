"""Where processes are that others wait for while they are in no communication themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from disttrace.journal.format import STOPPED
from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.analysis.process_ends import ALIVE, CLEAN, MISSED_NS, SILENT, TOGETHER_NS
from disttrace_viewer.evidence.peer_addresses import end_of
from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.rules import late_arrivals
from disttrace_viewer.trace.model import Location
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording.findings import outside as words
from disttrace_viewer.wording.findings.missing_evidence import EARLY, lived
from disttrace_viewer.wording.findings.outside import Doing


def doing(
    case: Case,
    processes: Iterable[int],
    since_ns: int | None = None,
    wait: Wait | None = None,
) -> dict[int, Doing]:
    """What each of them is at, as a value for the words of a rule, while somebody waits (since
    then, or in that)."""
    return {process: _doing(case, process, since_ns, wait) for process in case.by_rank(processes)}


def _doing(case: Case, process: int, since_ns: int | None, wait: Wait | None) -> Doing:
    evidence = case.evidence
    end = evidence.ends[process]
    if end.over and end.how != SILENT:
        asked_at = innermost(end.asked_at) if end.how == CLEAN else None
        before = None if wait is None else late_arrivals.broke(case, wait, process)
        return Doing(end_of(evidence, process), asked_at, before=before)
    beats = evidence.trace.processes[process].heartbeat_ns is not None
    return Doing(
        end,
        evidence.stands(process),
        evidence.inside(process),
        newest=case.at_work(process, since_ns),
        last=case.last(process),
        lacks=evidence.trace.processes[process].lacks,
        frozen_ns=frozen_ns(case, process) if beats else 0,
    )


def frozen_ns(case: Case, process: int) -> int:
    """For how long a process gave no sign of life until the last one of the others, where that is
    longer than one that runs does.
    """
    silent = silent_ns(case, process)
    return silent if silent > MISSED_NS else 0


def silent_ns(case: Case, process: int) -> int:
    """For how long a process gave no sign of life until the last one of the others, or until the
    whole job was interrupted: who ends sooner than others by that did not fall silent.

    A journal without definitions has no clock, and its times are no signs.
    """
    evidence = case.evidence
    newest_ns = min(evidence.newest_sign_ns, evidence.interrupted_ns or evidence.newest_sign_ns)
    return newest_ns - evidence.trace.processes[process].last_ns


def at_work_hint(case: Case, processes: Iterable[int]) -> str:
    """What to do about those that are all at work while others wait for them."""
    return words.ASKED if all(asks(case, p) for p in processes) else words.COMMUNICATE


def asks(case: Case, process: int) -> bool:
    """Whether it asks a store again and again while others wait for it."""
    newest = case.at_work(process)
    return newest is not None and newest.call.kind == "store"


def stopped_hint(case: Case, processes: Sequence[int]) -> str | None:
    """What to do about those for whom others wait, where all of them are stopped: at the line
    where they stand they do nothing.
    """
    ends = [case.evidence.ends[process] for process in processes]
    if not ends or any(end.held != STOPPED for end in ends):
        return None
    alive = not any(end.over for end in ends)
    return words.stopped(case.evidence.trace, case.by_rank(processes), alive=alive)


def failed_threads(case: Case, process: int) -> Iterator[Failure]:
    """Exceptions that ended threads of a process whose main thread may wait for them."""
    return (f for f in case.evidence.trace.processes[process].failures if f.thread)


def locations(case: Case, processes: Iterable[int]) -> tuple[Location, ...]:
    """Where they stand, or called last."""
    found = (case.evidence.whereabouts(p) for p in processes)
    return tuple(place for place in found if place is not None)


def settles(case: Case, sinks: Sequence[int], *, early: bool) -> tuple[str, ...]:
    """What would make certain who does not come: whether it lived, or a longer wait."""
    silent = mute(case, sinks)
    if silent:
        return (lived(case.evidence.trace, silent),)
    return (EARLY,) if early else ()


def mute(case: Case, sinks: Sequence[int]) -> list[int]:
    """Those whose last sign of life is older than the others', without a last word, and who are
    not seen to live now: frozen, ended, or gone with their host before a connection could be
    closed.
    """
    evidence, silent = case.evidence, []
    for sink in sinks:
        if evidence.trace.processes[sink].exit is not None:
            continue  # it lived until it wrote that
        end, beats = evidence.ends[sink], evidence.trace.processes[sink].heartbeat_ns
        # A beat missed in a picture that stops soon after may be the end of one that ran by then.
        runs = end.how == ALIVE and (beats is None or evidence.seen[sink].alive)
        unknown = end.how in (ALIVE, SILENT) and not runs
        if unknown and end.held is None and silent_ns(case, sink) > TOGETHER_NS:
            silent.append(sink)
    return silent
