"""A communicator is being made, and all members are in it: a note, for a time of its own.

NCCL takes seconds for a few GPUs and minutes for thousands, inside the first call of a group. Who
is missing there is a matter of other rules; and after a part of the group's time-out so is this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

from disttrace.journal.format import COMPOSED, CONSTRUCTOR, ON_DEVICE, ends_on_device
from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.analysis.sample import BATCHES, BUILDING, message_stream
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.wait import OTHER, RENDEZVOUS, Wait, Waits, import_limit_ns, limit
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, RuleFinding, Scope
from disttrace_viewer.trace.operation import CREATING, GROUPED, Op
from disttrace_viewer.trace.process import JOURNAL
from disttrace_viewer.wording import names, sentences

OF_TIMEOUT = 4
"""After one part in so many of the group's time-out it is a stall."""


def find(case: Case) -> Iterator[RuleFinding]:
    """One note per communicator that is made while all of its members are there."""
    seen: set[Hashable] = set()
    for wait in case.oldest() if case.evidence.live else ():
        if wait in case.owner or wait.exchange in seen or not wait.complete or wait.op.error:
            continue
        inside = members(case, wait)
        op = next((one for one in inside if making(case.evidence, one)), None)
        who, ends = [one.process for one in inside], case.ends
        # Else something explains why it takes long: one that has stopped, or has ended.
        run = all(ends[p].how == ALIVE and ends[p].held is None for p in who)
        if op is None or not run or case.evidence.still(who, who):
            continue
        waits = [w for w in case.open() if w.exchange == wait.exchange or w.op in inside]
        seen.update(w.exchange for w in waits)
        since_ns = max(one.begin_ns for one in inside)
        lasts_ns = case.evidence.until_ns(op.process) - since_ns
        limit_ns = timeout_ns(case.evidence, op) // OF_TIMEOUT
        if case.evidence.stalled_after_ns <= lasts_ns < limit_ns:
            yield _finding(case, op, inside, waits, lasts_ns)


def is_creation(finding: RuleFinding) -> bool:
    """Whether a finding states no more than that a communicator is being made."""
    return finding.severity == NOTE and finding.kind == "no_progress"


def _finding(case: Case, op: Op, inside: Sequence[Op], waits: Waits, lasts_ns: int) -> RuleFinding:
    who = tuple(case.by_rank(one.process for one in inside))
    limit_ns = timeout_ns(case.evidence, op) // OF_TIMEOUT
    library = name(backend(case.evidence, op))
    more = " NCCL_DEBUG=INFO shows how far it is." if library == "NCCL" else ""
    both, what = "all members are in it", "the default group"  # the group that the call makes
    if op.call.kind == "message":
        both, what = "both are in it", f"the pair of {sentences.processes(case.trace, who)}"
    elif (group := case.trace.group_of(op.call)) is not None:
        what = sentences.group(group)
    elif op.call.op != INIT:
        what = f"the group of {sentences.processes(case.trace, who)}"
    call = f"{sentences.operation(case.trace, op)} at {sentences.line(op)}"
    so_far = f"{names.roughly(lasts_ns)} so far, {both}"
    summary = f"{library} prepares its first {call}: {so_far}."
    if is_first(case.evidence, op):  # of its group, or of its pair; else of its sort there
        summary = f"{library} makes the communicator of {what}: {so_far} ({call})."
    return RuleFinding(
        kind="no_progress",
        summary=summary,
        severity=NOTE,
        because=(sentences.MAY_END,),
        hint=f"{library} connects all members before any returns; this is reported as a stall"
        f" after {names.roughly(limit_ns)}, a quarter of the group's time-out.{more}",
        waiting=who,
        **{**case.about(op), "at_ns": max(one.begin_ns for one in inside)},
        locations=case.evidence.locations(inside),
        scope=Scope.of(waits, roots=who),
    )


def name(backend: str | None) -> str:
    """``NCCL`` for every implementation of it."""
    text = (backend or "the backend").partition("-")[0]
    return "NCCL" if text in ("nccl", "nccl2", "ncclx") else text.upper() if backend else text


TIMEOUT_NS = 600_000_000_000
"""Of a group that does not tell its own: torch's default for NCCL."""
INIT = "init_process_group"
_BACKENDS = {name: f"ProcessGroup{name.upper()}" for name in ("nccl", "xccl")}


