"""All members have joined, with equal arguments, and none returns: network, device or library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from disttrace.journal.format import DEVICE, HOST, LINK, REPLAYED
from disttrace_viewer.analysis.process_ends import CASCADE, CLEAN, OWN
from disttrace_viewer.evidence.evidence import LED
from disttrace_viewer.evidence.recorded import DRAINING
from disttrace_viewer.evidence.wait import (
    COLLECTIVE,
    MESSAGE,
    OTHER,
    RENDEZVOUS,
    SERVER,
    Wait,
    Waits,
    import_limit_ns,
)
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding, Scope, why
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.operation import Op, is_closed
from disttrace_viewer.trace.process import JOURNAL, Trouble
from disttrace_viewer.trace.values import together
from disttrace_viewer.wording import sentences

Reported = Sequence[tuple[int, Trouble]]
_MOST_BETWEEN_TRIES_NS = 60_000_000_000


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per exchange that is complete, old, and not over, and per store whose server is
    still; last what waits for something that is seen only from outside."""
    for wait in case.due(SERVER):
        yield _finding(case, wait)
    apart = [w for w in case.due(OTHER) if not case.knows("sequence", [w.process])]
    if len(apart) > 1:
        yield _apart(case, apart)
    for kinds in ((COLLECTIVE, MESSAGE, RENDEZVOUS), (OTHER,)):
        for wait in case.due(*kinds):
            if not case.knows("stood", [wait.process]):
                continue  # whether it moves takes two moments
            if not wait.complete or _ended(case, wait) or _drains(case, wait):
                continue
            ahead = host_is_ahead(case, wait, {wait.process, *wait.arrived})
            if not _just_complete(case, wait) and not ahead:
                yield _finding(case, wait)


def _drains(case: Case, wait: Wait) -> bool:
    """Whether all ranks destroy their groups, which takes long for many, and not in vain."""
    evidence = case.evidence
    if wait.kind != OTHER or wait.op.call.op != DRAINING or not evidence.live:
        return False
    if evidence.age_ns(wait.op) >= import_limit_ns(evidence) or _held_by_graphs(case, wait):
        return False
    inside = {w.process for w in case.open() if w.op.call.op == DRAINING}
    ranks = (p for p in evidence.trace.processes if p.is_rank)
    return all(p.index in inside for p in ranks if not evidence.ends[p.index].over)


def _ended(case: Case, wait: Wait) -> bool:
    """Whether something else than a lack of progress is at hand: a closed connection is the end of
    a process, and why a group could not be made is in the text of a failure. Nor was anybody held
    who ended well: that its device was not seen to come through proves nothing then.
    """
    if wait.op.on_device and case.ends[wait.process].how == CLEAN:
        return True
    if wait.kind != RENDEZVOUS:
        return is_closed(wait.op.error)
    ends = case.ends
    return wait.op.error is not None or any(ends[p].how in (OWN, CASCADE) for p in wait.arrived)


def _just_complete(case: Case, wait: Wait) -> bool:
    """Whether the last one came so late that it is not known whether it would have moved since."""
    evidence, op, inside = case.evidence, wait.op, case.joined(wait)
    if wait.process in evidence.timeless:
        return False  # all stood when it was gathered
    last = max((one.begin_ns for one in inside), default=0)
    until = op.end_ns or evidence.until_ns(op.process)
    allowed_ns = evidence.stalled_after_ns
    if op.call.op == "TCPStore" and evidence.live:
        # Who dials a server that is not there yet waits for longer before each try.
        dialled_ns = last - min((one.begin_ns for one in inside), default=last)
        allowed_ns = max(allowed_ns, min(dialled_ns, _MOST_BETWEEN_TRIES_NS))
    return op.error is None and until - last < allowed_ns


def host_is_ahead(case: Case, wait: Wait, members: Iterable[int]) -> bool:
    """Whether a device of some members lately came through something: it is not stuck."""
    if not wait.op.on_device or wait.op.error is not None or wait.process in case.evidence.timeless:
        return False
    return any(
        op.on_device
        and op.error is None
        and op.end_ns is not None
        and case.evidence.until_ns(process) - op.end_ns < case.evidence.stalled_after_ns
        for process in members
        for op in case.sample.of_process.get(process, ())
    )


