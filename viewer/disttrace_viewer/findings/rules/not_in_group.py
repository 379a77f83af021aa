"""A root, source or destination that is no member of the group."""

from __future__ import annotations

import re
from collections.abc import Iterator

from disttrace_viewer.findings import wording
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, Location, Scope
from disttrace_viewer.findings.operation import Op
from disttrace_viewer.model import Group

_TEXT = re.compile(r"(?:Global|Group) rank (-?\d+) is not part of group", re.IGNORECASE)


def find(case: Case) -> Iterator[Finding]:
    """Failures by that check; the same line and rank on several processes is one finding."""
    found: dict[tuple[int, int | None], list[int]] = {}
    for process in case.own_failures():
        failure = case.evidence.ends[process].failure
        match = _TEXT.search(failure.text) if failure else None
        if failure and match:
            group = _group(case, process, int(match[1]))
            key = (int(match[1]), None if group is None else group.index)
            found.setdefault(key, []).append(process)
    for (rank, index), processes in found.items():
        group = None if index is None else case.evidence.trace.groups[index]
        yield _finding(case, rank, group, processes)


def _group(case: Case, process: int, rank: int) -> Group | None:
    """The group of the failed call: its own record's, else the last used without that rank."""
    trace = case.evidence.trace
    last = case.evidence.last.get(process)
    if last is not None and last.call.group is not None:
        group = trace.groups[last.call.group]
        if rank not in (group.ranks or ()):
            return group
    mine = [
        g
        for g in trace.groups
        if any(m.process == process for m in g.members) and rank not in (g.ranks or (rank,))
    ]
    return mine[0] if len(mine) == 1 else None


def _finding(case: Case, rank: int, group: Group | None, processes: list[int]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    first = evidence.ends[processes[0]].failure
    assert first is not None
    label = wording.processes(trace, processes)
    members = list(group.ranks) if group is not None and group.ranks else None
    last = evidence.last.get(processes[0])
    op = last.call.op if last is not None and _failed(last) else None
    at = f" ({wording.standing(first.stack[0])})" if first.stack else ""
    names = {True: "names", False: "name"}[len(processes) == 1]
    return Finding(
        kind="not_in_group",
        summary=f"{label[0].upper() + label[1:]} {names} rank {rank}{at}, which is no member of"
        f" {members if members is not None else 'the group'}.",
        hint="torch wants global ranks for src and dst; ranks within the group go by group_src and"
        " group_dst, or get_global_rank() translates them.",
        culprits=tuple(processes),
        op=op,
        group=None if group is None else group.id,
        locations=tuple(
            Location(p, failure.stack[0].file, failure.stack[0].line, failure.stack[0].function, op)
            for p in processes
            if (failure := evidence.ends[p].failure) is not None and failure.stack
        ),
        consequences=(
            f"{label[0].upper() + label[1:]} failed with {first.type}: {first.text[:100]}.",
        ),
        at_ns=first.t_ns,
        scope=Scope(roots=frozenset(processes)),
    )


def _failed(op: Op) -> bool:
    return op.error is not None and _TEXT.search(op.error) is not None
