"""A process failed or vanished, and others depend on it: the first failure, not what follows.

What passes on that communication broke is told apart in ``analysis.process_ends``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from disttrace_viewer.analysis.mismatches import minority
from disttrace_viewer.analysis.node_rendezvous import AGENT
from disttrace_viewer.analysis.operation import Op, innermost
from disttrace_viewer.analysis.peer_addresses import end_of
from disttrace_viewer.analysis.process_ends import (
    CASCADE,
    MISSED_NS,
    OWN,
    SILENT,
    STOPPED_AGENT,
    TOGETHER_NS,
    is_closed,
)
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.wording.findings import process_failed as words


def find(case: Case) -> Iterator[Finding]:
    """The first failure of its own; failures of the same type and line are one finding.

    Others that fail by themselves later are findings of their own unless they followed from this.
    """
    left = [p for p in case.own_failures() if counts(case, p)]
    order = sorted(left + _gone(case), key=lambda p: case.evidence.ends[p].t_ns)
    while order:
        first = order[0]
        alike = [p for p in order if _alike(case, first, p)]
        yield _finding(case, first, alike)
        order = [p for p in order if p not in alike and p not in case.ends]


def counts(case: Case, process: int) -> bool:
    """An agent fails because its workers did, a parent because its children did; and an agent to
    which somebody sent a signal (Ctrl-C, scancel) says so by an exception of its own.
    """
    trace = case.evidence.trace
    mine = trace.processes[process]
    failure = case.evidence.ends[process].failure
    if mine.role == AGENT and failure is not None and failure.type == STOPPED_AGENT:
        return False
    children = {p.index for p in trace.processes if p.parent == mine.id}
    return not any(
        case.evidence.ends[c].how in (OWN, CASCADE, SILENT)
        and case.evidence.ends[c].t_ns <= case.evidence.ends[process].t_ns
        for c in children
    )


def _launchers(case: Case, processes: list[int]) -> frozenset[int]:
    """The failed agents and parents of some processes: theirs is what follows."""
    trace = case.evidence.trace
    parents = {trace.processes[p].parent for p in processes}
    return frozenset(
        p.index
        for p in trace.processes
        if p.id in parents and case.evidence.ends[p.index].how == OWN
    )


def _signature(case: Case, process: int) -> object:
    end = case.evidence.ends[process]
    where = innermost(end.asked_at if end.failure is None else end.failure.stack)
    if end.failure is None:
        return process if where is None else (end.code, where.file, where.line)
    return (end.failure.type, where and (where.file, where.line))


def _alike(case: Case, one: int, two: int) -> bool:
    """Whether two failures are one: the same error at the same line, or silent at one moment."""
    if _signature(case, one) == _signature(case, two):
        return True
    first, second = case.evidence.ends[one], case.evidence.ends[two]
    together = abs(first.t_ns - second.t_ns) <= TOGETHER_NS
    return first.how == second.how == SILENT and first.code == second.code and together


def _gone(case: Case) -> list[int]:
    """Processes that stopped without an exit record, where that was what broke the job.

    A process that others wait for in vain while its connections stay open has not ended: whatever
    ended it came later, and most often it was somebody who ended the whole job.
    """
    evidence = case.evidence
    silent = [
        i
        for i, end in enumerate(evidence.ends)
        if end.how == SILENT
        and not end.interrupted
        and (not end.told_to_end or _singled_out(case, i))
        and evidence.trace.processes[i].role != "agent"
        and i not in case.ends
    ]
    return [p for p in silent if _died(case, p, silent) and not awaited_before(case, p)]


def _singled_out(case: Case, process: int) -> bool:
    """Whether a process's launcher ended it and no other, although none had failed by itself: all
    others, each with a journal, broke when they lost it.
    """
    trace = case.evidence.trace
    others = [
        p.index
        for p in trace.processes
        if p.index != process and p.rank is not None and p.role != AGENT
    ]
    size = max((group.size or 0 for group in trace.groups if group.default), default=0)
    return (
        len(others) + 1 >= size
        and all(case.evidence.ends[p].how not in (OWN, SILENT) for p in others)
        and noticed(case, process)
    )


def _died(case: Case, process: int, silent: list[int]) -> bool:
    evidence = case.evidence
    at = evidence.ends[process].t_ns
    together = {p for p in silent if abs(evidence.ends[p].t_ns - at) <= TOGETHER_NS}
    told = evidence.trace.processes[process].told
    reported = told is not None and told.event == "failed"
    seen_dead = evidence.alive_here and evidence.seen[process].alive is False
    own = [w for w in case.waits if w.process == process and w.polled]
    own += case.of_process.get(process, ())
    if own:
        # It was waiting itself, and most often that is why somebody ended it. It broke the job
        # where others lost it soon after it had begun to wait.
        soon = all(evidence.age_ns(w.op) < evidence.stall_ns and w.op.error is None for w in own)
        return soon and (noticed(case, process, together) or reported)
    if reported or seen_dead or noticed(case, process, together):
        return True
    if len(together) > 1 and not _survivor(case, process, together):
        return False  # ended from outside, all at one time: what stood before is the verdict
    outlived = evidence.cut_ns - at > MISSED_NS
    return outlived and not _kept_open(case, process)


def noticed(case: Case, process: int, together: Set[int] = frozenset()) -> bool:
    """Whether a process that lived on lost its connection to a silent one after its last sign.

    Processes that fell silent ``together`` with it prove nothing: whoever ends a job ends one after
    the other, and the later ones lose the earlier ones first. Nor does what was lost when another
    one fell silent, much later than this one, which may have stood still until then. Nor what was
    lost after somebody timed out over it: those who time out end, and that closes connections too.
    """
    evidence = case.evidence
    at = evidence.ends[process].t_ns
    timed_out = min(
        (
            wait.op.end_ns
            for wait in case.waits
            if process in wait.targets and wait.op.end_ns and not is_closed(wait.op.error)
        ),
        default=None,
    )
    later = [
        p
        for p, end in enumerate(evidence.ends)
        if end.how == SILENT and end.t_ns - at > TOGETHER_NS and p not in together
    ]
    return any(
        op.process not in (*together, process)
        and at <= (op.end_ns or 0) <= (timed_out or op.end_ns or 0)
        and _shared(case, process, op)
        and not any(
            p != op.process
            and abs(evidence.ends[p].t_ns - (op.end_ns or 0)) <= TOGETHER_NS
            and _shared(case, p, op)
            for p in later
        )
        for op in evidence.closed
    )


def _shared(case: Case, process: int, op: Op) -> bool:
    """Whether an operation could lose a process: a member of its group, or its store's server."""
    trace = case.evidence.trace
    if op.call.group is not None:
        return any(m.process == process for m in trace.groups[op.call.group].members)
    if op.call.store is None:
        return False
    place = trace.place_by_id.get(trace.stores[op.call.store].place)
    return place is not None and (place.server == process or op.call.kind == "constructor")