def _finding(case: Case, wait: Wait) -> RuleFinding:
    inside = [
        w
        for w in case.open()
        if w.exchange == wait.exchange
        or (w.kind == wait.kind == OTHER and w.op.call.op == wait.op.call.op)
    ]
    # Members that have begun, and then stopped running while other members went on waiting.
    members = () if wait.kind == OTHER else wait.arrived
    served = wait.kind == SERVER  # by a process that does not run
    still = wait.targets if served else case.evidence.still(members, members)
    who = list(dict.fromkeys(w.process for w in inside))
    open_ = _open(case, wait)
    reported = [] if served else around(case, wait, {*who, *wait.arrived})
    return RuleFinding(
        kind="no_progress",
        summary=summary(case, wait, inside, still, open_) + troubles(case.trace, reported),
        because=(sentences.FELL_SILENT if served else sentences.ALL_CAME,),
        culprits=still,
        hint=_OPEN.get(open_ or "") or _hint(case, wait, inside, still, reported),
        waiting=tuple(who),
        **case.about(wait.op),
        locations=case.evidence.locations(w.op for w in inside)
        + (outside.locations(case, still) if served else ()),
        scope=Scope.of(inside, roots=still if served else who),
    )


_OPEN = {
    "root": "Compare the roots (src, dst) that the ranks pass there: they may differ, and this"
    " evidence does not hold them. If they are equal, suspect the network, device or library.",
    "members": "Find who else is in that group, and where: this evidence lists only those that have"
    " used it.",
}


def _hint(case: Case, wait: Wait, inside: Waits, still: Sequence[int], reported: Reported) -> str:
    if still:
        return outside.stopped_hint(case, still) or FROZEN
    if reported:
        return HINTS[reported[0][1].where]
    if wait.kind == RENDEZVOUS:
        return (
            "Suspect the network between these hosts: an address or interface that others cannot"
            " reach (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), or a firewall."
        )
    # Of some messages a backend hears only when their end is waited for.
    if all(
        one.kind == MESSAGE
        and one.op.call.backend == "gloo"
        and one.op.call.asynchronous is True
        and one.op.wait_begin_ns is None
        for one in inside
    ):
        return (
            "On gloo a message ends only in wait(): is_completed() stays false until that is"
            " called. Wait for it, in a thread of its own if something else is to be done"
            " meanwhile."
        )
    if _held_by_graphs(case, wait):
        return (
            "A CUDA graph that holds operations keeps NCCL from ending: delete such graphs, or call"
            " their reset(), before the groups are destroyed."
        )
    return (
        "Suspect the network, the device or the library: test the links between these hosts, look"
        " for errors of the driver, and compare library versions."
    )


def _held_by_graphs(case: Case, wait: Wait) -> bool:
    """Whether groups are destroyed by one who has replayed a CUDA graph with operations in it."""
    if wait.op.call.op != DRAINING:
        return False
    return any(op.call.backend == REPLAYED for op in case.sample.of_process.get(wait.process, ()))


def _apart(case: Case, waits: Sequence[Wait]) -> RuleFinding:
    """Waits at different places, of which it is not known whether they are for one another."""
    trace, who = case.trace, [w.process for w in waits]
    alike = together(
        (f"{sentences.called(w.op)} at {sentences.line(w.op)}", w.process) for w in waits
    )
    parts = [f"{sentences.processes(trace, some)} in {where}" for where, some in alike.items()]
    told = f"These wait at different places: {sentences.listed(parts)}"
    which = "which of them should be elsewhere"
    if len(parts) == 1:
        told, which = f"{sentences.capital(parts[0])} may wait there for others", "for whom"
    return RuleFinding(
        kind="no_progress",
        summary=f"{told}. Stacks have no sequence numbers, so they do not show {which}.",
        because=(sentences.NOTHING_ELSE,),
        hint="Compare the calls there, one by one: a collective under a condition on the rank, or"
        " one call more on some ranks. Run it once with DISTTRACE=1: sequence numbers show which"
        " rank is out of step.",
        waiting=tuple(who),
        locations=case.evidence.locations(w.op for w in waits),
        at_ns=waits[0].op.begin_ns,
        scope=Scope.of(waits, roots=who),
    )


