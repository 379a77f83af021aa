"""The current position of each process, by its recorded stacks, and all that rules are given."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from disttrace.journal.code_files import is_library
from disttrace.journal.format import COLLECTIVE, COMPOSED
from disttrace_viewer.analysis import process_ends
from disttrace_viewer.analysis.process_ends import ALIVE, CASCADE, OWN, SILENT
from disttrace_viewer.analysis.sample import frame, innermost, inside, latest_samples
from disttrace_viewer.evidence.endings import Endings
from disttrace_viewer.evidence.recorded import ANNOTATION, DRAINING, GATHERING
from disttrace_viewer.trace.model import CodeLocation, Stream
from disttrace_viewer.trace.operation import GROUPED, SYNCHRONIZING, Op, is_closed
from disttrace_viewer.trace.process import JOURNAL, Frame, Stack, StackSample
from disttrace_viewer.trace.values import replace, together

SEEN_NS = 10_000_000_000
"""At least so often one looks whether a thread that is quiet has moved."""


LED = ("broadcast", "reduce", "gather", "scatter")
"""Collectives that one member leads: who leaves when depends on which."""


class Evidence(Endings):
    """A trace with the questions that rules ask of it, each answered once."""

    @cached_property
    def blocking(self) -> tuple[Op, ...]:
        """Of the pending ones and of those that were given up, those that hold up their thread.

        One per thread: the innermost. Asynchronous work that is not waited for holds up none. On
        a backend that works behind the host's back (NCCL) the oldest one in flight holds up the
        device, and sooner or later its process, but for one that was over unseen. The destruction
        of groups waits for the oldest of what its process has issued.
        """
        found: dict[tuple[int, int], Op] = {}
        device = dict(self.stuck_devices)
        issued: dict[int, Op] = {}
        for op in self.sample.pending:
            if op.on_device:
                if op.id not in self.over_unseen:
                    device.setdefault(op.process, op)
            elif self._holds(op):
                found[op.process, op.thread] = op
            elif op.call.kind in GROUPED and op.issued_ns is not None:
                issued.setdefault(op.process, op)
        for key, op in list(found.items()):
            if op.call.op == DRAINING and op.process in device:
                del found[key]
            elif op.call.op == DRAINING and op.process in issued:
                found[key] = replace(issued[op.process], wait_begin_ns=op.begin_ns)
        for op in device.values():
            found.setdefault((op.process, -1), op)
        for op in self.given_up:
            found.setdefault((op.process, op.thread), op)
        return tuple(found.values())

    @cached_property
    def over_unseen(self) -> frozenset[tuple[int, int]]:
        """Collectives in flight that the device of another member has come through, where all wait
        for all, so that it has most likely come through here as well: none could ask it (a lock of
        the driver's), or its entry was gone before that was recorded. None of those that stand
        still.
        """
        if all(op.id in self._passed for op in self._on_device):
            return frozenset()
        return frozenset(one for one in self._passed if one[0] not in self.stuck_devices)

    @cached_property
    def stuck_devices(self) -> Mapping[int, Op]:
        """By process the first operation that its device is not through with, while those of all
        other members are, or of most: its device, or its stream, does not get on.

        Torch's recorder was informed of each end. In a journal one may be unseen, so there all have
        come to what the process has in flight else, or nothing else is in flight at all.
        """
        mine = together((op.process, op) for op in self._on_device)
        nothing_else = all(op.id in self._passed for op in self._on_device)
        found: dict[int, Op] = {}
        for process, ops in mine.items():
            one = self.trace.processes[process]
            rest = [op for op in ops if op.id not in self._passed]
            first = next((op for op in ops if op.id in self._passed), ops[0])
            if first.id in self.left:
                continue
            if first not in rest:
                seen = one.source != JOURNAL or (self._all_in(rest[0]) if rest else nothing_else)
                behind, through = self._inside[first.call.stream, first.seq or 0]
                stuck = seen and (len(behind) == 1 or len(behind) < through)
            elif first.call.kind == COLLECTIVE:  # who leads may be through before others are there
                behind, through = self._inside[first.call.stream, first.seq or 0]
                stuck = len(behind) == 1 and through > 0 and "root" not in one.lacks
            else:  # of what was launched as one, all
                launch = [op for op in ops if op is first or op.parent == first.parent is not None]
                ends = [self.sample.other_end(op) for op in launch]
                stuck = all(end is not None and end.status == "ok" for end in ends)
            if stuck and not self._outrun(process):
                found[process] = first
        return found

    def _all_in(self, op: Op) -> bool:
        """Whether all that an operation needs have begun it."""
        if op.call.kind != COLLECTIVE:
            return self.sample.other_end(op) is not None
        size = None if op.call.group is None else self.trace.groups[op.call.group].size
        return len(self.sample.partners(op)) + 1 == size

    def _outrun(self, process: int) -> bool:
        """Whether its evidence is older than others': they are through with what needs it too."""
        own: dict[Stream, int] = {}
        for op in self.sample.of_process[process]:
            if op.call.kind == COLLECTIVE:
                own[op.call.stream] = max(op.seq or 0, own.get(op.call.stream, 0))
        return any(self._completed.get(stream, 0) > seq for stream, seq in own.items())

    @cached_property
    def _completed(self) -> Mapping[Stream, int]:
        """The newest number in each stream that any is through with and none completes alone."""
        found: dict[Stream, int] = {}
        for op in self.sample.ops:
            if op.status == "ok" and op.call.op in SYNCHRONIZING:
                found[op.call.stream] = max(op.seq or 0, found.get(op.call.stream, 0))
        return found

    @cached_property
    def _on_device(self) -> tuple[Op, ...]:
        return tuple(op for op in self.sample.pending if op.on_device)

    @cached_property
    def _passed(self) -> frozenset[tuple[int, int]]:
        """Collectives in flight, of all with all, that another member's device has come through."""
        return frozenset(
            op.id
            for ops, through in self._inside.values()
            for op in ops
            if through > 0 and op.call.op not in LED
        )

    @cached_property
    def _inside(self) -> Mapping[tuple[Stream, int], tuple[Sequence[Op], int]]:
        """Collectives that are in flight on devices, and the number of members that are through."""
        inside = together(
            ((op.call.stream, op.seq or 0), op)
            for op in self._on_device
            if op.call.kind == COLLECTIVE
        )
        failed = Counter(
            (op.call.stream, op.seq or 0)
            for op in self.sample.of_kind(COLLECTIVE)
            if op.error is not None
        )
        newest = {
            stream: sorted(kept[-1].seq or 0 for kept in self.sample.streams[stream].values())
            for stream in {stream for stream, _ in inside} & self.sample.streams.keys()
        }
        found: dict[tuple[Stream, int], tuple[Sequence[Op], int]] = {}
        for (stream, seq), ops in inside.items():
            far = newest.get(stream, [])
            begun = len(far) - bisect_left(far, seq)  # who has begun a later one has begun this one
            found[stream, seq] = (ops, begun - failed[stream, seq] - len(ops))
        return found

    def _holds(self, op: Op) -> bool:
        if op.call.kind == "composed":
            return op.call.op in (*GATHERING, DRAINING)
        if op.call.origin == "c++":
            # No record shows that C++ code waits; it does when nothing else was begun since.
            last = self._newest_beside(op) == op
            return (last or op.wait_begin_ns is not None) and not self._left_behind(op)
        if op.wait_begin_ns is not None:
            return True
        if op.is_polled:
            latest = self._newest_beside(op)
            return (latest == op or latest.underway) and not self._left_behind(op)
        # A thread that has begun something else since has left it, although its end is not there.
        newest = self._newest_of_thread.get((op.process, op.thread), op.number)
        return op.issued_ns is None and newest <= op.number

    def _newest_beside(self, op: Op) -> Op:
        """The newest operation of those that come from where this one does: of its thread, of the
        main one, or in its group. What else a process does, a sign of life that it gives a store or
        a group of its own for, goes on whatever is waited in.
        """
        threads = (self.last_of_thread.get((op.process, thread)) for thread in (op.thread, 0))
        found = (*threads, self._newest_in.get((op.process, op.call.group)))
        return max((one for one in found if one is not None), key=lambda one: one.number)

    @cached_property
    def _newest_in(self) -> Mapping[tuple[int, int | None], Op]:
        """The newest operation of each process in each group that it uses."""
        inside = (op for op in self.sample.ops if op.call.group is not None)
        return {(op.process, op.call.group): op for op in inside}

    @cached_property
    def _newest_of_thread(self) -> Mapping[tuple[int, int], int]:
        """The newest operation that each thread began, but for what C++ code does inside others."""
        return {
            (op.process, op.thread): op.number
            for op in self.sample.ops
            if not (op.call.kind == "store" and op.call.origin == "c++")
        }

    @cached_property
    def left(self) -> frozenset[tuple[int, int]]:
        """Operations that a device was at, or had before it, when their process ended: with it went
        its part in them. Only of those that ended before others stopped waiting, and not because
        of others.
        """
        newest = max((p.last_ns for p in self.trace.processes), default=0)
        ended = {
            process
            for process, end in enumerate(self.ends)
            if end.how not in (ALIVE, CASCADE)
            and (end.known_dead or end.exit_word is not None)
            and newest - end.t_ns > process_ends.TOGETHER_NS
        }
        return frozenset(op.id for op in self._on_device if op.process in ended)

    @cached_property
    def given_up(self) -> tuple[Op, ...]:
        """Operations that ended because of others and broke what their process was at.

        Per process the first in a group, also where the program caught its error and went on: the
        group is of no use any more. A store operation only where the process ended by its error:
        to ask for a key with a short time-out, again and again, holds up none.
        """
        found = []
        for process, broken in self.broken.items():
            end = self.ends[process]
            kinds = (*GROUPED, "constructor")
            group = [op for op in broken if op.call.kind in kinds]
            chain = () if end.failure is None else end.failure.chain
            passed_on = {*chain, *end.causes} if end.how == CASCADE else set()
            polled = [op for op in broken if op.call.kind == "store" and op.error in passed_on]
            if group and (self._harm or end.how == CASCADE):
                found.append(group[0])
            elif polled:
                found.append(_around(polled[-1], broken))
        return tuple(found)

    @cached_property
    def _harm(self) -> bool:
        """Whether a failure, or a late peer, shows that what was given up was meant to succeed."""
        if any(end.how in (OWN, CASCADE, SILENT) for end in self.ends):
            return True
        every = (op for broken in self.broken.values() for op in broken)
        return any(is_closed(op.error) and op.call.kind in GROUPED for op in every)

    @cached_property
    def first_broken_ns(self) -> int | None:
        """When the first process failed, or noticed that a rank was gone."""
        ended = [end.t_ns for end in self.ends if end.how in (OWN, CASCADE)]
        ended += [op.end_ns for op in (*self.given_up, *self.closed) if op.end_ns is not None]
        return min(ended, default=None)

    def stands(self, process: int) -> Frame | None:
        """Where the main thread of a process stands, if noted since it last did anything."""
        return innermost(self.stack(process))

    def inside(self, process: int) -> Frame | None:
        """What the user's line that ``stands`` gives has called, where that is not known by it."""
        return inside(self.stack(process))

    def stack(self, process: int) -> Stack:
        """The recorded frames of where a process stands; empty where nothing was noted."""
        sample = self.samples.get(process)
        return () if sample is None else sample.stack

    def stood(self, process: int, since_ns: int, until_ns: int) -> CodeLocation | None:
        """Where the main thread of a process was last seen to stand while others waited, whatever
        it did after that. A note is made anew only when the thread has moved, so one from before
        they waited counts too, unless something is known to have begun after it.
        """
        before = [s for s in self.trace.processes[process].samples if s.t_ns <= until_ns]
        if not before or before[-1].t_ns < since_ns - SEEN_NS:
            return None
        at, where = before[-1].t_ns, innermost(before[-1].stack)
        began = (op.begin_ns for op in self.sample.of_process.get(process, ()) if op.thread == 0)
        if where is None or (at < since_ns and any(at < ns <= until_ns for ns in began)):
            return None
        return CodeLocation.at(process, where)

    def stood_after(
        self, process: int, since_ns: int, until_ns: int
    ) -> tuple[CodeLocation, int] | None:
        """Where the main thread was first seen, and when, in a span in which it began nothing."""
        samples = self.trace.processes[process].samples
        first = next((s for s in samples if since_ns < s.t_ns <= until_ns), None)
        where = None if first is None else innermost(first.stack)
        if first is None or where is None:
            return None
        at = first.t_ns
        for op in self.sample.of_process.get(process, ()):
            inside = op.begin_ns <= at and (op.end_ns or at) > since_ns
            if op.thread == 0 and inside and op.call.kind != COMPOSED:
                return None
        return CodeLocation.at(process, where), at

    @cached_property
    def samples(self) -> Mapping[int, StackSample]:
        """Where the main thread of each process stands, if that was noted since it did anything."""
        found = {**latest_samples(self.trace, self.sample.active, self.at_work)}
        for process, at_ns in self.ended_from.items():
            if process in found and found[process].t_ns >= at_ns:  # where its end was handled
                before = [s for s in self.trace.processes[process].samples if s.t_ns < at_ns]
                did_ns = self.sample.active.get((process, 0), 0)
                if before and before[-1].t_ns >= did_ns:
                    found[process] = before[-1]
                else:
                    del found[process]
        return found

    def location(self, op: Op) -> CodeLocation | None:
        """The call site of an operation."""
        where = frame(op)
        return None if where is None else CodeLocation.at(op.process, where, op.call.op)

    def whereabouts(self, process: int) -> CodeLocation | None:
        """Where a process outside communication stands; else where it failed or was last seen."""
        end = self.ends[process]
        raised = innermost(end.asked_at if end.failure is None else end.failure.stack)
        if raised is not None:
            return CodeLocation.at(process, raised)
        stands = self.stands(process) if end.how in (ALIVE, SILENT) else None
        if stands is not None:
            return CodeLocation.at(process, stands)
        last, of_main = self.last.get(process), self.last_of_thread.get((process, 0))
        called = None if last is None else frame(last)
        if of_main is not None and called is not None and is_library(called.file):
            last = of_main  # a pool called, and no line of the program's
        return None if last is None else self.location(last)

    def locations(self, found: Iterable[Op]) -> tuple[CodeLocation, ...]:
        """Call sites, each once per process, and where their processes are now, if elsewhere."""
        places: list[CodeLocation | None] = []
        for op in found:
            places.append(self.location(op))
            where = self.stands(op.process) if op.pending and op.issued_ns is not None else None
            if where is not None:
                places.append(CodeLocation.at(op.process, where, op.call.op))
        return tuple(dict.fromkeys(p for p in places if p is not None))

    def within(self, op: Op) -> str | None:
        """``gather_object``, where the program called that; else the program's own name for it."""
        outer = self.sample.around(op)
        if outer is None or outer.call.kind != "composed" or outer.call.op in GATHERING:
            return None
        if outer.call.op == ANNOTATION:
            return None if outer.call.name is None else repr(outer.call.name)
        return self.top(outer).call.op

    def top(self, op: Op) -> Op:
        """The outermost pending composed operation around an operation, else itself."""
        outer = op
        composed = (o for o in self.sample.pending if o.call.kind == "composed")
        around = {(o.process, o.number): o for o in composed if o.call.op != ANNOTATION}
        while outer.parent is not None and (outer.process, outer.parent) in around:
            outer = around[outer.process, outer.parent]
        return outer


def _around(op: Op, broken: Iterable[Op]) -> Op:
    """The constructor that a store operation of C++ code was part of, if it failed as well."""
    around = [
        other
        for other in broken
        if other.call.kind == "constructor"
        and op.call.origin == "c++"
        and (other.process, other.thread) == (op.process, op.thread)
        and other.begin_ns <= op.begin_ns
        and (other.end_ns or 0) >= (op.end_ns or 0)
    ]
    return around[-1] if around else op
