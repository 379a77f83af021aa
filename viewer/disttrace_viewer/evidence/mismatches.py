"""What the members of each group called, number by number: where they are out of step, and whether
the arguments of one collective fit together, and who is odd.

Each kind of disagreement is a few lines here; they are one list, in the order in which one hides
the next.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from disttrace.journal.format import EQUAL_SIZES, UNKNOWN_OP
from disttrace_viewer.analysis.out_of_step import SWAPPED, Shift, first_shift
from disttrace_viewer.analysis.past import Joined, Place, callers_of, op_of, place_of
from disttrace_viewer.analysis.sample import CollectiveSequence, stand_in
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.model import Call, Stream
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Stack
from disttrace_viewer.trace.values import dataclass, replace, together


def steps(evidence: Evidence) -> dict[Stream, Shift[int, Place]]:
    """By stream the first place from which on members are out of step."""
    shifts = {}
    sample = evidence.sample
    for stream in dict.fromkeys(stream for _, stream in sample.history):
        # Of each course that differs one came with states.
        members = {p for p, of in (*sample.courses, *sample.history) if of == stream}
        known = ((process, evidence.course(process, stream)) for process in sorted(members))
        courses = {process: course for process, course in known if course is not None}
        group = None if stream[0] is None else evidence.trace.groups[stream[0]]
        if group is None or len(courses) < 2:
            continue
        first, made = aligned(courses)
        calls = {call.index: call for of in made.values() for call in of}
        places = {index: place_of(call) for index, call in calls.items()}
        called = {p: [places[call.index] for call in of] for p, of in made.items()}
        shift = _shift(evidence, stream, called, group.size)
        if shift is None and (callers := called_from(calls, places)) != places:
            by_callers = {p: [callers[call.index] for call in of] for p, of in made.items()}
            shift = _shift(evidence, stream, by_callers, group.size)
        if shift is not None:
            shifts[stream] = shift.later(first - 1)
    return shifts


def called_from(calls: Mapping[int, Call], places: Mapping[int, Place]) -> dict[int, Place]:
    """Lines by call; of calls by one line of a helper's the nearest callers' that differ."""
    chains: dict[Place, dict[int, Stack]] = {}
    for index, call in calls.items():
        chains.setdefault(places[index], {})[index] = callers_of(call)
    found = {**places}
    for (op, _), of in chains.items():
        columns = itertools.takewhile(all, itertools.zip_longest(*of.values()))
        depth = next((at for at, here in enumerate(columns) if len({*here}) > 1), None)
        if depth is not None:
            found.update((index, (op, frames[depth])) for index, frames in of.items())
    return found


def _shift(
    evidence: Evidence, stream: Stream, called: Mapping[int, Sequence[Place]], size: int | None
) -> Shift[int, Place] | None:
    found = first_shift(called, size, kind=op_of)
    if found is not None and found.how == SWAPPED and threads(evidence, stream):
        return None  # the order of two threads is by chance
    return found


def aligned(courses: Mapping[int, CollectiveSequence]) -> tuple[int, Mapping[int, Sequence[Call]]]:
    """The first number that all still have, and the calls from it on of those without a gap."""
    first = max((course[0][0] for course in courses.values() if course), default=1)
    found: dict[int, Sequence[Call]] = {}
    for process, course in courses.items():
        kept = [one for one in course if one[0] >= first]
        if all(number == at for at, (number, _) in enumerate(kept, first)):
            found[process] = [call for _, call in kept]
    return first, found


def threads(evidence: Evidence, stream: Stream) -> bool:
    """Whether several threads of a process call into a stream."""
    members = evidence.sample.streams.get(stream, {}).values()
    found = together((op.process, op.thread) for kept in members for op in kept)
    return any(len({*of}) > 1 for of in found.values())


Members = Mapping[int, Op]
"""Operations of one collective by group rank."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The members of one exchange disagree; ``odd`` are group ranks (none: it is not known)."""

    kind: str
    group: int
    backend: str | None
    seq: int
    members: Members
    odd: frozenset[int]
    values: Mapping[int, str]
    """What each group rank brought, in words."""
    times: int
    """How many exchanges of the stream differ in this same way."""
    raced: bool
    """A member's threads were in the group at one time: their order is chance, none is odd."""


