"""A cycle in the wait-for graph: everybody in it waits for the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from disttrace_viewer.analysis.past import place_of
from disttrace_viewer.analysis.sample import message_stream, site
from disttrace_viewer.evidence.mismatches import called_from
from disttrace_viewer.evidence.wait import COLLECTIVE, KEY, MESSAGE, Wait, cycles, ring
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding, Scope, why
from disttrace_viewer.findings.rules import outside, swallowed, unmatched
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.trace.values import together
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import few


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per strongly connected part of the waits that nothing else explains; those first
    that wait for others as well, for what follows from one is not repeated."""

    def one_may_come(wait: Wait) -> bool:
        return wait.any_of and (
            bool(wait.absent) or any(case.outside(p) and not case.clean(p) for p in wait.targets)
        )

    held = together((wait.process, wait) for wait in case.open() if not one_may_come(wait))
    for part in cycles(_graph(wait for waits in held.values() for wait in waits)):
        members = tuple(sorted(node for node in part if node >= 0))
        waits = [
            w
            for p in case.by_rank(members)
            for w in held[p]
            if not frozenset(members).isdisjoint(w.targets)
        ]
        yield unmatched.facing(case, waits) or _finding(case, members, waits)


def _graph(waits: Iterable[Wait]) -> dict[int, Sequence[int]]:
    """Processes to what they wait in (a number below zero), and from there to those who must act:
    members of an exchange share their targets, so thousands have few edges."""
    edges: dict[int, Sequence[int]] = {}
    inside: defaultdict[int, list[int]] = defaultdict(list)
    number: dict[int, int] = {}
    for wait in waits:
        through = number.setdefault(id(wait.targets), -1 - len(number))
        inside[wait.process].append(through)
        edges[through] = wait.targets
    return edges | inside


def _finding(case: Case, members: Sequence[int], waits: Sequence[Wait]) -> RuleFinding:
    mine = together((wait.process, wait) for wait in waits)
    graph = _graph(waits)
    # Processes of a shortest cycle, from the one whose wait comes first on.
    path = [p for p in ring(graph, sorted(graph, key=lambda node: node < 0)) if p >= 0]
    following = dict(zip(path, [*path[1:], path[0]], strict=True))
    edges = [
        (next(w for w in mine[node] if target in w.targets), target)
        for node, target in following.items()
    ]
    groups = {w.op.call.group for w in waits if w.kind != KEY}
    keys = [w for w in waits if w.kind == KEY]
    first = min(waits, key=lambda w: w.op.begin_ns)
    apart = _beside(case, waits)
    skipped = None if apart else _skipped(case, waits)
    finding = RuleFinding(
        kind="deadlock",
        summary=summary(case, edges),
        because=why(
            (keys, sentences.STORE_KEY),
            (any(w.op.call.origin == "c++" for w in waits), sentences.NATIVE),
            (any(w.op.is_polled for w in waits), sentences.POLLED),
            (apart, sentences.ON_THE_WAY),
            (skipped, sentences.EITHER_SIDE),
            (not case.certain_journals(members), sentences.NOT_WHOLE),
        ),
        hint=left_out(case.trace, *skipped)
        if skipped
        else _other_threads(case, apart)
        if apart
        else _hint(case, waits, edges),
        culprits=(skipped[1].process,) if skipped else (),
        waiting=tuple(members),
        op=first.op.call.op if len({w.op.call.op for w in waits}) == 1 else None,
        group=case.trace.groups[groups.pop()].id  # type: ignore[index]
        if len(groups) == 1 and None not in groups
        else None,
        key=str(keys[0].exchange[2]) if keys else None,  # type: ignore[index]
        cycle=tuple((p, "waits for", t) for p, t in following.items()),
        locations=case.evidence.locations(w.op for w in sorted(waits, key=lambda w: w.process)),
        at_ns=first.op.begin_ns,
        scope=Scope.of(waits, roots=members),
    )
    return swallowed.with_raised(case, finding, _swallowed(case, waits))