def _kept_open(case: Case, process: int) -> bool:
    """Whether somebody waited for it, or in one exchange with it, for long after its last sign, on
    a backend that notices at once when a process ends, and lost no connection: then it still was
    there.
    """
    evidence = case.evidence
    at = evidence.ends[process].t_ns
    return any(
        process in (*wait.targets, *wait.arrived)
        and wait.process != process
        and (wait.op.error is None or not is_closed(wait.op.error))
        and not wait.op.on_device
        and (wait.op.end_ns or evidence.until_ns(wait.process)) - at > MISSED_NS
        for wait in case.waits
    )


def _survivor(case: Case, process: int, together: Set[int]) -> bool:
    """Whether a member of one of its groups went on for long after them."""
    evidence = case.evidence
    peers = {
        m.process
        for g in evidence.trace.groups
        for m in g.members
        if any(n.process == process for n in g.members)
    }
    at = evidence.ends[process].t_ns
    return any(
        evidence.until_ns(p) - at > MISSED_NS or not evidence.ends[p].over for p in peers - together
    )


def awaited_before(case: Case, process: int) -> bool:
    """Whether others had been waiting for it, or all others for anything, for so long that its end
    changed nothing.
    """
    evidence = case.evidence
    at = evidence.ends[process].t_ns
    stuck = [
        wait
        for wait in case.waits
        if wait.process != process and at - evidence.since_ns(wait.op) >= evidence.stall_ns
    ]
    if any(process in wait.targets for wait in stuck):
        return True
    others = {
        p.index
        for p in evidence.trace.processes
        if p.index != process
        and p.rank is not None
        and p.role != AGENT
        and not (evidence.ends[p.index].over and evidence.ends[p.index].t_ns < at - MISSED_NS)
    }
    return bool(others) and others <= {
        wait.process for wait in stuck if not wait.side or wait.polled
    }


def _finding(case: Case, first: int, alike: list[int]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    end = evidence.ends[first]
    last = evidence.last.get(first)
    sure = end.how != SILENT or end.code is not None or noticed(case, first, set(alike))
    sure = (sure or (evidence.alive_here and end.known_dead)) and not end.told_to_end
    odd = _odd_models(case, alike)
    return Finding(
        kind="process_failed",
        summary=words.summary(
            trace, alike, end_of(evidence, first), evidence.whereabouts(first), last
        ),
        certainty=CERTAIN if sure else LIKELY,
        hint=words.hint(end),
        culprits=tuple(alike) if odd is None else odd,
        op=None if last is None else last.call.op,
        locations=outside.locations(case, alike),
        at_ns=end.t_ns,
        scope=Scope(roots=frozenset(alike), members=_launchers(case, alike) | after(case, alike)),
    )


_PARAMETERS = re.compile(
    r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params"
)


def _odd_models(case: Case, alike: list[int]) -> tuple[int, ...] | None:
    """Where DDP finds models that differ, it raises on all ranks, and the texts tell each rank's
    number of parameters: those outside a strict majority. None for other failures.
    """
    counts: dict[int, int] = {}
    for process in alike:
        failure = case.evidence.ends[process].failure
        found = None if failure is None else _PARAMETERS.search(failure.text)
        if found is None:
            return None
        one, has, two, other = map(int, found.groups())
        counts |= {one: has, two: other}
    odd = minority(counts, len(counts))
    return tuple(p for p in alike if case.evidence.trace.processes[p].rank in odd)


def after(case: Case, processes: list[int]) -> frozenset[int]:
    """Members of their groups whose failure passes on that communication broke since."""
    evidence = case.evidence
    gone = set(processes)
    at = min(evidence.ends[p].t_ns for p in processes)
    peers = {
        m.process
        for g in evidence.trace.groups
        for m in g.members
        if any(n.process in gone for n in g.members)
    }
    return frozenset(
        p for p in peers - gone if evidence.ends[p].how == CASCADE and evidence.ends[p].t_ns >= at
    )