def differences(evidence: Evidence, past: Iterable[Joined]) -> Iterator[Disagreement]:
    """Per stream of collectives the first difference of each kind, up to the first that spoils
    the rest: only a reduce op does not. ``past``: collectives that are over, where these are known.
    """
    done: set[Hashable] = set()
    recent = _recent(evidence, whole=True)
    joined = (past, recent, _known(evidence), _raised(evidence), _recent(evidence, whole=False))
    for exchange in itertools.chain.from_iterable(joined):
        stream = (exchange.group, exchange.backend)
        if stream in done:
            continue
        members = {
            rank: op
            for rank, op in exchange.members().items()
            if op.begin_ns < evidence.left_out.get(op.process, math.inf)
        }
        size = evidence.trace.groups[exchange.group].size or len(members)
        found = judge(members, size)
        if found is None:
            continue
        kind, odd, values = found
        if kind != "reduce_op_mismatch":
            done.add(stream)
        elif (stream, kind) in done:
            continue
        done.add((stream, kind))
        ops, get = members.values(), evidence.sample.get
        # Of what is over, and not at hand, the order of threads is not known.
        known = all(get(op.process, op.number) for op in ops)
        raced = any(_raced(evidence, op) for op in ops) if known else threads(evidence, stream)
        yield Disagreement(
            *(kind, *stream, exchange.seq, members),
            *(frozenset() if raced else odd, values, exchange.times, raced),
        )


def _recent(evidence: Evidence, *, whole: bool) -> Iterator[Joined]:
    """Of recent collectives that are known with their arguments the first of each stream of every
    way to be unlike. ``whole``: of those streams of which that is known of all who joined; of
    others what stands in their newest collectives shows better which are odd.
    """
    sample = evidence.sample
    streams: dict[Stream, dict[int, CollectiveSequence]] = {}
    for process, stream in sorted(sample.exact, key=str):
        streams.setdefault(stream, {})[process] = sample.history[process, stream]
    for (group, backend), courses in streams.items():
        first, called = aligned(courses)
        kept = sample.streams.get((group, backend), {})
        known = all(ops[-1].process in called for ops in kept.values())
        if group is None or len(called) < 2 or known != whole:
            continue
        rows = zip(*([call.index for call in calls] for calls in called.values()), strict=False)
        seen: dict[tuple[int, ...], int] = {}
        for seq, row in enumerate(rows, first):
            seen.setdefault(row, seq)
        for seq in sorted(seen.values()):
            calls = [of[seq - first] for of in called.values()]
            brought = {repr((c.op, c.root, c.dtypes, c.shapes, c.reduce_op)) for c in calls}
            if len(brought) > 1:
                yield Joined(group, backend, seq, 1, partial(_members, kept, calls, seq))


def _members(kept: Mapping[int, Sequence[Op]], calls: Iterable[Call], seq: int) -> dict[int, Op]:
    """What members called under one number, as operations."""
    called = {call.group_rank: call for call in calls}
    found: dict[int, Op] = {}
    for rank, ops in kept.items():
        call = called.get(ops[-1].call.group_rank)
        if call is not None and (ops[-1].seq or 0) >= seq:
            op = stand_in(ops, seq)
            found[rank] = op if op.number >= 0 else replace(op, call=call)
    return found


