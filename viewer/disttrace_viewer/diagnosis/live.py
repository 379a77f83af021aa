"""What of a verdict counts while the job runs: what holds up a rank now, and not what is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.analysis.sample import frame
from disttrace_viewer.evidence.wait import RENDEZVOUS
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, ERROR, WARNING, RuleFinding
from disttrace_viewer.findings.rules.communicator_creation import is_creation, is_start
from disttrace_viewer.findings.rules.downgraded import ABOUT_WAITS, is_waiting
from disttrace_viewer.trace.operation import GROUPED, Op
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.wording import sentences

HABIT = 2
"""Who has waited at a place for so long before is given as many times that."""
ASKS = -1
"""In place of an operation's number where one waits by asking, each time in another one."""

PATIENCE_S, OF_PATIENCE = 3.0, 0.3
"""So long beyond the limit, at most (and that part of it), one waits for answers of others."""
SOONEST_S, AGAIN_S = 0.3, 0.5
"""Until the next look, at least; and where something is about to be known."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What is to be reported now."""

    errors: list[RuleFinding]
    """By which a rank has stood still for the limit."""
    notes: list[RuleFinding]
    """Where there is none: who is starting, else who waits while all others get on."""
    starting: bool
    creating: bool
    """A communicator is being made: none is ended meanwhile."""
    waiting: bool
    """A rank waits, however long."""
    next_s: float
    """Until the next look."""

    def signature(self, case: Case) -> list[list[Any]]:
        """Tells one picture from another; empty where nothing is stalled."""
        return [
            [f.kind, _ids(case, f.culprits or f.scope.roots), f.group, f.seq, f.key]
            for f in self.errors
        ]

    def noted(self, case: Case) -> list[Any]:
        """Tells one picture of notes from another; ranks that come are not listed one by one."""
        if self.starting:
            return [f.kind for f in self.notes]
        return sorted([f.kind, _ids(case, f.waiting)] for f in self.notes)


def picture(
    case: Case,
    findings: Sequence[RuleFinding],
    limit_s: float,
    *,
    unknown: Sequence[int],
    asks: bool,
    looked_into: bool,
) -> Picture:
    """What of the findings counts now. ``unknown``: ranks of which nothing is known, though others
    may be about to answer where a rank ``asks``; ``looked_into``: devices and links are about to
    tell whether the stall is theirs.
    """
    ages = ages_s(case)
    starts = [f for f in findings if is_start(f)]
    counting = stalled(case, findings, limit_s)
    working = [f for f in counting if f.severity == WARNING]
    errors = [f for f in counting if f.severity == ERROR]
    rest = [limit_s - age for age in ages if age < limit_s]
    if looked_into and any(f.kind == "no_progress" for f in errors):
        rest.append(AGAIN_S)
        errors = []
    if unknown:
        patience = limit_s + min(OF_PATIENCE * limit_s, PATIENCE_S)
        if asks and (wait := patience - max(ages, default=patience)) > 0:
            rest.append(min(wait, AGAIN_S))
            errors = []
        else:
            # Where none waits any more, the others gave up and one lives on.
            unseen = [] if starts or working else longest(case, unknown)
            # Those come first that hold whatever unknown ranks did: in a call, or missing there.
            sure = [
                f for f in errors if f.culprits or (f.certainty == CERTAIN and not f.absent_ranks)
            ]
            errors = sure or unseen or errors
    waits = [*working, *(f for f in findings if is_waiting(f))]
    notes = [] if errors else starts or waits
    return Picture(
        errors=errors,
        notes=notes,
        starting=bool(starts),
        creating=any(map(is_creation, findings)),
        waiting=bool(ages),
        next_s=max(SOONEST_S, min(rest, default=limit_s)),
    )


def _ids(case: Case, processes: Iterable[int]) -> list[str]:
    return sorted(case.trace.processes[i].id for i in processes)


def living(case: Case) -> list[Process]:
    """Processes that run, as far as is known."""
    ends = case.ends
    return [p for p in case.trace.processes if ends[p.index].how == ALIVE or ends[p.index].lingers]


def workers(case: Case) -> set[int]:
    """Those of them that launch no others."""
    return {process.index for process in living(case) if not process.is_agent}


def _waits(case: Case) -> Iterator[tuple[Op, int]]:
    """What a rank waits in, with its number, or asks for again and again; not where it gave up."""
    yield from ((op, op.number) for op in case.evidence.blocking if op.error is None)
    yield from ((wait.op, ASKS) for wait in case.waits if wait.polled)


