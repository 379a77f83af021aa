"""A root, source or destination that is no member of the group; a fork in its parent's group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from disttrace_viewer.analysis.sample import innermost, together
from disttrace_viewer.evidence.wait import Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding, Scope, why
from disttrace_viewer.trace.model import CodeLocation, Group, JobTrace
from disttrace_viewer.trace.plain_text import whole
from disttrace_viewer.wording import sentences

_WRAPPERS = ("wrapper", "inner", "_fn")
"""Functions of torch that stand between the user's call and the one that was called."""
_TEXT = re.compile(r"(?:Global|Group) rank (-?\d+) is not part of group", re.IGNORECASE)
_ITSELF = re.compile(r"rank should not be the same as the rank of the current process")
"""Torch's error for a message to oneself; a group rank, taken for a global one, may be that."""
_TO_ITSELF = re.compile(r"Invalid destination rank")


def find(case: Case) -> Iterator[RuleFinding]:
    """Failures by that check; those about one group are one finding."""
    found: dict[int | None, dict[int, int]] = {}
    for process in case.own_failures():
        failure = case.ends[process].failure
        rank = _named(case, process, failure.text) if failure else None
        if rank is not None:
            group = _group(case, process, rank)
            index = None if group is None else group.index
            found.setdefault(index, {})[process] = rank
    for index, named in found.items():
        group = None if index is None else case.trace.groups[index]
        yield _finding(case, group, dict(sorted(named.items())))
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
    match = _TEXT.search(text)
    if match:
        number = whole(match[1].removeprefix("-"))
        return number if number is None or match[1][0] != "-" else -number
    return case.trace.processes[process].rank if _ITSELF.search(text) else None


def _group(case: Case, process: int, rank: int) -> Group | None:
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


def _finding(case: Case, group: Group | None, named: dict[int, int]) -> RuleFinding:
    """``named`` maps processes, in order, to the rank that each of them named."""
    processes = list(named)
    where = {process: case.evidence.whereabouts(process) for process in processes}
    operations = {process: _operation(case, process) for process in processes}
    first = case.evidence.ends[processes[0]]
    itself = all(case.trace.processes[p].rank == rank for p, rank in named.items())
    meant = any(_may_mean_another(case, p, rank) for p, rank in named.items())
    ops = set(operations.values())
    sending = {
        p
        for p in processes
        if (end := case.evidence.ends[p]).failure and _TO_ITSELF.search(end.failure.text)
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
    """The call that was refused: its own record's, else torch's function that the user called."""
    last = case.last(process)
    if last is not None and last.error is not None and _TEXT.search(last.error):
        return last.call.op
    failure = case.ends[process].failure
    raised = None if failure is None else innermost(failure.stack)
    if failure is None or raised is None:
        return None
    inside = [frame.function for frame in failure.stack[: failure.stack.index(raised)]]
    return next((name for name in reversed(inside) if name not in _WRAPPERS), None)


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
