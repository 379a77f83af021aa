"""Everybody is in and nobody returns: who, since when, and what to suspect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttrace_viewer.evidence.waits.wait import OTHER, RENDEZVOUS, Wait
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.findings import outside
from disttrace_viewer.wording.findings.outside import Doing

FROZEN = (
    "Look at what holds it there: a signal, a debugger, a call in a library that keeps the GIL, a"
    " swapping or frozen host."
)
NETWORK = (
    "Suspect the network, the device or the library: test the links between these hosts, look for"
    " errors of the driver, and compare library versions."
)
GRAPHS = (
    "A CUDA graph that holds operations keeps NCCL from ending: delete such graphs, or call their"
    " reset(), before the groups are destroyed."
)

ASKED = (
    "On gloo a message ends only in wait(): is_completed() stays false until that is called. Wait"
    " for it, in a thread of its own if something else is to be done meanwhile."
)

OPEN = {
    "root": "Compare the roots (src, dst) that the ranks pass there: they may differ, and this"
    " evidence does not hold them. If they are equal, suspect the network, device or library.",
    "members": "Find who else is in that group, and where: this evidence lists only those that"
    " have used it.",
}
"""What to do where that is what the evidence lacks."""

INTERFACE = (
    "Suspect the network between these hosts: an address or interface that others cannot reach"
    " (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), or a firewall."
)


def summary(
    trace: Trace,
    wait: Wait,
    who: Sequence[int],
    waited_ns: int,
    still: Mapping[int, Doing],
    open_: str | None = None,
) -> str:
    """``still``: what those are at that joined, and then stopped running; ``open_``: what the
    evidence lacks of it (see ``OPEN``), or ``began``: the devices of all are at it.
    """
    name = sentences.operation(trace, wait.op)
    if wait.kind == OTHER:
        been = sentences.capital(_been_in(trace, who, name, wait.op, waited_ns))
        return f"{been}, and what it waits for was not recorded."
    if open_ == "members":
        been = sentences.capital(_been_in(trace, who, name, wait.op, waited_ns))
        return f"{been}; all that were seen in that group are in it, and it may have more members."
    if open_ == "root":
        returned = [p for p in wait.arrived if p not in who]
        some = f": {sentences.processes(trace, returned)} returned" if returned else ""
        been = _been_in(trace, who, "it", wait.op, waited_ns)
        return (
            f"All members have joined {name}{some}{',' if returned else ', and'} {been}: the roots"
            " may differ, which this evidence does not hold."
        )
    alike = "" if wait.kind == RENDEZVOUS else " with matching arguments"
    return (
        f"All members have joined {name}{alike}, and"
        f" {_been_in(trace, who, 'it', wait.op, waited_ns)}: nothing moves"
        f"{', and the device began it on all ranks' * (open_ == 'began')}"
        f"{outside.where(trace, still)}."
    )


UNCOUNTED = (
    "Compare the calls there, one by one: a collective under a condition on the rank, or one call"
    " more on some ranks. Run it once with DISTTRACE=1: with numbers it is told who is out of step."
)


def apart(trace: Trace, waits: Sequence[Wait]) -> str:
    """Waits at different places, without numbers."""
    alike = sentences.together(
        (f"{sentences.called(wait.op)} at {sentences.line(wait.op)}", wait.process)
        for wait in waits
    )
    parts = [f"{sentences.processes(trace, who)} in {where}" for where, who in alike.items()]
    if len(parts) == 1:
        return (
            f"{sentences.capital(parts[0])} may wait there for others. Stacks have no sequence"
            " numbers, so nobody knows for whom."
        )
    return (
        f"These wait at different places: {sentences.listed(parts)}. Stacks have no sequence"
        " numbers, so nobody knows which of them should be elsewhere."
    )


def unanswered(
    trace: Trace, op: Op, who: Sequence[int], waited_ns: int, server: int, doing: Doing
) -> str:
    """``op`` of a store, which ``server`` serves."""
    been = _been_in(trace, who, sentences.operation(trace, op), op, waited_ns)
    return (
        f"{sentences.capital(been)}, and {trace.processes[server].label}, which serves this store,"
        f" does not answer{outside.where(trace, {server: doing})}."
    )


def _been_in(trace: Trace, who: Sequence[int], what: str, op: Op, waited_ns: int) -> str:
    return (
        f"{sentences.processes(trace, who, within=op.call.group)} {sentences.have(who)} been in"
        f" {what} at {sentences.line(op)} for {sentences.span(waited_ns)}"
    )