def _skipped(case: Case, waits: Sequence[Wait]) -> tuple[Wait, Wait] | None:
    """A collective in which most members wait for the only one that is not in it, and the message
    that this one is in, if it has left the collective out: since its last one there it came through
    that line already, and sent to one of those who wait. Had it got a message too few, so would
    that one.
    """
    for wait in (w for w in waits if w.stream is not None and not w.absent):
        size = case.trace.groups[wait.op.call.group or 0].size or 0
        for other in (w for w in waits if w.kind == MESSAGE and (w.process,) == wait.targets):
            if other.any_of or 2 * len(wait.arrived) <= size:
                continue
            mine = case.sample.of_process[other.process]
            here = case.sample.in_stream(other.process, wait.op.call.stream)
            last = max((op.number for op in here), default=0)
            since = [op for op in mine if op.call.kind == MESSAGE and op.number > last > 0]
            through = any(
                op.status == "ok" and site(op.call) == site(other.op.call) for op in since
            )
            sent = any(
                op.call.op == "send"
                and (to := case.evidence.process_of(op.call.group or 0, op.peer or 0)) is not None
                and to in wait.arrived
                and to not in other.targets
                for op in since
            )
            return (wait, other) if through and sent else None
    return None


def _swallowed(case: Case, waits: Sequence[Wait]) -> list[Op]:
    """The calls by which members would have come, had they not raised before they went on."""
    raised: dict[int, Op] = {}
    waiting = together((wait.process, wait) for wait in waits if wait.kind == COLLECTIVE)
    inside = {wait.exchange: wait for of in waiting.values() for wait in of}
    for wait in inside.values():  # one for all who wait in it
        others = (other for target in wait.targets for other in waiting.get(target, ()))
        for other in (one for one in others if one.stream != wait.stream):
            call = swallowed.find(case, other.process, [wait.op], other.op)
            if call is not None:
                raised[other.process] = call
    return [*raised.values()]


def _beside(case: Case, waits: Sequence[Wait]) -> list[int]:
    """Members whose calls in that group are made by threads that do not wait in the cycle."""
    held = together((wait.process, wait.op.thread) for wait in waits)
    at_work = together(
        ((process, op.call.kind, op.call.group), op.thread)
        for process in held
        for op in case.sample.of_process.get(process, ())
    )
    # Members of an exchange share their targets, as one object.
    requested = {(w.op.call.kind, w.op.call.group, id(w.targets)): w.targets for w in waits}
    return sorted(
        {
            target
            for (kind, group, _), targets in requested.items()
            for target in (held.keys() & {*targets} if group is not None else ())
            if {*held[target]}.isdisjoint(at_work.get((target, kind, group), held[target]))
        }
    )


def _other_threads(case: Case, processes: Sequence[int]) -> str:
    """What to do where other threads than those that wait make the calls; one may have failed."""
    trace = case.trace
    for process in processes:
        for failure in outside.failed_threads(case, process):
            label, exception = trace.processes[process].label, outside.raised(failure)
            return f"Read the exception of a thread of {label} first: {exception}."
    return (
        f"The calls there are made by other threads of {sentences.processes(trace, processes)} than"
        " those that wait: look at what these do, and whether they still run."
    )


def _hint(case: Case, waits: Sequence[Wait], edges: Sequence[tuple[Wait, int]]) -> str:
    for wait in waits:
        other = unmatched.partner(case, wait)
        if other is not None and other in waits and len(waits) > 2:
            requested = sentences.capital(unmatched.question(case.trace, wait, other))
            if any(w.kind != MESSAGE for w in waits):
                return requested  # else it may as well be their order
            return f"{requested} If it is: {ONE_SENDS[:1].lower()}{ONE_SENDS[1:]}"
    if any(w.kind == KEY for w in waits):
        return SET_FIRST
    if all(w.kind == MESSAGE for w in waits):
        return ONE_SENDS
    return _counted(case, edges) or (
        "Look for a call that one of these ranks left out (a condition on the rank or on the data);"
        " if each of them makes all of these calls, bring them, and the groups, into one order on"
        " all ranks."
    )


