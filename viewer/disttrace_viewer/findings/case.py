"""A case: the evidence, the waits, the findings so far, what each explains, what is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from disttrace_viewer.analysis.out_of_step import Shift
from disttrace_viewer.analysis.past import NOTHING, Past, Place
from disttrace_viewer.analysis.process_ends import (
    CASCADE,
    CLEAN,
    FROM_OUTSIDE,
    OWN,
    SILENT,
    TOGETHER_NS,
    End,
)
from disttrace_viewer.analysis.sample import Sample
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.polling import poll_within_ns
from disttrace_viewer.evidence.recorded import STUCK_NS
from disttrace_viewer.evidence.rendezvous import Agents, RendezvousIndex
from disttrace_viewer.evidence.store_keys import Setters
from disttrace_viewer.evidence.wait import COLLECTIVE, MESSAGE, RENDEZVOUS, Wait, still_imports
from disttrace_viewer.evidence.waits import waits
from disttrace_viewer.findings.finding import ERROR, RuleFinding
from disttrace_viewer.findings.witnesses import Witnesses
from disttrace_viewer.trace.model import JobTrace, Stream
from disttrace_viewer.trace.operation import GROUPED, Op
from disttrace_viewer.trace.values import dataclass, field, together

EARLY_NS = 3_000_000_000
"""Waiting that was cut off before this may have been about to end."""

_JOINS = ("join", "_wait_for_tstate_lock", "_shutdown", "result")
_WAITED_FOR, _ABSENT, _ANY_OF, _OPEN_ENDED = "waited_for", "absent", "any_of", "open_ended"


@dataclass
class Case:
    """What the rules share. A rule reads it; only ``add`` changes it."""

    evidence: Evidence
    findings: list[RuleFinding] = field(default_factory=list)
    owner: dict[Wait, int] = field(default_factory=dict)
    """Number of the finding that explains a wait."""
    end_owner: dict[int, int] = field(default_factory=dict)
    """Number of the finding that explains how a process ended."""
    incomplete: tuple[str, ...] = ()
    """What is missing of the job's journals; none: the verdict rests on all of them."""

    said: tuple[Mapping[str, Any], ...] = ()
    """What the job reported itself, oldest first."""
    judged_too: frozenset[str] = frozenset()
    """Ids of other jobs of the folder that have a report of their own."""
    past: Past = NOTHING
    """What is over, where that was read as well."""

    @property
    def trace(self) -> JobTrace:
        """What is judged."""
        return self.evidence.trace

    @property
    def sample(self) -> Sample:
        """Its operations, as far as they tell where each process stands."""
        return self.evidence.sample

    @property
    def ends(self) -> Sequence[End]:
        """How each process ended."""
        return self.evidence.ends

    @cached_property
    def rendezvous(self) -> RendezvousIndex:
        """Constructors of stores and groups, sorted."""
        return RendezvousIndex(self.evidence)

    @cached_property
    def agents(self) -> Agents:
        """The rendezvous of launchers."""
        return Agents(self.evidence)

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Everybody's waits."""
        return waits(self.evidence, self.rendezvous, self.agents, self.setters)

    @cached_property
    def setters(self) -> Setters:
        """Who sets the keys of stores."""
        return Setters(self.evidence)

    @cached_property
    def steps(self) -> Mapping[Stream, Shift[int, Place]]:
        """By stream the first place from which on members of its group are out of step."""
        return mismatches.steps(self.evidence)

    @cached_property
    def witnesses(self) -> Witnesses:
        """What others saw of a process's end."""
        return Witnesses(self.evidence, self.waits)

    @cached_property
    def of_process(self) -> Mapping[int, Sequence[Wait]]:
        """The waits of each process that waits, and by which others wait for it in turn."""
        return together((wait.process, wait) for wait in self.waits if wait.holds)

    def at(self, process: int) -> list[Wait]:
        """The waits of a process by which others wait for it, and what it asks a store for."""
        return [wait for wait in self._near["process", process] if wait.polled or wait.holds]

    def open(self) -> list[Wait]:
        """Waits that no finding explains yet."""
        return [wait for wait in self.waits if wait not in self.owner]

    def awaiting(self, process: int) -> list[Wait]:
        """The open waits for a process."""
        targets = self._near[_WAITED_FOR, process]
        found = [w for key in targets for w in self._near[key] if w not in self.owner]
        return sorted(found, key=lambda wait: (wait.process, wait.op.number))

    def holds_up(self, process: int) -> bool:
        """Whether any process waits for this one."""
        return bool(self._near[_WAITED_FOR, process])

    def inside(self, exchange: Hashable) -> list[Wait]:
        """The open waits of one exchange."""
        return [wait for wait in self._near["exchange", exchange] if wait not in self.owner]

    def oldest(self) -> list[Wait]:
        """Open waits in the order in which they began, but for those that hold up none."""
        found = [w for w in self.open() if w.holds]
        return sorted(found, key=lambda wait: (wait.op.begin_ns, wait.op.id))

    def due(self, *kinds: str) -> Iterator[Wait]:
        """Those of some kinds that are faults by their age, and are still open when they come."""
        for wait in self.oldest():
            if wait.kind in kinds and wait not in self.owner and self.old(wait):
                yield wait

    def old(self, wait: Wait) -> bool:
        """Whether it has lasted long enough to be a rank's fault."""
        return (
            wait.op.error is not None
            or wait.process in self.evidence.timeless
            or not self.evidence.live
            or (
                self.evidence.age_ns(wait.op) >= self.evidence.stalled_after_ns
                and not still_imports(self.evidence, wait)
            )
        )

    def early(self, wait: Wait) -> bool:
        """Whether all was ended so soon that the one that is missing might still have come."""
        if self.evidence.live or wait.op.error is not None:
            return False
        if not any(self.ends[p].how == SILENT for p in (*wait.targets, wait.process)):
            return False
        age = self.evidence.age_ns(wait.op)
        return age < EARLY_NS or age <= self.evidence.longest_ns(wait.op)

    def about(self, op: Op) -> dict[str, Any]:
        """The fields of a finding that tell of an operation."""
        group = self.trace.group_id(op.call)
        return {"op": op.call.op, "group": group, "seq": op.seq, "at_ns": op.begin_ns}

    def add(self, finding: RuleFinding) -> None:
        """Take a finding in and mark what follows from it."""
        self.findings.append(finding)
        number, scope = len(self.findings) - 1, finding.scope
        if finding.severity != ERROR and not scope.exchanges:  # a note may be about waits
            return
        for process in scope.members | scope.roots:
            if self.ends[process].over:
                self.end_owner.setdefault(process, number)
        stuck = set()
        near, looked_at = self._near, set[Hashable]()
        keys = self._leading(finding, number)
        while keys:
            waits = []
            for key in keys:
                if key not in looked_at:
                    looked_at.add(key)
                    waits += near[key]
            held = set[int]()
            # Who waits for any of several does so until the last of them is reached.
            for wait in (*waits, *near[_ANY_OF]):
                if wait in self.owner or not self._explains(finding, number, wait):
                    continue
                self.owner[wait] = number
                if not wait.side:
                    stuck.add(wait.process)
                if wait.holds:
                    held.add(wait.process)
            keys = [key for one in held for key in near[_WAITED_FOR, one]]
        for process in stuck:
            end = self.ends[process]
            if end.how in (CASCADE, SILENT) or end.exit_word == "os._exit":
                self.end_owner.setdefault(process, number)

    @cached_property
    def _near(self) -> Mapping[Hashable, list[Any]]:
        """Waits by all that a scope can name, and by process the keys of those that wait for it."""
        found: defaultdict[Hashable, list[Any]] = defaultdict(list)
        for wait in self.waits:
            targets = ("targets", id(wait.targets))
            if targets not in found:
                for target in wait.targets:
                    found[_WAITED_FOR, target].append(targets)
            found[targets].append(wait)
            found["exchange", wait.exchange].append(wait)
            found["stream", wait.stream].append(wait)
            found["process", wait.process].append(wait)
            if wait.absent:
                found[_ABSENT].append(wait)
            if wait.unknown or wait.complete:
                found[_OPEN_ENDED].append(wait)
            if wait.any_of:
                found[_ANY_OF].append(wait)
        return found

    def _leading(self, finding: RuleFinding, number: int) -> list[Hashable]:
        """Keys of the waits that a finding may explain at once."""
        scope = finding.scope
        keys: list[Hashable] = [("exchange", exchange) for exchange in scope.exchanges]
        keys += [] if scope.stream is None else [("stream", scope.stream[0])]
        keys += [("process", process) for process in scope.members]
        reached = scope.roots | {p for p in scope.members if self.end_owner.get(p) == number}
        keys += [key for p in reached for key in self._near[_WAITED_FOR, p]]
        keys += [_ABSENT] if scope.absent else []
        return keys + ([_OPEN_ENDED] if finding.kind == "process_failed" else [])

    def _explains(self, finding: RuleFinding, number: int, wait: Wait) -> bool:
        scope = finding.scope
        if wait.exchange in scope.exchanges:
            return True
        if scope.stream is not None:
            stream, seq = scope.stream
            if wait.stream == stream and (wait.op.seq or 0) >= seq:
                return True
        if wait.process in scope.members and wait.process not in scope.roots:
            return True
        if wait.any_of:  # who ended as if all were well comes no more
            able = [target for target in wait.targets if not self.clean(target)] or wait.targets
            return bool(able) and all(self._reaches(finding, number, p) for p in able)
        if any(self._reaches(finding, number, target) for target in wait.targets):
            return True
        group = wait.op.call.group
        if any((group, r) in scope.absent or (None, r) in scope.absent for r in wait.absent):
            return True
        if finding.kind == "process_failed":
            # Which should set a key, or why nothing moves, is not known; but a process failed.
            # What failed before a restart has no part in what the next attempt waits for.
            mine = self.trace.processes[wait.process].attempt
            theirs = {self.trace.processes[p].attempt for p in finding.culprits}
            same = mine is None or None in theirs or mine in theirs
            return same and (wait.unknown or wait.complete)
        return False

    def _reaches(self, finding: RuleFinding, number: int, process: int) -> bool:
        if process in finding.scope.roots or self.end_owner.get(process) == number:
            return True
        return any(self.owner.get(wait) == number for wait in self.of_process.get(process, ()))

    def joined(self, wait: Wait) -> list[Op]:
        """The operations of all who are known to be in what is waited in."""
        if wait.kind == RENDEZVOUS:
            found = self.rendezvous.of(wait.op)
            return [] if found is None else [*found.ops]
        if wait.kind in (COLLECTIVE, MESSAGE):
            return [wait.op, *self.sample.partners(wait.op)]
        # Agents may wait in a rendezvous of nodes, with others who came there.
        return [one.op for one in self.agents.waiting if one.process in wait.arrived]

    def outside(self, process: int) -> bool:
        """Whether a process is in no wait of its own."""
        return process not in self.of_process

    def at_work(self, process: int, since_ns: int | None = None) -> Op | None:
        """The newest of what a process does again and again while others wait for it: it asks a
        store, or communicates. None if it does neither, so that it is not on its way. ``since_ns``:
        since when others wait, where none waits for this very process."""
        last = self.last(process)
        if last is None or process in self.evidence.timeless:
            return None  # how long ago that was is not known
        if last.call.kind == "store":
            if last.call.origin == "c++" or self._beside(last):
                return None
            newest_ns, cut_ns = last.begin_ns, self.evidence.until_ns(process)
        elif last.call.kind in GROUPED and last.status == "ok":
            newest_ns, cut_ns = last.end_ns or last.begin_ns, self.evidence.cut_ns
        else:
            return None
        if cut_ns - newest_ns > poll_within_ns(self.evidence, last):
            return None
        since_ns = self.witnesses.awaited_since(process, since_ns or last.begin_ns)
        return last if last.begin_ns - since_ns >= STUCK_NS else None

    def _beside(self, op: Op) -> bool:
        """Whether a thread did it that has no part in the exchanges of its process."""
        if not self.evidence.beside(op.process, op.thread):
            return False
        # Who waits for a thread comes when that is through with what it asks for.
        return not any(
            one.function in _JOINS and one.file.endswith(("/threading.py", "/futures/_base.py"))
            for one in self.evidence.stack(op.process)
        )

    def last(self, process: int) -> Op | None:
        """The newest operation of a process, but for what threads beside the main one did."""
        kept = self.sample.of_process.get(process, ())
        newest = self.evidence.last.get(process)
        if newest is None or newest.call.kind != "store" or not self._beside(newest):
            return newest
        own = (op for op in reversed(kept) if op.call.kind != "store" or not self._beside(op))
        return next(own, newest)

    def by_rank(self, processes: Iterable[int]) -> list[int]:
        """Processes in the order of their ranks: their numbers are by chance. Others come last."""
        known = self.trace.processes
        rank = {p: known[p].rank for p in processes}
        return sorted(rank, key=lambda p: (rank[p] is None, rank[p] or 0, p))

    def clean(self, process: int) -> bool:
        """Whether a process ended as if all were well."""
        return self.ends[process].how == CLEAN

    @cached_property
    def cut_off(self) -> frozenset[int]:
        """Processes that were ended from outside together, the last ones to live."""
        ends, evidence = self.evidence.ends, self.evidence
        since_ns = (evidence.newest_sign_ns or evidence.cut_ns) - TOGETHER_NS
        last = [i for i, end in enumerate(ends) if end.how == SILENT and end.t_ns >= since_ns]
        known = {i for i, end in enumerate(ends) if end.code in FROM_OUTSIDE}
        return frozenset(last if len(last) > 1 else ()) | frozenset(known)

    def own_failures(self) -> list[int]:
        """Processes that failed by themselves and are not explained, by time."""
        found = (p for p, e in enumerate(self.ends) if e.how == OWN and p not in self.end_owner)
        return sorted(found, key=lambda p: self.ends[p].t_ns)

    def knows(self, what: str, processes: Iterable[int]) -> bool:
        """Whether the evidence of all these tells of something: else its absence proves nothing."""
        known = self.trace.processes
        return not any(what in known[process].lacks for process in processes)

    def certain_journals(self, processes: Iterable[int]) -> bool:
        """Whether the journals of these processes are whole, and were read in full."""
        known, partial = self.trace.processes, self.evidence.partial
        return not any(known[i].dropped or known[i].damage or i in partial for i in processes)
