"""Where processes come together: constructors of stores and of groups, agents of nodes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property

from disttrace_viewer.analysis.sample import STORES
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.wait import lateness
from disttrace_viewer.merge.store_servers import begun_anew
from disttrace_viewer.trace.model import Store
from disttrace_viewer.trace.operation import Op, because_of_others
from disttrace_viewer.trace.values import dataclass, field, replace, together


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """One rendezvous: a store server or a group's mesh, with the processes that came or should.

    ``arrived`` maps a rank (of the group that is made) to its process; ``late`` are processes that
    should come and have not; ``absent`` are ranks of which no process is known.
    """

    key: Hashable
    ops: tuple[Op, ...]
    store: Store
    arrived: Mapping[int, int]
    expected: int | None = None
    late: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    ranks: tuple[int, ...] | None = None
    """Global ranks of the group that is made, where its creation tells them."""
    lateness: Mapping[int, int] = field(default_factory=dict)
    """Processes that arrived when the others had given up, and by how many nanoseconds."""
    came: tuple[int, ...] = ()
    """The processes in ``arrived``, in order."""
    uncertain: bool = False
    """A rank is missing, and it is not known who: of a group made by hand."""


@dataclass(frozen=True)
class RendezvousIndex:
    """All constructors of a trace, sorted into rendezvous."""

    evidence: Evidence
    _known: dict[Hashable, Rendezvous] = field(default_factory=dict)
    _gone: dict[Hashable, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    @cached_property
    def constructors(self) -> tuple[tuple[Op, Store], ...]:
        """Every constructor whose store is known, with that, by process and number."""
        made, trace = self.evidence.sample.of_kind("constructor"), self.evidence.trace
        return tuple((op, store) for op in made if (store := trace.store_of(op.call)) is not None)

    def claim(self, op: Op) -> int | None:
        """The rank under which a constructor comes: its own argument, else the process's."""
        rank = op.call.args.get("rank")
        if isinstance(rank, int) and rank >= 0:
            return rank
        return self.evidence.trace.processes[op.process].rank

    @cached_property
    def _sorted(self) -> tuple[Mapping[Hashable, list[Op]], Mapping[tuple[int, int], Hashable]]:
        """Constructors that meet, and their keys: the n-th of each over a store and prefix."""
        same: dict[Hashable, list[Op]] = {}
        count = Counter[Hashable]()
        for op, store in self.constructors:
            kind = "store" if op.call.op in STORES else "group"
            # Agents and workers may share a store, but agents wait for nodes and workers for ranks.
            role = self.evidence.trace.processes[op.process].is_agent
            where = (kind, op.call.op, role, store.place, store.prefix)
            count[op.process, where] += 1
            same.setdefault((*where, count[op.process, where]), []).append(op)
        key_of: dict[tuple[int, int], Hashable] = {}
        processes = self.evidence.trace.processes
        over = begun_anew(processes, [p.start_ns for p in processes])
        for key, ops in same.items():
            # Of two attempts that a launcher made, one never meets the other, be it under one key.
            turn, over_ns = 0, sys.maxsize
            for op in sorted(ops, key=lambda one: one.begin_ns):
                if op.begin_ns >= over_ns:
                    turn, over_ns = turn + 1, sys.maxsize
                over_ns = min(over_ns, over.get(op.process, sys.maxsize))
                key_of[op.id] = (key, turn)
        every = (op for ops in same.values() for op in ops)
        return together((key_of[op.id], op) for op in every), key_of

    def of(self, op: Op) -> Rendezvous | None:
        """The rendezvous that a constructor is for; None where its store is not known."""
        key = self._sorted[1].get(op.id)
        store = self.evidence.trace.store_of(op.call)
        if key is None or store is None:
            return None
        came = self._came(key, store)
        is_client = op.call.op in STORES and not store.server  # and waits for the server alone
        size = op.call.args.get("size", op.call.args.get("world_size"))
        expected = size if isinstance(size, int) and size > 0 and not is_client else None
        parent = None if is_client else self.evidence.sample.around(op)
        given = None if parent is None else parent.call.args.get("ranks")
        made = None
        if parent is not None and isinstance(given, list) and all(type(r) is int for r in given):
            made = tuple(sorted(given) if parent.call.args.get("sort_ranks") else given)
        late, absent = self._missing(op, came, expected, made)
        some = expected is not None and len(came.arrived) < expected
        return replace(
            came,
            store=store,
            expected=expected,
            late=late,
            absent=absent,
            ranks=made,
            uncertain=some and not (late or absent),
        )

    def _came(self, key: Hashable, store: Store) -> Rendezvous:
        """Who came to a rendezvous: once for all who ask, who may be thousands."""
        found = self._known.get(key)
        if found is not None:
            return found
        members = self._sorted[0][key]
        arrived: dict[int, int] = {}
        late = lateness(self.evidence, members)
        for other in members:
            rank = self.claim(other)
            if rank is None or other.process in late:
                continue
            if other.error is None or because_of_others(other):
                arrived.setdefault(rank, other.process)
        trace = self.evidence.trace
        if trace.waits_with and all(trace.processes[p].rank == r for r, p in arrived.items()):
            here = {*arrived.values()}
            arrived |= {r: p for r, p in trace.waits_with.items() if p in here and r not in arrived}
        came = tuple(sorted(set(arrived.values())))
        found = self._known[key] = Rendezvous(
            key, tuple(members), store, arrived, lateness=late, came=came
        )
        return found

    def _missing(
        self, op: Op, came: Rendezvous, expected: int | None, made: tuple[int, ...] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Processes that should come and have not, and ranks of which no process is known."""
        mine = self.evidence.trace.processes[op.process]
        alone = self.evidence.sample.around(op) is None and op.call.op not in STORES
        polled = (came.key, expected, made, mine.job, mine.attempt, alone)
        if polled not in self._gone and alone and expected is not None:
            self._gone[polled] = self._missing_by_hand(op, came.arrived, expected)
        elif polled not in self._gone:
            ranks = [rank for rank in range(expected or 0) if rank not in came.arrived]
            known = [made[r] if made is not None and r < len(made) else r for r in ranks]
            self._gone[polled] = self._bearing(op, known)
        late, absent = self._gone[polled]
        return tuple(p for p in late if p != op.process), absent

    def _bearing(self, op: Op, ranks: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The processes that bear some ranks in the job of one, and ranks that none bears."""
        mine = self.evidence.trace.processes[op.process]
        bearers = {r: self._bearers.get((r, mine.job, mine.attempt), ()) for r in ranks}
        late = tuple(of[0] for of in bearers.values() if of)
        return late, tuple(rank for rank, of in bearers.items() if not of)

    def _missing_by_hand(
        self, op: Op, arrived: Mapping[int, int], expected: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The same for a group that no composed operation makes: its members are processes that
        use its store's address, or are to come there by their rank. Its ranks are the job's if
        those who came show it; otherwise they are who made fewer groups there, if so many are
        missing. None, where it is not known which are missing.
        """
        processes = self.evidence.trace.processes
        mine = processes[op.process]
        missing = [rank for rank in range(expected) if rank not in arrived]
        place, made = self.evidence.trace.place_of(op.call), self._made_by_hand
        job = {p.index for p in processes if (p.job, p.attempt) == (mine.job, mine.attempt)}
        clients = {s.process for s in self.evidence.trace.stores if s.place == place}
        clients = (clients & job) - {*arrived.values()}
        fewer = sorted(p for p in clients if made[p, place] < made[op.process, place])
        if all(processes[p].rank == rank for rank, p in arrived.items()) and (
            expected == mine.world_size or {processes[p].rank for p in clients} >= {*missing}
        ):
            late, absent = self._bearing(op, missing)
            if all(p in fewer or p not in clients for p in late):
                return late, absent
        if len(fewer) == len(missing):
            return tuple(fewer), ()
        ranks = {p.rank for p in processes}
        no_culprit = not clients and len(job) < expected and ranks.isdisjoint(missing)
        return (), tuple(missing) if no_culprit else ()

    @cached_property
    def _made_by_hand(self) -> Counter[tuple[int, str | None]]:
        """How many groups each process has begun to make by hand, by process and place."""
        return Counter(
            (op.process, store.place)
            for op, store in self.constructors
            if op.call.op not in STORES and self.evidence.sample.around(op) is None
        )

    @cached_property
    def _bearers(self) -> Mapping[tuple[int | None, str, int | None], list[int]]:
        """By rank, job and attempt."""
        return together(
            ((one.rank, one.job, one.attempt), one.index)
            for one in self.evidence.trace.processes
            if one.role in ("worker", "child", "main")
        )


UNNAMED = "none"
"""What torchrun calls a rendezvous without an id."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One agent's rendezvous: which rendezvous it means, and how many nodes must come."""

    op: Op
    place: str | None
    """Id of the store's place; None before the store is there."""
    run: str | None
    least: int | None
    most: int | None
    node_rank: int | None
    """Claimed beforehand (static rendezvous) or found."""
    open: bool
    """It waits, or gave up waiting, and did nothing of the kind since."""

    @property
    def process(self) -> int:
        """The agent."""
        return self.op.process


@dataclass(frozen=True)
class Agents:
    """Every rendezvous of every agent."""

    evidence: Evidence

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """In the order in which they began."""
        agents = {p.index for p in self.evidence.trace.processes if p.is_agent}
        found = [
            op
            for op in self.evidence.sample.of_kind("composed")
            if op.process in agents and op.call.op == "rendezvous"
        ]
        found.sort(key=lambda op: (op.begin_ns, op.id))
        newest = {op.process: op for op in found}
        return tuple(
            Attempt(
                op,
                self._places.get(op.id),
                run if isinstance(run := op.call.args.get("run_id"), str) else None,
                least=_number(op.call.args.get("min_nodes")),
                most=_number(op.call.args.get("max_nodes")),
                node_rank=_number(op.call.args.get("node_rank")),
                open=newest[op.process] == op and (op.pending or because_of_others(op)),
            )
            for op in found
        )

    @cached_property
    def waiting(self) -> tuple[Attempt, ...]:
        """Those that miss a rank, or to which none could be added and who yet go on waiting."""
        return tuple(
            a
            for a in self.attempts
            if a.open and (a.least is None or a.least == a.most or len(self.arrived(a)) < a.least)
        )

    def arrived(self, attempt: Attempt) -> tuple[Attempt, ...]:
        """Everybody who stands in the same rendezvous, itself included."""
        return tuple(a for a in self.attempts if a.open and _same(a, attempt))

    def elsewhere(self, attempt: Attempt) -> tuple[Attempt, ...]:
        """Those who wait in the same store under another id, or under the same id in another."""
        return tuple(
            a
            for a in self.attempts
            if a.open and not _same(a, attempt) and self._same_rendezvous(a, attempt)
        )

    def _same_rendezvous(self, one: Attempt, two: Attempt) -> bool:
        if one.place is not None and one.place == two.place:
            return one.run != two.run
        jobs = {self.evidence.trace.processes[a.process].job for a in (one, two)}
        return one.run not in (None, UNNAMED) and one.run == two.run and len(jobs) == 1

    def late(self, attempt: Attempt) -> tuple[Attempt, ...]:
        """The newest earlier rendezvous of each agent that was in one of these and is not here."""
        here = {a.process for a in self.arrived(attempt)}
        before = {a.process: a for a in self.attempts if not a.open and _same(a, attempt)}
        return tuple(a for process, a in sorted(before.items()) if process not in here)

    @cached_property
    def _places(self) -> Mapping[tuple[int, int | None], str]:
        """The place of the first store that is used inside an operation, by its id."""
        trace = self.evidence.trace
        found: dict[tuple[int, int | None], str] = {}
        for op in self.evidence.sample.ops:
            if (place := trace.place_of(op.call)) is not None:
                found.setdefault((op.process, op.parent), place)
        return found


def _same(one: Attempt, two: Attempt) -> bool:
    if one.process == two.process:
        return one is two
    return one.place is not None and (one.place, one.run) == (two.place, two.run)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
