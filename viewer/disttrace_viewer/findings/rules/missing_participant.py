"""Members of a group never began the collective that the others are in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace.journal.code_files import is_library
from disttrace_viewer.analysis.out_of_step import MOST_SHIFT
from disttrace_viewer.analysis.process_ends import CLEAN, TOGETHER_NS
from disttrace_viewer.analysis.sample import STAND_IN, CollectiveSequence, Site, site
from disttrace_viewer.evidence.wait import COLLECTIVE, RENDEZVOUS, Wait, Waits, given_up_ns
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding, Scope, why
from disttrace_viewer.findings.rules import late_arrivals, outside, swallowed, unmatched
from disttrace_viewer.findings.rules.late_arrivals import Late
from disttrace_viewer.findings.rules.rendezvous_incomplete import new_group
from disttrace_viewer.findings.rules.unmatched import with_question
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import replace, together
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[RuleFinding]:
    """Per collective that waits directly for a rank who waits for nothing: all such members."""
    seen = set()
    for wait in sorted(case.oldest(), key=lambda w: any(not case.outside(t) for t in w.targets)):
        # First where no other is in between: the others wait for those who wait there.
        if wait.kind not in (COLLECTIVE, RENDEZVOUS) or wait.exchange in seen:
            continue
        if wait in case.owner or not case.old(wait):
            continue
        if wait.kind == RENDEZVOUS and not new_group(case, wait):
            continue
        sinks = [t for t in wait.targets if case.outside(t)]
        if sinks or (wait.absent and all(case.outside(t) for t in wait.targets)):
            seen.add(wait.exchange)
            yield _finding(case, wait, sinks)


def _finding(case: Case, wait: Wait, sinks: Sequence[int]) -> RuleFinding:
    evidence, trace = case.evidence, case.trace
    inside = [w for w in case.inside(wait.exchange) if w.late_ns is None]
    who = [w.process for w in inside]
    ops = [w.op for w in inside]
    calls = [swallowed.find(case, s, ops, None) for s in sinks if wait.kind == COLLECTIVE]
    raised = [call for call in calls if call is not None]  # by which all would have come
    raised = raised if len(raised) == len(sinks) else []
    extra = [] if raised else _extra(case, wait, sinks)
    other = unmatched.partner(case, wait) if not extra and not raised else None
    # Who has no journal was there when the group was made: it may have come, or have failed first.
    unseen = bool(wait.absent) and any(
        evidence.cut_ns - (op.end_ns or 0) > TOGETHER_NS for op in evidence.closed
    )
    no_culprit = bool(extra) or other is not None or unseen
    early = all(case.early(w) for w in inside)
    # A rank that polls a store waits as well, and no record states for which; one that communicates
    # with others may come yet, and those that wait be ahead of it.
    late = late_arrivals.held_up_by(case, wait)
    away = late_arrivals.answerable(late, [s for s in sinks if case.at_work(s) is None])
    alone = wait.kind == COLLECTIVE and not extra and _alone_there(case, inside, sinks)
    alone = alone and not raised
    unsure = not raised and _not_compared(case, wait, sinks)
    mine = None if wait.stream is None else case.sample.courses.get((wait.process, wait.stream))
    differs = unsure and mine is not None and mine[0] == wait.op.seq  # by one call too many, maybe
    no_culprit = no_culprit or not away or alone or differs
    left = _left(case, wait, sinks)
    native = any(w.op.call.origin == "c++" for w in inside)
    hint = _hint(case, wait, sinks)
    if extra:
        lines = sentences.listed([*dict.fromkeys(map(sentences.line, extra))])
        hint = (
            f"Apart from {_more(extra)} at {lines} all ranks made the same calls: look for a"
            " collective inside `if rank ...`, or under a condition on the data, there."
        )
    elif alone and not all(outside.asks(case, s) for s in sinks):
        # Who asks a store is held up there, be it on its way to this line or not.
        hint = (
            "None of the missing has called at this line so far: see whether they are on their way"
            " to it, or whether only some ranks call there (`if rank ...`, an exception's handler,"
            " atexit)."
        )
    finding = RuleFinding(
        kind="missing_participant",
        summary=with_question(summary(case, wait, inside, sinks, late, extra), trace, wait, other),
        because=why(
            (wait.absent or unseen, sentences.NO_JOURNAL),
            (not wait.absent and not case.certain_journals({*who, *sinks}), sentences.NOT_WHOLE),
            (no_culprit and not (unseen or other) and away, sentences.EITHER_SIDE),
            (unsure, sentences.EITHER_SIDE),
            (other, sentences.ADDRESSED),
            (
                not {*sinks} <= {*away} or not away,
                sentences.LATE if wait.lateness else sentences.ON_THE_WAY,
            ),
            (native and not all(_issues_nothing(case, wait, s) for s in sinks), sentences.NATIVE),
            (any(w.op.is_polled for w in inside), sentences.POLLED),
            (outside.unresponsive(case, sinks), sentences.FELL_SILENT),
            (left, sentences.LEFT_ON_DEVICE),  # it may have been stuck before
            (early, sentences.SOON),
        ),
        hint=hint,
        culprits=() if no_culprit else away,
        waiting=tuple(who),
        **case.about(wait.op),
        locations=late_arrivals.locations(case, wait, late, sinks)
        + outside.locations(case, sinks)
        + evidence.locations([*ops, *extra, *([] if other is None else [other.op])]),
        scope=Scope.of([wait], roots=sinks, absent=wait.absent, group=wait.op.call.group),
        settles=(outside.journals(wait.absent),)
        if wait.absent
        else outside.settles(case, sinks, early=early),
    )
    finding = outside.without_gradients(case, finding, ops)
    return swallowed.with_raised(case, finding, raised)


def _issues_nothing(case: Case, wait: Wait, process: int) -> bool:
    """Whether a process's main thread is in Python, in no backward pass, and the call before this
    one is in its journal, where also calls of C++ are: it cannot be about to issue one unseen.
    """
    evidence, last = case.evidence, case.last(process)
    stack = evidence.stack(process)
    kept = evidence.sample.of_process.get(process, ())
    recorded = last is not None and not last.pending and any(o.call.origin == "c++" for o in kept)
    if wait.stream is None or wait.op.seq is None or not stack or not recorded:
        return False
    before = evidence.sample.members(wait.stream, wait.op.seq - 1).values()
    came = wait.op.seq == 1 or any(op.process == process for op in before)
    return came and not any("/torch/autograd/" in frame.file for frame in stack)


def _left(case: Case, wait: Wait, sinks: Sequence[int]) -> list[int]:
    """Those that had issued the collective too, and ended before their device was through it."""
    if wait.stream is None or wait.op.seq is None:
        return []
    inside = case.sample.members(wait.stream, wait.op.seq).values()
    left = {op.process for op in inside if op.id in case.evidence.left}
    return [process for process in sinks if process in left]


def _hint(case: Case, wait: Wait, sinks: Sequence[int]) -> str:
    ends = [case.ends[s] for s in sinks]
    stopped = outside.stopped_hint(case, sinks)
    if stopped is not None:
        return stopped
    if sinks and all(case.at_work(s) for s in sinks):
        if all(outside.asks(case, s) for s in sinks):
            return outside.POLLED_HINT
        return (
            "See whether they reach it after their other calls: the waiting ranks may be ahead of"
            " them, or they skipped this call."
        )
    failure = next((f for s in sinks for f in outside.failed_threads(case, s)), None)
    over_ns = given_up_ns([wait.op])
    if failure is not None and (over_ns is None or failure.t_ns <= over_ns):
        return f"Read the exception of its thread first: {outside.raised(failure)}."
    if not sinks:
        return "See whether these ranks were started, and whether their journals were collected."
    many, late = len(sinks) > 1, dict(wait.lateness)
    if all(s in late for s in sinks):
        return (
            f"Find what held {'them' if many else 'it'} up before this call (a loader, a"
            " checkpoint, an evaluation), or allow more time: timeout= of the group."
        )
    if all(end.how == CLEAN and end.asked_at for end in ends):
        return (
            "Find who asks for the end there (os._exit, sys.exit, os.exec*): the others were still"
            " at work."
        )
    does = "these ranks do" if many else "this rank does"
    if not case.knows("position", sinks):
        return f"Look at what {does}: disttrace attach, or py-spy dump, while it hangs."
    native = wait.op.call.origin == "c++" and all(_left_the_loop(case, s) for s in sinks)
    if native or all(map(case.clean, sinks)):
        issued = (op for p in (wait.process, *sinks) for op in case.sample.of_process.get(p, ()))
        # DDP's reducer alone waits in C++, where none sees it.
        unseen = ("c++", COLLECTIVE, None)
        ddp = any((op.call.origin, op.call.kind, op.wait_begin_ns) == unseen for op in issued)
        use = "join() of DistributedDataParallel, or " * ddp
        return (
            "Look for uneven inputs: one rank has fewer batches, or leaves the loop earlier, also"
            f" by an exception that is caught; use {use}drop_last."
        )
    return f"Look at what {does} there: a data loader, a lock, or code that only some ranks run."


def _left_the_loop(case: Case, process: int) -> bool:
    """Whether a process is known to stand in no function from which it made its last operation."""
    last, stack = case.last(process), case.evidence.stack(process)
    if last is None or not stack:
        return False
    calling = {(f.file, f.function) for f in last.call.stack if not is_library(f.file)}
    return bool(calling) and calling.isdisjoint((f.file, f.function) for f in stack)


def _extra(case: Case, wait: Wait, sinks: Sequence[int]) -> list[Op]:
    """The calls in a row that those that wait made beyond the others', if nothing else differs."""
    if wait.kind != COLLECTIVE or wait.stream is None or not sinks:
        return []
    course = case.evidence.course(wait.process, wait.stream)
    if course is None:
        return []
    mine = _sites(course)
    found: tuple[int, int] | None = None
    compared: list[CollectiveSequence] = []
    for sink in sinks:
        other = case.evidence.course(sink, wait.stream)
        if other is None or [seq for seq, _ in other[:1]] != [seq for seq, _ in course[:1]]:
            return []  # of one of them the evidence begins later
        if any(other is one for one in compared):
            continue  # of states that made the same calls one holds those of all
        compared.append(other)
        theirs = _sites(other)
        if len(mine) != len(theirs) + 1 or mine[: len(theirs)] == theirs:
            return []
        at = next(i for i, site in enumerate(theirs) if mine[i] != site)
        # Of several at least as many as they are have to be equal behind them.
        most = min(MOST_SHIFT, (len(mine) - at) // 2)
        counts = (n for n in range(1, most + 1) if mine[at + n :] == theirs[at : len(mine) - n])
        count = next(counts, 1 if mine[at + 1 :] == theirs[at:] else 0)
        if not count or found not in (None, (at, count)):
            return []
        found = at, count
    over = {"issued_ns": None, "wait_begin_ns": None, "end_ns": wait.op.begin_ns, "error": None}
    at, count = found or (0, 0)
    return [
        replace(wait.op, number=STAND_IN, seq=seq, call=call, **over)  # type: ignore[arg-type]
        for seq, call in course[at : at + count]
    ]


def _alone_there(case: Case, inside: Sequence[Wait], sinks: Sequence[int]) -> bool:
    """Whether fewer wait than are missing, at a line where none was seen before."""
    evidence, count = case.evidence, case.trace.count
    who = {wait.process for wait in inside}
    if count(who) >= count(sinks) or any(evidence.longest_ns(wait.op) for wait in inside):
        return False
    places = {site(wait.op.call) for wait in inside}
    return not any(op.process not in who and site(op.call) in places for op in evidence.sample.ops)


def _not_compared(case: Case, wait: Wait, sinks: Sequence[int]) -> bool:
    """Whether it is not known if leaving out one call makes both sides equal."""
    if wait.kind != COLLECTIVE or wait.stream is None or not sinks:
        return False
    courses = case.sample.courses
    mine = courses.get((wait.process, wait.stream))
    for sink in sinks:
        theirs = courses.get((sink, wait.stream), (0, 0, 0))
        if theirs[0] + 1 != wait.op.seq:
            return False
        if mine is not None and mine[0] == wait.op.seq and mine[2] == theirs[1]:
            return False  # all before was equal
    return any(case.evidence.course(p, wait.stream) is None for p in (wait.process, *sinks))


def _sites(course: CollectiveSequence) -> list[Site]:
    """Call sites of one process in a stream, by sequence number."""
    calls = {call.index: call for _, call in course}
    of_call = {index: site(call) for index, call in calls.items()}
    return [of_call[call.index] for _, call in course]


def summary(
    case: Case, wait: Wait, inside: Waits, sinks: Sequence[int], held: Late, extra: Sequence[Op]
) -> str:
    """Who never joined, came too late or left too early, and who waits for that (``inside``)."""
    evidence, trace = case.evidence, case.trace
    late, missing = dict(wait.lateness), case.by_rank(sinks)
    waiting, group = [w.process for w in inside], wait.op.call.group
    waited_ns = evidence.waited_ns(w.op for w in inside)
    who = sentences.processes(trace, waiting, within=group)
    lines = dict.fromkeys(sentences.line(w.op) for w in inside)
    lasting = f"at {sentences.listed(list(lines))}"
    if waited_ns is not None:
        lasting += f" for {sentences.span(waited_ns)}"
    name = sentences.operation(trace, wait.op, evidence.within(wait.op))
    if wait.kind == RENDEZVOUS:
        name = f"the creation of a group ({wait.op.call.op})"
    if extra:
        alike = together(((op.call.op, sentences.line(op)), op.seq or 0) for op in extra)
        made = [
            f"{op} {', '.join(f'#{seq}' for seq in numbers)} at {line}"
            for (op, line), numbers in alike.items()
        ]
        return (
            f"{sentences.capital(who)} made {_more(extra)} ({sentences.listed(made)}) than"
            f" {sentences.processes(trace, missing)}, and {sentences.have(waiting)} been"
            f" waiting alone in {name} {lasting}{outside.where(case, missing, wait=wait)}."
        )
    gave_up = all(w.op.error is not None for w in inside)
    verb = "waited" if gave_up else f"{sentences.have(waiting)} been waiting"
    waited = f"{who} {verb}"
    came = [p for p in missing if p in late]
    never = [p for p in missing if p not in late]
    if came and not never and not wait.absent:
        by = sentences.span(min(late[p] for p in came))
        return (
            f"{sentences.subject(trace, came)} arrived at {name} {by} after the others had given"
            f" up: {waited} for it {lasting}{late_arrivals.words(case, held)}."
        )
    left = [p for p in _left(case, wait, sinks) if p in never]
    if left and {*left} == {*never} and not wait.absent and not came:
        devices = "its device" if len(left) == 1 else "their devices"
        return (
            f"{sentences.subject(trace, left)} ended before {name} was over on {devices}: {waited}"
            f" {lasting}."
        )
    unseen = f"; {outside.unseen(trace, wait.absent)}" * bool(wait.absent)
    if not missing:
        return f"{sentences.capital(waited)} in {name} {lasting}{unseen}."
    subject = sentences.subject(trace, never)
    rest = f"{lasting}{outside.where(case, never, wait=wait)}{unseen}"
    if waited_ns is None:
        were = "were" if len(waiting) > 1 else "was"
        return f"{subject} had not come to {name} when this was written: {who} {were} in it {rest}."
    after = f", and {sentences.processes(trace, came)} only after they had given up" * bool(came)
    return f"{subject} never joined {name}{after}: {waited} {rest}."


def _more(extra: Sequence[Op]) -> str:
    return "one more call" if len(extra) == 1 else f"{len(extra)} more calls"
