"""Who lives, how the others ended, and until when each was where it was last seen.

The address (``[ip]:port``) in gloo's error in an operation of a group of two, or in a message with
a given peer, is shown as the rank at the other end: no other connection is part of that operation.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from functools import cached_property

from disttrace.journal.format import COLLECTIVE, STOPPED
from disttrace_viewer.analysis import process_ends
from disttrace_viewer.analysis.liveness import Observation, remembered
from disttrace_viewer.analysis.process_ends import (
    ALIVE,
    CASCADE,
    MISSED_NS,
    SILENT,
    Communication,
    End,
)
from disttrace_viewer.evidence.recorded import DRAINING, GATHERING, STUCK_NS, Recorded
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.trace.model import Stream
from disttrace_viewer.trace.operation import (
    GROUPED,
    Op,
    because_of_others,
    is_closed,
    is_connection_error,
    is_own_limit,
)
from disttrace_viewer.trace.values import replace, together


class Endings(Recorded):
    """What failed, how each process ended, and how long those that wait have waited."""

    @cached_property
    def failed(self) -> Mapping[int, tuple[Op, ...]]:
        """Operations of each process that ended in an error, by their end; of composed ones those
        that wait for others by themselves. Of a call that failed again and again (polling) only the
        first and the newest.
        """
        found: dict[int, list[Op]] = {}
        for op in self.sample.ops:
            if op.error is None or (op.call.kind == "composed" and op.call.op not in GATHERING):
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
        refused = (op for failed in self.failed.values() for op in failed if op.refused)
        return tuple(op for op in refused if None not in (op.seq, op.call.group))

    @cached_property
    def _exchanged(self) -> Mapping[int, int]:
        """When each began the newest operation that others took part in and that ended well."""
        return {
            op.process: op.begin_ns
            for op in self.sample.ops
            if (op.call.kind == "collective" or op.call.op == "recv")
            and op.end_ns is not None
            and op.error is None
        }

    @cached_property
    def broken(self) -> Mapping[int, tuple[Op, ...]]:
        """Operations of each process that ended because of others, with no exchange after them."""
        found = together(
            (process, op)
            for process, failed in self.failed.items()
            for op in failed
            if because_of_others(op) and (op.end_ns or 0) >= self._exchanged.get(process, 0)
        )
        return {process: tuple(broken) for process, broken in found.items()}

    @cached_property
    def raised(self) -> Mapping[int, Op]:
        """The newest operation of each process, but for composed ones, if it ended in an error."""
        leaves = {op.process: op for op in self.sample.ops if op.call.kind != "composed"}
        return {process: op for process, op in leaves.items() if op.error is not None}

    @cached_property
    def closed(self) -> tuple[Op, ...]:
        """Operations whose error states that the other end closed the connection, by time."""
        found = [op for failed in self.failed.values() for op in failed if is_closed(op.error)]
        return tuple(sorted(found, key=lambda op: (op.end_ns or 0, op.id)))

    @cached_property
    def seen(self) -> tuple[Observation, ...]:
        """What the kernel of this host states of each process, or that of its own reported."""
        return tuple(remembered(p, self.look(p)) for p in self.trace.processes)

    @cached_property
    def alive_here(self) -> bool:
        """Whether any process of the trace lives on this host."""
        return any(seen.alive for seen in self.seen)

    @cached_property
    def cut_ns(self) -> int:
        """Where the picture stops: now, while a process lives here, else at the newest record."""
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
        found = process_ends.as_consequences(found, self.ended_from, self.interrupted_ns)
        processes = self.trace.processes
        # Those that destroyed their groups, and did nothing since.
        main = (op for (_, thread), op in self.last_of_thread.items() if thread == 0)
        parted = {op.process for op in (*self.last.values(), *main) if op.call.op == DRAINING}
        found = process_ends.without_a_word(
            processes, found, self.seen, self.trace.groups, self.failed, parted
        )
        now_ns = max(time.time_ns(), self.cut_ns)
        return process_ends.heard_of(found, processes, self.seen, now_ns)

    def seen_gone(self, process: int) -> bool:
        """Whether a rank saw that it had gone while others of the job lived."""
        seen = self.seen[process]
        if seen.alive is not False:
            return False
        noted = seen.gone_among is not None
        return self.alive_here or (
            noted and (bool(seen.gone_among) or self.newest_sign_ns > seen.gone_ns + MISSED_NS)
        )

    @cached_property
    def followed(self) -> frozenset[int]:
        """Processes that were gone, by one clock, when another began under their rank."""
        found, began = set(), dict[object, int]()
        for one in sorted(self.trace.processes, key=lambda p: -p.start_ns):
            if not one.is_rank:
                continue
            key = (one.job, one.attempt, one.clock, one.rank)
            if one.last_ns < began.setdefault(key, one.start_ns):
                found.add(one.index)
        return frozenset(found)

    @property
    def runs(self) -> bool:
        """Whether any process is known to live now."""
        return any(end.runs for end in self.ends)

    @cached_property
    def live(self) -> bool:
        """Whether any lived when the picture stops: then waits are faults from ``stall_ns`` on."""
        return any(end.how == ALIVE or end.lingers for end in self.ends)

    @cached_property
    def stalled_after_ns(self) -> int:
        """How long a rank must have waited before a missing partner is a fault."""
        return self.stall_ns if self.live else STUCK_NS

    @cached_property
    def timeless(self) -> frozenset[int]:
        """Processes whose evidence has no known time: no wait has an age."""
        return frozenset(p.index for p in self.trace.processes if "time" in p.lacks)

    @cached_property
    def communication(self) -> Mapping[int, Communication]:
        """What each process's communication states of how it ended."""
        found = {}
        native = {op.process for op in self.sample.pending if op.call.origin == "c++"}
        grouped = [op for op in self.sample.pending if op.call.kind in GROUPED]
        blocked = {
            op.process for op in grouped if self._held_up_by(op) and not self._left_behind(op)
        }
        held = {op.process for op in grouped if op.holds}
        for process in self.trace.processes:
            index = process.index
            broken, failed = self.broken.get(index, ()), self.failed.get(index, ())
            of_group = [
                op.end_ns or 0
                for op in broken
                if op.call.kind != "store" and not is_own_limit(op.error)
            ]
            found[index] = Communication(
                errors=frozenset(op.error for op in broken if op.error is not None),
                rejected=frozenset(
                    op.error for op in failed if op.error is not None and not because_of_others(op)
                ),
                broken_ns=min(of_group, default=None),
                native=index in native or any(op.call.origin == "c++" for op in failed),
                blocked=index in blocked,
                held=index in held,
            )
        return found

    def _held_up_by(self, op: Op) -> bool:
        """Whether what is in flight may be why its process was ended. The one that enqueues goes
        on, and so does who has begun something else since: no backend of the CPU ends it over that,
        and one of devices over no fresh operation, but for one whose peer is gone.
        """
        if op.on_device:
            age_ns = self.trace.processes[op.process].last_ns - op.begin_ns
            return age_ns >= STUCK_NS or bool(self._deserters(op))
        newest = self.last_of_thread.get((op.process, 0))
        return op.holds or newest is None or newest.begin_ns <= op.begin_ns

    @cached_property
    def abandoned(self) -> frozenset[int]:
        """Who was gone without a word, over which a library of devices aborted others."""
        ends = self.ends
        return frozenset().union(
            *(
                self._deserters(op)
                for op in self.sample.pending
                if op.on_device
                and ends[op.process].how == CASCADE
                and ends[op.process].code is not None
            )
        )

    @cached_property
    def _deserted(self) -> Mapping[tuple[Stream, int | None], frozenset[int]]:
        """Of each collective in flight on devices who has not come, and is gone without a word."""
        gone = {
            p.index
            for p in self.trace.processes
            if p.exit is None and self.seen[p.index].alive is False
        }
        flying = (op for op in self.sample.pending if op.on_device and op.call.kind == COLLECTIVE)
        found: dict[tuple[Stream, int | None], frozenset[int]] = {}
        for stream, seq in {(op.call.stream, op.seq) for op in flying} if gone else ():
            if stream[0] is not None and seq is not None:
                came = {one.process for one in self.sample.members(stream, seq).values()}
                members = {m.process for m in self.trace.groups[stream[0]].members}
                found[stream, seq] = frozenset(gone & members - came)
        return found

    def _deserters(self, op: Op) -> frozenset[int]:
        return self._deserted.get((op.call.stream, op.seq), frozenset())

    def until_ns(self, process: int) -> int:
        """Until when a process certainly was where it was last seen."""
        end = self.ends[process]
        if end.interrupted and self.interrupted_ns is not None:
            return self.interrupted_ns
        if end.lingers:
            return self.cut_ns
        if end.how == SILENT and self.cut_ns - end.t_ns <= process_ends.TOGETHER_NS:
            return self.cut_ns
        return end.t_ns

    def waited_ns(self, ops: Iterable[Op]) -> int | None:
        """For how long the longest of some waits has lasted; None where that is not known."""
        ops = tuple(ops)
        if any(
            op.process in self.timeless or "since" in self.trace.processes[op.process].lacks
            for op in ops
        ):
            return None
        return max((self.age_ns(op) for op in ops), default=None)

    def age_ns(self, op: Op) -> int:
        """How long an operation was waited in: to its end by an error, or while seen."""
        return max(0, (op.end_ns or self.until_ns(op.process)) - op.since_ns)

    def stuck(self, op: Op) -> bool:
        """Whether its process waits in it for too long, or was ended by the waiting."""
        if op.error is not None or op.process in self.timeless:
            return True
        # Journals of other hosts may be read late: their cut is not of one instant.
        return self.age_ns(op) >= (self.stall_ns if self._apart else min(self.stall_ns, STUCK_NS))

    @cached_property
    def _apart(self) -> bool:
        return self.live and len({p.clock for p in self.trace.processes}) > 1

    def still(self, polled: Iterable[int], others: Iterable[int]) -> tuple[int, ...]:
        """Which of some processes have stopped running, while one of the others went on waiting."""
        ends, processes = self.ends, self.trace.processes
        seen_ns = max((processes[p].last_ns for p in others), default=0) - process_ends.MISSED_NS
        return tuple(
            p
            for p in polled
            if ends[p].held == STOPPED
            or (ends[p].how in (ALIVE, SILENT) and processes[p].last_ns < seen_ns)
        )


