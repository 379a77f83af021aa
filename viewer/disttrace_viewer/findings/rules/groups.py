"""Processes disagree on a group's creation (other ranks, another order, a call left out), or name a
root, source or destination that is no member of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence, Set
from functools import partial

from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.wait import COLLECTIVE, MESSAGE, RENDEZVOUS, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, WARNING, RuleFinding, Scope, why
from disttrace_viewer.findings.rules.rendezvous_incomplete import new_group
from disttrace_viewer.trace.model import CodeLocation, Group, JobTrace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import replace, together
from disttrace_viewer.wording import sentences

Ranks = tuple[int, ...]
Creation = tuple[Op, Ranks]
"""One call of ``new_group`` with the global ranks that it names."""
Calls = Mapping[int, list[Creation]]
_BY_NAMES = mismatches.KINDS | {"deadlock", "missing_participant"}


def find_mismatch(case: Case) -> Iterator[RuleFinding]:
    """Per default group the first position in the sequence of calls where they differ."""
    yield from _two_names(case)
    for group in case.trace.groups:
        if group.default and len(group.members) > 1:
            calls = _calls(case, group)
            finding = _differ(case, group, calls) or _went_past(case, group, calls)
            if finding is not None:
                yield finding


def _two_names(case: Case) -> Iterator[RuleFinding]:
    """One group that its members make under different names, in one store: among members only
    (``use_local_synchronization``) torch names a group by how many each of them has made before.
    """
    same: dict[Hashable, list[tuple[str, Wait]]] = {}
    for wait in case.open():
        mesh = case.rendezvous.of(wait.op) if wait.kind == RENDEZVOUS else None
        parent = case.sample.around(wait.op)
        if mesh is None or mesh.ranks is None or parent is None:
            continue  # however young: in the other name none will come, as in a cycle
        if parent.call.args.get("use_local_synchronization"):
            name = "/".join(part or "?" for part in mesh.store.prefix)
            key = (mesh.store.place, mesh.ranks, wait.op.call.op)
            same.setdefault(key, []).append((name, wait))
    for found in same.values():
        waits = [wait for _, wait in found]
        who = tuple(sorted({wait.process for wait in waits}))
        if len({name for name, _ in found}) < 2 or len(who) < len(waits):
            continue
        places = [case.evidence.top(wait.op) for wait in waits]
        made = (
            (f"it under {name!r} ({sentences.line(op)})", op.process)
            for (name, _), op in zip(found, places, strict=True)
        )
        text = sentences.sides(case.trace, made, "makes", "make")
        yield RuleFinding(
            kind="group_mismatch",
            summary="Members of one group make it under different names in the same store, so they"
            f" wait for each other: {text}. One of them has made more such groups before, or"
            " fewer.",
            hint="Make the same groups in the same order in all members of this one, or pass"
            " use_local_synchronization=False.",
            waiting=who,
            op="new_group",
            locations=case.evidence.locations(places),
            at_ns=min(wait.op.begin_ns for wait in waits),
            scope=Scope.of(waits, roots=who),
        )


def by_names(case: Case, finding: RuleFinding) -> RuleFinding:
    """A finding without culprit, with the member that gives the names of groups crosswise."""
    if finding.severity != ERROR or finding.culprits or finding.kind not in _BY_NAMES:
        return finding
    trace = case.trace
    names = [({m.process: m.desc for m in g.members if m.desc}, g) for g in trace.groups]
    apart = [(of, g) for of, g in names if len({*of.values()}) > 1]
    sides = [{*(mismatches.minority(of, len(of)) or of)} for of, _ in apart]
    odd = set.intersection(*sides) if sides else set()
    if len(odd) != 1 or not odd <= {*finding.waiting, *finding.scope.roots}:
        return finding
    (one,) = odd
    usual = {name for of, _ in names for process, name in of.items() if process != one}
    if any(of[one] not in usual for of, _ in apart):
        return finding  # a name of its own
    texts = [
        f"{[*(g.ranks or ())]} is {of[one]!r} there and"
        f" {sentences.listed(sorted({repr(name) for p, name in of.items() if p != one}))} elsewhere"
        for of, g in apart
    ]
    return replace(
        finding,
        culprits=(one,),
        because=(sentences.EITHER_SIDE,),
        summary=f"{finding.summary} {sentences.subject(trace, [one])} gives groups other names than"
        f" their other members: {sentences.listed(texts)}.",
        hint="Compare how this rank makes its mesh, or its groups: names, shape and order of"
        " dimensions.",
    )


def _calls(case: Case, group: Group) -> Calls:
    """The calls of every member of a default group, in order, since it joined that group."""
    since = {m.process: m.t_ns or 0 for m in group.members}
    until: dict[int, float] = {}
    for other in case.trace.groups:
        for m in other.members if other.default and other.index != group.index else ():
            if (m.t_ns or 0) > since.get(m.process, math.inf):
                until[m.process] = m.t_ns or 0
    found: dict[int, list[Creation]] = {process: [] for process in since}
    for op in case.sample.of_kind("composed"):
        if op.call.op != "new_group" or op.call.args.get("use_local_synchronization"):
            continue
        if since.get(op.process, math.inf) <= op.begin_ns < until.get(op.process, math.inf):
            ranks = op.call.args.get("ranks")
            if not isinstance(ranks, list):
                ranks = group.ranks or range(group.size or 0)
            elif op.call.args.get("sort_ranks", True):
                ranks = sorted(ranks)
            found[op.process].append((op, tuple(ranks)))
    return found


def _differ(case: Case, group: Group, calls: Calls) -> RuleFinding | None:
    for position in range(max(map(len, calls.values()))):
        here = {p: c[position] for p, c in calls.items() if position < len(c)}
        values = {p: ranks for p, (_, ranks) in here.items()}
        if len({*values.values()}) < 2:
            continue
        odd = sorted(mismatches.minority(values, group.size or len(values)))
        return _mismatch(case, group, calls, position, odd)
    return None


def _harmed(case: Case, calls: Calls, position: int) -> list[Wait]:
    """Open waits in a creation from a position on, or in a group that was made there."""
    found = []
    for wait in case.open():
        own, group = calls.get(wait.process, [])[position:], case.trace.group_of(wait.op.call)
        if wait.kind == RENDEZVOUS:
            made_ns = wait.op.begin_ns
        else:
            members = () if group is None else group.members
            made_ns = next((m.t_ns or 0 for m in members if m.process == wait.process), -1)
        if own and made_ns >= own[0][0].begin_ns:
            found.append(wait)
    return found


def _went_past(case: Case, group: Group, calls: Calls) -> RuleFinding | None:
    """A creation that a rank waits in, and that a member passed by, or that was one too many."""
    polled = set[tuple[int, Ranks]]()  # thousands may wait in one creation
    for wait in case.open():
        if wait.kind != RENDEZVOUS or wait.process not in calls:
            continue
        own = calls[wait.process]
        position = next(
            (i for i, (op, _) in enumerate(own) if op.number == wait.op.parent and op.pending), None
        )
        if position is None or (position, own[position][1]) in polled or not case.old(wait):
            continue
        polled.add((position, own[position][1]))
        here = {p: c[position] for p, c in calls.items() if position < len(c)}
        wanted = own[position][1]
        before = partial(_made_before, case, here, {})
        past = [
            p
            for p in calls
            if p not in here
            and case.trace.processes[p].rank in wanted
            and (case.clean(p) or _elsewhere(case, p, here))
            and not any(map(before, case.of_process.get(p, ())))
        ]
        if past:
            sides = dict.fromkeys(here, True) | dict.fromkeys(past, False)
            odd = sorted(mismatches.minority(sides, len(sides)))
            return _mismatch(case, group, calls, position, odd, past)
    return None


def _elsewhere(case: Case, process: int, here: Container[int]) -> bool:
    """Whether a process waits for those who are ``here``, in the creation: where it waits for
    others, who may wait for these in turn, it may still come. Nor is it in what may be over before
    it comes: another creation; nor in a message alone, which the other end may have left out as
    well as this one the creation.
    """
    waits = case.of_process.get(process, ())
    if all(w.kind == MESSAGE for w in waits):
        return False
    if any(w.kind == RENDEZVOUS and new_group(case, w) for w in waits):
        return False
    return any(target in here for wait in waits for target in wait.targets)


def _made_before(
    case: Case, here: Mapping[int, Creation], known: dict[Hashable, bool], wait: Wait
) -> bool:
    """Whether a rank ``here`` made the collective that is waited in before the creation: then who
    waits in it has that still before it, and who did not come to it has left it out. ``known``: of
    which that is known already, for thousands may wait in one.
    """
    op = wait.op
    if wait.kind != COLLECTIVE or op.seq is None:
        return False
    if wait.exchange not in known:
        made = case.evidence.exchange(op.call.stream, op.seq).values()
        known[wait.exchange] = any(
            one.process in here and one.number < here[one.process][0].number for one in made
        )
    return known[wait.exchange]


def _mismatch(
    case: Case, group: Group, calls: Calls, position: int, odd: list[int], past: Sequence[int] = ()
) -> RuleFinding:
    here = {p: c[position] for p, c in calls.items() if position < len(c)}
    waits = _harmed(case, calls, position)
    order = sorted(here, key=lambda p: (p not in odd, p))
    places = [here[p][0] for p in order]
    texts = ((f"{[*here[p][1]]} ({sentences.line(here[p][0])})", p) for p in order)
    makes = sentences.sides(case.trace, texts, "makes", "make")
    inside = {w.process for w in waits}
    went = [w.op for p in past for w in case.of_process.get(p, ())]
    what = f"the processes do not make the same group: {makes}"
    if past:
        then = f"{sentences.have(past)} ended"
        if went:
            shown = dict.fromkeys(sentences.call(case.trace, op) for op in went)
            then = f"{'is' if len(past) == 1 else 'are'} in {sentences.listed(list(shown))}"
        what = f"{makes}, but {sentences.processes(case.trace, past)} went past it and {then}"
    # One against one, both in operations: either of them may have left a call out before.
    unsure = bool(went) and not odd
    hint = (
        "Every process must call new_group for every group, members or not, in one order with the"
        " same ranks (or pass use_local_synchronization=True)."
    )
    if unsure:
        hint += " Or look for a call before it that those who make the group have left out."
    return RuleFinding(
        kind="group_mismatch",
        summary=f"In call {position + 1} of new_group, {what}.",
        severity=ERROR if waits else WARNING,
        because=why((unsure, sentences.EITHER_SIDE)),
        hint=hint,
        culprits=tuple(odd),
        waiting=tuple(sorted(inside - {*odd})),
        op="new_group",
        group=group.id,
        locations=case.evidence.locations([*went, *places]),
        at_ns=min(op.begin_ns for op, _ in here.values()),
        scope=Scope.of(waits, roots=inside.union(past), members=inside),
    )


_TEXT = re.compile(r"(?:Global|Group) rank (-?[0-9]{1,9}) is not part of group", re.IGNORECASE)
_ITSELF = "rank should not be the same as the rank of the current process"
"""Torch's error for a message to oneself; a group rank, taken for a global one, may be that."""


