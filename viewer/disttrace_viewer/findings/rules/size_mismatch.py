"""The two ends of a message disagree on its size or dtype."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from disttrace_viewer.analysis.operation import Op, frame, ops
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, Scope
from disttrace_viewer.trace.model import Call
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """One finding per pair of call sites whose messages do not fit."""
    evidence, trace = case.evidence, case.evidence.trace
    met = evidence.exchanges.messages.lazy().filter(
        pl.col("send_process").is_not_null() & pl.col("recv_process").is_not_null()
    )
    pairs = (
        met.sort("first_ns")
        .group_by("send_call", "recv_call", maintain_order=True)
        .agg(pl.first("message", "seq", "first_ns", "send_process", "send_number"),
             pl.first("recv_process", "recv_number"), pl.len().alias("times"),
             pl.col("message").alias("all"))
        .collect()
    )  # fmt: skip
    for row in pairs.iter_rows(named=True):
        if fits(trace.call(row["send_call"]), trace.call(row["recv_call"])):
            continue
        send = _op(case, row["send_process"], row["send_number"])
        receive = _op(case, row["recv_process"], row["recv_number"])
        yield _finding(case, send, receive, row["times"], row["all"])


def fits(send: Call, receive: Call) -> bool:
    """Whether a send and a receive agree, as far as both tell."""
    if send.dtypes and receive.dtypes and set(send.dtypes) != set(receive.dtypes):
        return False
    return send.bytes is None or receive.bytes is None or send.bytes == receive.bytes


def _op(case: Case, process: int, number: int) -> Op:
    rows = case.evidence.trace.operations.filter(
        (pl.col("process") == process) & (pl.col("number") == number)
    )
    return next(ops(case.evidence.trace, rows))


def _finding(case: Case, send: Op, receive: Op, times: int, messages: list[int]) -> Finding:
    trace = case.evidence.trace
    group = None if send.call.group is None else trace.groups[send.call.group]
    again = f" ({times} times)" if times > 1 else ""
    return Finding(
        kind="size_mismatch",
        summary=(
            f"{_label(case, send)} sends {sentences.sizes(send)}"
            f" ({sentences.place(frame(trace, send))}) where {_label(case, receive)} receives"
            f" {sentences.sizes(receive)} ({sentences.place(frame(trace, receive))}){again}."
        ),
        hint="Give both ends tensors of one size and dtype; the rest of the receiver's is stale.",
        waiting=tuple(op.process for op in (send, receive) if op.status != "ok"),
        op="send",
        group=None if group is None else group.id,
        seq=send.seq,
        locations=case.evidence.locations([send, receive]),
        at_ns=send.begin_ns,
        scope=Scope(
            exchanges=frozenset(("message", m) for m in messages),
            members=frozenset(op.process for op in (send, receive) if op.status != "ok"),
        ),
    )


def _label(case: Case, op: Op) -> str:
    label = case.evidence.trace.processes[op.process].label
    return sentences.capital(label) if op.call.op == "send" else label
