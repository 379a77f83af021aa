"""Members of a group are out of step: one left out a call, or made one more, unnoticed.

An error that it led to later shows since when; where it led to none, it is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from disttrace_viewer.analysis.out_of_step import SKIPPED, SWAPPED, Shift
from disttrace_viewer.analysis.past import Place, op_of, place_of
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.wait import COLLECTIVE
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING, RuleFinding, Scope, why
from disttrace_viewer.findings.rules import outside, swallowed
from disttrace_viewer.trace.model import CodeLocation, Group, JobTrace, Stream
from disttrace_viewer.trace.operation import is_nan_check
from disttrace_viewer.trace.process import Digest, NonFinite, Stack, Unreduced
from disttrace_viewer.trace.values import replace, together
from disttrace_viewer.wording import names, sentences

_AT_LAST = mismatches.KINDS | {"missing_participant", "no_progress"}
"""What a call too many or too few comes to."""
_OUTSIDE = frozenset({"deadlock", "group_mismatch", "store_key_missing"})
_IN_THE_END = _AT_LAST | _OUTSIDE
"""The same, in a group or outside of it."""


def find(case: Case) -> Iterator[RuleFinding]:
    """Groups that are out of step and in which no error show it."""
    for stream, shift in case.steps.items():
        group = case.trace.groups[stream[0] or 0]
        mixed = _mixed(case, stream, shift)
        came_to = (_came_to(case, f, stream) for f in case.findings)
        if not shift.sure or not mixed or any(seq is not None for seq in came_to):
            continue
        if all(case.clean(p) for p in (*shift.members, *shift.others)) and not shift.short:
            shift = replace(shift, instead=None)  # who left one out would have ended alone
        ops = (op for p in shift.members for op in case.sample.of_process.get(p, ()))
        found = RuleFinding(
            kind="divergence",
            severity=WARNING,
            because=(sentences.ELSEWHERE,),
            summary=summary(case.trace, group, shift, mixed),
            hint=hint(shift),
            culprits=tuple(shift.members) if shift.decided else (),
            op=op_of(shift.calls[0]),
            group=group.id,
            seq=shift.number,
            locations=_locations(shift),
            at_ns=min((op.begin_ns for op in ops), default=0),
        )
        yield _with_raised(case, found, stream, shift)


def _at(lines: Iterable[tuple[Place, Sequence[int]]]) -> tuple[CodeLocation, ...]:
    """Lines, each with the first of its members."""
    return tuple(
        CodeLocation.at(members[0], place[1], op_of(place))
        for place, members in lines
        if place[1] is not None
    )


def root_cause_of(case: Case, finding: RuleFinding) -> RuleFinding:
    """An error with the call since which its group was out of step, where that was before it."""
    inside = [wait.op for wait in case.waits] if finding.kind in _OUTSIDE else []
    found = outside.without_gradients(case, finding, inside)
    found = _by_other_lines(case, finding, of_modules=True) if found is finding else found
    if found is not finding:
        return found
    for stream, shift in case.steps.items():
        number = _came_to(case, finding, stream)
        mixed = 0 if number is None else _mixed(case, stream, shift, before=number)
        if number is not None and shift.number < number and mixed:
            if shift.short and shift.instead is not None:
                shift = shift.instead  # in another order all would have made as many
            trace, where = case.trace, ""
            if finding.group is None:
                where = f"in {sentences.group(trace.groups[stream[0] or 0], trace)} "
            since = replace(
                finding,
                summary=f"{finding.summary} Out of step {where}{_since(shift)}:"
                f" {_did(trace, shift)}; {_results(mixed, 'before it ')} mixed.",
                hint=hint(shift),
                locations=(*finding.locations, *_locations(shift)),
            )
            return _with_raised(case, since, stream, shift)
    return _by_other_lines(case, finding)


def _by_other_lines(case: Case, finding: RuleFinding, *, of_modules: bool = False) -> RuleFinding:
    """An error with the collective from which on members came by different lines, up to the last
    that all have made before it, if they had always come to each of these lines together: a call
    that was left out just now is followed by too few others for anybody to show it. ``of_modules``:
    only where all came for modules of FSDP's, whose order is one."""
    what = "modules" if of_modules else "lines"
    for stream, number in _up_to(case, finding).items():
        shift = case.steps.get(stream) if of_modules else None
        number = number if shift is None else min(number, shift.number)
        parted, sides = _parted_before(case, stream, number, of_modules=of_modules)
        if sides:
            trace, group = case.trace, case.trace.groups[stream[0] or 0]
            came = sentences.listed(
                [
                    f"{sentences.processes(trace, who)} came by {_call(place)}"
                    for place, who in sides
                ]
            )
            last = parted == number - 1
            which = "the last that all have made" if last else f"from which on {what} differ"
            return replace(
                finding,
                summary=f"{finding.summary} To #{parted} of {sentences.group(group, trace)},"
                f" {which}, {came}: one of these {what} was left out, or called twice.",
                hint=_LEFT_OUT if of_modules else finding.hint,
                locations=(*finding.locations, *_at(sides)),
            )
    return finding


