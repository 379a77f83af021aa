"""A cycle in the wait-for graph: everybody in it waits for the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from disttrace_viewer.analysis.wait_graph import COLLECTIVE, KEY, MESSAGE, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import crossed, outside, unmatched
from disttrace_viewer.wording.findings import deadlock as words
from disttrace_viewer.wording.findings.crossed import question
from disttrace_viewer.wording.sentences import capital


def find(case: Case) -> Iterator[Finding]:
    """One finding per strongly connected part of the waits that nothing else explains."""
    for members in cycles(_edges(case)):
        waits = [w for w in case.open() if w.process in members and set(w.targets) & set(members)]
        facing = unmatched.facing(case, waits)
        if facing is not None:
            yield facing
        else:
            yield _finding(case, members, waits)


def _edges(case: Case) -> Mapping[int, tuple[int, ...]]:
    """Processes to those they wait for. Any-source waits count only where all senders are in."""
    edges: dict[int, tuple[int, ...]] = {}
    for wait in case.open():
        if not wait.any_of:
            edges[wait.process] = edges.get(wait.process, ()) + wait.targets
    for wait in case.open():
        if wait.any_of and not wait.absent and all(t in case.of_process for t in wait.targets):
            edges[wait.process] = edges.get(wait.process, ()) + wait.targets
    return edges


def cycles(edges: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """Sets of more than one process that all reach one another (Tarjan), each sorted."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: list[tuple[int, ...]] = []
    for start in sorted(edges):
        if start in index:
            continue
        work: list[tuple[int, int]] = [(start, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
            targets = [t for t in edges.get(node, ()) if t in edges]
            for position in range(at, len(targets)):
                target = targets[position]
                if target not in index:
                    work += [(node, position + 1), (target, 0)]
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    part = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    if len(part) > 1:
                        found.append(tuple(sorted(part)))
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
    return sorted(found)


def ring(edges: Mapping[int, Sequence[int]], members: Sequence[int]) -> list[int]:
    """A shortest cycle within members, from its smallest process on."""
    inside = set(members)
    best: list[int] = []
    for start in members:
        paths = [[start]]
        seen = {start}
        while paths:
            path = paths.pop(0)
            targets = sorted(set(edges.get(path[-1], ())) & inside)
            if start in targets:
                if not best or len(path) < len(best):
                    best = path
                break
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    paths.append([*path, target])
    return best


def _finding(case: Case, members: Sequence[int], waits: Sequence[Wait]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    path = ring(_edges(case), members)
    following = dict(zip(path, [*path[1:], path[0]], strict=True))
    edges = []
    for process, target in following.items():
        wait = next(w for w in waits if w.process == process and target in w.targets)
        edges.append((wait, evidence.within(wait.op), target))
    groups = {w.op.call.group for w in waits if w.kind != KEY}
    keys = [w for w in waits if w.kind == KEY]
    first = min(waits, key=lambda w: w.op.begin_ns)
    unsure = bool(keys) or any(case.evidence.inferred(w.op) for w in waits)
    apart = _beside(case, waits)
    return Finding(
        kind="deadlock",
        summary=words.summary(trace, edges),
        certainty=LIKELY if unsure or apart or not case.certain_journals(members) else CERTAIN,
        hint=_hint(case, waits, len(groups)) if not apart else _other_threads(case, apart),
        waiting=tuple(members),
        op=first.op.call.op if len({w.op.call.op for w in waits}) == 1 else None,
        group=trace.groups[groups.pop()].id  # type: ignore[index]
        if len(groups) == 1 and None not in groups
        else None,
        key=_key(keys[0]) if keys else None,
        cycle=tuple((p, words.WAITS_FOR, target) for p, target in following.items()),
        locations=evidence.locations(w.op for w in sorted(waits, key=lambda w: w.process)),
        at_ns=first.op.begin_ns,
        scope=Scope(roots=frozenset(members), exchanges=frozenset(w.exchange for w in waits)),
    )


def _beside(case: Case, waits: Sequence[Wait]) -> list[int]:
    """Those that are waited for in a group whose calls they make from threads that do not wait:
    what holds them up there is what these do, and may have nothing to do with the cycle.
    """
    kept = case.evidence.sample.of_process
    held: dict[int, set[int]] = {}
    for wait in waits:
        held.setdefault(wait.process, set()).add(wait.op.thread)
    found = set()
    for wait in waits:
        group = wait.op.call.group
        for target in held.keys() & set(wait.targets) if group is not None else ():
            at_work = {
                op.thread
                for op in kept.get(target, ())
                if (op.call.kind, op.call.group) == (wait.op.call.kind, group)
            }
            if at_work and not at_work & held[target]:
                found.add(target)
    return sorted(found)


def _other_threads(case: Case, processes: Sequence[int]) -> str:
    failed = next(((p, f) for p in processes for f in outside.failed_threads(case, p)), None)
    return words.other_threads(case.evidence.trace, failed, processes)


def _key(wait: Wait) -> str:
    """The first key that is awaited; the exchange is the place, then the keys."""
    assert isinstance(wait.exchange, tuple)
    return str(wait.exchange[2])


def _hint(case: Case, waits: Sequence[Wait], groups: int) -> str:
    trace = case.evidence.trace
    # By rank: processes are numbered host by host.
    for wait in sorted(waits, key=lambda w: trace.processes[w.process].rank or 0):
        other = crossed.partner(case, wait)
        if other is not None and other in waits and len(waits) > 2:
            asked = capital(question(trace, wait, other))
            return words.or_order(asked) if all(w.kind == MESSAGE for w in waits) else asked
    apart = next((w for w in waits if w.kind == MESSAGE and w.op.seq is not None), None)
    if apart is not None and any(w.kind == COLLECTIVE for w in waits) and apart.targets:
        return words.counted(trace, apart)
    if any(w.kind == KEY for w in waits):
        return words.SET_FIRST
    if all(w.kind == MESSAGE for w in waits):
        return words.ONE_SENDS
    if groups > 1 and (behind := _behind(case, waits)) is not None:
        return words.left_out(trace, *behind)
    return words.GROUPS if groups > 1 else words.CALLS


def _behind(case: Case, waits: Sequence[Wait]) -> tuple[Wait, Wait] | None:
    """A collective in which several wait for the only member that is not in it, and what that one
    is in: it may use the groups in another order, or have left this one out.
    """
    for wait in waits:
        if wait.kind == COLLECTIVE and len(wait.arrived) > 1 and not wait.absent:
            theirs = [w for w in waits if (w.process,) == wait.targets and w.kind == COLLECTIVE]
            if theirs:
                return wait, theirs[0]
    return None
