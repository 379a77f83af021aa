"""Asynchronous work whose result nobody ever asked for."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, NOTE, Finding
from disttrace_viewer.trace.operation import GROUPED, ops
from disttrace_viewer.wording.findings import unwaited_work as words


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
            certainty=LIKELY,
            summary=words.summary(trace, processes, op, len(rows)),
            hint=words.HINT,
            culprits=tuple(processes),
            op=op.call.op,
            group=trace.group_id(op.call),
            seq=op.seq,
            locations=case.evidence.locations(found),
            at_ns=op.begin_ns,
        )
