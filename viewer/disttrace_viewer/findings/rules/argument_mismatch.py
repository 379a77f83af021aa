"""Members joined one collective with another operation, root, dtype, size or reduce op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from disttrace_viewer.analysis import mismatches
from disttrace_viewer.analysis.mismatches import Difference
from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import one_call
from disttrace_viewer.findings.rules.one_call import OneCall
from disttrace_viewer.wording import sentences

WHAT: Mapping[str, tuple[str, str]] = {
    "op_mismatch": (
        "with different operations",
        "Look for a collective under a rank condition, or uneven inputs: join() or drop_last.",
    ),
    "root_mismatch": (
        "with different roots",
        "Every member must name the same root, as a global rank (or by group_src/group_dst).",
    ),
    "dtype_mismatch": (
        "with different dtypes",
        "Convert to one dtype before the call; look for autocast or a checkpoint on one rank.",
    ),
    "shape_mismatch": (
        "with sizes that do not fit",
        "Compare what the ranks pass: uneven batches, a last batch, or a model that differs.",
    ),
    "reduce_op_mismatch": (
        "with different reduce operations",
        "The result is wrong although the call may return: pass one ReduceOp on all ranks.",
    ),
}

RACED = (
    "Several threads of one process use this group at once, so the order of its calls is chance:"
    " give each thread a group of its own, or make the calls from one thread."
)


def find(case: Case) -> Iterator[Finding]:
    """The first difference of each stream of collectives."""
    for difference in mismatches.differences(case.evidence):
        yield _finding(case, difference)


def _finding(case: Case, found: Difference) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    group = trace.groups[found.group]
    what, hint = WHAT[found.kind]
    one = None if found.raced else _one_call(case, found)
    if found.raced:
        hint = RACED
    elif one is not None:
        hint = one.hint(case)
    first = found.members[min(found.members)]
    stream = (found.group, found.backend)
    members = frozenset(op.process for op in found.members.values())
    ends = found.kind != "reduce_op_mismatch" or any(
        op.status != "ok" for op in found.members.values()
    )
    scope = Scope(streams=((stream, found.seq),), members=_inside(case, found, members))
    if not ends:
        scope = Scope()
    again = f", and {found.times - 1} more times" if found.times > 1 else ""
    number = f"#{found.seq}"
    whole = len(found.members) == group.size and case.certain_journals(members)
    blame_sure = not found.odd or len(found.odd) == 1
    odd = sorted(found.odd)
    return Finding(
        kind=found.kind,
        summary=(
            f"The members of {sentences.group(group, trace)} joined collective {number} {what}:"
            f" {_sides(case, found)}{again}."
        ),
        certainty=CERTAIN if whole and blame_sure else LIKELY,
        hint=hint,
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


def _one_call(case: Case, found: Difference) -> OneCall | None:
    """Whether one side skipped a call or made one more, instead of passing other arguments."""
    trace = case.evidence.trace
    sides: dict[object, list[int]] = {}
    for rank in sorted(found.members):
        op = found.members[rank]
        # Of code that was generated the user's line may be one for several calls.
        sides.setdefault((frame(trace, op), trace.stack(op.call.index)[:1]), []).append(rank)
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


def _inside(case: Case, found: Difference, members: frozenset[int]) -> frozenset[int]:
    """Members that were inside the exchange, or in a later one of the stream, when they ended."""
    evidence = case.evidence
    inside = set()
    for op in found.members.values():
        end = evidence.ends[op.process]
        last = evidence.last.get(op.process)
        in_stream = last is not None and last.call.group == found.group
        if op.status != "ok" or (in_stream and end.over):
            inside.add(op.process)
    return frozenset(inside) & members


def _sides(case: Case, found: Difference) -> str:
    """``rank 0 all_gather (a.py:3), ranks 1 and 2 all_reduce (a.py:7)``, odd ones first."""
    trace = case.evidence.trace
    sides: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(found.members, key=lambda r: (r not in found.odd, r)):
        if rank in found.values:
            where = sentences.place(frame(trace, found.members[rank]))
            sides.setdefault((_value(case, found, rank), where), []).append(
                found.members[rank].process
            )
    return ", ".join(
        f"{sentences.processes(trace, processes)} {value} ({where})"
        for (value, where), processes in sides.items()
    )


def _value(case: Case, found: Difference, rank: int) -> str:
    member = found.members[rank]
    value, within = found.values[rank], case.evidence.within(member)
    op = member.call.op + within
    if found.kind == "op_mismatch":
        return value + within
    if found.kind == "root_mismatch":
        root = case.evidence.trace.groups[found.group].global_rank(int(value))
        return f"{op} with root {value if root is None else root}"
    return f"{op} with {value}"
