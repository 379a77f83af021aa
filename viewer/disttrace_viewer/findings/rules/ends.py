"""Ends that no other rule explains: by SIGINT from outside, before torch was used, over others that
left no word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from disttrace.journal.format import EXEC
from disttrace_viewer.analysis.liveness import signal_name
from disttrace_viewer.analysis.process_ends import (
    CASCADE,
    CLEAN,
    MISSED_NS,
    OWN,
    SILENT,
    STOPPED_AGENT,
)
from disttrace_viewer.analysis.sample import frame
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding, Scope, why
from disttrace_viewer.findings.rules import outside, process_failed
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.operation import Op, is_time_out
from disttrace_viewer.trace.process import Failure, Worker
from disttrace_viewer.trace.values import dataclass, together
from disttrace_viewer.wording import sentences


def find_interrupted(case: Case) -> Iterator[RuleFinding]:
    """A note where the whole job was interrupted; an error where ranks were, and others were not.

    A rank that others had been waiting for when it was interrupted broke nothing by that.
    """
    found = [i for i, end in enumerate(case.ends) if end.interrupted]
    if case.evidence.interrupted_ns is None:
        broke = [p for p in found if not case.witnesses.awaited_before(p)]
        if broke and len(case.trace.processes) > 1:
            yield _interrupted(case, broke, whole=False)
        return
    # Which of its ranks seem to have lived until then depends on when they last wrote anything.
    stopped = [i for i in found if any(map(_stopped, case.trace.processes[i].failures))]
    ranks = [i for i in found if not case.trace.processes[i].is_agent]
    if found:
        yield _interrupted(case, stopped or ranks or found, whole=True)


def _stopped(failure: Failure) -> bool:
    """Whether it is torchrun's word of the signal that it got."""
    return failure.type == STOPPED_AGENT


def _interrupted(case: Case, who: list[int], *, whole: bool) -> RuleFinding:
    evidence, trace = case.evidence, case.trace
    first = min(who, key=lambda p: evidence.ends[p].t_ns)
    texts = (f.text for p in trace.processes for f in filter(_stopped, p.failures))
    torchrun, where = (next(texts, None), None) if whole else (None, evidence.whereabouts(first))
    were = "were" if len(who) > 1 else "was"
    reported = "SIGINT" if torchrun is None else f"torchrun: {torchrun}"
    at = "" if where is None else f" at {sentences.is_at(where)}"
    then = "; what ranks report after that follows from it" if whole else ""
    return RuleFinding(
        kind="process_failed",
        severity=NOTE if whole else ERROR,
        summary=f"{sentences.subject(trace, who)} {were} interrupted from outside"
        f" ({reported}){at}{then}.",
        hint="Ctrl-C was pressed, or something sent the signal: a shell, a scheduler, a"
        " notebook. The verdict is the state before it.",
        waiting=(),
        at_ns=evidence.ends[first].t_ns,
        locations=outside.locations(case, who),
        scope=Scope() if whole else Scope.of(roots=who, members=case.witnesses.broke_after(who)),
    )


def find_orphaned(case: Case) -> Iterator[RuleFinding]:
    """One note per launcher that was seen to be gone, and gave no word of an end."""
    trace, evidence = case.trace, case.evidence
    for launcher in trace.processes:
        end, gone_ns = evidence.ends[launcher.index], evidence.seen[launcher.index].gone_ns
        if not launcher.is_agent or end.how != SILENT or end.interrupted or not gone_ns:
            continue
        left = [
            p
            for p in trace.children.get(launcher.id, ())
            if trace.processes[p].rank is not None
            and trace.processes[p].last_ns > gone_ns + MISSED_NS
        ]
        if left:
            yield RuleFinding(
                kind="process_failed",
                severity=NOTE,
                summary=f"{sentences.subject(trace, [launcher.index])}"
                f" {sentences.ended(end, surely=True)}, and {sentences.processes(trace, left)}"
                " lived on.",
                hint="No launcher restarts these ranks, or ends them with the rest of the job: end"
                " them by hand if they hold ports or devices still.",
                at_ns=gone_ns,
            )


def find_unseen(case: Case) -> Iterator[RuleFinding]:
    """One finding per way to end in a launcher's last attempt, by time. After how an earlier one
    ended its launcher has begun anew; and live the journals of those who had ended long before the
    last attempt began are left out, so it cannot be told there that they have none.
    """
    last = {
        p.index: max((w.attempt or 0 for w in p.workers), default=0) for p in case.trace.processes
    }
    alike = together(
        ((attempt, one.worker.code, one.sure), one)
        for (attempt, _), one in unseen_of(case.trace).items()
        if one.worker.event == FAILED and (attempt or 0) == last[one.launcher]
    )
    for found in sorted(alike.values(), key=lambda each: min(one.worker.t_ns for one in each)):
        yield _unseen(case, found)


