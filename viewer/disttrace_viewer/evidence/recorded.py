"""What is recorded of each process's position, before anything follows from it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from disttrace_viewer.analysis import process_ends, sample
from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.analysis.sample import CollectiveSequence, Sample, innermost, stand_in
from disttrace_viewer.trace.model import JobTrace, Stream
from disttrace_viewer.trace.operation import CREATING, GROUPED, SYNCHRONIZING, Op
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass, replace, together

STOPPING = "stop_workers"
"""What an agent records while it ends its workers."""
STOOD_NS = 3_000_000_000
"""Who had been waiting for so long when a handler of signals called something waits for others."""


def _stood(sample: Sample, at_ns: int, process: int) -> bool:
    """Whether another process had been waiting for long, and still was."""
    return any(
        op.process != process
        and op.call.kind in GROUPED
        and op.holds
        and op.since_ns <= at_ns - STOOD_NS
        and (op.end_ns or math.inf) > at_ns
        for op in sample.ops
    )


def _exits_of_handlers(sample: Sample, processes: Sequence[Process]) -> dict[int, int]:
    """When each process left by a line at which another one left from within a call that it waited
    in: only a handler of signals runs there."""
    lines = {
        innermost(end.stack)
        for op in sample.ops
        if (end := processes[op.process].exit) is not None and op.end_ns is None and op.holds
        if not {*op.call.stack[:1]}.isdisjoint(end.stack[1:])
    }
    ends = ((p.index, p.exit) for p in processes)
    return {i: end.t_ns for i, end in ends if end and end.stack and innermost(end.stack) in lines}


def without(sample: Sample, ended: Mapping[int, float]) -> Sample:
    """The sample without what processes began from then on, as if they still stood before it."""

    def late(op: Op) -> bool:
        return op.begin_ns >= ended.get(op.process, math.inf)

    dropped = [op for op in sample.ops if late(op)]
    if not dropped:
        return sample
    kept = tuple(op for op in sample.ops if not late(op))
    of = {op.process for op in dropped}
    streams = {(op.process, op.call.stream) for op in dropped}
    did: dict[tuple[int, int], int] = {}
    for op in kept:
        if op.process in of:
            last = max(op.begin_ns, op.issued_ns or 0, op.wait_begin_ns or 0)
            at = op.end_ns if op.end_ns is not None and op.complete_ns is None else last
            did[op.process, op.thread] = max(did.get((op.process, op.thread), 0), at, last)
    active = {key: did.get(key, 0) if key[0] in of else ns for key, ns in sample.active.items()}
    return replace(
        sample,
        ops=kept,
        active=active,
        # The newest numbers of these are of what was left out.
        courses={key: one for key, one in sample.courses.items() if key not in streams},
        history={key: one for key, one in sample.history.items() if key not in streams},
        exact=sample.exact - streams,
    )


STUCK_NS = 1_500_000_000
"""Blocked for longer than this is stuck: communication of a healthy step takes less."""
STALL_NS = 10_000_000_000
GATHERING = (*CREATING, "rendezvous")
ANNOTATION = "annotate"
"""A part of the program with a name: no operation."""
DRAINING = "destroy_process_group"
"""Does not return before what was issued is over."""
_UNKNOWN_ARGUMENTS: dict[str, Any] = dict.fromkeys(
    ("shapes", "dtypes", "bytes", "splits", "reduce_op", "root")
)


@dataclass(frozen=True)
class Recorded:
    """A trace and the sample of its operations; each question is answered once."""

    trace: JobTrace
    given: Sample
    """Operations as they were recorded; rules ask ``sample``."""
    stall_ns: int = STALL_NS
    look: Look = look
    partial: frozenset[int] = frozenset()
    """Processes of whose journals only a part was read."""

    @cached_property
    def sample(self) -> Sample:
        """The operations that tell where each process stands.

        What ended badly after the job was interrupted from outside counts as in flight then, and so
        does what its own process left because a handler of signals raised in it. What C++ code
        waited for when its process failed by that counts as ended. What processes began while
        they were being ended, or after an uncaught exception, is left out. What a thread
        of a library's called has the line at which the main one waits for it.
        """
        found = self.given
        processes, at_ns = self.trace.processes, self.interrupted_ns

        def known(op: Op) -> Op:
            if op.end_ns is not None and op.error is None:
                return op
            of = processes[op.process]
            op = process_ends.unseen_error(process_ends.left(op, of), of)
            return sample.awaited(op if at_ns is None else process_ends.undone(op, at_ns), of)

        ops = tuple(map(known, found.ops))
        if not all(map(operator.is_, ops, found.ops)):
            found = replace(found, ops=ops)
        return without(found, self.left_out)

    @cached_property
    def left_out(self) -> Mapping[int, float]:
        """From when on what a process begins does not count."""
        failed = ((p.index, process_ends.failed_in_main(p)) for p in self.trace.processes)
        raised = {index: failure.t_ns for index, failure in failed if failure is not None}
        return {**raised, **self.ended_from}

    @cached_property
    def ended_from(self) -> Mapping[int, float]:
        """From when on what a process begins is due to its end; none of those that none ended.

        A launcher ended them, or the job was interrupted; else from the first call in a handler of
        signals on, or its exit, if others had been waiting for long by then.
        """
        given, processes = self.given, self.trace.processes
        composed = given.of_kind("composed")
        stops = {op.process: op.begin_ns for op in composed if op.call.op == STOPPING}
        by_launcher = {processes[p].id: ns for p, ns in stops.items()}
        in_handlers = (op for op in reversed(given.ops) if op.call.args.get("handler") is True)
        handled = _exits_of_handlers(given, processes)
        handled |= {op.process: op.begin_ns for op in in_handlers}
        found: dict[int, float] = {}
        for one in processes:
            times = [] if self.interrupted_ns is None else [self.interrupted_ns]
            stop_ns = by_launcher.get(one.parent or "", 0)
            if stop_ns > one.start_ns:
                times.append(stop_ns)
            if one.reported is not None and one.reported.event == "killed":
                times.append(one.reported.t_ns)
            if one.index in handled and _stood(given, handled[one.index], one.index):
                times.append(handled[one.index])
            if times:
                found[one.index] = min(times)
        return found

    @cached_property
    def interrupted_ns(self) -> int | None:
        """When the whole job was interrupted from outside (Ctrl-C, a signal to the launcher)."""
        return process_ends.interrupted_ns(self.trace.processes)

    @cached_property
    def last(self) -> Mapping[int, Op]:
        """The newest operation of each process (by its number: the innermost of nested ones)."""
        return {process: kept[-1] for process, kept in self.sample.of_process.items()}

    @cached_property
    def last_of_thread(self) -> Mapping[tuple[int, int], Op]:
        """The newest operation of each thread, by process and thread."""
        return {(op.process, op.thread): op for op in self.sample.ops}

    def beside(self, process: int, thread: int) -> bool:
        """Whether a thread is not the main one and has no part in the operations of groups."""
        return thread != 0 and thread not in self.at_work.get(process, ())

    @cached_property
    def at_work(self) -> Mapping[int, frozenset[int]]:
        """The threads by which each process takes part in the operations of groups, if any does."""
        made = self.sample.of_kind(*GROUPED)
        found = together((op.process, op.thread) for op in made)
        return {process: frozenset(threads) for process, threads in found.items()}

    def course(self, process: int, stream: Stream) -> CollectiveSequence | None:
        """The collectives of a process in a stream, or of one that made the same, if at hand."""
        found = self.sample.history.get((process, stream))
        hashed = self.sample.courses.get((process, stream))
        return self._history_by_hash.get((stream, hashed)) if found is None and hashed else found

    @cached_property
    def _history_by_hash(self) -> Mapping[tuple[Stream, tuple[int, int, int]], CollectiveSequence]:
        courses = self.sample.courses
        return {
            (key[1], courses[key]): course
            for key, course in self.sample.history.items()
            if key in courses
        }

    def exchange(self, stream: Stream, seq: int) -> Mapping[int, Op]:
        """The known members of a collective by group rank, also those that went on after it."""
        found: dict[int, Op] = {}
        for rank, kept in self.sample.streams.get(stream, {}).items():
            here = next((op for op in kept if op.seq == seq), None)
            if here is None and (kept[-1].seq or 0) > seq:
                here = self._went_on(kept, stream, seq)
            if here is not None:
                found[rank] = here
        return found

    def _went_on(self, kept: Sequence[Op], stream: Stream, seq: int) -> Op | None:
        """What a member called that is through. All calls of one place are known by the first of
        them, so its operation is known, and not what it passed.
        """
        course = self.course(kept[-1].process, stream)
        call = None if course is None else next((c for n, c in course if n == seq), None)
        if call is None:
            return None
        of = replace(call, signature=replace(call.signature, **_UNKNOWN_ARGUMENTS))
        over = stand_in(kept, seq)
        return replace(over, process=kept[-1].process, call=of)

    @cached_property
    def went_on(self) -> tuple[int, ...]:
        """Processes of which it is to be queried what they called where others wait."""
        ops = (op for op in self.sample.of_kind("collective") if op.status != "ok")
        found: dict[int, None] = {}
        for stream, seq in dict.fromkeys((op.call.stream, op.seq) for op in ops):
            if seq is None:
                continue
            known = self.exchange(stream, seq)
            for rank, kept in self.sample.streams.get(stream, {}).items():
                if rank not in known and (kept[-1].seq or 0) > seq:
                    found[kept[-1].process] = None
        return tuple(found)

    def longest_ns(self, op: Op) -> int:
        """The longest of the waits at the same place of a process that ended well."""
        return self.sample.longest.get((op.process, op.call.index), 0)

    def _left_behind(self, op: Op) -> bool:
        """Whether the others are through with an operation of which none saw the end here, of C++
        code or one that was requested: then it holds up none. One that needs everybody is over
        when any other is through. Who called something else under its number has no part in it.
        """
        if not op.is_inferred or op.call.group is None or op.seq is None:
            return False
        members = self.sample.members(op.call.stream, op.seq)
        through = [
            one.end_ns is not None and one.error is None
            for one in members.values()
            if one.process != op.process and one.call.op == op.call.op
        ]
        if op.call.op in SYNCHRONIZING:
            return any(through)
        return len(through) + 1 == self.trace.groups[op.call.group].size and all(through)

    def process_of(self, group: int, group_rank: int) -> int | None:
        """The traced process that is a member of a group by a group rank."""
        return self._members.get((group, group_rank))

    @cached_property
    def _members(self) -> Mapping[tuple[int, int], int]:
        """Processes by group and group rank; of two the first one counts."""
        return {
            (group.index, member.rank): member.process
            for group in self.trace.groups
            for member in sorted(group.members, key=lambda m: -(m.t_ns or 0))
            if member.rank is not None
        }