def _up_to(case: Case, finding: RuleFinding) -> dict[Stream, int]:
    """The number in each group to which a finding came, or in which some wait that it is about."""
    if finding.severity != ERROR or finding.kind not in _IN_THE_END:
        return {}
    about = {*finding.waiting, *finding.culprits, *finding.scope.roots}
    came_to = {s: _came_to(case, finding, s) for s in case.sample.streams}
    found = {stream: number for stream, number in came_to.items() if number is not None}
    for wait in case.waits:
        stream, seq = wait.stream, wait.op.seq
        if stream is not None and seq is not None and not about.isdisjoint(wait.targets):
            found[stream] = min(found.get(stream, seq), seq)
    return found


_LEFT_OUT = "Look for what leaves a module out on one rank: an expert without tokens, a branch."


def _parted_before(
    case: Case, stream: Stream, number: int, *, of_modules: bool
) -> tuple[int, list[tuple[Place, list[int]]]]:
    """The first collective before ``number`` to which members came by different lines, as to the
    last, with the members of each; none where a line was new to another. ``of_modules``: of FSDP's.
    """
    nothing: tuple[int, list[tuple[Place, list[int]]]] = (number, [])
    group = case.trace.groups[stream[0] or 0]
    members = [m.process for m in group.members]
    told = ((p, case.evidence.course(p, stream)) for p in members)
    courses = {p: course for p, course in told if course is not None}
    if len(courses) < len(members):
        return nothing
    first, called = mismatches.aligned(courses)
    before = number - first
    if before < 1 or any(len(called.get(p, ())) < before for p in members):
        return nothing
    calls = {call.index: call for p in members for call in called[p][:before]}
    of_call = {index: place_of(call) for index, call in calls.items()}
    for of in (of_call, mismatches.called_from(calls, of_call)):  # else where a helper was called
        places = [[of[called[p][at].index] for p in members] for at in range(before)]
        differ = (at for at, here in enumerate(places) if len({*here}) > 1)
        at = next(
            (at for at in differ if not of_modules or any(map(_of_module, places[at]))), before
        )
        if at < before:
            break
    known = {here[0] for here in places[:at]}
    if at == before:
        return nothing
    ended = len({*places[-1]}) == 1 or not known.issuperset(places[at])
    if ended if not of_modules else not all(map(_of_module, places[at])):
        return nothing
    sides = together(zip(places[at], members, strict=True))
    return first + at, sorted(sides.items(), key=lambda side: -len(side[1]))


def _of_module(place: Place) -> bool:
    return " of " in place[0]


def _came_to(case: Case, finding: RuleFinding, stream: Stream) -> int | None:
    """The number in a stream to which an error came that may be due to members out of step."""
    if finding.severity != ERROR:
        return None
    if finding.kind == "deadlock":
        ends = [e for e in finding.scope.exchanges if isinstance(e, tuple)]
        return next((e[3] for e in ends if e[:3] == (COLLECTIVE, *stream)), None)
    ours = finding.group == case.trace.groups[stream[0] or 0].id
    return finding.seq if ours and finding.kind in _AT_LAST else None


def _with_raised(
    case: Case, finding: RuleFinding, stream: Stream, shift: Shift[int, Place]
) -> RuleFinding:
    """A finding with the exceptions over which the members went on without what they skipped."""
    skipped = shift.members if shift.how == SKIPPED else ()
    calls = (swallowed.at(case, process, stream, shift) for process in skipped)
    raised = [call for call in calls if call is not None]
    return swallowed.with_raised(case, finding, raised, lead="Then ")


def _mixed(case: Case, stream: Stream, shift: Shift[int, Place], before: int | None = None) -> int:
    """How many collectives are over in which members met others that were in another call."""
    here = (op.seq for op in case.sample.pending if op.call.stream == stream)
    newest = min([shift.newest, *(seq - 1 for seq in here if seq is not None)])
    newest = newest if before is None else min(newest, before - 1)
    mixed = max(0, newest - shift.number + 1)
    return min(mixed, shift.crossed or mixed)


def _locations(shift: Shift[int, Place]) -> tuple[CodeLocation, ...]:
    """Where the members are reported to have gone astray, and what the others met."""
    others = shift.others or shift.members
    return tuple(dict.fromkeys(_at([(shift.calls[0], shift.members), (shift.met, others)])))


def hint(shift: Shift[int, Place]) -> str:
    """What to look for."""
    if shift.how == SWAPPED:
        return (
            "Look for what decides the order there: a dictionary, a set, threads, or a branch by"
            " rank."
        )
    return (
        "Look for a branch, a `continue`, a `break` or an exception that was caught before that"
        " call. Everything that was exchanged since is of different calls: do not trust the"
        " results."
    )