def find_no_member(case: Case) -> Iterator[RuleFinding]:
    """Failures by that check; those about one group are one finding."""
    found: dict[int | None, dict[int, int]] = {}
    for process in case.own_failures():
        failure = case.ends[process].failure
        rank = _named(case, process, failure.text) if failure else None
        if rank is not None:
            group = _group_of(case, process, rank)
            index = None if group is None else group.index
            found.setdefault(index, {})[process] = rank
    for index, named in found.items():
        group = None if index is None else case.trace.groups[index]
        yield _no_member(case, group, dict(sorted(named.items())))
    for wait in case.oldest():
        finding = _inherited(case, wait)
        if finding is not None:
            yield finding


def _inherited(case: Case, wait: Wait) -> RuleFinding | None:
    """A forked child that calls in a group of its parent's: its copy is connected to none."""
    evidence, trace, call = case.evidence, case.trace, wait.op.call
    parent = trace.parent_of(trace.processes[wait.process])
    if call.group is None or call.group_rank is not None or parent is None or not case.old(wait):
        return None
    group = trace.groups[call.group]
    if parent.index not in {member.process for member in group.members}:
        return None
    return RuleFinding(
        kind="not_in_group",
        summary=f"Process {trace.processes[wait.process].pid}, a forked child of {parent.label},"
        f" has been in {sentences.call(trace, wait.op)} for"
        f" {sentences.span(evidence.age_ns(wait.op))}: it inherited that group, and no process"
        " knows it there.",
        hint="A group does not survive a fork: make one in the child (spawn it, and call"
        " init_process_group there), or communicate in the parent.",
        culprits=(wait.process,),
        **case.about(wait.op),
        locations=evidence.locations([wait.op]),
        scope=Scope.of(members=[wait.process]),
    )