def ages_s(case: Case) -> list[float]:
    """For how many seconds each has waited."""
    return [case.evidence.age_ns(op) / 1e9 for op, _ in _waits(case)]


def open_waits(case: Case) -> set[tuple[str, int]]:
    """Process (its id) and operation number of all that wait."""
    return {(case.trace.processes[op.process].id, number) for op, number in _waits(case)}


def waits_of(case: Case, errors: Sequence[RuleFinding]) -> set[tuple[str, int]]:
    """The same of the waits that findings are about."""
    found, processes = {i for one in errors for i in one.waiting}, case.trace.processes
    return {
        (processes[w.process].id, ASKS if w.polled else w.op.number)
        for w in case.waits
        if w.process in found and (w.polled or w.holds)
    }


def gave_up(case: Case, reported: Collection[tuple[str, int]]) -> bool:
    """Whether some of those waits ended by an error, and their processes communicated no more."""
    newest = {op.process: op.number for op in case.sample.of_kind(*GROUPED)}
    processes = case.trace.processes
    return any(
        (processes[op.process].id, op.number) in reported and newest.get(op.process, 0) <= op.number
        for op in case.evidence.given_up
    )


def stalled(case: Case, findings: Iterable[RuleFinding], limit_s: float) -> list[RuleFinding]:
    """The errors by which a rank has stood still for the limit, and the warnings by which it waited
    for ranks that are at work.

    The one that was quiet for so long may have been so before it began to wait. Where none waits,
    and all that a finding is about is over, nothing stands still: a launcher sees to those that
    failed, and may have started them anew. What holds up the living comes before why an earlier
    attempt failed, and while those of a later attempt only start nothing is reported of that at
    all.
    """
    ages, alive = ages_s(case), workers(case)
    if max(ages, default=limit_s) < limit_s:
        return []
    found = [
        f
        for f in findings
        if (f.severity == ERROR or (f.severity == WARNING and f.kind in ABOUT_WAITS))
        and not _habitual(case, f)
        and (ages or not alive.isdisjoint((*f.culprits, *f.waiting)))
    ]
    if all(_of_earlier_attempt(case, f, alive) for f in found):
        return []
    return sorted(found, key=lambda f: alive.isdisjoint((*f.culprits, *f.waiting)))


def _of_earlier_attempt(case: Case, finding: RuleFinding, alive: set[int]) -> bool:
    """Whether all that it is about is over, and the living are of a later attempt."""
    concerned = {*finding.culprits, *finding.waiting}
    if not concerned or not alive or not alive.isdisjoint(concerned):
        return False
    last = max(-1 if (n := case.trace.processes[i].attempt) is None else n for i in concerned)
    return all((case.trace.processes[i].attempt or 0) > last >= 0 for i in alive)


def _habitual(case: Case, finding: RuleFinding) -> bool:
    """Whether all have waited there for about as long before (a checkpoint); none gave up."""
    of = [case.of_process[p][0] for p in finding.waiting if case.of_process.get(p)]
    return bool(of) and all(
        w.op.error is None and case.evidence.age_ns(w.op) < HABIT * case.evidence.longest_ns(w.op)
        for w in of
    )


def longest(case: Case, unknown: Sequence[int]) -> list[RuleFinding]:
    """Who has waited longest, if any. ``unknown``: ranks of which nothing is known."""
    evidence, trace = case.evidence, case.trace
    waiting = [w for w in case.waits if w.holds and case.old(w)]
    if not waiting:
        return []
    # Those who start stand in constructors of a store or of a group, in one call of the program.
    calls = [evidence.top(w.op) if w.kind == RENDEZVOUS else w.op for w in waiting]
    first = min(calls, key=lambda op: op.begin_ns)
    alike = [op for op in calls if (op.call.op, op.seq) == (first.call.op, first.seq)]
    who = sorted({op.process for op in alike})
    group = trace.group_of(first.call)
    members = None if group is None or group.ranks is None else {*group.ranks}
    missing = [r for r in unknown if members is None or r in members] or unknown
    where = frame(first)
    at = "" if where is None else f" at {sentences.is_at(where)}"
    return [
        RuleFinding(
            kind="no_progress",
            because=(sentences.NO_JOURNAL,),
            summary=f"{sentences.have_been(trace, who, within=first.call.group)} waiting in"
            f" {sentences.operation(trace, first)}{at} for"
            f" {sentences.span(max(map(evidence.age_ns, alike)))}; {sentences.ranks(missing)} may"
            " be missing there.",
            waiting=tuple(who),
            group=trace.group_id(first.call),
            seq=first.seq,
        )
    ]
