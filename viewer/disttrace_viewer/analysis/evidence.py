"""What the rules look at: processes and their ends, what each waits in, and what came before.

One class, since each of its properties is worked out from others of them, and kept.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from disttrace_viewer.analysis import process_ends
from disttrace_viewer.analysis.liveness import STOPPED, Look, Seen, look
from disttrace_viewer.analysis.operation import Op, frame, innermost, inside
from disttrace_viewer.analysis.process_ends import (
    ALIVE,
    CASCADE,
    NOTHING,
    OWN,
    SILENT,
    Communication,
    End,
    because_of_others,
    is_closed,
)
from disttrace_viewer.analysis.thread_stacks import latest_samples
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.sample.sample import Course, Sample, Stream, stand_in
from disttrace_viewer.trace.model import Frame, Location, Stack, StackSample, Trace
from disttrace_viewer.trace.operation import SYNCHRONIZING

_UNKNOWN_ARGUMENTS: dict[str, Any] = dict.fromkeys(
    ("shapes", "dtypes", "bytes", "splits", "reduce_op", "root")
)
STUCK_NS = 1_500_000_000
"""Blocked for longer than this is stuck: communication of a healthy step takes less."""
STALL_NS = 10_000_000_000
_GROUPED = ("collective", "message")
_GATHERING = ("init_process_group", "rendezvous", "new_group", "split_group")
DRAINING = "destroy_process_group"
"""Does not return before what was issued is over."""


__all__ = ["DRAINING", "STALL_NS", "STUCK_NS", "Course", "Evidence"]


@dataclass(frozen=True)
class Evidence:
    """A trace with the questions that rules ask of it, each answered once."""

    trace: Trace
    given: Sample
    """Operations as they were recorded; rules ask ``sample``."""
    stall_ns: int = STALL_NS
    look: Look = look
    partial: frozenset[int] = frozenset()
    """Processes of whose journals only a part was read."""

    @cached_property
    def sample(self) -> Sample:
        """The operations that say where each process stands.

        What ended badly after the job was interrupted from outside counts as in flight then, and so
        does what its own process left because a handler of signals raised in it. What C++ code
        waited for when its process failed by that counts as ended.
        """
        found = self.given
        processes, at_ns = self.trace.processes, self.interrupted_ns
        ops = tuple(
            process_ends.unseen_error(process_ends.left(op, of), of)
            for op in found.ops
            for of in (processes[op.process],)
        )
        if at_ns is not None:
            ops = tuple(process_ends.undone(op, at_ns) for op in ops)
        return found if all(map(operator.is_, ops, found.ops)) else replace(found, ops=ops)

    @cached_property
    def interrupted_ns(self) -> int | None:
        """When the whole job was interrupted from outside (Ctrl-C, a signal to the launcher)."""
        return process_ends.interrupted_ns(self.trace.processes)

    def course(self, process: int, stream: Stream) -> Course | None:
        """All collectives of a process in a stream, or of one that made the same; None where they
        are not at hand.
        """
        found = self.sample.history.get((process, stream))
        hashed = self.sample.courses.get((process, stream))
        return self._history_by_hash.get((stream, hashed)) if found is None and hashed else found

    @cached_property
    def _history_by_hash(self) -> Mapping[tuple[Stream, tuple[int, int, int]], Course]:
        courses = self.sample.courses
        return {
            (key[1], courses[key]): course
            for key, course in self.sample.history.items()
            if key in courses
        }

    def exchange(self, stream: Stream, seq: int) -> Mapping[int, Op]:
        """The members of a collective whose calls are known, by group rank: also of those that went
        on while somebody waits in it, if it was asked what they called.
        """
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
        """Processes of which it is to be asked what they called where others wait."""
        found: dict[int, None] = {}
        for op in self.sample.ops:
            stream = (op.call.group, op.call.backend)
            if op.call.kind == "collective" and op.seq is not None and op.status != "ok":
                known = self.exchange(stream, op.seq)
                for rank, kept in self.sample.streams.get(stream, {}).items():
                    if rank not in known and (kept[-1].seq or 0) > op.seq:
                        found[kept[-1].process] = None
        return tuple(found)

    @cached_property
    def seen(self) -> tuple[Seen, ...]:
        """What the kernel of this host says of each process."""
        return tuple(self.look(p) for p in self.trace.processes)

    @cached_property
    def alive_here(self) -> bool:
        """Whether any process of the trace lives on this host."""
        return any(seen.alive for seen in self.seen)

    @cached_property
    def cut_ns(self) -> int:
        """The instant at which the picture stops: now, while a process lives on this host, else
        the newest record of any process.
        """
        newest = self.trace.end_ns
        living = next((p for p in self.trace.processes if self.seen[p.index].alive), None)
        if living is None or living.boot_id is None:
            return newest
        # The monotonic clock is that of the journals; the wall clock may have been set since.
        passed = time.time_ns() - self.trace.read_ns
        now = to_unix(self.trace.clocks[living.clock], time.perf_counter_ns() - passed)
        return max(newest, now)

    @cached_property
    def newest_sign_ns(self) -> int:
        """The last sign of life of any process whose journal lacks nothing."""
        return max((p.last_ns for p in self.trace.processes if not p.losses), default=0)

    @cached_property
    def ends(self) -> tuple[End, ...]:
        """How each process ended."""
        found = process_ends.ends(self.trace.processes, self.communication, self.cut_ns, self.seen)
        found = process_ends.since_interrupt(found, self.interrupted_ns)
        processes = self.trace.processes
        found = process_ends.without_a_word(
            processes, found, self.seen, self.trace.groups, self.failed, self._parted
        )
        now_ns = max(time.time_ns(), self.cut_ns)
        return process_ends.heard_of(found, processes, self.seen, now_ns)

    @property
    def _parted(self) -> Set[int]:
        """Those that destroyed their groups, and did nothing since."""
        return {p for p, op in self.last.items() if op.call.op == DRAINING}

    @property
    def runs(self) -> bool:
        """Whether anybody is known to live now."""
        return any(end.runs for end in self.ends)

    @cached_property
    def live(self) -> bool:
        """Whether anybody lived when the picture stops: then waiting becomes a fault only after
        ``stall_ns``.
        """
        return any(end.how == ALIVE or end.lingers for end in self.ends)

    @cached_property
    def stalled_after_ns(self) -> int:
        """How long somebody must have waited before a missing partner is a fault."""
        return self.stall_ns if self.live else STUCK_NS

    @cached_property
    def last(self) -> Mapping[int, Op]:
        """The newest operation of each process (by its number: the innermost of nested ones)."""
        return self.sample.newest

    @cached_property
    def pending(self) -> tuple[Op, ...]:
        """Operations begun and not known to be over, by process and number."""
        return self.sample.pending

    @cached_property
    def blocking(self) -> tuple[Op, ...]:
        """Of the pending ones and of those that were given up, those that hold up their thread.

        One per thread: the innermost. Asynchronous work that nobody waits for holds up nobody. On
        a backend that works behind the host's back (NCCL) the oldest one in flight holds up the
        device, and sooner or later its process. The destruction of groups waits for the oldest of
        what its process has issued.
        """
        found: dict[tuple[int, int], Op] = {}
        device: dict[int, Op] = {}
        issued: dict[int, Op] = {}
        for op in self.pending:
            if op.on_device:
                device.setdefault(op.process, op)
            elif self._holds(op):
                found[op.process, op.thread] = op
            elif op.call.kind in _GROUPED and op.issued_ns is not None:
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
        return frozenset(op.id for op in self.pending if op.on_device and op.process in ended)

    @cached_property
    def failed(self) -> Mapping[int, tuple[Op, ...]]:
        """Operations of each process that ended in an error, by their end; of composed ones those
        that wait for others by themselves. Of a call that failed again and again (polling) only the
        first and the newest.
        """
        found: dict[int, list[Op]] = {}
        for op in self.sample.ops:
            if op.error is None or (op.call.kind == "composed" and op.call.op not in _GATHERING):
                continue
            if op.refused and op.call.kind == "collective" and because_of_others(op):
                # It raised in its call although it had begun (a monitored barrier, any call under
                # TORCH_DISTRIBUTED_DEBUG=DETAIL): under the number that it would have taken.
                op = replace(op, seq=self.sample.refused.get(op.id, op.seq))
            found.setdefault(op.process, []).append(op)
        return {
            process: tuple(sorted(failed, key=lambda op: (op.end_ns or 0, op.number)))
            for process, failed in found.items()
        }

    @cached_property
    def raised_in_call(self) -> tuple[Op, ...]:
        """Collectives that had begun and raised in their call, each under its number."""
        return tuple(
            op
            for failed in self.failed.values()
            for op in failed
            if op.refused and op.seq is not None and op.call.group is not None
        )

    @cached_property
    def raised_messages(self) -> tuple[Op, ...]:
        """P2P operations that raised in their call because of others; they have no number."""
        return tuple(
            op
            for failed in self.failed.values()
            for op in failed
            if op.refused and op.call.kind == "message" and because_of_others(op)
        )

    @cached_property
    def _exchanged(self) -> Mapping[int, int]:
        """When each process began the newest operation that others took part in and that ended
        well: a send may end well although nobody is there.
        """
        return _latest(
            op
            for op in self.sample.ops
            if (op.call.kind == "collective" or op.call.op == "recv")
            and op.end_ns is not None
            and op.error is None
        )

    @cached_property
    def broken(self) -> Mapping[int, tuple[Op, ...]]:
        """Operations of each process that ended because of others, after which it exchanged nothing
        with anybody, by their end.
        """
        return {
            process: kept
            for process, failed in self.failed.items()
            if (
                kept := tuple(
                    op
                    for op in failed
                    if because_of_others(op) and (op.end_ns or 0) >= self._exchanged.get(process, 0)
                )
            )
        }

    @cached_property
    def communication(self) -> Mapping[int, Communication]:
        """What each process's communication says of how it ended."""
        found = {}
        native = {op.process for op in self.pending if op.call.origin == "c++"}
        grouped = [op for op in self.pending if op.call.kind in _GROUPED]
        # Whoever enqueues goes on, and a backend of devices ends nobody over a fresh operation.
        last = {p.index: p.last_ns for p in self.trace.processes}
        blocked = {
            op.process
            for op in grouped
            if not (op.on_device and last[op.process] - op.begin_ns < STUCK_NS)
            and not self._left_behind(op)
        }
        held = {op.process for op in grouped if op.issued_ns is None or op.wait_begin_ns}
        for process in self.trace.processes:
            index = process.index
            broken, failed = self.broken.get(index, ()), self.failed.get(index, ())
            of_group = [op.end_ns or 0 for op in broken if op.call.kind != "store"]
            found[index] = Communication(
                errors={op.error: op.end_ns or 0 for op in broken if op.error is not None}
                if broken
                else NOTHING.errors,
                rejected=frozenset(
                    op.error for op in failed if op.error is not None and not because_of_others(op)
                )
                if failed
                else NOTHING.rejected,
                broken_ns=min(of_group, default=None),
                native=index in native or any(op.call.origin == "c++" for op in failed),
                blocked=index in blocked,
                held=index in held,
                main_ns=self._began.get(index, 0),
            )
        return found

    def _left_behind(self, op: Op) -> bool:
        """Whether the others are through with an operation of which nobody saw the end here, of C++
        code or one that was asked for: then it holds up nobody. One that needs everybody is over
        when any other is through.
        """
        if not self.inferred(op) or op.call.group is None or op.seq is None:
            return False
        members = self.sample.members((op.call.group, op.call.backend), op.seq)
        through = [
            one.end_ns is not None and one.error is None
            for one in members.values()
            if one.process != op.process
        ]
        if op.call.op in SYNCHRONIZING:
            return any(through)
        return len(through) + 1 == self.trace.groups[op.call.group].size and all(through)

    @cached_property
    def _began(self) -> Mapping[int, int]:
        """When the main thread of each process began its newest operation."""
        return _latest(op for op in self.sample.ops if op.thread == 0)

    @cached_property
    def given_up(self) -> tuple[Op, ...]:
        """Operations that ended because of others and broke what their process was at.

        Per process the first in a group, also where the program caught its error and went on: the
        group is of no use any more. A store operation only where the process ended by its error:
        to ask for a key with a short time-out, again and again, holds up nobody.
        """
        found = []
        for process, broken in self.broken.items():
            end = self.ends[process]
            group = [op for op in broken if op.call.kind in (*_GROUPED, "constructor")]
            chain = () if end.failure is None else end.failure.chain
            passed_on = {*chain, *end.causes} if end.how == CASCADE else set()
            asked = [op for op in broken if op.call.kind == "store" and op.error in passed_on]
            if group and (self._harm or end.how == CASCADE):
                found.append(group[0])
            elif asked:
                found.append(_around(asked[-1], broken))
        return tuple(found)

    @cached_property
    def _harm(self) -> bool:
        """Whether anything shows that what was given up was meant to succeed: a process failed or
        was cut short, or somebody came to a group's operation after the others had given up.
        """
        if any(end.how in (OWN, CASCADE, SILENT) for end in self.ends):
            return True
        closed = sum(
            any(is_closed(op.error) and op.call.kind in _GROUPED for op in broken)
            for broken in self.broken.values()
        )
        return closed > 0

    @cached_property
    def raised(self) -> Mapping[int, Op]:
        """The last thing a process did, where that ended in an error."""
        return {p: op for p, op in self._last_leaves.items() if op.error is not None}

    @cached_property
    def closed(self) -> tuple[Op, ...]:
        """Operations whose error says that the other end closed the connection, by time."""
        found = [op for failed in self.failed.values() for op in failed if is_closed(op.error)]
        return tuple(sorted(found, key=lambda op: (op.end_ns or 0, op.id)))

    @cached_property
    def first_broken_ns(self) -> int | None:
        """When the first process failed, or noticed that somebody was gone."""
        ended = [end.t_ns for end in self.ends if end.how in (OWN, CASCADE)]
        ended += [op.end_ns for op in (*self.given_up, *self.closed) if op.end_ns is not None]
        return min(ended, default=None)

    @cached_property
    def _last_leaves(self) -> Mapping[int, Op]:
        """The newest operation of each process that is made of no others."""
        return {op.process: op for op in self.sample.ops if op.call.kind != "composed"}

    def _holds(self, op: Op) -> bool:
        if op.call.kind == "composed":
            return op.call.op in (*_GATHERING, DRAINING)
        if op.call.origin == "c++":
            # Nobody tells that C++ code waits; it does when nothing else was begun since.
            last = self.last[op.process].number == op.number
            return (last or op.wait_begin_ns is not None) and not self._left_behind(op)
        if op.wait_begin_ns is not None:
            return True
        if self.asks(op):
            latest = self.last[op.process]
            return (latest == op or _underway(latest)) and not self._left_behind(op)
        # A thread that has begun something else since has left it, although its end is not there.
        newest = self._newest_of_thread.get((op.process, op.thread), op.number)
        return op.issued_ns is None and newest <= op.number

    def inferred(self, op: Op) -> bool:
        """Whether nothing says that somebody waits in an operation, but that nothing came after."""
        return op.call.origin == "c++" or self.asks(op)

    def asks(self, op: Op) -> bool:
        """Whether the program asked for the completion of asynchronous work in another form than a
        wait: it polls it, or waits for its future. As long as it begins nothing else it seems to be
        held up by that, but may compute as well.
        """
        return op.asked and _underway(op)

    @cached_property
    def _newest_of_thread(self) -> Mapping[tuple[int, int], int]:
        """The newest operation that each thread began, but for what C++ code does inside others."""
        return {
            (op.process, op.thread): op.number
            for op in self.sample.ops
            if not (op.call.kind == "store" and op.call.origin == "c++")
        }

    def until_ns(self, process: int) -> int:
        """Until when a process certainly was where it was last seen."""
        end = self.ends[process]
        if end.interrupted and self.interrupted_ns is not None:
            return self.interrupted_ns
        if end.lingers:
            return self.cut_ns
        if end.how == SILENT and self.cut_ns - end.t_ns <= MISSED_TOGETHER:
            return self.cut_ns
        return end.t_ns

    def age_ns(self, op: Op) -> int:
        """How long an operation was waited in: to its end by an error, or while seen."""
        return max(0, (op.end_ns or self.until_ns(op.process)) - self.since_ns(op))

    def longest_ns(self, op: Op) -> int:
        """The longest of the waits at the same place of a process that ended well."""
        return self.sample.longest.get((op.process, op.call.index), 0)

    def since_ns(self, op: Op) -> int:
        """Since when somebody waits in it."""
        return op.wait_begin_ns or op.begin_ns

    def stuck(self, op: Op) -> bool:
        """Whether its process waits in it for too long, or was ended by the waiting."""
        if op.error is not None or op.process in self.timeless:
            return True
        # Journals of other hosts may be read late: their cut is not of one instant.
        return self.age_ns(op) >= (self.stall_ns if self._apart else min(self.stall_ns, STUCK_NS))

    @cached_property
    def _apart(self) -> bool:
        return self.live and len({p.clock for p in self.trace.processes}) > 1

    @cached_property
    def timeless(self) -> frozenset[int]:
        """Processes of which nobody knows when their evidence was gathered: no wait has an age."""
        return frozenset(p.index for p in self.trace.processes if "time" in p.lacks)

    def is_still(self, process: int, others: Iterable[int]) -> bool:
        """Whether a process has stopped running, while one of the others went on waiting."""
        end, processes = self.ends[process], self.trace.processes
        silent_ns = max(processes[p].last_ns for p in others) - processes[process].last_ns
        return end.held == STOPPED or (
            end.how in (ALIVE, SILENT) and silent_ns > process_ends.MISSED_NS
        )

    def stands(self, process: int) -> Frame | None:
        """Where the main thread of a process stands, if that was noted since it last did anything.

        What its own thread did counts, also composed operations (``destroy_process_group``).
        """
        sample = self.samples.get(process)
        return None if sample is None else innermost(sample.stack)

    def inside(self, process: int) -> Frame | None:
        """What the user's line that ``stands`` gives has called, where that is not known by it."""
        sample = self.samples.get(process)
        return None if sample is None else inside(sample.stack)

    def stack(self, process: int) -> Stack:
        """The recorded frames of where a process stands; empty where nothing was noted."""
        sample = self.samples.get(process)
        return () if sample is None else sample.stack

    @cached_property
    def samples(self) -> Mapping[int, StackSample]:
        """Where the main thread of each process stands, if that was noted since it did anything."""
        at_work: dict[int, set[int]] = {}
        for op in self.sample.of_kind("collective", "message"):
            at_work.setdefault(op.process, set()).add(op.thread)
        return latest_samples(self.trace, self.sample.active, at_work)

    def location(self, op: Op) -> Location | None:
        """The call site of an operation."""
        where = frame(op)
        if where is None:
            return None
        return Location(op.process, where.file, where.line, where.function, op.call.op)

    def whereabouts(self, process: int) -> Location | None:
        """Where a process outside communication stands; else where it failed or was last seen."""
        end = self.ends[process]
        raised = innermost(end.asked_at if end.failure is None else end.failure.stack)
        if raised is not None:
            return Location(process, raised.file, raised.line, raised.function, None)
        stands = self.stands(process) if end.how in (ALIVE, SILENT) else None
        if stands is not None:
            return Location(process, stands.file, stands.line, stands.function, None)
        last = self.last.get(process)
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
                places.append(
                    Location(op.process, where.file, where.line, where.function, op.call.op)
                )
        return tuple(dict.fromkeys(p for p in places if p is not None))

    def within(self, op: Op) -> str | None:
        """``gather_object``, where the program called that and it called this; else None."""
        outer = self.sample.get(op.process, op.parent)
        if outer is None or outer.call.kind != "composed" or outer.call.op in _GATHERING:
            return None
        return self.top(outer).call.op

    def top(self, op: Op) -> Op:
        """The outermost pending composed operation around an operation, else itself."""
        outer = op
        around = {(o.process, o.number): o for o in self.pending if o.call.kind == "composed"}
        while outer.parent is not None and (outer.process, outer.parent) in around:
            outer = around[outer.process, outer.parent]
        return outer

    def process_of(self, group: int, group_rank: int) -> int | None:
        """The traced process that is a member of a group by a group rank."""
        members = self._members.get(group)
        if members is None:
            found = self.trace.groups[group].members
            members = {m.rank: m.process for m in found if m.rank is not None}
            self._members[group] = members
        return members.get(group_rank)

    @cached_property
    def _members(self) -> dict[int, dict[int, int]]:
        """Processes by group rank, of groups of which that was asked."""
        return {}


def _latest(ops: Iterable[Op]) -> dict[int, int]:
    """When each process began the newest of some operations."""
    found: dict[int, int] = {}
    for op in ops:
        found[op.process] = max(op.begin_ns, found.get(op.process, 0))
    return found


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


MISSED_TOGETHER = process_ends.TOGETHER_NS


def _underway(op: Op) -> bool:
    """Whether asynchronous work was issued, is not over, and nobody waits for it."""
    return op.pending and op.issued_ns is not None and op.wait_begin_ns is None
