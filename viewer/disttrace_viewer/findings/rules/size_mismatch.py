"""The two ends of a message disagree on its size or dtype."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from disttrace_viewer.analysis.operation import Op, ops
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, Scope
from disttrace_viewer.sample.sample import STAND_IN
from disttrace_viewer.trace.model import Call
from disttrace_viewer.wording.findings import size_mismatch as words

if TYPE_CHECKING:
    from disttrace_viewer.analysis.exchanges import Exchanges


def find(case: Case) -> Iterator[Finding]:
    """One finding per pair of call sites whose messages do not fit."""
    exchanges = case.evidence.exchanges
    pairs = _known(case) if exchanges is None else _of_table(case, exchanges)
    for send, receive, times, keys in pairs:
        yield _finding(case, send, receive, times, keys)


Pairs = Iterator[tuple[Op, Op, int, list[Hashable]]]
"""Send, receive, how many messages of their call sites there are, and which."""


def _of_table(case: Case, exchanges: Exchanges) -> Pairs:
    """All pairs of call sites of a trace that do not fit."""
    import polars as pl  # here, for states are diagnosed where there is none

    trace = exchanges.trace
    met = exchanges.messages.lazy().filter(
        pl.col("send_process").is_not_null() & pl.col("recv_process").is_not_null()
    )
    pairs = (
        met.sort("first_ns")
        .group_by("send_call", "recv_call", maintain_order=True)
        .agg(pl.first("send_process", "send_number"), pl.first("recv_process", "recv_number"),
             pl.len().alias("times"),
             pl.col("message").alias("all"))
        .collect()
    )  # fmt: skip
    for row in pairs.iter_rows(named=True):
        if fits(trace.call(row["send_call"]), trace.call(row["recv_call"])):
            continue
        stream = ("group", "source", "destination", "tag", "seq")
        keys = exchanges.messages[row["all"]].select(stream).iter_rows()
        send = _op(case, row["send_process"], row["send_number"])
        receive = _op(case, row["recv_process"], row["recv_number"])
        yield send, receive, row["times"], [("message", *key) for key in keys]


def _known(case: Case) -> Pairs:
    """Of messages of which both ends are known: those in flight, and the newest."""
    sample = case.evidence.sample
    seen = set()
    for (side, stream), kept in sample.message_streams.items():
        for send in kept if side == "send" else ():
            receive = sample.other_end(send)
            if receive is None or receive.number == STAND_IN or fits(send.call, receive.call):
                continue
            site = (send.call.index, receive.call.index)
            if site not in seen:
                seen.add(site)
                yield send, receive, 1, [("message", *stream, send.seq)]


def fits(send: Call, receive: Call) -> bool:
    """Whether a send and a receive agree, as far as both tell."""
    if send.dtypes and receive.dtypes and set(send.dtypes) != set(receive.dtypes):
        return False
    return send.bytes is None or receive.bytes is None or send.bytes == receive.bytes


def _op(case: Case, process: int, number: int) -> Op:
    import polars as pl

    rows = case.evidence.trace.operations.filter(
        (pl.col("process") == process) & (pl.col("number") == number)
    )
    return next(ops(case.evidence.trace, rows))


def _finding(case: Case, send: Op, receive: Op, times: int, keys: list[Hashable]) -> Finding:
    trace = case.evidence.trace
    group = None if send.call.group is None else trace.groups[send.call.group]
    return Finding(
        kind="size_mismatch",
        summary=words.summary(trace, send, receive, times),
        hint=words.HINT,
        waiting=tuple(op.process for op in (send, receive) if op.status != "ok"),
        op="send",
        group=None if group is None else group.id,
        seq=send.seq,
        locations=case.evidence.locations([send, receive]),
        at_ns=send.begin_ns,
        scope=Scope(
            exchanges=frozenset(keys),
            members=frozenset(op.process for op in (send, receive) if op.status != "ok"),
        ),
    )
