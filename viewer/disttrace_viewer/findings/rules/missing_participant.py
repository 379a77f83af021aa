"""Members of a group never began the collective that the others are in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from disttrace_viewer.analysis.evidence import Course
from disttrace_viewer.analysis.operation import Op, frame
from disttrace_viewer.analysis.process_ends import CLEAN, SILENT, TOGETHER_NS
from disttrace_viewer.analysis.wait_graph import COLLECTIVE, RENDEZVOUS, Wait
from disttrace_viewer.findings.case import EARLY, Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import crossed, late_arrivals, outside
from disttrace_viewer.findings.rules.rendezvous_incomplete import new_group
from disttrace_viewer.sample.sample import STAND_IN
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """Per collective that waits directly for somebody who waits for nothing: all such members."""
    seen = set()
    for wait in sorted(case.oldest(), key=lambda w: any(not case.outside(t) for t in w.targets)):
        # First where nobody else is in between: the others wait for those who wait there.
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


@dataclass(frozen=True, slots=True)
class Extra:
    """The one call that those who wait made and those who are missing did not."""

    op: Op


def _finding(case: Case, wait: Wait, sinks: Sequence[int]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    inside = [w for w in case.inside(wait.exchange) if w.late_ns is None]
    who = [w.process for w in inside]
    group = None if wait.op.call.group is None else trace.groups[wait.op.call.group]
    extra = _extra(case, wait, sinks)
    other = crossed.partner(case, wait) if extra is None else None
    # Who has no journal was there when the group was made: it may have come, or have failed first.
    unseen = bool(wait.absent) and any(
        evidence.cut_ns - (op.end_ns or 0) > TOGETHER_NS for op in evidence.closed
    )
    nobody = extra is not None or other is not None or unseen
    early = all(case.early(w) for w in inside)
    # Who polls a store waits for somebody as well, and no record says for whom; who communicates
    # with others may come yet, and whoever waits be ahead of it.
    away = tuple(s for s in sinks if case.at_work(s) is None)
    if wait.lateness:
        away = late_arrivals.answerable(case, wait, away)
    nobody = nobody or not away or _differed(case, wait, sinks)
    members = {*who, *sinks}
    whole = not wait.absent and case.certain_journals(members)
    unsure = any(w.op.call.origin == "c++" for w in inside) or bool(_mute(case, sinks))
    unsure = unsure or _not_compared(case, wait, sinks) or not {*sinks} <= {*away}
    unsure = unsure or bool(_left(case, wait, sinks))  # it may have been stuck before
    return Finding(
        kind="missing_participant",
        summary=_summary(case, wait, sinks, inside, extra)
        if other is None
        else f"{_summary(case, wait, sinks, inside, None)[:-1]}; "
        f"{crossed.question(case, wait, other)}",
        certainty=CERTAIN if whole and not nobody and not unsure and not early else LIKELY,
        hint=_hint(case, wait, sinks) if extra is None else _skipped(case, extra),
        culprits=() if nobody else away,
        waiting=tuple(who),
        op=wait.op.call.op,
        group=None if group is None else group.id,
        seq=wait.op.seq,
        locations=outside.locations(case, sinks)
        + evidence.locations(
            [
                *(w.op for w in inside),
                *([] if extra is None else [extra.op]),
                *([] if other is None else [other.op]),
            ]
        ),
        at_ns=wait.op.begin_ns,
        scope=Scope(
            exchanges=frozenset({wait.exchange}),
            roots=frozenset(sinks),
            absent=frozenset((wait.op.call.group, r) for r in wait.absent),
        ),
        settles=_settles(case, wait, _mute(case, sinks), early=early),
    )


def _left(case: Case, wait: Wait, sinks: Sequence[int]) -> list[int]:
    """Those that had issued the collective too, and ended before their device was through it."""
    if wait.stream is None or wait.op.seq is None:
        return []
    inside = case.evidence.sample.members(wait.stream, wait.op.seq).values()
    left = {op.process for op in inside if op.id in case.evidence.left}
    return [process for process in sinks if process in left]


def _mute(case: Case, sinks: Sequence[int]) -> list[int]:
    """Those that gave no sign of life while others waited, and are not seen to live now: frozen, or
    gone with their host or network before a connection could be closed.
    """
    ends = case.evidence.ends
    return [s for s in sinks if ends[s].how == SILENT and outside.frozen_ns(case, s)]


def _settles(case: Case, wait: Wait, mute: Sequence[int], *, early: bool) -> tuple[str, ...]:
    if wait.absent:
        return (f"collect the journals of {sentences.ranks(wait.absent)}",)
    if mute:
        who = sentences.processes(case.evidence.trace, mute)
        return (f"see whether {who} still lived then (the host's log, dmesg)",)
    return (EARLY,) if early else ()


def _summary(
    case: Case, wait: Wait, sinks: Sequence[int], inside: Sequence[Wait], extra: Extra | None
) -> str:
    evidence, trace = case.evidence, case.evidence.trace
    waiting = [w.process for w in inside]
    who, many = sentences.processes(trace, waiting), len(waiting)
    at = sentences.listed(list(dict.fromkeys(sentences.place(frame(trace, w.op)) for w in inside)))
    age = sentences.span(max(evidence.age_ns(w.op) for w in inside))
    name = sentences.operation(trace, wait.op) + evidence.within(wait.op)
    if wait.kind == RENDEZVOUS:
        name = f"the creation of a group ({wait.op.call.op})"
    gave_up = all(w.op.error is not None for w in inside)
    waited = f"{who} {'' if gave_up else sentences.have(many) + ' been '}{_WAITED[gave_up]}"
    if extra is not None:
        called = f"{extra.op.call.op} #{extra.op.seq} at {sentences.place(frame(trace, extra.op))}"
        missing = sentences.processes(trace, sinks)
        return (
            f"{sentences.capital(who)} made one more call ({called}) than {missing}, and"
            f" {sentences.have(many)} been waiting alone in {name} at {at} for {age}"
            f"{outside.where(case, sinks)}."
        )
    late = dict(wait.lateness)
    came = [p for p in sinks if p in late]
    if came and len(came) == len(sinks) and not wait.absent:
        by = sentences.span(min(late[p] for p in came))
        return (
            f"{sentences.capital(sentences.processes(trace, came))} arrived at {name} {by} after"
            f" the others had given up: {waited} for it at {at} for {age}"
            f"{late_arrivals.words(case, wait)}."
        )
    never = [p for p in sinks if p not in late]
    left = _left(case, wait, never)
    if left and left == never and not wait.absent and not came:
        return (
            f"{sentences.capital(sentences.processes(trace, left))} ended before {name} was over on"
            f" {'its device' if len(left) == 1 else 'their devices'}: {waited} at {at} for {age}."
        )
    missing = sentences.processes(trace, never)
    unseen = f"of {sentences.ranks(wait.absent)} no journal was found, so nobody knows whether"
    unseen += f" {'they' if len(wait.absent) > 1 else 'it'} came"
    if not sinks:
        return f"{sentences.capital(waited)} in {name} at {at} for {age}; {unseen}."
    after = f", and {sentences.processes(trace, came)} only after they had given up" * bool(came)
    return (
        f"{sentences.capital(missing)} never joined {name}{after}: {waited} at {at} for {age}"
        f"{outside.where(case, never)}{f'; {unseen}' * bool(wait.absent)}."
    )


_WAITED = {False: "waiting", True: "waited"}


def _skipped(case: Case, extra: Extra) -> str:
    at = sentences.place(frame(case.evidence.trace, extra.op))
    return (
        f"Apart from one more call at {at} all ranks made the same calls: look for a collective"
        " inside `if rank ...`, or under a condition on the data, there."
    )


def _hint(case: Case, wait: Wait, sinks: Sequence[int]) -> str:
    ends = [case.evidence.ends[s] for s in sinks]
    if sinks and all(case.at_work(s) for s in sinks):
        return outside.at_work_hint(case, sinks)
    thread = next((text for s in sinks for text in outside.failed_threads(case, s)), None)
    if thread is not None:
        return f"Read the exception of its thread first: {thread}."
    if not sinks:
        return "See whether these ranks were started, and whether their journals were collected."
    one = len(sinks) == 1
    late = dict(wait.lateness)
    if all(s in late for s in sinks):
        return (
            f"Find what held {'it' if one else 'them'} up before this call (a loader, a checkpoint,"
            " an evaluation), or allow more time: timeout= of the group."
        )
    if all(end.how == CLEAN and end.asked_at for end in ends):
        return (
            "Find who asks for the end there (os._exit, sys.exit): the others were still at work."
        )
    if wait.op.call.origin == "c++" or all(case.clean(s) for s in sinks):
        return (
            "Look for uneven inputs: one rank has fewer batches, or leaves the loop earlier; use"
            " join() of DistributedDataParallel, or drop_last."
        )
    return (
        f"Look at what {'this rank does' if one else 'these ranks do'} there: a data loader, a"
        " lock, or code that only some ranks run."
    )


def _extra(case: Case, wait: Wait, sinks: Sequence[int]) -> Extra | None:
    """The one extra call of the waiting side, if leaving it out makes both sides equal."""
    if wait.kind != COLLECTIVE or wait.stream is None or not sinks:
        return None
    trace = case.evidence.trace
    course = case.evidence.course(wait.process, wait.stream)
    if course is None:
        return None
    mine = _sites(case, course)
    compared: list[Course] = []
    for sink in sinks:
        other = case.evidence.course(sink, wait.stream)
        if other is None:
            return None
        if any(other is one for one in compared):
            continue  # of states that made the same calls one holds those of all
        compared.append(other)
        theirs = _sites(case, other)
        if len(mine) != len(theirs) + 1 or mine[: len(theirs)] == theirs:
            return None
        differ = next(i for i, site in enumerate(theirs) if mine[i] != site)
        if mine[differ + 1 :] != theirs[differ:]:
            return None
    seq, call = course[differ]
    over = {"issued_ns": None, "wait_begin_ns": None, "end_ns": wait.op.begin_ns, "error": None}
    return Extra(replace(wait.op, number=STAND_IN, seq=seq, call=trace.call(call), **over))  # type: ignore[arg-type]


def _not_compared(case: Case, wait: Wait, sinks: Sequence[int]) -> bool:
    """Whether it is not known if leaving out one call makes both sides equal."""
    evidence = case.evidence
    if evidence.columnar or wait.kind != COLLECTIVE or wait.stream is None or not sinks:
        return False
    courses = evidence.sample.courses
    mine = courses.get((wait.process, wait.stream))
    for sink in sinks:
        theirs = courses.get((sink, wait.stream), (0, 0, 0))
        if theirs[0] + 1 != wait.op.seq:
            return False
        if mine is not None and mine[0] == wait.op.seq and mine[2] == theirs[1]:
            return False  # all before was equal
    return any(evidence.course(p, wait.stream) is None for p in (wait.process, *sinks))


def _differed(case: Case, wait: Wait, sinks: Sequence[int]) -> bool:
    """Whether states without the calls of before show that these were not the same: then it may be
    the waiting side that made one more.
    """
    if case.evidence.columnar or wait.stream is None or not _not_compared(case, wait, sinks):
        return False
    mine = case.evidence.sample.courses.get((wait.process, wait.stream))
    return mine is not None and mine[0] == wait.op.seq


def _sites(case: Case, course: Course) -> list[tuple[str, int | None]]:
    """Call sites of one process in a stream, by sequence number."""
    of_call = {}
    for call in {call for _, call in course}:
        value = case.evidence.trace.call(call)
        of_call[call] = (value.op, value.stack)
    return [of_call[call] for _, call in course]