_ADDRESS = re.compile(r"\[[^\]\s]{1,255}\]:\d+")
"""``[host]:port``, as gloo writes it."""


def end_of(evidence: Endings, process: int) -> End:
    """How a process ended, with the address in a connection error shown as a rank."""
    end = evidence.ends[process]
    if end.failure is not None and is_connection_error(end.failure.text):
        text, peer = end.failure.text, _peer(evidence, process, end.failure.text)
        if peer is not None:
            text = _ADDRESS.sub(lambda found: f"{found[0]} ({peer})", text)
            return replace(end, failure=end.failure._replace(text=text))
    return end


def _peer(evidence: Endings, process: int, text: str) -> str | None:
    """The only process at the other end of the gloo operation that raised this very text."""
    op = evidence.raised.get(process)
    if op is None or op.call.backend != "gloo" or op.call.group is None or op.error is None:
        return None
    if text.partition("\n")[0] not in op.error or len(_ADDRESS.findall(text)) != 1:
        return None
    group, rank = evidence.trace.groups[op.call.group], op.call.peer
    if op.call.kind != "message":
        mine = {m.rank for m in group.members if m.process == process}
        others = set(range(group.size or 0)) - mine
        rank = others.pop() if group.size == 2 and len(others) == 1 else None
    if rank is None:
        return None
    other = evidence.process_of(op.call.group, rank)
    if other is not None:
        return evidence.trace.processes[other].label
    known = group.global_rank(rank)
    return None if known is None else f"rank {known}"
