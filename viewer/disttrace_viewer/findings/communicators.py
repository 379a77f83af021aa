"""Who is in the making of a communicator: of a group, of a pair, or by the call that makes a group.

A device backend connects its members inside the first call of a group or of a pair, or inside
``new_group`` where a device is bound to it, and loads kernels inside the first call of an
operation: the host stands in that call, and nothing is enqueued yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from disttrace.journal.format import COMPOSED, CONSTRUCTOR, ON_DEVICE, ends_on_device
from disttrace_viewer.analysis.sample import BATCHES, message_stream
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.waits.wait import COLLECTIVE, MESSAGE, OTHER, RENDEZVOUS, Wait
from disttrace_viewer.trace.operation import CREATING, Op
from disttrace_viewer.trace.process import JOURNAL

TIMEOUT_NS = 600_000_000_000
"""Of a group that does not tell its own: torch's default for NCCL."""
INIT = "init_process_group"
_BACKENDS = {name: f"ProcessGroup{name.upper()}" for name in ("nccl", "xccl")}


def members(evidence: Evidence, wait: Wait) -> Sequence[Op]:
    """The operations of all who are in what is waited in, where they are all there."""
    op, sample = wait.op, evidence.sample
    if wait.kind == COLLECTIVE and wait.stream is not None and op.seq is not None:
        return list(sample.members(wait.stream, op.seq).values())
    if wait.kind == MESSAGE:
        other = sample.other_end(op)
        return [] if other is None else [op, other]
    if wait.kind == RENDEZVOUS and op.call.op in _BACKENDS.values():
        return [o for o in sample.of_kind(CONSTRUCTOR) if o.process in wait.arrived and o.pending]
    if wait.kind == OTHER and op.call.kind == COMPOSED and op.call.op in CREATING:
        return _makers(evidence, op)
    return []


def making(evidence: Evidence, op: Op) -> bool:
    """Whether a process stands in a call that may connect it, or load what it needs, for the first
    time: a call that came to an end there before does neither.
    """
    if not op.pending:
        return False
    if op.call.kind in (COMPOSED, CONSTRUCTOR):
        return backend(evidence, op) is not None
    if not op.on_device or not _in_call(evidence, op):
        return False
    # A barrier's call may wait for the device as well.
    again = op.call.op == "barrier" or evidence.longest_ns(op) > 0
    return is_first(evidence, op) or not again


def is_first(evidence: Evidence, op: Op) -> bool:
    """Whether nothing came before it in its group, or between its pair in either direction."""
    if op.call.kind in (COMPOSED, CONSTRUCTOR):
        return True
    stream = message_stream(op)
    if stream is None or op.seq != 1:
        return op.seq == 1
    group, source, destination, tag = stream
    back = "recv" if op.call.op == "send" else "send"
    theirs = evidence.sample.message_streams.get((back, (group, destination, source, tag)), ())
    return not any(o.process == op.process and o.issued_ns is not None for o in theirs)


def backend(evidence: Evidence, op: Op) -> str | None:
    """The device backend that is asked for a communicator; None where it is another one's."""
    call = op.call
    if call.kind == CONSTRUCTOR:
        return next((name for name, kind in _BACKENDS.items() if kind == call.op), None)
    if call.kind != COMPOSED:
        return call.backend if ends_on_device(call.backend, call.device) else None
    given = call.args.get("backend")
    names = [part.rpartition(":")[2] for part in str(given).split(",")] if given else []
    for group in evidence.trace.groups if not names else ():
        if group.default and any(m.process == op.process for m in group.members):
            names += group.backends.values()
    return next((name for name in names if name in ON_DEVICE), None)


def timeout_ns(evidence: Evidence, op: Op) -> int:
    """After which torch gives up the operation, as far as that is known."""
    given = op.call.args.get("timeout")
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given > 0:
        return round(given * 1e9)
    group = op.call.group
    told = None if group is None else evidence.trace.groups[group].timeout_ns
    return told or TIMEOUT_NS


def _in_call(evidence: Evidence, op: Op) -> bool:
    """Whether the host has not come back from the call that enqueues it, or the batch it is in."""
    if evidence.trace.processes[op.process].source != JOURNAL:
        return False  # torch makes the entry of a dump once it has the communicator
    if op.issued_ns is None:
        return True
    around = evidence.sample.around(op)
    return around is not None and around.call.op in BATCHES and around.pending


def _makers(evidence: Evidence, op: Op) -> Sequence[Op]:
    """The calls of all who make the same group; nothing where somebody is not there."""
    ranks = {p.index: p.rank for p in evidence.trace.processes if p.rank is not None}
    place = _place(evidence, op)
    found = {
        rank: one
        for one in evidence.sample.of_kind(COMPOSED)
        if one.call.op == op.call.op
        and (rank := ranks.get(one.process)) is not None
        and _place(evidence, one) == place
    }
    default = next((g for g in evidence.trace.groups if g.default), None)
    wanted = None if op.call.op == "split_group" else op.call.args.get("ranks")
    if op.call.op == INIT or default is None:
        size = evidence.trace.processes[op.process].world_size
        wanted = None if size is None else range(size)
    elif not isinstance(wanted, list):
        wanted = default.ranks
    if wanted is None or not {*wanted} <= {*found}:
        return []
    return [found[rank] for rank in wanted]


def _place(evidence: Evidence, op: Op) -> tuple[object, ...]:
    """Its number among the like calls of its process: the n-th ones meet."""
    key = str(op.call.args.get("ranks"))
    before = sum(
        1
        for one in evidence.sample.of_process.get(op.process, ())
        if one.call.op == op.call.op
        and one.number < op.number
        and str(one.call.args.get("ranks")) == key
    )
    return key, before
