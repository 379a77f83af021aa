"""Members joined one collective with another operation, root, dtype, size or reduce op."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby

from disttrace_viewer.analysis.past import Misfit, fits
from disttrace_viewer.analysis.sample import (
    STAND_IN,
    Site,
    branch,
    frame,
    is_of_generated,
    lines_of,
    site,
)
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.mismatches import Disagreement, aligned, unfitting
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding, Scope, why
from disttrace_viewer.findings.rules import outside, swallowed
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.trace.values import replace, together
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import few, number, parameters, unusual


def find(case: Case) -> Iterator[RuleFinding]:
    """The first difference of each stream of collectives."""
    for difference in mismatches.differences(case.evidence, case.past.unlike()):
        raised = _swallowed(case, difference)
        if raised:
            difference = replace(difference, odd=frozenset(raised))
        finding = _finding(case, difference)
        finding = outside.without_gradients(case, finding, difference.members.values())
        yield swallowed.with_raised(case, finding, [*raised.values()])


def _finding(case: Case, found: Disagreement) -> RuleFinding:
    group = case.trace.groups[found.group]
    first = found.members[min(found.members)]
    stream = (found.group, found.backend)
    members = frozenset(op.process for op in found.members.values())
    ends = found.kind != "reduce_op_mismatch" or any(
        op.status != "ok" for op in found.members.values()
    )
    scope = Scope(stream=(stream, found.seq), members=_inside(case, found)) if ends else Scope()
    odd = sorted(found.odd)
    apart = _parameters(found) if found.kind == "shape_mismatch" else {}
    callers = _callers(found)
    lines = {r: sentences.line_of(op, callers.get(r)) for r, op in found.members.items()}
    return RuleFinding(
        kind=found.kind,
        callers=tuple((found.members[r].process, sentences.place(at)) for r, at in callers.items()),
        summary=" ".join(
            [
                summary(case, found, lines),
                *(_of_module(case.trace, found.members[r], *names) for r, names in apart.items()),
            ]
        ),
        parameters=tuple((found.members[r].process, (*a, *b)) for r, (a, b) in apart.items()),
        because=why(
            (len(found.members) != group.size, sentences.NO_JOURNAL),
            (not case.certain_journals(members), sentences.NOT_WHOLE),
            (len(found.odd) > 1, sentences.MAJORITY),
        ),
        hint=hint(case, found, lines),
        culprits=tuple(found.members[r].process for r in odd if r in found.members),
        waiting=tuple(
            op.process
            for rank, op in sorted(found.members.items())
            if rank not in found.odd and op.status != "ok"
        ),
        op=first.call.op if found.kind != "op_mismatch" else None,
        group=group.id,
        seq=found.seq,
        locations=case.evidence.locations(
            found.members[r] for r in sorted(found.members, key=lambda r: (r not in found.odd, r))
        ),
        at_ns=min(op.begin_ns for op in found.members.values()),
        scope=scope,
    )


def _swallowed(case: Case, found: Disagreement) -> dict[int, Op]:
    """The calls that raised, by group rank, of those in another one instead: these are odd."""
    raised: dict[int, Op] = {}
    others: dict[str | None, list[Op]] = {}
    for rank, mine in found.members.items() if not found.raced else ():
        value = found.values.get(rank)
        if value not in others:
            others[value] = [op for r, op in found.members.items() if found.values.get(r) != value]
        call = swallowed.find(case, mine.process, others[value], mine)
        if call is not None:
            raised[rank] = call
    return raised if len(raised) < len(found.members) else {}


def _one_call(case: Case, found: Disagreement) -> str | None:
    """What to look for where one side skipped a call or made one more."""

    def where(op: Op) -> object:
        if is_of_generated(op.call):  # of each rank other code, for one user's line
            return site(op.call)
        return (frame(op), op.call.stack[:1])

    ops = [op for _, op in sorted(found.members.items())]
    sides = together((where(op), op) for op in ops)
    if len(sides) == 1:  # a helper's line: the callers tell
        sides = together((op.call.stack, op) for op in ops)
    if len(sides) != 2:
        return None
    (one, *_), (two, *_) = sides.values()
    ones, twos = ([op.process for op in side] for side in sides.values())
    before = _before(case, one, two)
    if before is None:
        return None
    *runs, last = [(place, len([*same])) for place, same in groupby(before)]
    if last in runs:  # it is over, as that of a composite or of a loop
        before = [place for place, _ in (*runs, last)]
    usual, ways = _after(before, before[-1]), [(one, two, ones, twos), (two, one, twos, ones)]
    # Who is where the others would be after their call has left that one out.
    for op, instead, who, others in ways:
        if usual == site(op.call) and _after(before, usual) == site(instead.call):
            return _one_more(case, op, instead, who, others, surely=True)
    # What was never made before, or just now, may be too many, or the other one was left out.
    for op, instead, who, others in ways:
        here = site(op.call)
        if usual == site(instead.call) and (here not in before or here == before[-1]):
            return _one_more(case, op, instead, who, others)
    if len(ones) == len(twos) or not {site(one.call), site(two.call)} <= {*before}:
        return None
    return _one_more(case, *min(ways, key=lambda way: len(way[2])))  # a majority decides


def _before(case: Case, one: Op, two: Op) -> list[Site] | None:
    """What two members called in their group before these calls, if that was the same."""
    mine, theirs = (case.evidence.course(op.process, one.call.stream) for op in (one, two))
    if one.seq is None or mine is None or theirs is None:
        return None
    first, called = aligned({one.process: mine, two.process: theirs})
    before = [
        [site(call) for call in calls[: max(0, one.seq - first)]] for calls in called.values()
    ]
    if site(one.call) == site(two.call) or len(before) < 2 or before[0] != before[1]:
        return None
    return before[0] or None


def _after(course: list[Site], site: Site) -> Site | None:
    """What followed a call the last time that something did."""
    return next((b for a, b in zip(course[-2::-1], course[:0:-1], strict=True) if a == site), None)


def _at(op: Op, other: Op) -> str:
    return sentences.line_of(op, branch(op, lines_of([other])))


def _one_more(
    case: Case, op: Op, instead: Op, who: list[int], others: list[int], *, surely: bool = False
) -> str:
    """``who`` made ``op``, and the ``others`` made ``instead`` of that; ``surely``: skipped it."""
    trace, what = case.trace, case.evidence.within(op) or "call"
    at, due = _at(op, instead), _at(instead, op)
    left_out = case.evidence.within(instead) or "one"
    if surely:
        return (
            f"{sentences.subject(trace, others)} skipped the {what} at {at}, after which all calls"
            " of both sides are the same again: look for a branch, a `continue` or an empty batch"
            " before it."
        )
    if len(who) > len(others):
        return (
            f"{sentences.subject(trace, others)} skipped the {what} at {at}, which"
            f" {sentences.processes(trace, who)} make, or made one more at {due} before it: look"
            " for a branch on the rank, an exception that was caught, or more batches before that."
        )
    return (
        f"{sentences.subject(trace, who)} made one more {what}, at {at}, or left out the"
        f" {left_out} at {due} and went on: look for a collective inside `if rank ...`, or for a"
        " `continue`, a `break` or fewer batches before that."
    )


def _inside(case: Case, found: Disagreement) -> frozenset[int]:
    """Members that were inside the exchange, or in a later one of the stream, when they ended."""

    def ended_there(op: Op) -> bool:
        last = case.last(op.process)
        in_stream = last is not None and last.call.group == found.group
        return op.status != "ok" or (in_stream and case.ends[op.process].over)

    return frozenset(op.process for op in found.members.values() if ended_there(op))


def _parameters(found: Disagreement) -> dict[int, tuple[list[str], list[str]]]:
    """By rank the parameters of FSDP's or DDP's call that it lacks, and those beyond the usual."""
    of = {rank: op.call.args for rank, op in sorted(found.members.items())}
    lists = {rank: args.get("parameters") for rank, args in of.items()}
    named = {rank: tuple(map(str, one)) for rank, one in lists.items() if isinstance(one, list)}
    if len(named) < len(of):
        return {}
    modules = {str(args.get("module")) for args in of.values()}
    return {
        rank: (lacking, beyond)
        for rank, (lacking, beyond) in unusual(named).items()
        if len(modules) == 1 or {*beyond} != {*named[rank]}  # else nothing in common: of another
    }


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


def summary(case: Case, found: Disagreement, lines: Mapping[int, str]) -> str:
    """The sides, odd ones first: ``rank 0 all_gather (a.py:3), ranks 1, 2 all_reduce (a.py:7)``."""
    trace = case.trace
    brought = sorted(found.values.keys() & found.members, key=lambda r: (r not in found.odd, r))
    sides = together(
        (_value(case, found, rank, lines[rank]), found.members[rank].process) for rank in brought
    )
    text = _by_pairs(case, found) or few(
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


def _of_module(trace: JobTrace, op: Op, lacking: Sequence[str], beyond: Sequence[str]) -> str:
    """``Rank 1 passes no gradient of layers.2.down.bias, which others do.``"""
    what = "gradient of " if "reduce" in op.call.op else ""
    parts = [f"passes no {what}{parameters(lacking)}, which others do"] * bool(lacking)
    parts += [f"passes {parameters(beyond)}, which others do not"] * bool(beyond)
    return f"{sentences.subject(trace, [op.process])} {', and '.join(parts)}."


def _by_pairs(case: Case, found: Disagreement) -> str:
    """``all_to_all_single (a.py:3), in which rank 2 sends 12 rows to rank 1, ...``, or nothing."""
    pairs = unfitting(found.members) if found.kind == "shape_mismatch" else []
    if not pairs:
        return ""
    one = found.members[pairs[0].sender]
    unit = "row" if one.call.op == "all_to_all_single" else "element"
    text_of = []
    for pair in pairs:
        sender, receiver = (
            sentences.processes(case.trace, [found.members[rank].process])
            for rank in (pair.sender, pair.receiver)
        )
        target_text = "itself and" if sender == receiver else f"{receiver}, which"
        text_of.append(
            f"{sender} sends {number(pair.sent, unit)} to {target_text} expects {pair.taken:,}"
        )
    call = f"{one.call.op}{sentences.inside(case.evidence.within(one))} ({sentences.line(one)})"
    return f"{call}, in which {few(text_of)}"


def hint(case: Case, found: Disagreement, lines: Mapping[int, str]) -> str:
    """What to look for."""
    if found.raced:
        return (
            "Several threads of one process use this group at once, so the order of its calls is"
            " chance: give each thread a group of its own, or make the calls from one thread."
        )
    if (one := _one_call(case, found)) is not None:
        return one
    apart = _two_lines(found, lines)
    if found.kind in ("shape_mismatch", "dtype_mismatch") and apart is not None:
        return (
            f"The call at {apart[0]} met another one, at {apart[1]}: look for a call that one"
            " side makes beyond the others', or leaves out, there or before (`if rank ...`, a"
            " `continue`, a recomputation); else compare what the ranks pass."
        )
    if found.kind == "shape_mismatch" and unfitting(found.members):
        return (
            "What one sends, the other must expect: let the ranks exchange their counts after the"
            " last change of what they send (dropped or padded rows), and look for an order by"
            " another rank."
        )
    return _WHAT[found.kind][1]


def _two_lines(found: Disagreement, lines: Mapping[int, str]) -> tuple[str, str] | None:
    """The line of those who differ and that of the others, where each side has one of its own."""
    order = sorted(lines, key=lambda r: (r not in found.odd, r))
    sides = together((lines[rank], rank in found.odd) for rank in order)
    if len(sides) != 2 or any(len({*side}) > 1 for side in sides.values()):
        return None
    first, second = sides
    return first, second


def _callers(found: Disagreement) -> dict[int, Frame]:
    """By rank the caller's line at which it parted from those who brought anything else."""
    sides = together((found.values.get(rank), op) for rank, op in found.members.items())
    others = {
        value: lines_of(op for other, ops in sides.items() if other != value for op in ops)
        for value in sides
    }
    of = {r: branch(op, others[found.values.get(r)]) for r, op in sorted(found.members.items())}
    return {rank: caller for rank, caller in of.items() if caller is not None}