def _open(case: Case, wait: Wait) -> str | None:
    """What the evidence lacks (``members``, ``root``); ``began`` if all devices have begun it."""
    evidence, op = case.evidence, wait.op
    if wait.kind != COLLECTIVE or wait.stream is None or op.seq is None or op.call.group is None:
        return None
    if evidence.trace.groups[op.call.group].partial:
        return "members"
    if op.call.op in LED and not case.knows("root", wait.arrived):
        return "root"
    inside = evidence.sample.members(wait.stream, op.seq).values()
    return "began" if all(one.call.args.get("started") for one in inside) else None


FROZEN = (
    "Look at what holds it there: a signal, a debugger, a call in a library that keeps the GIL, a"
    " swapping or frozen host."
)


def summary(case: Case, wait: Wait, inside: Waits, still: Sequence[int], open_: str | None) -> str:
    """``still``: members that stopped running; ``open_``: what the evidence lacks."""
    trace, who = case.trace, [w.process for w in inside]
    name = sentences.operation(trace, wait.op)
    what = name if wait.kind in (OTHER, SERVER) or open_ == "members" else "it"
    been = _been_in(case, what, wait, inside)
    if wait.kind == SERVER:
        silent = f"which serves this store, does not answer{outside.where(case, still)}"
        return f"{sentences.capital(been)}, and {trace.processes[still[0]].label}, {silent}."
    if wait.kind == OTHER:
        return f"{sentences.capital(been)}, and what it waits for was not recorded."
    if open_ == "members":
        return (
            f"{sentences.capital(been)}; all that were seen in that group are in it, and it may"
            " have more members."
        )
    if open_ == "root":
        returned = [p for p in wait.arrived if p not in who]
        some = f": {sentences.processes(trace, returned)} returned" if returned else ""
        return (
            f"All members have joined {name}{some}{',' if returned else ', and'} {been}: the roots"
            " may differ, which this evidence does not hold."
        )
    alike = "" if wait.kind == RENDEZVOUS else " with matching arguments"
    return (
        f"All members have joined {name}{alike}, and {been}: nothing moves"
        f"{', and the device began it on all ranks' * (open_ == 'began')}"
        f"{outside.where(case, still)}."
    )


def _been_in(case: Case, what: str, wait: Wait, inside: Sequence[Wait]) -> str:
    op, who = wait.op, [w.process for w in inside]
    subject = sentences.processes(case.trace, who, within=op.call.group)
    at, waited_ns = sentences.line(op), case.evidence.waited_ns(w.op for w in inside)
    if waited_ns is None:
        return f"{subject} {'were' if len(who) > 1 else 'was'} in {what} at {at}"
    return f"{subject} {sentences.have(who)} been in {what} at {at} for {sentences.span(waited_ns)}"


HINTS = {
    DEVICE: "Suspect this device first: look at it (nvidia-smi -q, dmesg), keep its host out of the"
    " job, and start again.",
    LINK: "Suspect this link first: look at its cable, port and switch (ibstat, ethtool, nvidia-smi"
    " nvlink -s), keep its host out of the job, and start again.",
    HOST: "Suspect this host first: look at its processes and its kernel's log (dmesg), keep it out"
    " of the job, and start again.",
}
_WHAT = {DEVICE: "a device", LINK: "a link", HOST: "a host"}


