"""Where processes come together: constructors of stores and of groups, and who should come."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from disttrace_viewer.analysis.evidence import Evidence
from disttrace_viewer.analysis.node_rendezvous import AGENT
from disttrace_viewer.analysis.operation import Op
from disttrace_viewer.analysis.process_ends import because_of_others
from disttrace_viewer.trace.model import Store

LATE_NS = 1_000_000_000
"""Whoever begins so long after the first one's time-out was not waited for any more."""
STORES = ("TCPStore", "FileStore", "HashStore")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """One rendezvous: a store server or a group's mesh, with those who came and who should.

    ``arrived`` maps a rank (of the group that is made) to its process; ``late`` are processes that
    should come and have not; ``absent`` are ranks of which no process is known.
    """

    key: Hashable
    ops: tuple[Op, ...]
    store: Store
    expected: int | None
    arrived: Mapping[int, int]
    late: tuple[int, ...]
    absent: tuple[int, ...]
    ranks: tuple[int, ...] | None
    """Global ranks of the group that is made, where its creation tells them."""
    lateness: Mapping[int, int] = field(default_factory=dict)
    """Processes that arrived when the others had given up, and by how many nanoseconds."""


@dataclass(frozen=True)
class RendezvousIndex:
    """All constructors of a trace, sorted into rendezvous."""

    evidence: Evidence

    @cached_property
    def constructors(self) -> tuple[Op, ...]:
        """Every constructor operation, by process and number."""
        return tuple(self.evidence.sample.of_kind("constructor"))

    def parent(self, op: Op) -> Op | None:
        """The composed operation around a constructor."""
        return self.evidence.sample.get(op.process, op.parent)

    def claim(self, op: Op) -> int | None:
        """The rank under which a constructor comes: its own argument, else the process's."""
        rank = op.call.args.get("rank")
        if isinstance(rank, int) and rank >= 0:
            return rank
        return claimed(self.evidence, op.process)

    @cached_property
    def _sorted(self) -> tuple[Mapping[Hashable, list[Op]], Mapping[tuple[int, int], Hashable]]:
        by_key: dict[Hashable, list[Op]] = {}
        key_of: dict[tuple[int, int], Hashable] = {}
        count: dict[Hashable, int] = {}
        for op in self.constructors:
            store = self._store(op)
            if store is None:
                continue
            kind = "store" if op.call.op in STORES else "group"
            # Agents and workers may share a store, but agents wait for nodes and workers for ranks.
            role = self.evidence.trace.processes[op.process].role == AGENT
            where = (kind, op.call.op, role, store.place, store.prefix)
            nth = count[op.process, where] = count.get((op.process, where), 0) + 1
            key = (*where, nth)
            by_key.setdefault(key, []).append(op)
            key_of[op.id] = key
        return by_key, key_of

    @property
    def by_key(self) -> Mapping[Hashable, list[Op]]:
        """Constructors that meet: the n-th of each process over one store and prefix."""
        return self._sorted[0]

    def of(self, op: Op) -> Rendezvous | None:
        """The rendezvous that a constructor is for; None where its store is not known."""
        key = self._sorted[1].get(op.id)
        store = self._store(op)
        if key is None or store is None:
            return None
        together = self.by_key[key]
        size = op.call.args.get("size", op.call.args.get("world_size"))
        expected = size if isinstance(size, int) and size > 0 else None
        arrived: dict[int, int] = {}
        ended = [o.end_ns for o in together if o.end_ns is not None and because_of_others(o)]
        over_ns = min(ended, default=None)
        lateness = {
            other.process: other.begin_ns - over_ns
            for other in together
            if over_ns is not None and other.begin_ns - over_ns > LATE_NS
        }
        for other in together:
            rank = self.claim(other)
            if rank is None or other.process in lateness:
                continue
            if other.error is None or because_of_others(other):
                arrived.setdefault(rank, other.process)
        made = self._ranks(op)
        missing = [r for r in range(expected or 0) if r not in arrived]
        late, absent = [], []
        for rank in missing:
            known = made[rank] if made is not None and rank < len(made) else rank
            process = self._process(op, known)
            if process is None:
                absent.append(known)
            else:
                late.append(process)
        if op.call.op in STORES and not store.server:
            # A client waits for nobody but the server.
            return Rendezvous(key, tuple(together), store, None, arrived, (), (), None, lateness)
        return Rendezvous(
            key,
            tuple(together),
            store,
            expected,
            arrived,
            tuple(late),
            tuple(absent),
            made,
            lateness,
        )

    def _store(self, op: Op) -> Store | None:
        return None if op.call.store is None else self.evidence.trace.stores[op.call.store]

    def _ranks(self, op: Op) -> tuple[int, ...] | None:
        parent = self.parent(op)
        given = parent.call.args.get("ranks") if parent is not None else None
        if not isinstance(given, list) or not all(isinstance(r, int) for r in given):
            return None
        return tuple(sorted(given) if parent and parent.call.args.get("sort_ranks") else given)

    def _process(self, op: Op, rank: int) -> int | None:
        """The process that bears a rank in the job, alive at the time."""
        trace = self.evidence.trace
        job = trace.processes[op.process].job
        attempt = trace.processes[op.process].attempt
        parent = self.parent(op)
        if parent is None and op.call.op not in STORES:
            return None  # a group made by hand: its ranks are its own
        for process in trace.processes:
            if (
                process.rank == rank
                and process.job == job
                and process.attempt == attempt
                and process.index != op.process
                and process.role in ("worker", "child", "main")
            ):
                return process.index
        return None


def claimed(evidence: Evidence, process: int) -> int | None:
    """The rank a process claims: the one it joined under, or was launched with."""
    return evidence.trace.processes[process].rank