def _named(case: Case, process: int, text: str) -> int | None:
    """The rank that an error states is wrong; None for other errors."""
    if match := _TEXT.search(text):
        return int(match[1])
    return case.trace.processes[process].rank if _ITSELF in text else None


def _group_of(case: Case, process: int, rank: int) -> Group | None:
    """The group of the failed call: its own record's, else the last used without that rank."""
    last = case.last(process)
    if last is not None and last.call.group is not None:
        group = case.trace.groups[last.call.group]
        if rank not in (group.ranks or ()):
            return group
    mine = [
        g
        for g in case.trace.groups
        if any(m.process == process for m in g.members) and rank not in (g.ranks or (rank,))
    ]
    return mine[0] if len(mine) == 1 else None


def _no_member(case: Case, group: Group | None, named: dict[int, int]) -> RuleFinding:
    """``named`` maps processes, in order, to the rank that each of them named."""
    processes = list(named)
    where = {process: case.evidence.whereabouts(process) for process in processes}
    operations = {process: _operation(case, process) for process in processes}
    first = case.ends[processes[0]]
    itself = all(case.trace.processes[p].rank == rank for p, rank in named.items())
    meant = any(_may_mean_another(case, p, rank) for p, rank in named.items())
    ops = set(operations.values())
    sending = {
        p
        for p in processes
        if (end := case.ends[p]).failure and "Invalid destination rank" in end.failure.text
    }
    return RuleFinding(
        kind="not_in_group",
        summary=to_itself(case.trace, [*named], where, sending)
        if itself
        else summary(case.trace, named, where, group),
        hint="torch wants global ranks for src and dst; ranks within the group go by group_src and"
        " group_dst, or get_global_rank() translates them."
        if meant or not itself
        else "A rank cannot be at both ends of a message: look at how this line comes to the other"
        " end (a table of stages, rank + 1 at the end of a ring, a number of ranks that is one).",
        because=why((itself and meant, sentences.ANOTHER_RANK)),
        culprits=tuple(processes),
        op=ops.pop() if len(ops) == 1 else None,
        group=None if group is None else group.id,
        locations=tuple(replace(at, op=operations[p]) for p, at in where.items() if at is not None),
        at_ns=first.t_ns,
        scope=Scope.of(roots=processes),
    )