def _known(evidence: Evidence) -> Iterator[Joined]:
    """Collectives of which several members are known: those in flight, and the newest."""
    for (group, backend), members in evidence.sample.streams.items():
        if group is None:
            continue
        here: dict[int, dict[int, Op]] = {}
        for rank, kept in members.items():
            for op in kept:
                here.setdefault(op.seq or 0, {})[rank] = op
        for seq in sorted(here):
            found = here[seq]
            if any(op.status != "ok" for op in found.values()):
                found = {**evidence.exchange((group, backend), seq)}
            if len(found) > 1:
                yield Joined(group, backend, seq, 1, found.copy)


def _raised(evidence: Evidence) -> Iterator[Joined]:
    """Exchanges that raised in the calls of some: ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` compares
    the arguments of all members first, in the call. Its own sentence may name another operation.
    """
    found: dict[tuple[int, str | None, int], dict[int, Op]] = {}
    for op in evidence.raised_in_call:
        if op.call.group is not None and op.call.group_rank is not None and op.seq is not None:
            members = found.setdefault((op.call.group, op.call.backend, op.seq), {})
            members.setdefault(op.call.group_rank, op)
    for (group, backend, seq), here in sorted(found.items(), key=lambda item: item[0][2]):
        yield Joined(group, backend, seq, 1, here.copy)


def _raced(evidence: Evidence, op: Op) -> bool:
    """Whether another known thread of the process called into the same group meanwhile."""
    mine = op.issued_ns if op.call.asynchronous else op.end_ns
    for other in evidence.sample.of_process[op.process]:
        call = other.call
        if (call.kind, call.group, call.backend) != ("collective", op.call.group, op.call.backend):
            continue
        left = other.issued_ns if call.asynchronous else other.end_ns
        if other.thread == op.thread or (left is not None and left <= op.begin_ns):
            continue
        if mine is None or other.begin_ns < mine:
            return True
    return False


def judge(members: Members, size: int) -> tuple[str, frozenset[int], Mapping[int, str]] | None:
    """What is wrong among the members of one exchange; None when it is legal.

    In this order, since each decides what the next one means: operation, root, dtype, sizes by
    the operation's own rule, reduce op.
    """
    for kind, read in _READ.items():
        odd = _sizes(members, size) if kind == "shape_mismatch" else None
        if kind == "shape_mismatch" and odd is None:
            continue
        known = {rank: value for rank, op in members.items() if (value := read(op)) is not None}
        if odd is not None or len({*known.values()}) > 1:
            return kind, minority(known, size) if odd is None else odd, known
    return None


def minority(values: Mapping[int, Hashable], size: int) -> frozenset[int]:
    """Those outside a strict majority of a group of ``size``; none if there is none."""
    ((usual, most),) = Counter(values.values()).most_common(1)
    if 2 * most <= size:
        return frozenset()
    return frozenset(rank for rank, value in values.items() if value != usual)


def _count(shape: object) -> int:
    return math.prod(shape) if isinstance(shape, (list, tuple)) else 0


def _counts(op: Op) -> tuple[int, ...] | None:
    return None if op.call.shapes is None else tuple(_count(s) for s in op.call.shapes)


def _outputs(op: Op) -> tuple[int, ...] | None:
    given = op.call.args.get("output_shapes")
    return tuple(_count(s) for s in given) if isinstance(given, list) else None


def _sizes(members: Members, size: int) -> frozenset[int] | None:
    """The odd ones by size; None when sizes fit. Ranks that tell no sizes are left out."""
    op = next(iter(members.values())).call.op
    if op in EQUAL_SIZES:
        values = {r: c for r, m in members.items() if (c := _counts(m)) is not None}
        if len(set(values.values())) < 2 or (op == "all_gather" and _slots_fit(members)):
            return None
        return minority(values, size)
    pairs = _pairs(members)
    return None if all(pair.fits for pair in pairs) else _blamed(pairs, size)


def unfitting(members: Members) -> list[Pair]:
    """Of a collective in which members have to agree two by two those that do not."""
    return [pair for pair in _pairs(members) if not pair.fits]