def summary(trace: JobTrace, group: Group, shift: Shift[int, Place], mixed: int) -> str:
    """Who is out of step with which, since when and why."""
    others = sentences.processes(trace, shift.others)
    who = sentences.subject(trace, shift.members)
    are = "is" if len(shift.members) == 1 else "are"
    where = sentences.group(group, trace)
    if shift.how == SWAPPED:
        since = f"since #{shift.number}" if shift.crossed > 2 else f"at #{shift.number}"
        texts = f"{who} called in another order than {others} in {where} {since}"
        return f"{texts}: {_did(trace, shift)}; {_results(mixed)} mixed."
    return (
        f"{who} {are} out of step with {others} in {where} {_since(shift)}:"
        f" {_did(trace, shift)}; {_results(mixed)} mixed."
    )


def _since(shift: Shift[int, Place]) -> str:
    if shift.earliest == shift.number:
        return f"since #{shift.number}"
    return f"since a call between #{shift.earliest} and #{shift.number}"


def _results(count: int, when: str = "since ") -> str:
    return f"{names.number(count, 'result')} {when}{'was' if count == 1 else 'were'}"


def _did(trace: JobTrace, shift: Shift[int, Place]) -> str:
    """What the members did; what the others may have done instead, where nothing decides."""
    who = sentences.processes(trace, shift.members)
    others = sentences.processes(trace, shift.others)
    them, distinct = "it" if len(shift.calls) == 1 else "them", [*dict.fromkeys(shift.calls)]
    calls = sentences.listed([*map(_call, distinct)])
    if len(distinct) == 1 < len(shift.calls):
        calls = f"{len(shift.calls)} calls of {calls}"
    if shift.how == SWAPPED:
        times = ", again and again" * (shift.crossed > 2)
        left = "" if shift.instead is None else f" (or skipped {_call(shift.met)} once)"
        return f"{who} made {calls} before {_call(shift.met)}{times}{left}"
    if shift.how == SKIPPED:
        twice = " (or made the call before it twice)" * shift.doubled
        return f"{who} skipped {calls}{twice}" + (
            "" if shift.decided else f", or {others} made {them} in addition"
        )
    more = f"one call more, {calls}"
    if len(shift.calls) > 1:
        more = f"{len(shift.calls)} more calls" + (", " if len(distinct) > 1 else " of ")
        more += sentences.listed([*map(_call, distinct)])
    return f"{who} made {more}" + ("" if shift.decided else f", or {others} skipped {them}")


def _call(place: Place) -> str:
    return place[0] if place[1] is None else f"{place[0]} at {sentences.place(place[1])}"


def find_nonfinite(case: Case) -> Iterator[RuleFinding]:
    """The first input that was not finite, of all that were looked at, by us or by torch."""
    found = [(one, p.index) for p in case.trace.processes for one in p.nonfinite]
    raised = {p: one for p in case.own_failures() if (one := _raised(case, p)) is not None}
    found += [(one, process) for process, one in raised.items()]
    if not found:
        return
    first, process = min(found, key=lambda one: one[0].t_ns)
    # Of one group the numbers tell what was first, whatever the clocks.
    same = [(one, p) for one, p in found if one.seq is not None and one.group == first.group]
    number = min((one.seq or 0 for one, _ in same), default=None)
    at = {p: one for one, p in same if one.seq == number} or {process: first}
    yield _nonfinite(case, at, [*raised])


def _raised(case: Case, process: int) -> NonFinite | None:
    """What a check of torch's found in an input of a process that failed by it."""
    failure, op = case.ends[process].failure, case.last(process)
    if failure is None or not is_nan_check(failure.text):
        return None
    if op is None or op.error is None or op.call.group is None:
        return NonFinite(failure.t_ns, "", None, None, failure.stack)
    group = case.trace.groups[op.call.group].id
    return NonFinite(op.begin_ns, group, op.call.op, op.seq, op.call.stack)


