"""Who answers for an arrival after the others had given up: not who was held up by another one.

A process that is late for one exchange may have waited all the while in another one, for a third.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from disttrace.journal.format import COMPOSED
from disttrace_viewer.analysis.process_ends import CASCADE
from disttrace_viewer.analysis.sample import SETTERS
from disttrace_viewer.evidence.store_keys import AWAITING, keys_of
from disttrace_viewer.evidence.wait import Wait, given_up_ns
from disttrace_viewer.findings.case import Case
from disttrace_viewer.trace.model import CodeLocation
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.wording import sentences


def held_up_by(case: Case, wait: Wait) -> dict[int, Held]:
    """What held up the late targets of a wait, and those that did so; else where they were."""
    found: dict[int, Held] = {}
    inside = (w.op for w in case.waits if w.exchange == wait.exchange and w.late_ns is None)
    over_ns = given_up_ns(inside) if wait.lateness else None
    if over_ns is None:
        return found
    todo = [(process, over_ns + by_ns) for process, by_ns in wait.lateness]
    for process, arrived_ns in todo:
        by = None if process in found else _held(case, process, over_ns, arrived_ns)
        if by is not None:
            found[process] = by
            todo += [(op.process, op.begin_ns) for op in by.by]
    for process, by_ns in wait.lateness:
        if process in found:
            continue
        if (at := where(case, wait, process)) is not None:
            found[process] = Held(None, (), at)
        elif seen := case.evidence.stood_after(process, over_ns, over_ns + by_ns):
            found[process] = Held(None, (), seen[0], seen[1] - over_ns)
    return found


def where(case: Case, wait: Wait, process: int) -> CodeLocation | None:
    """Where a process was last seen to stand while others waited for it, until they gave up."""
    over_ns = given_up_ns([wait.op])
    if over_ns is None:
        return None
    return case.evidence.stood(process, wait.op.since_ns, over_ns)


def broke(case: Case, wait: Wait, process: int) -> CodeLocation | None:
    """The same of one that broke afterwards, since those who had given up were gone."""
    end, over_ns = case.ends[process], given_up_ns([wait.op])
    after = end.how == CASCADE and over_ns is not None and end.t_ns > over_ns
    return where(case, wait, process) if after else None


def locations(
    case: Case, wait: Wait, late: Mapping[int, Held], never: Iterable[int] = ()
) -> tuple[CodeLocation, ...]:
    """Where the ranks were that came ``late`` (as ``held_up_by``), or ``never``."""
    seen = [one.at for one in late.values()]
    return tuple(at for at in (*seen, *(broke(case, wait, p) for p in never)) if at is not None)


def answerable(late: Mapping[int, Held], sinks: Sequence[int]) -> tuple[int, ...]:
    """Those that came ``late`` by themselves, or not at all, and those that held up the others."""
    delayed = {process: one for process, one in late.items() if one.op is not None}
    own = {s for s in sinks if s not in delayed}
    own |= {op.process for one in delayed.values() for op in one.by if op.process not in delayed}
    return tuple(sorted(own))


def _held(case: Case, process: int, over_ns: int, arrived_ns: int) -> Held | None:
    """What a process was in when the others gave it up, from before it arrived."""
    before = [
        op
        for op in case.sample.of_process.get(process, ())
        if op.begin_ns < arrived_ns
        and op.end_ns is not None
        and over_ns < op.end_ns <= arrived_ns
        and op.error is None
        and op.call.kind != COMPOSED
        and (op.call.kind != "store" or op.call.op in AWAITING)
    ]
    if not before:
        return None
    first = min(before, key=lambda op: op.begin_ns)
    partners = _partners(case, first)
    if first.begin_ns <= over_ns:
        return Held(first, tuple(op for op in partners if op.begin_ns > over_ns))
    if partners and all(op.begin_ns <= over_ns for op in partners):
        return None  # it was late there as well
    # It got on in between, and what came before is not at hand.
    return Held(first, ())


def _partners(case: Case, op: Op) -> list[Op]:
    """The operations of others without which this one could not be over."""
    if op.call.kind != "store":
        return case.sample.partners(op)
    wanted = keys_of(case.trace, op)
    return [
        one
        for one in case.sample.of_kind("store")
        if one.process != op.process
        and one.call.op in SETTERS
        and keys_of(case.trace, one) == wanted
    ]


Late = Mapping[int, "Held"]
HINT = "Find what held it up before that call, or allow more time: timeout= of the group."


@dataclass(frozen=True, slots=True)
class Held:
    """A late process was in ``op`` when it was given up (None: in no communication), and came on
    once ``by`` (empty: not known) had come there."""

    op: Op | None
    by: tuple[Op, ...]
    at: CodeLocation | None = None
    """Where it stood, without ``op``."""
    after_ns: int | None = None
    """It was seen there only so long after the others had given up."""


def words(case: Case, held: Mapping[int, Held]) -> str:
    """What held these processes up, to follow a sentence: empty if nothing did."""
    trace, parts = case.trace, []
    for process, one in sorted(held.items()):
        if one.op is None:
            if one.at is not None:
                seen = f"was last seen at {sentences.is_at(one.at)} until then"
                if one.after_ns is not None:
                    later = sentences.span(one.after_ns)
                    seen = f"was at {sentences.is_at(one.at)} {later} after that"
                parts.append(f"; {trace.processes[process].label} {seen}")
            continue
        by = sentences.processes(trace, sorted({op.process for op in one.by}))
        waited = f"waited for {by}" if one.by else "was"
        name = sentences.operation(trace, one.op, case.evidence.within(one.op))
        parts.append(f"; {trace.processes[process].label} {waited} in {name} until then")
    return "".join(parts)
