"""Members never joined the collective that others are in: who, and what they do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.evidence.waits.wait import RENDEZVOUS, Wait
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.findings import late_arrivals, missing_evidence, outside
from disttrace_viewer.wording.findings.late_arrivals import Held
from disttrace_viewer.wording.findings.outside import Doing

UNSEEN = "See whether these ranks were started, and whether their journals were collected."
ENDED = "Find who asks for the end there (os._exit, sys.exit): the others were still at work."
ALONE = (
    "None of the missing has called at this line so far: see whether they are on their way to it,"
    " or whether only some ranks call there (`if rank ...`, an exception's handler, atexit)."
)


@dataclass(frozen=True, slots=True)
class Missing:
    """Who waits, and who is missing."""

    wait: Wait
    within: str | None
    """The operation that the program called, where the one that lacks somebody is a part of it."""
    inside: Sequence[Wait]
    """All that wait in it."""
    waited_ns: int | None
    """None where nobody knows since when."""
    missing: Mapping[int, Doing]
    """Who is missing, and is at what."""
    held: Mapping[int, Held]
    left: Sequence[int]
    """Those that had issued it too, and ended before their device was through it."""
    extra: Op | None
    """The one call that those who wait made and the missing did not."""


def summary(trace: Trace, found: Missing) -> str:
    """Who never joined, arrived too late or left too early, and who waits for that."""
    wait, late = found.wait, dict(found.wait.lateness)
    waiting, group = [w.process for w in found.inside], found.wait.op.call.group
    who = sentences.processes(trace, waiting, within=group)
    lines = dict.fromkeys(sentences.line(w.op) for w in found.inside)
    lasting = f"at {sentences.listed(list(lines))}"
    if found.waited_ns is not None:
        lasting += f" for {sentences.span(found.waited_ns)}"
    name = sentences.operation(trace, wait.op, found.within)
    if wait.kind == RENDEZVOUS:
        name = f"the creation of a group ({wait.op.call.op})"
    if found.extra is not None:
        call = f"{found.extra.call.op} #{found.extra.seq} at {sentences.line(found.extra)}"
        return (
            f"{sentences.capital(who)} made one more call ({call}) than"
            f" {sentences.processes(trace, found.missing)}, and {sentences.have(waiting)} been"
            f" waiting alone in {name} {lasting}{outside.where(trace, found.missing)}."
        )
    gave_up = all(w.op.error is not None for w in found.inside)
    verb = "waited" if gave_up else f"{sentences.have(waiting)} been waiting"
    waited = f"{who} {verb}"
    came = [p for p in found.missing if p in late]
    never = {p: doing for p, doing in found.missing.items() if p not in late}
    if came and not never and not wait.absent:
        by = sentences.span(min(late[p] for p in came))
        return (
            f"{sentences.subject(trace, came)} arrived at {name} {by} after the others had given"
            f" up: {waited} for it {lasting}{late_arrivals.words(trace, found.held)}."
        )
    left = [p for p in found.left if p in never]
    if left and left == [*never] and not wait.absent and not came:
        devices = "its device" if len(left) == 1 else "their devices"
        return (
            f"{sentences.subject(trace, left)} ended before {name} was over on {devices}: {waited}"
            f" {lasting}."
        )
    unseen = missing_evidence.unseen(trace, wait.absent)
    if not found.missing:
        return f"{sentences.capital(waited)} in {name} {lasting}; {unseen}."
    after = f", and {sentences.processes(trace, came)} only after they had given up" * bool(came)
    if found.waited_ns is None:
        return (
            f"{sentences.subject(trace, never)} had not come to {name} when this was written:"
            f" {who} {'were' if len(waiting) > 1 else 'was'} in it"
            f" {lasting}{f'; {unseen}' * bool(wait.absent)}."
        )
    return (
        f"{sentences.subject(trace, never)} never joined {name}{after}: {waited} {lasting}"
        f"{outside.where(trace, never)}{f'; {unseen}' * bool(wait.absent)}."
    )


def skipped(trace: Trace, extra: Op) -> str:
    """What to look for where some made one more call."""
    return (
        f"Apart from one more call at {sentences.line(extra)} all ranks made the same calls:"
        " look for a collective inside `if rank ...`, or under a condition on the data, there."
    )


def thread_failed(failure: Failure) -> str:
    """What to read where a thread of one that is missing failed."""
    return f"Read the exception of its thread first: {outside.raised(failure)}."


def uneven(*, ddp: bool) -> str:
    """What to look for where a rank has left its loop; ``ddp``: DDP is there to be told of it."""
    use = "join() of DistributedDataParallel, or " * ddp
    return (
        "Look for uneven inputs: one rank has fewer batches, or leaves the loop earlier, also by an"
        f" exception that is caught; use {use}drop_last."
    )


def held_up(missing: Sequence[int]) -> str:
    """What to find where all of them arrived too late."""
    return (
        f"Find what held {'it' if len(missing) == 1 else 'them'} up before this call (a loader, a"
        " checkpoint, an evaluation), or allow more time: timeout= of the group."
    )


def look_there(missing: Sequence[int]) -> str:
    """What to look at where nothing more is known."""
    return (
        f"Look at what {'this rank does' if len(missing) == 1 else 'these ranks do'} there: a data"
        " loader, a lock, or code that only some ranks run."
    )


def add_stacks(missing: Sequence[int]) -> str:
    """What to do where nothing tells at what the missing are."""
    many = len(missing) > 1
    return (
        f"Look at what {'these ranks do' if many else 'this rank does'}: disttrace attach, or"
        " py-spy dump, while it hangs."
    )
