"""The two ends of a message disagree on its size or dtype."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from disttrace_viewer.analysis.sample import STAND_IN
from disttrace_viewer.findings.case import Case, Misfit
from disttrace_viewer.findings.finding import Finding, Scope
from disttrace_viewer.trace.model import Call, Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """One finding per pair of call sites whose messages do not fit."""
    told: set[Hashable] = set()
    for send, receive, times, keys in (*case.past.misfits(), *_known(case)):
        if told.isdisjoint(keys):
            told.update(keys)
            yield _finding(case, send, receive, times, keys)


def _known(case: Case) -> Iterator[Misfit]:
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


def _finding(case: Case, send: Op, receive: Op, times: int, keys: list[Hashable]) -> Finding:
    trace = case.evidence.trace
    inside = tuple(op.process for op in (send, receive) if op.status != "ok")
    return Finding(
        kind="size_mismatch",
        summary=summary(trace, send, receive, times),
        hint=HINT,
        waiting=inside,
        op="send",
        group=trace.group_id(send.call),
        seq=send.seq,
        locations=case.evidence.locations([send, receive]),
        at_ns=send.begin_ns,
        scope=Scope(exchanges=frozenset(keys), members=frozenset(inside)),
    )


HINT = "Give both ends tensors of one size and dtype; the rest of the receiver's is stale."


def summary(trace: Trace, send: Op, receive: Op, times: int) -> str:
    """``times``: how many messages of these two calls there are."""
    ends = [
        f"{trace.processes[op.process].label} {verb} {sentences.sizes(op)} ({sentences.line(op)})"
        for op, verb in ((send, "sends"), (receive, "receives"))
    ]
    again = f" ({times} times)" if times > 1 else ""
    return f"{sentences.capital(' where '.join(ends))}{again}."