def _unseen(case: Case, found: list[Unseen]) -> RuleFinding:
    ranks = sorted({one.rank for one in found})
    errors = {one.worker.error.partition("\n")[0] for one in found if one.worker.error}
    error = f": {next(iter(errors))}" if len(errors) == 1 else ""
    first, sure = found[0].worker, found[0].sure
    how = words(first, sure=sure, many=len(ranks) > 1)
    stderr = "what it wrote on stderr"
    hint = f"Read {stderr}, which is not recorded: nothing is traced before torch is imported."
    if (first.code or 0) < 0:
        hint = f"{process_failed.look_for(first.code)}, and at {stderr}, which is not recorded."
    elif not sure:
        hint = f"Read {stderr}, and collect its journal if there is one."
    stopped = {
        p.index
        for p in case.trace.processes
        if p.attempt == first.attempt and p.reported is not None and p.reported.event == "killed"
    }
    return RuleFinding(
        kind="process_failed",
        summary=f"{sentences.capital(sentences.ranks(ranks))} {how}{error}.",
        because=why((not sure, sentences.NO_JOURNAL)),
        hint=hint,
        absent_ranks=tuple(ranks),
        at_ns=min(one.worker.t_ns for one in found),
        scope=Scope.of(absent=ranks, members={one.launcher for one in found} | stopped),
        settles=() if sure else (outside.journals(ranks),),
    )


STARTED, KILLED, FAILED, EXITED = "started", "killed", "failed", "exited"


def words(worker: Worker, *, sure: bool, many: bool = False) -> str:
    """``ended with exit code 1 before it used torch.distributed``; ``sure``: that is known."""
    if worker.event == STARTED:
        return f"was started (pid {worker.pid}) and has no journal yet"
    how = "ended"
    if worker.code is not None and worker.code < 0:
        how = f"ended by {signal_name(worker.code)}"
    elif worker.code is not None:
        how = f"ended with exit code {worker.code}"
    if sure and worker.event == KILLED:
        return (
            f"was started (pid {worker.pid}) and had not used torch.distributed until its launcher"
            " ended it"
        )
    if sure:
        return f"{how} before {'they' if many else 'it'} used torch.distributed"
    return f"{how}, and no journal of {'them' if many else 'it'} was found"


@dataclass(frozen=True, slots=True)
class Unseen:
    """A launched process without a journal, by the last that its launcher wrote of it."""

    launcher: int
    rank: int
    worker: Worker
    joined: bool
    """Others have it in their default group, so it did have a journal, or was not traced."""

    @property
    def sure(self) -> bool:
        """Whether it is known that it used nothing that would have been recorded."""
        return not (self.worker.left_journal or self.joined)


def unseen_of(trace: JobTrace) -> Mapping[tuple[int | None, int], Unseen]:
    """By attempt and rank."""
    known = {(p.parent, p.pid) for p in trace.processes}
    ranks = {(p.attempt, p.rank) for p in trace.processes if p.rank is not None}
    joined = {
        group.global_rank(member) if group.ranks else member
        for group in trace.groups
        if group.default
        for member in group.missing
    }
    found: dict[tuple[int | None, int], Unseen] = {}
    for process in trace.processes:
        for worker in process.workers:
            key = worker.attempt, worker.rank or 0
            if worker.rank is None or (process.id, worker.pid) in known or key in ranks:
                continue
            if worker.rank in trace.elsewhere:
                continue
            found[key] = Unseen(process.index, worker.rank, worker, worker.rank in joined)
    return found


def find_unexplained(case: Case) -> Iterator[RuleFinding]:
    """One finding per attempt in which something failed and nothing else was found."""
    reported = {
        case.trace.processes[p].attempt
        for f in case.findings
        if f.severity == ERROR
        for p in (*f.culprits, *f.waiting, *f.scope.roots, *f.scope.members)
    }
    if any(f.severity == ERROR for f in case.findings) and not reported:
        return  # about ranks of which there is no process
    left = together(
        (attempt, process)
        for process, end in enumerate(case.ends)
        if (attempt := case.trace.processes[process].attempt) not in reported
        and end.how in (OWN, CASCADE)
        and process not in case.end_owner
        and process_failed.counts(case, process)  # and does not only report its children's end
    )
    for failed in left.values():
        yield _unexplained(case, sorted(failed, key=lambda p: case.ends[p].t_ns))


