"""Where processes are that others wait for while they are in no communication themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from disttrace.journal.format import STOPPED
from disttrace_viewer.analysis.process_ends import ALIVE, CLEAN, MISSED_NS, SILENT, TOGETHER_NS
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.evidence.recorded import DRAINING
from disttrace_viewer.evidence.wait import Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, WARNING, RuleFinding
from disttrace_viewer.findings.rules import late_arrivals
from disttrace_viewer.trace.model import CodeLocation, JobTrace
from disttrace_viewer.trace.operation import SYNCHRONIZING, Op
from disttrace_viewer.trace.process import ATTACHED, DUMPED, JOURNAL, Failure, Unreduced
from disttrace_viewer.trace.values import replace, together
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import parameters


def frozen_ns(case: Case, process: int) -> int:
    """For how long it gave no sign of life while others did, if longer than one that runs."""
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


def asks(case: Case, process: int) -> bool:
    """Whether it asks a store again and again while others wait for it."""
    newest = case.at_work(process)
    return newest is not None and newest.call.kind == "store"


def stopped_hint(case: Case, processes: Sequence[int]) -> str | None:
    """What to do where all that others wait for are stopped: the line where they are is idle."""
    ends = [case.ends[process] for process in processes]
    if not ends or any(end.held != STOPPED for end in ends):
        return None
    pids = " ".join(str(case.trace.processes[p].pid) for p in case.by_rank(processes))
    go_on = f"; unless a debugger has it, `kill -CONT {pids}` on its host lets it go on"
    if len(processes) > 1:
        go_on = f"; those that no debugger has go on by `kill -CONT` ({pids}) on their hosts"
    if any(end.over for end in ends):
        go_on = ""
    return (
        f"Find what stopped {'it' if len(processes) == 1 else 'them'}: a debugger, a scheduler or"
        f" a checkpointing tool that suspends jobs, or Ctrl-Z in a terminal{go_on}."
    )


def failed_threads(case: Case, process: int) -> Iterator[Failure]:
    """Exceptions that ended threads of a process whose main thread may wait for them."""
    return (f for f in case.trace.processes[process].failures if f.thread)


def locations(case: Case, processes: Iterable[int]) -> tuple[CodeLocation, ...]:
    """Where they stand, or called last."""
    found = (case.evidence.whereabouts(p) for p in processes)
    return tuple(place for place in found if place is not None)


def settles(case: Case, sinks: Sequence[int], *, early: bool) -> tuple[str, ...]:
    """What would make certain who does not come: whether it lived, or a longer wait."""
    silent = unresponsive(case, sinks)
    if silent:
        who = sentences.processes(case.trace, silent)
        return (f"see whether {who} still lived then (the host's log, dmesg)",)
    return (EARLY,) if early else ()


def unresponsive(case: Case, sinks: Sequence[int]) -> list[int]:
    """Those whose last sign of life is older than the others', without a last word, and who are not
    seen to live now: frozen, ended, or gone with their host."""
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


POLLED_HINT = "Find the rank that should set what is polled there, and what it does instead."
"""What to do about a store that is polled."""


def where(
    case: Case,
    processes: Iterable[int],
    *,
    since_ns: int | None = None,
    wait: Wait | None = None,
    named: bool = False,
) -> str:
    """A clause per place: ``; rank 2 is at loader.py:9 in load, not in any collective``.

    What each of them is at while a rank waits (since then, or in that). ``named``: they were named
    just before, so all of them at one place are ``it`` or ``they``.
    """
    said = ((p, _doing(case, p, since_ns, wait, many=False)) for p in case.by_rank(processes))
    alike = together((doing, process) for process, doing in said)
    clauses = []
    for who in alike.values():
        many = len(who) > 1
        subject = sentences.processes(case.trace, who)
        if named and len(alike) == 1:
            subject = "they" if many else "it"
        clauses.append(f"{subject} {_doing(case, who[0], since_ns, wait, many=many)}")
    return "; " + ", ".join(clauses) if clauses else ""


def _doing(case: Case, process: int, since_ns: int | None, wait: Wait | None, *, many: bool) -> str:
    end = case.ends[process]
    are, at = "are" if many else "is", ""
    if end.over and end.how != SILENT:
        asked_at = innermost(end.asked_at) if end.how == CLEAN else None
        at = "" if asked_at is None else f" at {sentences.is_at(asked_at)}"
        seen = None if wait is None else late_arrivals.broke(case, wait, process)
        before = ""
        if seen is not None:
            verb = "were" if many else "was"
            before = f"{verb} last seen at {sentences.is_at(seen)} until they gave up, and "
        return f"{before}{sentences.ended(end_of(case.evidence, process), many=many)}{at}"
    stands = case.evidence.stands(process)
    if stands is not None:
        at = f" at {sentences.is_at(stands, case.evidence.inside(process))}"
    if end.held is not None:
        return f"{are} {sentences.HELD[end.held]}{at}"
    newest, last = case.at_work(process, since_ns), case.last(process)
    if newest is not None:
        what = f"{sentences.operation(case.trace, newest)} at {sentences.line(newest)}"
        if newest.call.kind == "store":
            return f"{'ask' if many else 'asks'} again and again ({what})"
        return f"{'communicate' if many else 'communicates'} with others ({what})"
    if at and last is not None and last.call.op == DRAINING:
        return f"{are}{at}, after {DRAINING} at {sentences.line(last)}"
    if at:
        return f"{are}{at}, {sentences.NOWHERE}"
    since = "" if last is None else f" since {sentences.operation(case.trace, last)}"
    one = case.trace.processes[process]
    have, they = ("have", "they") if many else ("has", "it")
    if "position" in one.lacks:
        message = f"; {they} may be in a send or receive" if "messages" in one.lacks else ""
        return (
            f"{have} enqueued nothing{since}, and where {they} {are}, this evidence does not"
            f" hold{message}"
        )
    still_ns = 0 if one.heartbeat_ns is None else frozen_ns(case, process)
    if still_ns:
        return (
            f"{have} been frozen for {sentences.span(still_ns)}{since}: no Python ran in it (a"
            " library call that holds the GIL, or SIGSTOP)"
        )
    return f"{are} {sentences.NOWHERE}{since}"


def raised(failure: Failure) -> str:
    """``ValueError: no file at loader.py:9 in load``, of a thread that an exception ended."""
    where = innermost(failure.stack)
    return failure.chain[0] + ("" if where is None else f" at {sentences.is_at(where)}")


RECORDED = frozenset({"op_mismatch", "shape_mismatch", "dtype_mismatch", "size_mismatch"})
"""Kinds that rest on what stands in records."""
OF_ENDS = frozenset({"straggler", "late_sender", "unwaited_work"})
"""Kinds that rest on when, or whether, operations ended."""
OF_ABSENCE = frozenset({"missing_participant", "unmatched_send", "unmatched_recv"})
"""Kinds about a rank that did not come, which takes time to be true."""
OF_TIME = OF_ABSENCE | {"deadlock"}
"""Kinds of which it has to be known that the evidence of all is of one moment."""


def without_gradients(case: Case, finding: RuleFinding, inside: Iterable[Op]) -> RuleFinding:
    """The finding, where DDP reduces in ``inside`` what another rank had no gradients of."""
    trace, lacking = case.trace, dict[int, Unreduced]()

    def reduced(ops: Iterable[Op]) -> dict[str | None, list[Op]]:
        ops = (op for op in ops if (op.call.origin, op.call.op) == ("c++", "all_reduce"))
        return together((trace.group_id(op.call), op) for op in ops)

    came = reduced(inside)
    here = {(op.process, group) for group, ops in came.items() for op in ops}
    for p, process in enumerate(trace.processes) if came else ():
        kept = reduced(case.sample.of_process.get(p, ()))
        in_pass = any("/torch/autograd/" in frame.file for frame in case.evidence.stack(p))
        for one in process.unreduced:
            over = not in_pass and (p, one.group) not in here
            since = max((op.begin_ns for op in kept.get(one.group, ())), default=0)
            if one.group in came and (one.settled or (over and one.t_ns >= since)):
                lacking |= {p: one} if one.parameters else {}
    if not lacking:
        return finding
    reported = (
        f" {sentences.subject(trace, [p])} has not reduced bucket {one.bucket:,} of the model"
        f"{'' if (at := innermost(one.stack)) is None else f' ({sentences.place(at)})'}: no"
        f" gradient of {parameters(one.parameters)} in backward pass {one.changes:,}."
        for p, one in lacking.items()
    )
    return replace(
        finding,
        summary=finding.summary + "".join(reported),
        parameters=tuple((p, one.parameters) for p, one in lacking.items()),
        culprits=(*lacking, *sorted({*finding.culprits} - {p for p, _ in here} - {*lacking})),
        hint="Look for a branch that leaves these out (on the rank, on the data, an expert without"
        " tokens): DistributedDataParallel allows it with find_unused_parameters=True only.",
    )


def downgraded(case: Case, finding: RuleFinding) -> RuleFinding | None:
    """The finding as far as the evidence bears it; None where it bears nothing of it."""
    concerned = {*finding.culprits, *finding.waiting, *finding.scope.roots, *finding.scope.members}
    of = [p for p in concerned if case.trace.processes[p].source != JOURNAL]
    if not of:
        return finding
    if finding.kind in OF_ENDS and not case.knows("ends", of):
        return None
    if finding.kind == "missing_participant" and _came_later(case, finding):
        return None
    recorded = finding.kind in RECORDED or finding.device
    if not recorded or not all(case.knows(what, of) for what in ("order", "rank")):
        finding = finding.doubted(sentences.OTHER_TOOLS)
    if not case.knows("rank", of):
        finding = finding.doubted(sentences.NUMBERED)
    if finding.kind not in OF_TIME:
        return finding
    unheard = finding.kind in OF_ABSENCE and not case.knows("messages", of)
    if unheard and (len(finding.culprits) > 1 or _others_away(case)):
        finding = replace(finding, culprits=())  # it may be in a receive from another one
    if case.knows("stood", of):
        return finding
    if case.knows("occasion", of):
        # Without a hang there would be no dump.
        dated = (
            "copy the dumps with their times (cp -p, rsync -t, tar): they tell whether anything"
            " still moved when they were made"
        )
        return replace(finding, severity=WARNING, settles=(*finding.settles, dated))
    return replace(finding, severity=NOTE, hint=TIMES)


def worded(case: Case, finding: RuleFinding) -> RuleFinding:
    """The finding in the words of what was read: where no journal was, none is spoken of."""
    if any(process.source == JOURNAL for process in case.trace.processes):
        return finding
    summary = finding.summary.replace("no journal", "nothing")
    hint = finding.hint and finding.hint.replace("journals", "files")
    settles = tuple(one.replace("journals", "files") for one in finding.settles)
    because = tuple(one.replace("is no journal", "is nothing") for one in finding.because)
    return replace(finding, summary=summary, hint=hint, settles=settles, because=because)


def _others_away(case: Case) -> bool:
    """Whether ranks wait for more than one that is in nothing recorded, or left no dump."""
    dumped = [p.index for p in case.trace.processes if p.source == DUMPED]
    awaited = [p for p in dumped if case.outside(p) and case.holds_up(p)]
    absent = {rank for wait in case.waits for rank in wait.absent}
    return bool(dumped) and len(awaited) + len(absent) > 1


def _came_later(case: Case, finding: RuleFinding) -> bool:
    """Whether one is through with what needs all: then the missing were dumped before it."""
    for wait in case.waits:
        if wait.exchange not in finding.scope.exchanges or wait.stream is None:
            continue
        if wait.op.call.op in SYNCHRONIZING and wait.op.seq is not None:
            members = case.sample.members(wait.stream, wait.op.seq).values()
            return any(one.status == "ok" for one in members)
    return False


def what_stays_open(case: Case, findings: Sequence[RuleFinding]) -> tuple[str, ...]:
    """What of the verdict stays open."""
    reported = {p for f in findings if f.severity != NOTE for p in f.waiting}
    waiting = {wait.process for wait in case.open()} - reported
    noted = {p for f in findings if f.severity == NOTE for p in f.waiting}
    if (waiting | noted) & case.evidence.timeless:
        return (TIMELESS,)
    processes = case.trace.processes
    if any(finding.severity != NOTE for finding in findings):
        return ()
    sources = {p.source for p in processes if p.source == "log" or "since" in p.lacks}
    if not (case.evidence.last or case.evidence.runs or any(p.exit for p in processes)):
        sources |= {p.source for p in processes if p.source == JOURNAL}
    undecided = tuple(UNDECIDED[one] for one in sorted(sources & UNDECIDED.keys()))
    # What dumps by which nothing is wrong cannot have reported.
    if any(p.source != DUMPED for p in processes):
        return undecided
    if all("arguments" in p.lacks for p in processes):
        return ("the dumps hold no operation, so where the ranks are is not known.", *undecided)
    unheard = "gloo's recorder keeps no sends and receives: a rank may be in one, or anywhere else."
    return (unheard, *undecided) if any("messages" in p.lacks for p in processes) else undecided


EARLY = "let it hang for longer before ending it: all was ended after a short wait"
"""Of a wait that was cut off so soon that it may have been about to end."""


TIMES = (
    "Copy dumps with their times (cp -p, rsync -t, tar), and run ncclras twice, some seconds apart,"
    " to tell a stall from a moment of a job that makes progress."
)
TIMELESS = (
    "for how long ranks have waited is not known (files were copied or changed since, or it is one"
    " output of ncclras): the missing may have been on their way."
)


UNDECIDED = {
    "log": "this log does not show why the job ended, nor that it ended well",
    JOURNAL: "no operation was recorded and no process saw its own end, so how far the job came is"
    " not known",
    "py-spy": "no rank waits for another one in these stacks, which are of one moment: a later"
    " wait they cannot show",
}
"""What was read of a kind of evidence that never shows that all is well."""


def _source(trace: JobTrace) -> str:
    """Of what kind the evidence is: of several tools as of dumps, of none as of journals."""
    sources = {p.source for p in trace.processes}
    if len(sources) == 1:
        return sources.pop()
    return DUMPED if sources and JOURNAL not in sources else JOURNAL


def unseen(trace: JobTrace, ranks: Sequence[int]) -> str:
    """Of ranks of which nothing was found."""
    they, does = ("they", "do") if len(ranks) > 1 else ("it", "does")
    who = sentences.ranks(ranks)
    text = {
        "log": f"of {who} the log has no such line",
        "py-spy": f"of {who} there is no stack",
        ATTACHED: f"{who} {does} not run here",
        "NCCL RAS": f"NCCL could not reach {who}",
        JOURNAL: f"of {who} no journal was found",
    }.get(_source(trace), f"{who} left no dump ({they} died, kept the GIL, or tore down)")
    came = f", so it is not known whether {they} came"
    return text if _source(trace) == "log" else text + came


def not_found(trace: JobTrace) -> str:
    """Of a rank of which nothing was found, by itself."""
    return {
        "log": "the log has no line of it",
        "py-spy": "there is no stack of it",
        ATTACHED: "does not run here (on another host, or it ended)",
        "NCCL RAS": "NCCL could not reach it (it died, or its host or network did)",
        JOURNAL: "no journal found (was it started? was its journal collected?)",
    }.get(
        _source(trace),
        "left no dump (it died, kept the GIL, or tore down; or its dump was not collected)",
    )


def journals(ranks: Iterable[int]) -> str:
    """Of ranks of which there is none, or not all."""
    return f"collect the journals of {sentences.ranks(ranks)}"
