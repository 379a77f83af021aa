"""Someone makes the others wait, in collectives or for messages, again and again at one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import polars as pl

from disttrace.journal.code_files import BUILT_IN, is_library
from disttrace_viewer.analysis import delays
from disttrace_viewer.analysis.delays import SHARE_OF_SPAN, WARN_NS, Delay
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING, Finding, why
from disttrace_viewer.findings.rules.waiting_for_input import for_input
from disttrace_viewer.trace.model import Location, Trace
from disttrace_viewer.trace.operation import GROUPED, Op, ops
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.sentences import CLOCKS, KEPT

LOOKING_NS = 100_000_000


def find(case: Case, exchanges: Exchanges) -> Iterator[Finding]:
    """One warning per process and line; only where nothing is broken."""
    if any(f.severity == ERROR for f in case.findings):
        return
    for kind, late in (("straggler", delays.stragglers), ("late_sender", delays.late_senders)):
        for delay in late(exchanges):
            if _worth_telling(exchanges.trace, delay) and not _idle(exchanges.trace, delay, kind):
                yield _finding(exchanges.trace, delay, kind)


def _clocks(trace: Trace, delay: Delay) -> set[int]:
    """Of all concerned."""
    return {trace.processes[p].clock for p in (delay.process, *delay.others)}


def _worth_telling(trace: Trace, delay: Delay) -> bool:
    """From 5 % of the span and 10 ms on, and above what the clocks leave open."""
    clocks = _clocks(trace, delay)
    error = sum(trace.clocks[c].error_ns for c in clocks) if len(clocks) > 1 else 0
    if delay.median_ns < max(WARN_NS, 2 * error):
        return False
    return delay.total_ns >= SHARE_OF_SPAN * _span_ns(trace)


def _idle(trace: Trace, delay: Delay, kind: str) -> bool:
    """Whether it is the source of what the others wait in, and waits for input before that. To
    sleep for a moment is work, in a program that imitates it; for longer, a look now and then.
    """
    call = trace.call(delay.call)
    if kind == "straggler" and (call.root is None or call.root != call.group_rank):
        return False
    stacks = [one.stack for one in trace.processes[delay.process].samples if one.stack]
    idle = [
        for_input(stack) and (stack[0][::2] != (BUILT_IN, "sleep") or delay.median_ns >= LOOKING_NS)
        for stack in stacks
    ]
    return 2 * sum(idle) > len(idle)


def _span_ns(trace: Trace) -> int:
    """From the first to the last collective or message of the trace."""
    found = trace.operations.filter(pl.col("seq").is_not_null())
    first, last = found["begin_ns"].min(), found["end_ns"].max()
    return int(last) - int(first) if isinstance(first, int) and isinstance(last, int) else 0


def _finding(trace: Trace, delay: Delay, kind: str) -> Finding:
    """A straggler or a late sender."""
    call = trace.call(delay.call)
    where = innermost(call.stack)
    after = None if where is None or not is_library(where.file) else _left(trace, delay)
    where = after or where
    return Finding(
        kind=kind,
        severity=WARNING,
        because=why((len(_clocks(trace, delay)) > 1, CLOCKS)),
        summary=summary(trace, delay, kind, after),
        hint=HINT if after is None else HINT_AFTER,
        culprits=(delay.process,),
        waiting=delay.others,
        op=call.op,
        group=trace.group_id(call),
        locations=() if where is None else (Location.at(delay.process, where, call.op),),
        at_ns=delay.first_ns,
    )


def _left(trace: Trace, delay: Delay) -> Frame | None:
    """The program's line at which the main thread of who is late communicated last before: the call
    that was late is a pool's, and has none.
    """
    made = trace.operations.filter(
        (pl.col("process") == delay.process)
        & (pl.col("thread") == 0)
        & (pl.col("begin_ns") < delay.first_ns)
    )
    if not made.height:
        return None
    left = innermost(trace.stack(made.sort("number")["call"][-1]))
    return None if left is None or is_library(left.file) else left


if TYPE_CHECKING:
    from disttrace_viewer.analysis.delays import Delay  # which needs Polars

HINT = (
    "Look at what this rank does between its communication before and this line: data loading,"
    " logging, a slower device, or more work than the others."
)

HINT_AFTER = (
    "Look at what this rank does after this line until a thread of a pool communicates for it: data"
    " loading, logging, a slower device, or more work than the others."
)


def summary(trace: Trace, delay: Delay, kind: str, after: Frame | None = None) -> str:
    """Who is late, by how much, how often and where, and what that cost the others; ``after``: the
    program's line before it, where the call has none.
    """
    where = innermost(trace.stack(delay.call))
    at = f" before {sentences.is_at(where)}" if where is not None else ""
    if after is not None:
        at = f" after {sentences.is_at(after)}"
    does = "sends late"
    if kind == "straggler":
        does = f"comes late to {trace.call(delay.call).op}"
    return (
        f"{sentences.subject(trace, [delay.process])} {does} by {sentences.span(delay.median_ns)}"
        f" in {delay.times} of {delay.of} cases{at}; {sentences.processes(trace, delay.others)}"
        f" waited {sentences.span(delay.waited_ns)} for it in total."
    )


def find_unwaited(case: Case, exchanges: Exchanges) -> Iterator[Finding]:
    """One note per call site. A send that is not waited for is a habit and no fault."""
    trace = exchanges.trace
    calls = trace.calls.lazy().with_row_index("call")
    wanted = calls.filter(
        (pl.col("kind").is_in(GROUPED)) & (pl.col("op") != "send") & (pl.col("origin") == "python")
    ).select("call")
    lost = (
        trace.operations.lazy()
        .filter(pl.col("lost") & ~pl.col("asked"))
        .filter(pl.col("error").is_null() & pl.col("wait_begin_ns").is_null())
        .join(wanted, on="call", how="semi")
        .sort("begin_ns")
        .collect()
    )
    sites: dict[object, list[int]] = {}
    for row, call in enumerate(lost["call"].to_list()):
        value = trace.call(call)
        sites.setdefault((value.op, value.stack), []).append(row)
    for rows in sites.values():
        found = list(ops(trace, lost[rows[:1]]))
        processes = sorted(set(lost["process"][rows].to_list()))
        op = found[0]
        yield Finding(
            kind="unwaited_work",
            severity=NOTE,
            because=(KEPT,),
            summary=unwaited_summary(trace, processes, op, len(rows)),
            hint=UNWAITED_HINT,
            culprits=tuple(processes),
            op=op.call.op,
            group=trace.group_id(op.call),
            seq=op.seq,
            locations=case.evidence.locations(found),
            at_ns=op.begin_ns,
        )


UNWAITED_HINT = "Keep the Work and wait for it before the tensors are used or freed."


def unwaited_summary(trace: Trace, who: Sequence[int], op: Op, times: int) -> str:
    """``op``: one of so many at one line."""
    again = f", {times:,} times" if times > 1 else ""
    return (
        f"{sentences.subject(trace, who)} never waited for {op.call.op} at"
        f" {sentences.line(op)}{again}, and dropped the Work."
    )
