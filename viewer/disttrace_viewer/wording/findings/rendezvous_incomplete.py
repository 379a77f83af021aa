"""A rendezvous waits for members: who has arrived, and what is known of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from disttrace_viewer.evidence.rendezvous import Rendezvous
from disttrace_viewer.evidence.waits.wait import Wait
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Worker
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.findings import missing_evidence, outside, unseen_workers
from disttrace_viewer.wording.findings.outside import Doing

ONE_STORE = "Give all of them one store (init_method, MASTER_ADDR and MASTER_PORT) and prefix."
STARTED = "See whether these ranks were started, and on which host; read their output."
BEFORE_TORCH = (
    "Read what these ranks wrote, and see what they do before they use torch.distributed: an"
    " import, a lock, a compilation, a download."
)
CLIENTS = (
    "Compare the world_size of this store with the number of processes that make it, the one that"
    " serves it included: it waits until so many have connected."
)
BEFORE = "See what these ranks do before they join."
_SHOWN = 4
"""Ranks without a journal of which it is told what their launcher knows."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A rendezvous that somebody waits in."""

    wait: Wait
    rendezvous: Rendezvous
    top: Op
    """The operation that the program called."""
    who: Sequence[int]
    """Who waits there."""
    waited_ns: int
    missing: Mapping[int, Doing]
    """What those are at who should come."""
    unseen: Mapping[int, tuple[Worker, bool]]
    """What launchers know of absent ranks, and whether it is sure that they used nothing."""
    elsewhere: Sequence[int]
    """Who waits for the same group at another place."""
    there: Rendezvous | None
    """That other place."""
    world_size: int | None = None
    """The job's, where the store is made for more clients than that."""


def summary(trace: Trace, found: Incomplete) -> str:
    """Who waits where, who has arrived, and who has not."""
    wait, rendezvous = found.wait, found.rendezvous
    arrived = len(rendezvous.arrived)
    came = f"{arrived} of {rendezvous.expected}" if rendezvous.expected else str(arrived)
    came += f" {sentences.have(rendezvous.arrived)} arrived"
    came += f" ({_arrived(trace, rendezvous)})" if arrived else ""
    text = _missing(trace, found)
    if found.elsewhere:
        verb = "wait" if len(set(found.elsewhere)) > 1 else "waits"
        text = f"{sentences.processes(trace, found.elsewhere)} {verb} {_apart(trace, found)}"
    return (
        f"{sentences.have_been(trace, found.who)} waiting in {found.top.call.op}"
        f" ({sentences.line(wait.op)}) at {rendezvous.store.name or wait.op.call.op} for"
        f" {sentences.span(found.waited_ns)}: {came}; {text}."
    )


def _arrived(trace: Trace, rendezvous: Rendezvous) -> str:
    """Those who came: a group made by hand may number them in its own way."""
    known = [trace.processes[p].rank for p in rendezvous.arrived.values()]
    return sentences.ranks(
        rendezvous.arrived if None in known else trace.ranks_of({*rendezvous.arrived.values()})
    )


def start(trace: Trace, found: Incomplete) -> str:
    """How many have come, where the others may still be on their way."""
    arrived, expected = found.rendezvous.arrived, found.rendezvous.expected
    ranks = "ranks have" if len(arrived) != 1 else "ranks has" if expected != 1 else "rank has"
    came = f"{len(arrived)} of {expected} {ranks}" if expected else f"{len(arrived)} {ranks}"
    return (
        f"{came} come to {found.top.call.op} ({sentences.line(found.wait.op)}) in"
        f" {sentences.span(found.waited_ns)}; {_missing(trace, found)}."
    )


def _apart(trace: Trace, found: Incomplete) -> str:
    """How the two rendezvous points differ."""
    if found.there is None:
        return "elsewhere"
    stores = found.there.store, found.rendezvous.store
    if stores[0].place != stores[1].place:
        known = [trace.place_by_id.get(store.place) for store in stores]
        there, here = ("?" if place is None else place.name for place in known)
        return f"at {there}, not at {here}"
    there, here = ("/".join(part or "?" for part in store.prefix) for store in stores)
    return f"in the same store under the prefix {there!r}, not {here!r}"


def _missing(trace: Trace, found: Incomplete) -> str:
    late, parts = dict(found.wait.lateness), []
    came = [p for p in found.missing if p in late]
    never = {p: doing for p, doing in found.missing.items() if p not in late}
    if came:
        by = sentences.span(min(late[p] for p in came))
        who = sentences.processes(trace, came)
        parts.append(f"{who} arrived {by} after the others had given up")
    if never:
        where = outside.where(trace, never, named=True)
        parts.append(f"{sentences.processes(trace, never)} never joined{where}")
    known = list(found.unseen.items())[:_SHOWN]
    for rank, (worker, sure) in known:
        parts.append(f"rank {rank} {unseen_workers.words(worker, sure=sure)}")
    nowhere = set(found.wait.absent) - {rank for rank, _ in known}
    if nowhere and found.world_size is not None:
        parts.append(f"the world size is {found.world_size}, so that no further rank can come")
    elif nowhere:
        parts.append(f"no journal of {sentences.ranks(nowhere)} was found")
    if not parts and found.rendezvous.uncertain:
        parts.append("who is missing is not known, for the group was made by hand")
    return " and ".join(parts)


def settles(lost: Iterable[int]) -> str:
    """What would settle it where nobody knows whether these ranks were started."""
    return f"{missing_evidence.journals(lost)}, if started"