def _may_mean_another(case: Case, process: int, rank: int) -> bool:
    """Whether a number that is a process's own rank would be another member's as a group rank."""
    trace = case.trace
    groups = (trace.groups[group].ranks for group in trace.groups_by_process.get(process, ()))
    return any(ranks and rank < len(ranks) and ranks[rank] != rank for ranks in groups)


def _operation(case: Case, process: int) -> str | None:
    """The call that was refused, where it has a record."""
    last = case.last(process)
    if last is not None and last.error is not None and _TEXT.search(last.error):
        return last.call.op
    return None


Where = Mapping[int, CodeLocation | None]


def summary(trace: JobTrace, named: Mapping[int, int], where: Where, group: Group | None) -> str:
    """``named``: the rank that each process named, at a line."""
    reported = ((f"rank {rank}{sentences.aside(where[p])}", p) for p, rank in named.items())
    text = sentences.capital(sentences.sides(trace, reported, "names", "name"))
    no_member = "no member" if len(set(named.values())) == 1 else "not among the members"
    whole = [*group.ranks] if group is not None and group.ranks else "the group"
    return f"{text}, {no_member} of {whole}."


def to_itself(trace: JobTrace, who: Sequence[int], where: Where, sending: Set[int]) -> str:
    """The one that is not ``sending`` to itself receives from itself."""
    reported = together(
        (f"{'sends to' if p in sending else 'receives from'} itself{sentences.aside(where[p])}", p)
        for p in who
    )
    each = {text: "" if len(of) == 1 else "each of " for text, of in reported.items()}
    text_of = [
        f"{each[text]}{sentences.processes(trace, of)} {text}" for text, of in reported.items()
    ]
    return f"{sentences.capital(sentences.listed(text_of))}."
