"""Where each process stands, by its recorded stacks: with it all that rules ask is answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from disttrace.journal.code_files import is_library
from disttrace.journal.format import COMPOSED
from disttrace_viewer.analysis.operation import frame, innermost, inside, latest_samples
from disttrace_viewer.analysis.process_ends import ALIVE, SILENT
from disttrace_viewer.evidence.blocking import Blocking
from disttrace_viewer.evidence.recorded import ANNOTATION, GATHERING
from disttrace_viewer.trace.model import Location
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame, Stack, StackSample

SEEN_NS = 10_000_000_000
"""At least so often one looks whether a thread that is quiet has moved."""


class Evidence(Blocking):
    """A trace with the questions that rules ask of it, each answered once."""

    def stands(self, process: int) -> Frame | None:
        """Where the main thread of a process stands, if that was noted since it last did anything.

        What its own thread did counts, also composed operations (``destroy_process_group``).
        """
        return innermost(self.stack(process))

    def inside(self, process: int) -> Frame | None:
        """What the user's line that ``stands`` gives has called, where that is not known by it."""
        return inside(self.stack(process))

    def stack(self, process: int) -> Stack:
        """The recorded frames of where a process stands; empty where nothing was noted."""
        sample = self.samples.get(process)
        return () if sample is None else sample.stack

    def stood(self, process: int, since_ns: int, until_ns: int) -> Location | None:
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
        return Location.at(process, where)

    def stood_after(
        self, process: int, since_ns: int, until_ns: int
    ) -> tuple[Location, int] | None:
        """Where the main thread of a process was first seen to stand, with the time, in a span at
        whose beginning it was in no operation and in which it began none until then.
        """
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
        return Location.at(process, where), at

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

    def location(self, op: Op) -> Location | None:
        """The call site of an operation."""
        where = frame(op)
        return None if where is None else Location.at(op.process, where, op.call.op)

    def whereabouts(self, process: int) -> Location | None:
        """Where a process outside communication stands; else where it failed or was last seen."""
        end = self.ends[process]
        raised = innermost(end.asked_at if end.failure is None else end.failure.stack)
        if raised is not None:
            return Location.at(process, raised)
        stands = self.stands(process) if end.how in (ALIVE, SILENT) else None
        if stands is not None:
            return Location.at(process, stands)
        last, of_main = self.last.get(process), self.last_of_main.get(process)
        called = None if last is None else frame(last)
        if of_main is not None and called is not None and is_library(called.file):
            last = of_main  # a pool called, and no line of the program's
        return None if last is None else self.location(last)

    def locations(self, found: Iterable[Op]) -> tuple[Location, ...]:
        """Call sites of several operations, each once per process, and where their processes
        stand meanwhile, if that is another line (work that was begun here is waited for there).
        """
        places: list[Location | None] = []
        for op in found:
            places.append(self.location(op))
            where = self.stands(op.process) if op.pending and op.issued_ns is not None else None
            if where is not None:
                places.append(Location.at(op.process, where, op.call.op))
        return tuple(dict.fromkeys(p for p in places if p is not None))

    def within(self, op: Op) -> str | None:
        """``gather_object``, where the program called that and it called this; else the name that
        the program gave the part of it that it is in, in quotes; else None.
        """
        outer = self.sample.around(op)
        if outer is None or outer.call.kind != "composed" or outer.call.op in GATHERING:
            return None
        if outer.call.op == ANNOTATION:
            return None if outer.call.name is None else repr(outer.call.name)
        return self.top(outer).call.op

    def top(self, op: Op) -> Op:
        """The outermost pending composed operation around an operation, else itself."""
        outer = op
        composed = (o for o in self.pending if o.call.kind == "composed")
        around = {(o.process, o.number): o for o in composed if o.call.op != ANNOTATION}
        while outer.parent is not None and (outer.process, outer.parent) in around:
            outer = around[outer.process, outer.parent]
        return outer