def _counted(case: Case, edges: Sequence[tuple[Wait, int]]) -> str | None:
    """By how many calls each is short for which another one waits; first where it has made some.
    Whose doing it is the counts do not tell: either side may be short, or have made one too many.
    """
    texts: list[tuple[bool, str]] = []
    for wait, target in edges:
        op, trace = wait.op, case.trace
        if op.seq is None or wait.any_of:
            continue
        if wait.kind == COLLECTIVE:
            done = _newest(case.sample.in_stream(target, op.call.stream))
            where = f"in {sentences.group(trace.groups[op.call.group or 0], trace)}"
            calls, of = "call", f" of {sentences.processes(trace, wait.arrived)}"
        else:
            side, way = ("send", "to") if op.call.op == "recv" else ("recv", "from")
            kept = case.sample.message_streams.get((side, message_stream(op)), ())  # type: ignore[arg-type]
            where, of = f"{way} {trace.processes[wait.process].label}", ""
            done, calls = _newest(kept), "send" if side == "send" else "receive"
        if op.seq <= done:
            continue
        lacks = "one" if op.seq == done + 1 else f"{op.seq - done:,}"
        calls += "s" * (op.seq > done + 1)
        counts = f"{f'{done:,}' if done else 'none'} against {op.seq:,}{of}"
        text = f"{trace.processes[target].label} is {lacks} {calls} short {where} ({counts})"
        texts.append((not done, text))
    shown = ", or ".join(text for _, text in sorted(texts, key=lambda one: one[0]))
    return shown and (
        f"{sentences.capital(shown)}: look for a call that was left out, or made once too often (a"
        " condition on the rank or on the data), maybe long before, or for groups used in another"
        " order."
    )


def _newest(kept: Iterable[Op]) -> int:
    return max((op.seq or 0 for op in kept), default=0)


SET_FIRST = "Set the key before the call in which its setter waits, or wait for it after that."
ONE_SENDS = (
    "Let one side send first and the other receive first, or post both without waiting"
    " (batch_isend_irecv); or find the message that one of them left out (a condition on the rank,"
    " a batch that is shorter there)."
)


def summary(case: Case, edges: Sequence[tuple[Wait, int]]) -> str:
    """Edge by edge: each wait along the cycle, and for which it is."""
    # Who waits for any of several is in a cycle with each of them, of which one is reported.
    any_of = [p for wait, _ in edges if wait.any_of for p in wait.targets if not case.outside(p)]
    who = sentences.subject(case.trace, {wait.process for wait, _ in edges}.union(any_of))
    texts = [_edge(case, wait, target) for wait, target in edges]
    how = "wait for one another" if len(edges) > 1 else "waits for itself"
    return f"{who} {how}: {few(texts, sentences.MANY, '; ')}."


def _edge(case: Case, wait: Wait, target: int) -> str:
    trace, op = case.trace, wait.op
    what = sentences.operation(trace, op, case.evidence.within(op))
    what += f", {sentences.sizes(op)}" if wait.kind == MESSAGE else ""
    whom = trace.processes[target].label
    ended = [p for p in wait.targets if case.outside(p)] if wait.any_of else []
    if wait.any_of and len(wait.targets) - len(ended) > 1:
        others = sentences.processes(trace, [p for p in wait.targets if p not in ended])
        whom = f"any of {others}, which all wait"
    if ended:
        whom += f" ({sentences.processes(trace, ended)} {sentences.have(ended)} ended)"
    if wait.polled:
        whom += ", which has set all such keys but this"
    elif wait.kind == KEY:
        whom += ", which alone has set such keys"
    return (
        f"{trace.processes[wait.process].label} {'asks for' if wait.polled else 'is in'} {what}"
        f" ({sentences.line_of(op, _caller(case, op))}) and waits for {whom}"
    )


def _caller(case: Case, op: Op) -> Frame | None:
    """Who called the helper by whose line this and other calls of the process were made."""
    calls = {one.call.index: one.call for one in (*case.sample.of_process.get(op.process, ()), op)}
    places = {index: place_of(call) for index, call in calls.items()}
    found = called_from(calls, places)[op.call.index]
    return None if found == places[op.call.index] else found[1]


def left_out(trace: JobTrace, wait: Wait, instead: Wait) -> str:
    """One made the call ``instead`` of that in which the others wait."""
    one = trace.processes[instead.process].label
    return (
        f"{sentences.capital(one)} went on to {sentences.call(trace, instead.op)}"
        f" without {sentences.operation(trace, wait.op)}, in"
        f" which {sentences.processes(trace, wait.arrived)} are: look for a call that it left out"
        " (a condition on the rank or on the data)."
    )
