"""Part of findings about a member that is not where the others are: whether its own call there
raised, and the program went on without it (``except Exception: log``, or a ``finally``).

Such a call takes no number, so that the next one of its rank meets the others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace.journal.format import COLLECTIVE, COMPOSED
from disttrace_viewer.analysis.out_of_step import Shift
from disttrace_viewer.analysis.past import Place, place_of
from disttrace_viewer.analysis.sample import frame
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.trace.model import Stream
from disttrace_viewer.trace.operation import Op, is_connection_error
from disttrace_viewer.trace.values import replace, together
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import few
from disttrace_viewer.wording.sentences import tidy


def find(case: Case, process: int, others: Sequence[Op], instead: Op | None) -> Op | None:
    """The call by which a process would have come to what ``others`` called, not to ``instead``."""
    for op in _raised(case, process):
        if instead is None:
            failures = case.trace.processes[op.process].failures
            went_on = not any(op.error in failure.chain for failure in failures)
        else:
            went_on = op.thread == instead.thread and (op.end_ns or 0) <= instead.begin_ns
        line = frame(op)
        meant = (
            one
            for one in others
            if (line is not None and line == frame(one))
            or any(outer.call.op == op.call.op for outer in _around(case, one))
        )
        if went_on and any(_is_next(case, op, one) for one in meant):
            return op
    return None


def at(case: Case, process: int, stream: Stream, shift: Shift[int, Place]) -> Op | None:
    """The call that raised where one was left out; on one line it may be any of several."""
    refused = case.sample.refused
    for op in _raised(case, process):
        number = refused.get(op.id, 0) if op.call.stream == stream else 0
        if shift.earliest <= number <= shift.number and place_of(op.call) in shift.calls:
            return op
    return None


def with_raised(
    case: Case, finding: RuleFinding, raised: Sequence[Op], lead: str = "Just before, "
) -> RuleFinding:
    """A finding with the calls without which those which it is about went on; ``lead``: when."""
    if not raised:
        return finding
    evidence, trace = case.evidence, case.trace

    def call(op: Op) -> str:
        return f"{op.call.op}{sentences.inside(evidence.within(op))} ({sentences.line(op)})"

    calls = together(((call(op), tidy(op.error or "")), op.process) for op in raised)
    texts = [
        f"{text} raised on {sentences.processes(trace, who)}, which went on without it: {error}"
        for (text, error), who in calls.items()
    ]
    who = sentences.processes(trace, [op.process for op in raised])
    lines = sentences.listed(list(dict.fromkeys(sentences.line(op) for op in raised)))
    errors = few(list(dict.fromkeys(tidy(op.error or "") for op in raised)), sentences.MANY, "; ")
    return replace(
        finding,
        summary=f"{finding.summary} {lead}{few(texts, sentences.MANY, '; ')}.",
        hint=f"Find why the call at {lines} raised on {who} ({errors}), and do not go on without it"
        " there (`except`, `finally`) where the others are in it: the next call meets theirs.",
        locations=tuple(dict.fromkeys((*finding.locations, *case.evidence.locations(raised)))),
    )


def _raised(case: Case, process: int) -> Iterator[Op]:
    """Calls of a process that took no number and raised for a reason of their own, newest first."""
    for op in reversed(case.sample.of_process.get(process, ())):
        if op.error is None or op.seq is not None or is_connection_error(op.error):
            continue
        if op.call.kind == COMPOSED or (op.call.kind == COLLECTIVE and op.refused):
            yield op


def _around(case: Case, op: Op | None) -> Iterator[Op]:
    """An operation, and those of which it is a part."""
    while op is not None:
        yield op
        op = case.sample.around(op)


def _is_next(case: Case, raised: Op, wanted: Op) -> bool:
    """Whether the number of ``wanted`` was the next one in its group when a call raised."""
    sample, seq = case.sample, wanted.seq or 0
    if raised.call.group != wanted.call.group:
        return False
    if raised.id in sample.refused:
        return sample.refused[raised.id] == seq
    if seq == 1:
        return True
    before = _numbered(case, raised.process, wanted, seq - 1)
    if before is None or before.thread != raised.thread:
        return False
    if raised not in _around(case, before):
        return before.begin_ns < raised.begin_ns
    # It had done a part of it: so had the others of what they are in.
    theirs = _numbered(case, wanted.process, wanted, seq - 1)
    return theirs is not None and theirs.parent is not None and theirs.parent == wanted.parent


def _numbered(case: Case, process: int, like: Op, seq: int) -> Op | None:
    """The kept operation of a process under a number of the stream of another one."""
    here = case.sample.in_stream(process, like.call.stream)
    return next((op for op in here if op.seq == seq), None)
