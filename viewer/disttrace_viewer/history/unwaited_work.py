"""Asynchronous work whose result nobody ever asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, Finding
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import GROUPED, Op, ops
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.reasons import KEPT


def find(case: Case, exchanges: Exchanges) -> Iterator[Finding]:
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
            summary=summary(trace, processes, op, len(rows)),
            hint=HINT,
            culprits=tuple(processes),
            op=op.call.op,
            group=trace.group_id(op.call),
            seq=op.seq,
            locations=case.evidence.locations(found),
            at_ns=op.begin_ns,
        )


HINT = "Keep the Work and wait for it before the tensors are used or freed."


def summary(trace: Trace, who: Sequence[int], op: Op, times: int) -> str:
    """``op``: one of so many at one line."""
    again = f", {times:,} times" if times > 1 else ""
    return (
        f"{sentences.subject(trace, who)} never waited for {op.call.op} at"
        f" {sentences.line(op)}{again}, and dropped the Work."
    )