def members(case: Case, wait: Wait) -> Sequence[Op]:
    """The operations of all who are in what is waited in, where they are all there."""
    op = wait.op
    if wait.kind == OTHER:
        composed = op.call.kind == COMPOSED and op.call.op in CREATING
        return _makers(case.evidence, op) if composed else []
    if wait.kind == RENDEZVOUS:
        made = op.call.op in _BACKENDS.values()
        return [one for one in case.joined(wait) if made and one.pending]
    return case.joined(wait)


def making(evidence: Evidence, op: Op) -> bool:
    """Whether it is in a call that may connect it for the first time, and never came through it."""
    if not op.pending:
        return False
    if op.call.kind in (COMPOSED, CONSTRUCTOR):
        return backend(evidence, op) is not None
    # Torch makes the entry of a dump once it has the communicator.
    if not op.on_device or evidence.trace.processes[op.process].source != JOURNAL:
        return False
    around = evidence.sample.around(op)
    batched = around is not None and around.call.op in BATCHES and around.pending
    if op.issued_ns is not None and not batched:
        return False  # the host came back from the call that enqueues it
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
    """The device backend that is requested a communicator; None where it is another one's."""
    call = op.call
    if call.kind == CONSTRUCTOR:
        return next((name for name, kind in _BACKENDS.items() if kind == call.op), None)
    if call.kind != COMPOSED:
        return call.backend if ends_on_device(call.backend, call.signature.device) else None
    given = call.args.get("backend")
    names = [part.rpartition(":")[2] for part in str(given).split(",")] if given else []
    for group in evidence.trace.groups if not names else ():
        if group.default and any(m.process == op.process for m in group.members):
            names += group.backends.values()
    return next((name for name in names if name in ON_DEVICE), None)


def timeout_ns(evidence: Evidence, op: Op) -> int:
    """After which torch gives up the operation, as far as that is known."""
    found = limit(evidence, op)
    return TIMEOUT_NS if found is None else round(found[0])


def _makers(evidence: Evidence, op: Op) -> Sequence[Op]:
    """The calls of all who make the same group; nothing where a rank is not there."""
    places: dict[object, dict[int, Op]] = {}
    count = Counter[object]()
    for one in evidence.sample.of_kind(COMPOSED):
        if one.call.op == op.call.op:  # the n-th like ones of all processes meet
            key = str(one.call.args.get("ranks"))
            count[one.process, key] += 1
            places.setdefault((key, count[one.process, key]), {})[one.process] = one
    here = next(of for of in places.values() if of.get(op.process) == op)
    processes = evidence.trace.processes
    found = {rank: one for p, one in here.items() if (rank := processes[p].rank) is not None}
    default = next((g for g in evidence.trace.groups if g.default), None)
    wanted = None if op.call.op == "split_group" else op.call.args.get("ranks")
    if op.call.op == INIT or default is None:
        size = processes[op.process].world_size
        wanted = None if size is None else range(size)
    elif not isinstance(wanted, list):
        wanted = default.ranks
    if wanted is None or not {*wanted} <= {*found}:
        return []
    return [found[rank] for rank in wanted]


def may_come(case: Case, waits: Sequence[Wait], sinks: Iterable[int]) -> bool:
    """Whether a rendezvous is so young that the missing may yet come: no group is in use."""
    evidence = case.evidence
    if not evidence.live or any(w.op.error is not None for w in waits):
        return False
    # Groups are recorded before they are connected: one is in use where anything was exchanged.
    if any(evidence.ends[op.process].how == ALIVE for op in evidence.sample.of_kind(*GROUPED)):
        return False
    for process in sinks:
        end = evidence.ends[process]
        last = case.last(process)
        begins = last is not None and last.pending and last.call.op.startswith(BUILDING)
        if end.how != ALIVE or end.held is not None or (last is not None and not begins):
            return False  # it came that far before
    return all(evidence.age_ns(w.op) < import_limit_ns(evidence) for w in waits)


def is_start(finding: RuleFinding) -> bool:
    """Whether a finding states no more than that a start takes long."""
    return is_creation(finding) or (
        finding.severity == NOTE
        and finding.kind in ("rendezvous_incomplete", "rendezvous_unreachable")
    )
