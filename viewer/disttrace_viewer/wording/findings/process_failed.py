"""A process failed: how, where, and what to read first."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.analysis.operation import Op
from disttrace_viewer.analysis.process_ends import SILENT, End
from disttrace_viewer.trace.model import Failure, Location, Trace
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import cut, ended

NATIVE = (
    "Look for the kernel's out-of-memory killer (dmesg), a scheduler's limit, or a crash in native"
    " code"
)


def summary(
    trace: Trace,
    who: Sequence[int],
    end: End,
    where: Location | None,
    last: Op | None,
    *,
    surely: bool = True,
) -> str:
    """``end``, ``where`` and ``last`` operation: of the first of them."""
    many = len(who) > 1
    how = ended(end, many=many, surely=surely)
    at = before = ""
    if where is not None and (end.failure is not None or end.asked_at):
        at = f" at {sentences.is_at(where)}"
    if last is not None and end.failure is None:
        before = f", after {sentences.operation(trace, last)}"
    on = f"; {'they live' if many else 'it lives'} on, for another thread still runs" * end.lingers
    return f"{sentences.subject(trace, who)} {how}{at}{before}{on}."


def in_short(
    trace: Trace, who: Sequence[int], failure: Failure, where: Location | None, *, others: bool
) -> str:
    """``rank 1 failed first: ValueError: bad batch (fail.py:5)``; ``others`` ran as well."""
    text = f": {cut(failure.text)}" if failure.text else ""
    first = " first" if others else ""
    return (
        f"{sentences.processes(trace, who)} failed{first}: {failure.type}{text}"
        f"{sentences.aside(where)}"
    )


def hint(end: End) -> str:
    """What to read first."""
    if end.lingers:
        return (
            "Read this exception first. The process does not end, because a thread that is no"
            " daemon still runs: end it, or make it a daemon."
        )
    if end.failure is not None:
        return "Read this exception first; what the other ranks report follows from it."
    if end.told_to_end:
        return "Find why it was ended while the other ranks were at work."
    if (end.code is not None and end.code < 0) or end.how == SILENT:
        return f"{NATIVE} (run with PYTHONFAULTHANDLER=1)."
    return "Find who calls exit there; the other ranks were still at work."
