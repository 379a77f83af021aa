"""Parts of findings about rendezvous: who joins what, under which claims."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from disttrace_viewer.analysis.sample import STORES
from disttrace_viewer.findings.case import Case
from disttrace_viewer.merge.store_servers import is_loopback
from disttrace_viewer.trace.model import Store
from disttrace_viewer.trace.operation import Op


@dataclass(frozen=True, slots=True)
class Join:
    """One process on its way into a default group: the store it makes and what it claims."""

    op: Op
    store: Store
    address: Hashable
    """Where it means to meet: port and host (its own boot for a loopback address), or a path."""
    rank: int | None
    world_size: int | None
    open: bool
    """It waits there, or failed there."""


def joins(case: Case, *, by_hand: bool = False) -> Iterator[Join]:
    """Every store that a member constructed for a rendezvous, by process and number; ``by_hand``:
    also every group (``ProcessGroupGloo(store, rank, size)``) that was made of a store directly.

    Agents are no members: under a static rendezvous (plain ``torchrun``) theirs hosts the store at
    the workers' own address, and counts nodes where they count ranks. It is the role that tells
    them apart; with as many nodes as ranks the numbers are equal.
    """
    trace = case.evidence.trace
    for op, store in case.rendezvous.constructors:
        parent = case.evidence.sample.around(op)
        hand_made = parent is None and op.call.op not in STORES
        together = parent is not None and parent.call.op in ("rendezvous", "init_process_group")
        if not (by_hand if hand_made else together and op.call.op in STORES):
            continue
        if trace.processes[op.process].is_agent:
            continue
        size = op.call.args.get("size" if hand_made else "world_size")
        yield Join(
            op=op,
            store=store if store.base is None else trace.stores[store.base],
            address=(op.call.op, store.place, store.prefix) if hand_made else address(case, store),
            rank=case.rendezvous.claim(op),
            world_size=size if isinstance(size, int) and size > 0 else None,
            open=op.pending or op.error is not None,
        )


def address(case: Case, store: Store) -> Hashable:
    """What makes two stores meet, whether or not the rendezvous came about."""
    process = case.evidence.trace.processes[store.process]
    if store.path is not None:
        return ("file", store.path)
    host = process.boot_id if is_loopback(store.host) else str(store.host).lower()
    return ("tcp", host, store.port)