def _unexplained(case: Case, failed: list[int]) -> RuleFinding:
    place = {process: number for number, process in enumerate(failed)}
    broken = [op for op in case.evidence.given_up if op.process in place]
    broken.sort(key=lambda op: place[op.process])
    left = _left(case, broken)
    server = None if left else _ended_server(case, failed)
    gave_up = server is None and not left and all(is_time_out(op.error) for op in broken)
    gave_up = gave_up and bool(broken)
    # One that became another program never comes to an end of what it was, as one does that has
    # ended well, perhaps after all that it was to do.
    turned = () if server is None or case.ends[server].exit_word != EXEC else (server,)
    return RuleFinding(
        kind="process_failed",
        summary=summary(case, failed, broken, server, left, gave_up),
        because=(sentences.NOTHING_ELSE,),
        hint=hint(server, left, gave_up=gave_up),
        culprits=turned or tuple(case.by_rank(op.process for op in left)),
        waiting=tuple(failed),
        op=broken[0].call.op if broken else None,
        locations=case.evidence.locations([*broken, *left]),
        at_ns=case.ends[failed[0]].t_ns,
        scope=Scope.of(members=failed),
    )


def _left(case: Case, broken: Sequence[Op]) -> list[Op]:
    """What those did not wait for who ended well before others lost contact in that exchange."""
    found: dict[int, Op] = {}
    for op in broken:
        for other in case.sample.partners(op):
            end, seen = case.ends[other.process], other.call.origin != "c++" and not other.on_device
            if other.underway and seen and end.how == CLEAN and end.t_ns <= (op.end_ns or 0):
                found.setdefault(other.process, other)
    return [*found.values()]


def _ended_server(case: Case, failed: list[int]) -> int | None:
    """The process that served the failed ones' store and ended well before they failed."""
    first = min(case.ends[p].t_ns for p in failed)
    for place in case.trace.places:
        server = place.server
        if server is None or server in failed or not set(place.processes) & set(failed):
            continue
        if case.ends[server].how == CLEAN and case.ends[server].t_ns <= first:
            return server
    return None


Ops = Sequence[Op]


def summary(
    case: Case, failed: Sequence[int], broken: Ops, server: int | None, left: Ops, gave_up: bool
) -> str:
    """How they failed, and in which operations; why, by ``server``, ``left`` or ``gave_up``."""
    evidence, trace = case.evidence, case.trace
    alike = together((sentences.ended(end_of(evidence, process)), process) for process in failed)
    text = "; ".join(
        f"{sentences.processes(trace, who)}"
        f" {sentences.ended(end_of(evidence, who[0]), many=len(who) > 1)}"
        for who in list(alike.values())[:3]
    )
    inside = dict.fromkeys(
        f"{sentences.operation(trace, op)}{sentences.aside(frame(op))}" for op in broken
    )
    where = f" in {sentences.listed(list(inside)[:3])}" if inside else ""
    what = "gave up" if gave_up else "lost contact"
    cause = f"no journal says who {'did not come' if gave_up else 'or what broke it'}"
    if server is not None:
        label, how = trace.processes[server].label, sentences.ended(end_of(evidence, server))
        cause = f"the store that they use was served by {label}, which {how} before"
    if left:
        cause = sentences.listed(
            [
                f"{trace.processes[op.process].label} had ended before without waiting for its"
                f" {sentences.call(trace, op)}"
                for op in left[: sentences.MANY]
            ]
        )
    return f"{sentences.subject(trace, failed)} {what}{where}, and {cause}: {text}."


def hint(server: int | None, left: Sequence[Op], *, gave_up: bool) -> str:
    """What to do about who ended too early, or what to look for."""
    if left:
        return (
            "Wait for asynchronous work before the process ends (`for work in works: work.wait()`):"
            " what is under way then is lost with it."
        )
    if gave_up:
        return (
            "See who comes there only after the time-out (`timeout=`; 0 gives up at once), and what"
            " keeps it; else look at the network between the hosts."
        )
    if server is not None:
        return (
            "Keep the process that serves the store (rank 0) until all others are done: a barrier"
            " before it leaves."
        )
    return (
        "Look for a process that ended without a journal, for the network between the hosts, and at"
        " the first line of each rank's own output."
    )
