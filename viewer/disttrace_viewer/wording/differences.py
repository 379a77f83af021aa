"""What differs between two runs, as sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from disttrace_viewer.analysis.difference import align
from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.trace.model import Call, Group
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording.quantities import duration, number, size, tensors
from disttrace_viewer.wording.sentences import capital, place, ranks

_TIMES = (align.VANISHED, align.RARER, align.APPEARED, align.OFTENER)


@dataclass(frozen=True, slots=True)
class Shown:
    """A call as it is told: equal for all ranks that make it."""

    op: str
    place: str
    details: tuple[str, ...]
    """What it hands over, of that what the other run's call does not."""

    def __str__(self) -> str:
        return f"{self.op} ({', '.join((self.place, *self.details))})"


@dataclass(frozen=True, slots=True)
class Told:
    """A difference, without whose it is."""

    kind: str
    group: str
    a: Shown | None
    b: Shown | None
    count_a: int = 0
    count_b: int = 0
    steps_a: int = 0
    steps_b: int = 0
    bytes_a: int | None = None
    """Of all of its calls on one rank; None where it is not known."""
    bytes_b: int | None = None
    nth: int | None = None
    """Of ``first_divergence``: the number of the call in its group."""


@dataclass(frozen=True, slots=True)
class Slower:
    """How much slower a call is on a rank, and for whom it waits there. Nanoseconds."""

    a_ns: int
    b_ns: int
    waits_ns: int
    by: int | None


def shown(
    one: Call | None, other: Call | None, group: Group | None, caller: Frame | None
) -> Shown | None:
    """A call, with what it hands over where another one hands over something else, and with the
    ``caller`` that tells it from others of its line.
    """
    if one is None:
        return None
    mine = _details(one, group)
    theirs = {} if other is None else _details(other, group)
    told = mine.items() if other is not None and other.op == one.op else ()
    details = tuple(text for name, text in told if theirs.get(name) != text)
    where = place(innermost(one.stack)) + (f" from {place(caller)}" if caller else "")
    return Shown(one.op, where, details)


def _details(call: Call, group: Group | None) -> dict[str, str]:
    def rank(group_rank: int) -> str:
        known = None if group is None else group.global_rank(group_rank)
        return f"rank {known}" if known is not None else f"group rank {group_rank}"

    handed = tensors(call.dtypes, call.shapes) or (size(call.bytes) if call.bytes else "")
    if call.shapes is not None and len(set(call.shapes)) > 1:
        handed = f"{handed} of {size(call.bytes or 0)}"
    return {
        "tensors": handed or "nothing",
        "reduce op": call.reduce_op or "no reduce op",
        "root": "no root" if call.root is None else f"root {rank(call.root)}",
        "peer": "no peer" if call.peer is None else f"peer {rank(call.peer)}",
        "tag": f"tag {call.tag}",
    }


def sentence(told: Told, who: Iterable[int], slower: Slower | None = None) -> str:
    """One difference with the ranks of which it is true, in a line."""
    where = f"{capital(ranks(who))}, {told.group}"
    if told.kind == align.FIRST:
        return f"{where}: first divergence at call {told.nth:,}: {_both(told)}."
    if told.kind in _TIMES:
        word = told.kind.replace("_", " ")
        return f"{where}: {word}: {told.b or told.a}: {_often(told)}."
    if told.kind == align.CHANGED:
        return f"{where}: changed {number(told.count_a, 'time')}: {_both(told)}."
    if told.kind == align.SLOWER and slower is not None:
        return f"{where}: slower: {told.b}: {_times(slower)}."
    if told.kind == align.STEPS:
        return f"{where}: {told.count_a:,} steps in A, {told.count_b:,} in B, from {told.b} on."
    return f"{where}: in another place of the order: {_both(told)}."


def only_one(which: str, what: str) -> str:
    """What there is in one run alone."""
    return f"Only {which} has {what}."


def _both(told: Told) -> str:
    if told.a is not None and told.a == told.b:
        return f"{told.a} in both"
    a, b = (str(one) if one is not None else "nothing more" for one in (told.a, told.b))
    return f"{a} in A, {b} in B"


def _often(told: Told) -> str:
    sides = ((told.count_a, told.steps_a, told.bytes_a), (told.count_b, told.steps_b, told.bytes_b))
    return ", ".join(
        f"{_count(count, steps, data)} in {name}"
        for name, (count, steps, data) in zip("AB", sides, strict=True)
    )


def _count(count: int, steps: int, data: int | None) -> str:
    """``40 times (1 per step, 4.10 kB each)``: of what comes once a run there is no rate."""
    if not count:
        return "never"
    text = number(count, "time")
    if steps < 2 or count < 2:
        return text
    rate = count / steps
    each = f"{rate:,.0f} per step" if rate >= 1 and rate == int(rate) else f"{rate:.3g} per step"
    return f"{text} ({each}" + (f", {size(round(data / count))} each)" if data else ")")


def _times(one: Slower) -> str:
    text = f"{duration(one.a_ns)} in A, {duration(one.b_ns)} in B (medians)"
    if one.by is not None and one.waits_ns * 2 > one.b_ns - one.a_ns:
        text += f", {duration(one.waits_ns)} of that waiting for rank {one.by}"
    return text