def _value(case: Case, found: Disagreement, rank: int, line: str) -> str:
    op, value = found.members[rank], found.values[rank]
    call = f"{op.call.named}{sentences.inside(case.evidence.within(op))}"
    if found.kind == "op_mismatch":
        return f"{call} ({line})"
    if found.kind == "root_mismatch":
        root = case.trace.groups[found.group].global_rank(int(value))
        value = f"root {value if root is None else root}"
    return f"{call} with {value} ({line})"


def find_messages(case: Case) -> Iterator[RuleFinding]:
    """One finding per pair of call sites whose messages do not fit."""
    seen: set[Hashable] = set()
    for send, receive, times, keys in (*case.past.misfits(), *_known(case)):
        if seen.isdisjoint(keys):
            seen.update(keys)
            yield _of_messages(case, send, receive, times, keys)


def _known(case: Case) -> Iterator[Misfit]:
    """Of messages of which both ends are known: those in flight, and the newest."""
    seen = set()
    for (side, stream), kept in case.sample.message_streams.items():
        for send in kept if side == "send" else ():
            receive = case.sample.other_end(send)
            if receive is None or receive.number == STAND_IN or fits(send.call, receive.call):
                continue
            site = (send.call.index, receive.call.index)
            if site not in seen:
                seen.add(site)
                yield send, receive, 1, [("message", *stream, send.seq)]


def _of_messages(
    case: Case, send: Op, receive: Op, times: int, keys: list[Hashable]
) -> RuleFinding:
    trace = case.trace
    inside = tuple(op.process for op in (send, receive) if op.status != "ok")
    ends = [
        f"{trace.processes[op.process].label} {verb} {sentences.sizes(op)} ({sentences.line(op)})"
        for op, verb in ((send, "sends"), (receive, "receives"))
    ]
    again = f" ({times} times)" if times > 1 else ""
    return RuleFinding(
        kind="size_mismatch",
        summary=f"{sentences.capital(' where '.join(ends))}{again}.",
        hint="Give both ends tensors of one size and dtype; the rest of the receiver's is stale.",
        waiting=inside,
        **case.about(send),
        locations=case.evidence.locations([send, receive]),
        scope=Scope(exchanges=frozenset(keys), members=frozenset(inside)),
    )
