"""A message with one end: its other end was never posted, or was posted with another tag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from disttrace.journal.format import ON_DEVICE
from disttrace_viewer.analysis.sample import BATCHES, frame
from disttrace_viewer.evidence.wait import COLLECTIVE, MESSAGE, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding, Scope, why
from disttrace_viewer.findings.rules import late_arrivals, outside
from disttrace_viewer.findings.rules.late_arrivals import HINT, Held
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[RuleFinding]:
    """Waits for a message whose other side is outside communication or has ended."""
    for wait in case.due(MESSAGE):
        # Some only wait for messages, with both ends, of launches that lack this one.
        lacking = _launched_with(case, wait)
        sinks = [
            t
            for t in wait.targets
            if case.outside(t)
            or (t in lacking and all(w.kind == MESSAGE and w.complete for w in case.of_process[t]))
        ]
        if wait.any_of and (len(sinks) < len(wait.targets) or not sinks):
            continue
        if not sinks and not wait.absent:
            continue
        # Of those who are no more held up than to be late, any may send what it takes yet.
        other = None if wait.any_of else _other_tag(case, wait)
        yield _facing(case, wait, other) if other is not None else _finding(case, wait, sinks)


def _launched_with(case: Case, wait: Wait) -> set[int]:
    """Processes whose launches have messages in flight for one another, from a wait on."""
    sample, around = case.sample, case.sample.around(wait.op)
    if around is None or around.call.op not in BATCHES:
        return set()
    found, todo = {wait.process}, [wait.process]
    while todo:
        for op in sample.of_process.get(todo.pop(), ()):
            other = sample.other_end(op) if op.pending and op.parent is not None else None
            if other is not None and other.pending and other.process not in found:
                found.add(other.process)
                todo.append(other.process)
    return found


def facing(case: Case, waits: Sequence[Wait]) -> RuleFinding | None:
    """Two ends of one direction that differ in the tag, among the waits of a cycle."""
    for wait in waits:
        if wait.kind == MESSAGE and (other := _other_tag(case, wait)) is not None:
            return _facing(case, wait, other)
    return None


def _other_tag(case: Case, wait: Wait) -> Op | None:
    """The unmatched other end with another tag; of a receive from any source, of any sender."""
    op, sample = wait.op, case.sample
    call, tag = op.call, None if op.call.backend in ON_DEVICE else op.call.tag
    if tag is None or not wait.targets:
        return None
    other = "recv" if call.op == "send" else "send"
    size = case.trace.groups[call.group or 0].size or 0
    for peer in range(size) if op.peer is None else (op.peer,):
        ends = (peer, call.group_rank) if other == "send" else (call.group_rank, peer)
        for theirs in sample.tags.get((other, call.group, *ends), ()):
            if theirs in (None, tag):
                continue
            for facing in sample.message_streams[other, (call.group, *ends, theirs)]:
                if facing.end_ns is None and sample.other_end(facing) is None:
                    return facing
    return None


def _facing(case: Case, wait: Wait, other: Op) -> RuleFinding:
    trace, both = case.trace, {wait.process, other.process}
    send, receive = sorted([wait.op, other], key=lambda op: op.call.op == "recv")
    blocked = {w.op.id for w in case.of_process.get(other.process, ())}
    return RuleFinding(
        kind="unmatched_recv" if wait.op.call.op == "recv" else "unmatched_send",
        summary=f"{sentences.subject(trace, [send.process])} sends to"
        f" {sentences.processes(trace, [receive.process])} with tag {send.call.tag}"
        f" ({sentences.line(send)}), which receives with tag {receive.call.tag}"
        f" ({sentences.line(receive)}): the two never meet.",
        hint="Give both ends one tag; where both tags are used, post them in one order on both"
        " ends.",
        waiting=tuple(sorted({wait.process} | ({other.process} if other.id in blocked else set()))),
        **case.about(wait.op),
        locations=case.evidence.locations([wait.op, other]),
        scope=Scope.of([wait], roots=both, members=both),
    )


def _finding(case: Case, wait: Wait, sinks: Sequence[int]) -> RuleFinding:
    evidence, op, early = case.evidence, wait.op, case.early(wait)
    theirs = [w for s in sinks for w in case.of_process.get(s, ())]
    launched = [w for p in _launched_with(case, wait) for w in case.of_process.get(p, ())]
    late = late_arrivals.held_up_by(case, wait)
    away = late_arrivals.answerable(late, [s for s in sinks if case.at_work(s) is None])
    other = None if wait.any_of else partner(case, wait)
    no_culprit = wait.any_of or other is not None or all(case.at_work(s) for s in sinks)
    return RuleFinding(
        kind="unmatched_recv" if op.call.op == "recv" else "unmatched_send",
        summary=with_question(summary(case, wait, sinks, late), evidence.trace, wait, other),
        because=why(
            (not sinks, sentences.NO_JOURNAL),
            (sinks and not case.certain_journals([wait.process, *sinks]), sentences.NOT_WHOLE),
            (wait.lateness and {*away} != {*sinks}, sentences.LATE),
            (other, sentences.ADDRESSED),
            (wait.any_of, sentences.EITHER_SIDE),
            (sinks and all(case.at_work(s) for s in sinks), sentences.ON_THE_WAY),
            (early, sentences.SOON),
            (op.is_polled, sentences.POLLED),
            (outside.unresponsive(case, sinks), sentences.FELL_SILENT),
        ),
        hint=HINT
        if wait.lateness
        else outside.stopped_hint(case, sinks)
        or f"Find the {'send' if op.call.op == 'recv' else 'receive'} that should match it: is it"
        " under a condition, or in a batch that one side left shorter?",
        culprits=() if no_culprit else away,
        waiting=(wait.process,) if other is None else tuple(sorted({wait.process, other.process})),
        **case.about(op),
        locations=late_arrivals.locations(case, wait, late, sinks)
        + evidence.locations([op, *([] if other is None else [other.op])])
        + outside.locations(case, sinks),
        scope=Scope.of(
            (wait, *theirs, *(w for w in launched if w.kind == MESSAGE and w.complete)),
            roots=sinks,
            absent=wait.absent,
            group=op.call.group,
        ),
        settles=outside.settles(case, sinks, early=early),
    )


def summary(case: Case, wait: Wait, others: Sequence[int], held: Mapping[int, Held]) -> str:
    """``others`` should have posted the other end; the late ones were ``held`` up."""
    op, trace, waited_ns = wait.op, case.trace, case.evidence.waited_ns([wait.op])
    verb = "send" if op.call.op == "recv" else "receive"
    waited = "waited" if op.error is not None else "has been waiting"
    who = sentences.processes(trace, others)
    lasting = "" if waited_ns is None else f" for {sentences.span(waited_ns)}"
    been = (
        f"{sentences.subject(trace, [op.process])} {waited} in {sentences.operation(trace, op)}"
        f" ({sentences.line(op)}, {sentences.sizes(op)}){lasting}"
    )
    if wait.lateness:
        by = sentences.span(wait.lateness[0][1])
        return (
            f"{been} and gave up; {who} posted the {verb} {by} later"
            f"{late_arrivals.words(case, held)}."
        )
    if not others:
        return f"{been}, but of {sentences.ranks(wait.absent)} no journal was found."
    if wait.any_of and op.peer is not None:
        return (
            f"{been}, in one batch with messages of {who}: at least one has no other end."
            " The dumps hold only open or the newest entries, and do not show which."
        )
    never = f"{who} never {verb if len(others) > 1 else verb + 's'}"
    no_culprit = f"nobody {verb}s: " if wait.any_of else ""
    return f"{been}, but {no_culprit}{never}{outside.where(case, others, wait=wait, named=True)}."


def partner(case: Case, wait: Wait) -> Wait | None:
    """Who waits for the one who waits, in the way that a right address would have met."""
    if not possible(case, wait):
        return None
    for other in case.awaiting(wait.process):
        if other.side or other.kind != wait.kind:
            continue
        if wait.kind == MESSAGE and other.op.call.op != wait.op.call.op:
            return other
        here, apart = frame(wait.op), other.op.call.group != wait.op.call.group
        if wait.kind == COLLECTIVE and here is not None and here == frame(other.op) and apart:
            return other
    return None


def possible(case: Case, wait: Wait) -> bool:
    """Whether anybody may wait for the one who waits because that one addressed the wrong one."""
    if case.evidence.longest_ns(wait.op) > 0:
        return False
    if wait.kind != COLLECTIVE:
        return wait.kind == MESSAGE
    return any(
        group != wait.op.call.group and (case.trace.groups[group].size or 2) > 1
        for group in case.trace.groups_by_process.get(wait.process, ())
    )


def question(trace: JobTrace, wait: Wait, other: Wait) -> str:
    """``wait`` is for another one than the one who waits, in ``other``, for its process."""
    one, two = (trace.processes[w.process].label for w in (wait, other))
    here, there = (sentences.call(trace, w.op) for w in (wait, other))
    wrong = "group" if wait.kind == COLLECTIVE else "source"
    if wait.kind == MESSAGE and wait.op.call.op == "send":
        wrong = "destination"
    return (
        f"{one} is in {here} while {two} is in {there} and waits for {one}: is the {wrong} right?"
    )


def with_question(summary: str, trace: JobTrace, wait: Wait, other: Wait | None) -> str:
    """A summary, and the question behind it where there is an ``other``."""
    return summary if other is None else f"{summary[:-1]}; {question(trace, wait, other)}"
