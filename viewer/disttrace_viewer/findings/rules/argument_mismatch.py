"""Members joined one collective with another operation, root, dtype, size or reduce op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from disttrace_viewer.analysis.operation import (
    Lines,
    branch,
    frame,
    is_of_generated,
    lines_of,
    site,
)
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.mismatches import Difference, unfitting
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, Scope, why
from disttrace_viewer.findings.rules import one_call, swallowed
from disttrace_viewer.findings.rules.one_call import OneCall
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.quantities import few, number
from disttrace_viewer.wording.reasons import MAJORITY, NO_JOURNAL, NOT_WHOLE


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
    odd = sorted(found.odd)
    others = _lines_of_others(found)
    callers = (
        (op.process, caller)
        for rank, op in sorted(found.members.items())
        if (caller := branch(op, others[found.values.get(rank)])) is not None
    )
    return Finding(
        kind=found.kind,
        callers=tuple((process, sentences.place(caller)) for process, caller in callers),
        summary=summary(
            trace, found, {rank: evidence.within(op) for rank, op in found.members.items()}
        ),
        because=why(
            (len(found.members) != group.size, NO_JOURNAL),
            (not case.certain_journals(members), NOT_WHOLE),
            (len(found.odd) > 1, MAJORITY),
        ),
        hint=hint(trace, found, one),
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
    if len(sides) == 1:  # a helper's line: the callers tell
        sides = {}
        for rank, op in sorted(found.members.items()):
            sides.setdefault(op.call.stack, []).append(rank)
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


_WHAT = {
    "op_mismatch": (
        "with different operations",
        "Look for a collective under a rank condition, or uneven inputs: one has fewer batches.",
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
_PAIRS = (
    "What one sends, the other must expect: let the ranks exchange their counts after the last"
    " change of what they send (dropped or padded rows), and look for an order by another rank."
)
_RACED = (
    "Several threads of one process use this group at once, so the order of its calls is chance:"
    " give each thread a group of its own, or make the calls from one thread."
)


def summary(trace: Trace, found: Difference, within: Mapping[int, str | None]) -> str:
    """The sides, odd ones first: ``rank 0 all_gather (a.py:3), ranks 1, 2 all_reduce (a.py:7)``.

    ``within``: by group rank the operation that the program called, where that was another one.
    """
    brought = sorted(found.values.keys() & found.members, key=lambda r: (r not in found.odd, r))
    others = _lines_of_others(found)
    sides = sentences.together(
        (_value(trace, found, rank, within[rank], others), found.members[rank].process)
        for rank in brought
    )
    text = _by_pairs(trace, found, within) or few(
        [
            f"{sentences.processes(trace, who, within=found.group)} {side}"
            for side, who in sides.items()
        ]
    )
    again = f", and {found.times - 1} more times" if found.times > 1 else ""
    return (
        f"The members of {sentences.group(trace.groups[found.group], trace)} joined collective"
        f" #{found.seq} {_WHAT[found.kind][0]}: {text}{again}."
    )


def _by_pairs(trace: Trace, found: Difference, within: Mapping[int, str | None]) -> str:
    """``all_to_all_single (a.py:3), in which rank 2 sends 12 rows to rank 1, which expects 15``;
    empty where the sizes of all are compared, and not those of each two.
    """
    pairs = unfitting(found.members) if found.kind == "shape_mismatch" else []
    if not pairs:
        return ""
    one = found.members[pairs[0].sender]
    unit = "row" if one.call.op == "all_to_all_single" else "element"
    said = []
    for pair in pairs:
        sender, receiver = (
            sentences.processes(trace, [found.members[rank].process])
            for rank in (pair.sender, pair.receiver)
        )
        whom = "itself and" if sender == receiver else f"{receiver}, which"
        said.append(f"{sender} sends {number(pair.sent, unit)} to {whom} expects {pair.taken:,}")
    call = f"{one.call.op}{sentences.inside(within[pairs[0].sender])} ({sentences.line(one)})"
    return f"{call}, in which {few(said)}"


def hint(trace: Trace, found: Difference, one: OneCall | None) -> str:
    """What to look for; ``one``: the call that one side skipped, or made beyond the others'."""
    if one is not None:
        return one_call.hint(trace, one)
    if found.raced:
        return _RACED
    apart = _two_lines(trace, found)
    if found.kind in _SIZES and apart is not None:
        return (
            f"The call at {apart[0]} met another one, at {apart[1]}: look for a call that one"
            " side makes beyond the others', or leaves out, there or before (`if rank ...`, a"
            " `continue`, a recomputation); else compare what the ranks pass."
        )
    if found.kind == "shape_mismatch" and unfitting(found.members):
        return _PAIRS
    return _WHAT[found.kind][1]


_SIZES = ("shape_mismatch", "dtype_mismatch")


def _two_lines(trace: Trace, found: Difference) -> tuple[str, str] | None:
    """The line of those who differ and that of the others, where each side has one of its own."""
    sides: dict[str, set[bool]] = {}
    others = _lines_of_others(found)
    for rank in sorted(found.members, key=lambda r: (r not in found.odd, r)):
        op = found.members[rank]
        line = sentences.line_of(op, branch(op, others[found.values.get(rank)]))
        sides.setdefault(line, set()).add(rank in found.odd)
    if len(sides) != 2 or any(len(side) > 1 for side in sides.values()):
        return None
    first, second = sides
    return first, second


def _lines_of_others(found: Difference) -> dict[str | None, Lines]:
    """By what some brought the lines of those who brought anything else."""
    sides: dict[str | None, list[Op]] = {}
    for rank, op in found.members.items():
        sides.setdefault(found.values.get(rank), []).append(op)
    return {
        value: lines_of(op for other, ops in sides.items() if other != value for op in ops)
        for value in sides
    }


def _value(
    trace: Trace,
    found: Difference,
    rank: int,
    within: str | None,
    others: Mapping[str | None, Lines],
) -> str:
    op, value, inside = found.members[rank], found.values[rank], sentences.inside(within)
    at = f"({sentences.line_of(op, branch(op, others[value]))})"
    if found.kind == "op_mismatch":
        return f"{value}{inside} {at}"
    if found.kind == "root_mismatch":
        root = trace.groups[found.group].global_rank(int(value))
        value = f"root {value if root is None else root}"
    return f"{op.call.op}{inside} with {value} {at}"