def _pairs(members: Members) -> list[Pair]:
    root = next((m.call.root for m in members.values() if m.call.root is not None), None)
    sides = {rank: _sides(op, rank, root, len(members)) for rank, op in members.items()}
    return [
        Pair(one, two, sent[two], taken[one])
        for one, (sent, _) in sides.items()
        if sent
        for two, (_, taken) in sides.items()
        if two in sent and one in taken
    ]


def _blamed(pairs: Iterable[Pair], size: int) -> frozenset[int]:
    """Who is in every pair that does not fit and in none that does; none if that is unclear."""
    ends = [({pair.sender, pair.receiver}, pair.fits) for pair in pairs]
    common = set.intersection(*(both for both, fits in ends if not fits))
    innocent = {rank for both, fits in ends if fits and len(both) > 1 for rank in both}
    alone = (found for found in (common - innocent, common) if len(found) == 1 and size > 2)
    return frozenset(next(alone, ()))


def _slots_fit(members: Members) -> bool:
    """Whether each output slot of all members has the size of that member's input."""
    inputs = {r: sum(c) for r, m in members.items() if (c := _counts(m)) is not None}
    for member in members.values():
        slots = _outputs(member)
        if slots is None or any(r < len(slots) and slots[r] != n for r, n in inputs.items()):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Pair:
    """What one member sends to another, and what that one makes room for: rows, or elements."""

    sender: int
    receiver: int
    sent: int
    taken: int

    @property
    def fits(self) -> bool:
        return self.sent == self.taken


Room = Mapping[int, int]


def _sides(op: Op, rank: int, root: int | None, size: int) -> tuple[Room, Room]:
    """What a member sends to each other one, and makes room for from each, by group rank."""
    counts = _counts(op) or ()
    inputs, outputs = dict(enumerate(counts)), dict(enumerate(_outputs(op) or ()))
    whole = {root: sum(counts)} if counts and root is not None else {}
    if op.call.op == "gather":
        return whole, outputs if rank == root else {}
    if op.call.op == "scatter":
        return (inputs, {}) if rank == root else ({}, whole)
    if op.call.op == "all_to_all":
        return inputs, outputs
    return _splits(op, size) if op.call.op == "all_to_all_single" else ({}, {})


def _splits(op: Op, size: int) -> tuple[Room, Room]:
    """Rows to each and from each member; even where no split sizes were passed."""
    splits = op.call.signature.splits
    if not isinstance(splits, list) or len(splits) != 2:
        return {}, {}
    output = op.call.args.get("output_shapes")
    shapes = (op.call.shapes, output if isinstance(output, list) else None)
    even = ([shape[0][0] // size] * size if shape and shape[0] else [] for shape in shapes)
    sent, taken = (given or rows for given, rows in zip(splits, even, strict=True))
    return dict(enumerate(sent)), dict(enumerate(taken))


def _shape_words(op: Op) -> str | None:
    if (shapes := op.call.shapes) is None:
        return None
    shown = " + ".join("x".join(map(str, s)) or "1" for s in shapes[:3])
    shown += " + ..." if len(shapes) > 3 else ""
    elements = op.elements or 0
    word = "element" if elements == 1 else "elements"
    return f"{elements:,} {word}" + (f" ({shown})" if len(shapes) > 1 or "x" in shown else "")


_READ: Mapping[str, Callable[[Op], str | None]] = {
    "op_mismatch": lambda op: op.call.op if op.call.op != UNKNOWN_OP else None,
    "root_mismatch": lambda op: None if op.call.root is None else str(op.call.root),
    "dtype_mismatch": lambda op: "/".join(sorted({*op.call.dtypes})) if op.call.dtypes else None,
    "shape_mismatch": _shape_words,
    "reduce_op_mismatch": lambda op: op.call.reduce_op,
}
"""What members have to have in common, in words; sizes by the operation's own rule."""
KINDS = frozenset(_READ)
"""Of differences."""