def _nonfinite(case: Case, at: dict[int, NonFinite], raised: Sequence[int]) -> RuleFinding:
    trace = case.trace
    first = case.by_rank(at)
    one = at[first[0]]
    group = trace.group_by_id.get(one.group)
    members = set() if group is None else {m.process for m in group.members}
    named = () if members and members <= {*first} else tuple(first)
    places = _at(((one.op or "", innermost(at[process].stack)), [process]) for process in first)
    followed = case.witnesses.broke_after(raised) if raised else frozenset()
    line = f" at {sentences.place(places[0])}" if places else ""
    where = "" if one.op is None else f" in {one.op} #{one.seq} of {sentences.group(group, trace)}"
    who = sentences.processes(trace, first)
    inputs = f"input of {who} is" if len(first) == 1 else f"inputs of {who} are"
    return RuleFinding(
        kind="value_divergence",
        because=why((len({trace.processes[p].host for p in members}) > 1, sentences.CLOCKS)),
        summary=f"The {inputs} not finite (NaN or infinite){where}{line}"
        + (": the first, before it was reduced" if named else ", all at once")
        + (f" (gradient of {names.parameters(one.parameters)})." if one.parameters else "."),
        hint="Look for what that rank fed into it: its batch, a division by zero, a logarithm, an"
        " overflow, a message or a broadcast that it got. With DISTTRACE_DIGEST=1 each call is"
        " looked at.",
        culprits=named,
        op=one.op,
        group=one.group or None,
        seq=one.seq,
        locations=places,
        at_ns=one.t_ns,
        nonfinite=(first[0], one),
        parameters=((first[0], one.parameters),) if one.parameters else (),
        scope=Scope.of(roots=raised, members=followed),
    )


def find_values(case: Case) -> Iterator[RuleFinding]:
    """Of each group and kind of result the first one that differs."""
    taken: dict[tuple[str, str, str | None], dict[int, dict[int, Digest]]] = {}
    for process in case.trace.processes:
        for one in process.digests:
            of = taken.setdefault((one.group, one.op, one.name), {})
            of.setdefault(one.number, {})[process.index] = one
    for numbers in taken.values():
        for number in sorted(numbers):
            if len({one.value for one in numbers[number].values()}) > 1:
                yield _finding(case, numbers[number])
                break


def _finding(case: Case, digests: dict[int, Digest]) -> RuleFinding:
    one = next(iter(digests.values()))
    group = case.trace.group_by_id.get(one.group)
    size = len(digests) if group is None or group.size is None else group.size
    odd = case.by_rank(mismatches.minority({p: d.value for p, d in digests.items()}, size))
    members = case.by_rank(digests)
    places = _at(((one.op, innermost(digests[p].stack)), [p]) for p in odd or members)
    what = f"the result of {one.op}" if one.name is None else f"'{one.name}'"
    where = "" if group is None else f" of {sentences.group(group, case.trace)}"
    at = f" at {sentences.place(places[0])}" if places else ""
    number = f" in its call {one.number:,}{where}{at}"
    if odd:
        who, have = sentences.subject(case.trace, odd), sentences.have(odd)
        rest = sentences.processes(case.trace, [p for p in members if p not in odd])
        summary = f"{who} {have} other values than {rest}, where they have to be equal: {what}"
    else:
        who = sentences.processes(case.trace, members)
        summary = f"Values differ that have to be equal: {what} is not the same in {who}"
    return RuleFinding(
        kind="value_divergence",
        # That they differ is sure, and not that a majority is right.
        because=why((odd, sentences.MAJORITY)),
        summary=f"{summary}{number}.",
        hint="Only checksums were compared. Before that call look for what one rank does otherwise:"
        " another seed, a step that was left out, an update outside of the optimizer; where the"
        " program is the same, test that host's memory and device. Do not trust what was computed"
        " since.",
        culprits=tuple(odd),
        op=one.op,
        group=one.group,
        locations=places,
        at_ns=min(digest.t_ns for digest in digests.values()),
    )


def find_unreduced(case: Case) -> Iterator[RuleFinding]:
    """One note per model of DDP that changed again and again, with nothing exchanged since."""
    evidence, models = case.evidence, list[tuple[tuple[Stack, str], tuple[int, Unreduced]]]()
    for process in evidence.trace.processes:
        seen = (one for one in process.unreduced if not one.parameters)
        latest = {(one.stack, one.group): one for one in seen}
        for model, one in latest.items():
            moved = case.past.moved(process.index, one.t_ns - one.over_ns, int(evidence.cut_ns))
            if moved < one.bytes:
                models.append((model, (process.index, one)))
    for (stack, group), found in together(models).items():
        processes, line = case.by_rank([p for p, _ in found]), innermost(stack)
        changes = max(one.changes for _, one in found)
        yield RuleFinding(
            kind="unreduced_gradients",
            severity=NOTE,
            because=(sentences.NOT_BY_C10D,),
            summary="Nothing was reduced of the gradients of DistributedDataParallel"
            f"{'' if line is None else f' at {sentences.place(line)}'} on"
            f" {sentences.processes(evidence.trace, processes)}, though its parameters changed"
            f" {changes:,} times: each rank trains by itself.",
            hint="Call the DDP object, not its `.module`; leave `no_sync()` for the last backward"
            " pass before `optimizer.step()`.",
            group=group,
            locations=()
            if line is None
            else tuple(CodeLocation.at(p, line, "DistributedDataParallel") for p in processes),
            at_ns=min(one.t_ns for _, one in found),
        )
