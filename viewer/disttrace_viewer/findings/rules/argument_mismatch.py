"""Members joined one collective with another operation, root, dtype, size or reduce op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from disttrace_viewer.analysis.operation import frame, is_of_generated, site
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.mismatches import Difference
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import one_call, swallowed
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording.findings import argument_mismatch as words
from disttrace_viewer.wording.findings.one_call import OneCall


def find(case: Case) -> Iterator[Finding]:
    """The first difference of each stream of collectives."""
    for difference in mismatches.differences(case.evidence, case.past.unlike()):
        raised = _swallowed(case, difference)
        if raised:
            difference = replace(difference, odd=frozenset(raised))
        yield swallowed.told(case, _finding(case, difference), [*raised.values()])


def _finding(case: Case, found: Difference) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    group = trace.groups[found.group]
    one = None if found.raced else _one_call(case, found)
    first = found.members[min(found.members)]
    stream = (found.group, found.backend)
    members = frozenset(op.process for op in found.members.values())
    ends = found.kind != "reduce_op_mismatch" or any(
        op.status != "ok" for op in found.members.values()
    )
    scope = Scope(stream=(stream, found.seq), members=_inside(case, found))
    if not ends:
        scope = Scope()
    whole = len(found.members) == group.size and case.certain_journals(members)
    blame_sure = not found.odd or len(found.odd) == 1
    odd = sorted(found.odd)
    return Finding(
        kind=found.kind,
        summary=words.summary(
            trace, found, {rank: evidence.within(op) for rank, op in found.members.items()}
        ),
        certainty=CERTAIN if whole and blame_sure else LIKELY,
        hint=words.hint(trace, found, one),
        culprits=tuple(found.members[r].process for r in odd if r in found.members),
        waiting=tuple(
            op.process
            for rank, op in sorted(found.members.items())
            if rank not in found.odd and op.status != "ok"
        ),
        op=first.call.op if found.kind != "op_mismatch" else None,
        group=group.id,
        seq=found.seq,
        locations=evidence.locations(
            found.members[r] for r in sorted(found.members, key=lambda r: (r not in found.odd, r))
        ),
        at_ns=min(op.begin_ns for op in found.members.values()),
        scope=scope,
    )


def _swallowed(case: Case, found: Difference) -> dict[int, Op]:
    """By group rank the calls that raised of those who came to another one instead: it is they who
    are odd, be they most. Nobody where that holds of all.
    """
    raised: dict[int, Op] = {}
    others: dict[str | None, list[Op]] = {}
    for rank, mine in found.members.items() if not found.raced else ():
        if not swallowed.any_raised(case, mine.process):
            continue
        value = found.values.get(rank)
        if value not in others:
            others[value] = [op for r, op in found.members.items() if found.values.get(r) != value]
        call = swallowed.find(case, mine.process, others[value], mine)
        if call is not None:
            raised[rank] = call
    return raised if len(raised) < len(found.members) else {}


def _one_call(case: Case, found: Difference) -> OneCall | None:
    """Whether one side skipped a call or made one more, instead of passing other arguments."""
    sides: dict[object, list[int]] = {}
    for rank in sorted(found.members):
        op = found.members[rank]
        where: object = (frame(op), op.call.stack[:1])
        if is_of_generated(op.call):  # of each rank other code, for one user's line
            where = site(op.call)
        sides.setdefault(where, []).append(rank)
    if len(sides) != 2:
        return None
    ones, twos = sides.values()
    members = found.members
    return one_call.find(
        case,
        members[ones[0]],
        members[twos[0]],
        ones=[members[r].process for r in ones],
        twos=[members[r].process for r in twos],
    )


def _inside(case: Case, found: Difference) -> frozenset[int]:
    """Members that were inside the exchange, or in a later one of the stream, when they ended."""
    evidence = case.evidence
    inside = set()
    for op in found.members.values():
        end = evidence.ends[op.process]
        last = case.last(op.process)
        in_stream = last is not None and last.call.group == found.group
        if op.status != "ok" or (in_stream and end.over):
            inside.add(op.process)
    return frozenset(inside)
