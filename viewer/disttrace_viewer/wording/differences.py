"""What differs between two runs, as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from disttrace_viewer.analysis import align
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.analysis.schedule import OUTSIDE, TRANSFER
from disttrace_viewer.analysis.what_if import WhatIf, WhatIfOutcome
from disttrace_viewer.trace.model import Call, Group, JobTrace
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.wording.names import duration, file_name, names_of, number, size, tensors
from disttrace_viewer.wording.sentences import capital, place, ranks


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call as it is reported: equal for all ranks that make it."""

    op: str
    place: str
    details: tuple[str, ...]
    """What it hands over, of that what the other run's call does not."""

    def __str__(self) -> str:
        return f"{self.op} ({', '.join((self.place, *self.details))})"


@dataclass(frozen=True, slots=True)
class DifferenceFacts:
    """A difference, without whose it is."""

    kind: str
    group: str
    calls: tuple[ShownCall | None, ShownCall | None]
    counts: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (0, 0)
    bytes: tuple[int | None, int | None] = (None, None)
    """Of all of its calls on one rank; None where it is not known."""
    nth: int | None = None
    """Of ``first_divergence``: the number of the call in its group."""


@dataclass(frozen=True, slots=True)
class Slower:
    """How much slower a call is on a rank, and for which it waits there. Nanoseconds."""

    a_ns: int
    b_ns: int
    waits_ns: int
    by: int | None


def shown(
    one: Call | None, other: Call | None, group: Group | None, caller: Frame | None
) -> ShownCall | None:
    """A call, with the arguments that differ from the other, and the ``caller`` of its line."""
    if one is None:
        return None
    mine = _details(one, group)
    theirs = {} if other is None else _details(other, group)
    reported = mine.items() if other is not None and other.op == one.op else ()
    details = tuple(text for name, text in reported if theirs.get(name) != text)
    where = place(innermost(one.stack)) + (f" from {place(caller)}" if caller else "")
    return ShownCall(one.op, where, details)


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


def sentence(reported: DifferenceFacts, who: Iterable[int], slower: Slower | None = None) -> str:
    """One difference with the ranks of which it is true, in a line."""
    where, (a, b) = f"{capital(ranks(who))}, {reported.group}", reported.calls
    if reported.kind == align.FIRST:
        return f"{where}: first divergence at call {reported.nth:,}: {_both(reported)}."
    if reported.kind in (align.VANISHED, align.RARER, align.APPEARED, align.OFTENER):
        word = reported.kind.replace("_", " ")
        return f"{where}: {word}: {b or a}: {_often(reported)}."
    if reported.kind == align.CHANGED:
        return f"{where}: changed {number(reported.counts[0], 'time')}: {_both(reported)}."
    if reported.kind == align.SLOWER and slower is not None:
        return f"{where}: slower: {b}: {_times(slower)}."
    if reported.kind == align.STEPS:
        return "{}: {:,} steps in A, {:,} in B, from {} on.".format(where, *reported.counts, b)
    return f"{where}: in another place of the order: {_both(reported)}."


def _both(reported: DifferenceFacts) -> str:
    if reported.calls[0] is not None and reported.calls[0] == reported.calls[1]:
        return f"{reported.calls[0]} in both"
    a, b = (str(one) if one is not None else "nothing more" for one in reported.calls)
    return f"{a} in A, {b} in B"


def _often(reported: DifferenceFacts) -> str:
    sides = zip("AB", reported.counts, reported.steps, reported.bytes, strict=True)
    return ", ".join(
        f"{_count(times, steps, data)} in {name}" for name, times, steps, data in sides
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


WHAT_IF = "the run's times once more, without what others did not need"


def what_if_sentence(what_if: WhatIf, answer: WhatIfOutcome, trace: JobTrace) -> str:
    """``Without rank 2's excess the run would have taken 41.2 s instead of 58.9 s (-30 %).``"""
    without = f"Without {left_out(what_if, answer, trace)} the run would have taken"
    if not answer.saved_ns:
        return f"{without} as long."
    less, whole = duration(answer.wall_ns), duration(what_if.wall_ns)
    if less == whole:
        return f"{without} {duration(answer.saved_ns)} less than {whole}."
    return f"{without} {less} instead of {whole} (-{answer.saved_share:.0%})."


def left_out(what_if: WhatIf, answer: WhatIfOutcome, trace: JobTrace) -> str:
    """``rank 2's excess (most of it before loader.py:34)``."""
    without = answer.without
    if without.group is not None:
        text = f"the transfers of the {names_of(trace).group(without.group)}"
    else:
        who = [] if without.rank is None else [f"rank {without.rank}'s excess"]
        who += [] if without.host is None else [f"the excess on {without.host}"]
        text = " and ".join(who) or "the excess"
    if without.line is not None:
        return f"{text} before {file_name(without.line)}"
    if without.rank is not None and (line := _most(what_if, without.rank, trace)) is not None:
        return f"{text} (most of it before {file_name(line)})"
    return text


def path_note(whole_ns: int) -> str:
    """What a critical path is, in half a sentence."""
    return f"what made the run {duration(whole_ns)} long from its first operation on"


def stretch(row: Mapping[str, object]) -> str:
    """``before all_reduce at train.py:28``: a row of the critical path."""
    op, line = row["op"], row["line"]
    at = file_name(line) if isinstance(line, str) else "?"
    if row["kind"] == OUTSIDE:
        return "after its last operation" if op is None else f"before {op} at {at}"
    return f"{'transfer' if row['kind'] == TRANSFER else 'call'} of {op} at {at}"


def _most(what_if: WhatIf, rank: int, trace: JobTrace) -> str | None:
    """The line before which most of a rank's excess is, if half of it and more."""
    mine = [p.index for p in trace.processes if p.rank == rank]
    lines = what_if.excess.filter(pl.col("process").is_in(mine)).group_by("line")
    sums = lines.agg(pl.col("excess_ns").sum()).sort("excess_ns", "line", descending=[True, False])
    if not sums.height or 2 * sums["excess_ns"][0] < sums["excess_ns"].sum():
        return None
    line = sums["line"][0]
    return line if isinstance(line, str) else None