def troubles(trace: JobTrace, reported: Reported) -> str:
    """Nothing where there are none, else as many as one can read."""
    parts = []
    for process, one in reported[:2]:
        whose = f" of {sentences.processes(trace, [process])}" if one.mine else ""
        xid = f"Xid {one.code}" if one.code is not None else one.name or _WHAT[one.where]
        text = f"`{one.text}`" if one.text else xid
        by = "the kernel's log" if one.by == "kernel log" else one.by
        host = trace.processes[process].host
        parts.append(f"It may be {_WHAT[one.where]}{whose}: {by} on {host} says {text}")
    more = len(reported) - len(parts)
    parts += [f"and {more} more in the journals"] if more > 0 else []
    return "".join(f" {part}." for part in parts)


BEFORE_NS = 60_000_000_000
"""So long before a wait began it may have come about: a device is at work later than its host."""
_ORDER = (DEVICE, LINK, HOST)


def around(case: Case, wait: Wait, members: Iterable[int]) -> list[tuple[int, Trouble]]:
    """By the process in whose journal it stands; devices first, then links. Of the hosts of
    ``members`` only, and nothing of devices where the operation is on none.
    """
    hosts = {case.trace.processes[p].clock for p in members}
    since_ns = wait.op.begin_ns - BEFORE_NS
    found = [
        (process.index, one)
        for process in case.trace.processes
        if process.clock in hosts
        for one in process.troubles
        if one.where in _ORDER and one.t_ns >= since_ns
        if wait.op.on_device or (one.where != DEVICE and one.code is None)
    ]
    return sorted(found, key=lambda each: (_ORDER.index(each[1].where), each[1].t_ns))


def find_stuck_device(case: Case) -> Iterator[RuleFinding]:
    """One finding on all whose devices are not through with what those of the others are."""
    stuck = [
        wait
        for wait in case.oldest()
        if case.evidence.stuck_devices.get(wait.process) == wait.op
        and case.old(wait)
        and case.knows("occasion", [wait.process])
        and case.ends[wait.process].how != CLEAN
        and not host_is_ahead(case, wait, [wait.process])
    ]
    if not stuck:
        return
    who = case.by_rank(wait.process for wait in stuck)
    first, *more = stuck
    reported = around(case, first, {*who})
    yield RuleFinding(
        kind="no_progress",
        summary=device_summary(case.trace, [wait.op for wait in stuck])
        + troubles(case.trace, reported),
        because=why((not all(_is_recorded(case, wait) for wait in stuck), sentences.ALL_CAME)),
        culprits=tuple(who),
        device=True,
        hint=HINTS[reported[0][1].where]
        if reported
        else "Look at this device and its host first (nvidia-smi -q, dmesg for an Xid), and at a"
        " kernel or a CUDA call that does not return there: py-spy dump --native of the process.",
        waiting=tuple(who),
        **{**case.about(first.op), **({"group": None, "seq": None} if more else {})},
        locations=case.evidence.locations(wait.op for wait in stuck),
        scope=Scope.of(stuck, roots=who),
    )


def _is_recorded(case: Case, wait: Wait) -> bool:
    """Whether torch recorded the end of all others: in a journal this one may be missed."""
    evidence = case.evidence
    others = evidence.sample.partners(wait.op)
    known = [evidence.trace.processes[p] for p in (wait.process, *(one.process for one in others))]
    size = 2 if wait.kind == MESSAGE else evidence.trace.groups[wait.op.call.group or 0].size
    return (
        len(others) + 1 == size
        and all(one.status == "ok" for one in others)
        and not any(one.source == JOURNAL or "ends" in one.lacks for one in known)
    )


def device_summary(trace: JobTrace, ops: Sequence[Op]) -> str:
    """``ops``: the first operation of each with which its device is not through."""
    names = [(sentences.operation(trace, op), op.process) for op in ops]
    through = sentences.sides(trace, names, "is not through with", "are not through with")
    whose = sentences.processes(trace, [op.process for op in ops])
    devices, do = ("device", "does") if len(ops) == 1 else ("devices", "do")
    most = "all" if len(dict(names)) == len(ops) else "most"
    return (
        f"The {devices} of {whose} {do} not get on: {through}, and those of {most} other members"
        " are."
    )
