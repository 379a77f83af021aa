"""The operations of each process that show its current position, as plain values.

Rules about hangs ask for no table of all operations: what is not over, the newest of each thread
and each stream, what failed, what constructs stores and groups, and the keys of stores are enough.
A sample comes with the states of processes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property

from disttrace.journal.code_files import (
    is_generated,
    is_library,
    is_program,
    programs_frame,
    waits_for_input,
)
from disttrace.journal.format import COLLECTIVE, ON_DEVICE
from disttrace_viewer.trace.model import Call, JobTrace, Stream
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame, Process, Stack, StackSample
from disttrace_viewer.trace.values import dataclass, field, replace, together

CollectiveSequence = Sequence[tuple[int, Call]]
"""Sequence number and call of every collective of a process in a stream, by number."""
MessageStream = tuple[int | None, int | None, int | None, int | None]
"""Group, source, destination (group ranks) and tag (None where the backend ignores it)."""

BUILDING = ("init_process_group", "rendezvous", "new_group", "split_group")
"""Composed operations, by how their names begin, in which processes come together."""
STORES = ("TCPStore", "FileStore", "HashStore")
"""Constructors of stores."""
BATCHES = ("batch_isend_irecv", "coalescing_manager")
"""Composed operations around what is launched as one: the latter stands in the former on NCCL."""
SETTERS = (
    "store.set",
    "store.add",
    "store.compare_set",
    "store.append",
    "store.multi_set",
    "store.queue_push",
)
STAND_IN = -1
"""Number of an operation that is only known to be over: its process has begun later ones."""


@dataclass(frozen=True)
class Sample:
    """Kept operations by process and number; ``counts`` has how many there were."""

    ops: tuple[Op, ...]
    counts: Mapping[int, int]
    """Operations of each process, kept or not."""
    longest: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """The longest wait that ended well, in ns, by process and call, where one is waited in."""
    active: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """When each thread (process, number) last began, went on with or ended anything, unix ns."""
    refused: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Sequence numbers that collectives would have taken which raised in their call."""
    courses: Mapping[tuple[int, Stream], tuple[int, int, int]] = field(default_factory=dict)
    """By process and stream the newest number, and a hash of call sites up to it, and before it."""
    history: Mapping[tuple[int, Stream], CollectiveSequence] = field(default_factory=dict)
    """All collectives by process and stream, where that was queried."""
    exact: Set[tuple[int, Stream]] = frozenset()
    """Those of ``history`` whose calls have their own arguments; they may begin at any number."""
    queues: Mapping[tuple[int, int, str], tuple[int, int]] = field(default_factory=dict)
    """Pushes and finished pops by process, store and key without prefixes."""
    reported: Mapping[int, Mapping[int, Sequence[int]]] = field(default_factory=dict)
    """By group and rank in it the ranks there that wait with it (``JobTrace.reported``)."""

    @cached_property
    def of_process(self) -> Mapping[int, tuple[Op, ...]]:
        """The kept operations of each process that has any, by number."""
        found = together((op.process, op) for op in self.ops)
        return {process: tuple(kept) for process, kept in found.items()}

    def get(self, process: int, number: int | None) -> Op | None:
        """A kept operation; None for others."""
        return None if number is None else self._by_id.get((process, number))

    @cached_property
    def _by_id(self) -> Mapping[tuple[int, int], Op]:
        return {op.id: op for op in self.ops}

    def in_stream(self, process: int, stream: Stream) -> list[Op]:
        """The kept collectives of a process in a stream, by their number in the process."""
        kept = self.of_process.get(process, ())
        return [op for op in kept if op.call.kind == COLLECTIVE and op.call.stream == stream]

    def around(self, op: Op) -> Op | None:
        """The composed operation of which one is a part; None where there is none, or not kept."""
        return self.get(op.process, op.parent)

    @cached_property
    def _of_kinds(self) -> dict[str, list[Op]]:
        return together((op.call.kind, op) for op in self.ops)

    def of_kind(self, *kinds: str) -> Sequence[Op]:
        """The kept operations of some kinds, by process and number."""
        if len(kinds) == 1:
            return self._of_kinds.get(*kinds, ())
        return [op for op in self.ops if op.call.kind in kinds]

    @cached_property
    def pending(self) -> tuple[Op, ...]:
        """Operations begun and not known to be over, by process and number."""
        return tuple(op for op in self.ops if op.pending)

    # -- who is in what -----------------------------------------------------------------------

    @cached_property
    def streams(self) -> Mapping[Stream, Mapping[int, tuple[Op, ...]]]:
        """Kept collectives of each stream by group rank, by sequence number."""
        found = together(
            ((op.call.stream, op.call.group_rank), op)
            for op in self.of_kind(COLLECTIVE)
            if op.seq is not None
        )
        kept: dict[Stream, dict[int, tuple[Op, ...]]] = {}
        for (stream, rank), ops in found.items():
            if rank is not None:
                kept.setdefault(stream, {})[rank] = tuple(sorted(ops, key=lambda op: op.seq or 0))
        for (group, _), ranks in kept.items() if self.reported else ():
            for one, others in self.reported.get(-1 if group is None else group, {}).items():
                if one in ranks:
                    ranks.update(dict.fromkeys(others, ranks[one]))
        return kept

    def members(self, stream: Stream, seq: int) -> dict[int, Op]:
        """Who has begun a collective, by group rank: who has begun a later one has begun it too."""
        kept = self.streams.get(stream, {}).items()
        return {rank: stand_in(of, seq) for rank, of in kept if (of[-1].seq or 0) >= seq}

    @cached_property
    def message_streams(self) -> Mapping[tuple[str, MessageStream], tuple[Op, ...]]:
        """Kept messages by side (``send`` or ``recv``) and stream, by sequence number."""
        found = together(
            ((op.call.op, stream), op)
            for op in self.of_kind("message")
            if (stream := message_stream(op)) is not None and op.seq is not None
        )
        return {key: tuple(sorted(ops, key=lambda op: op.seq or 0)) for key, ops in found.items()}

    @cached_property
    def tags(
        self,
    ) -> Mapping[tuple[str, int | None, int | None, int | None], Sequence[int | None]]:
        """The tags of kept messages by side, group, source and destination."""
        return together(((side, *stream[:3]), stream[3]) for side, stream in self.message_streams)

    def other_end(self, op: Op) -> Op | None:
        """The other end of a message, or a stand-in that is over; None if it was not begun."""
        stream = message_stream(op)
        side = "recv" if op.call.op == "send" else "send"
        kept = () if stream is None else self.message_streams.get((side, stream), ())
        if op.seq is None or not kept or (kept[-1].seq or 0) < op.seq:
            return None
        return stand_in(kept, op.seq)

    def partners(self, op: Op) -> list[Op]:
        """What others have begun of the exchange of a collective or a message, or stand-ins."""
        if op.call.kind == COLLECTIVE and op.seq is not None:
            here = self.members(op.call.stream, op.seq).values()
            return [one for one in here if one.process != op.process]
        other = self.other_end(op)
        return [] if other is None else [other]


def stand_in(kept: Sequence[Op], seq: int) -> Op:
    """The kept operation of a number; else a stand-in that was over before the next kept one."""
    later = next(op for op in kept if (op.seq or 0) >= seq)
    if later.seq == seq:
        return later
    return replace(
        later,
        number=STAND_IN,
        seq=seq,
        error=None,
        refused=False,
        issued_ns=None,
        wait_begin_ns=None,
        complete_ns=None,
        end_ns=later.begin_ns,
    )


def message_stream(op: Op) -> MessageStream | None:
    """The stream of a message; None for what is none, or for a source that is not known yet."""
    call = op.call
    if call.kind != "message" or call.group_rank is None or op.peer is None:
        return None
    tag = None if call.backend in ON_DEVICE else call.tag
    ends = (call.group_rank, op.peer) if call.op == "send" else (op.peer, call.group_rank)
    return (call.group, *ends, tag)


Site = tuple[str, Stack | Frame | None]
"""Operation and stack of a call, or the user's line: what makes two calls the same one."""


@functools.lru_cache(1024)  # of thousands of ranks most are at one line
def innermost(stack: Stack) -> Frame | None:
    """The innermost frame of the user's program, as far as files tell (``programs_frame``)."""
    at = programs_frame([one.file for one in stack])
    return None if at is None else stack[at]


def inside(stack: Stack) -> Frame | None:
    """The innermost frame, where that is not the user's own: what it called."""
    first = next((one for one in stack if not one.file.startswith("<frozen ")), None)
    return None if first is None or first == innermost(stack) else first


def frame(op: Op) -> Frame | None:
    """The user's line that called, or that waits for the thread that did; None without one."""
    return innermost(op.awaited_at or op.call.stack)


Lines = Mapping[tuple[str, str], Set[int]]
"""By file and function of the program the lines at which operations were called."""


def lines_of(found: Iterable[Op]) -> Lines:
    """All frames of their stacks, each stack once."""
    lines: dict[tuple[str, str], set[int]] = {}
    for stack in {op.call.stack for op in found}:
        for one in stack:
            if is_program(one.file):
                lines.setdefault((one.file, one.function), set()).add(one.line)
    return lines


def branch(op: Op, others: Lines) -> Frame | None:
    """The line of a caller at which an operation parted from others: the innermost that is not
    theirs, where they came from its own line; else that of a function which made theirs by another
    of its lines. None where that is its own line, or nothing tells.
    """
    own = frame(op)
    shared = own is not None and own.line in others.get((own.file, own.function), ())
    for one in op.call.stack:
        lines = others.get((one.file, one.function)) if is_program(one.file) else None
        if shared and is_program(one.file) and one.line not in (lines or ()):
            return one
        if not shared and lines is not None:
            return None if one.line in lines or one == own else one
    return None


def site(call: Call) -> Site:
    """Where a call was made; of generated code, which has other names and lines on each rank, the
    user's line that called it."""
    return call.named, innermost(call.stack) if is_of_generated(call) else call.stack


def is_of_generated(call: Call) -> bool:
    """Whether code that was made while the program ran called, or handed the call on."""
    return any(is_generated(one.file) for one in call.stack if one.file[:8] != "<frozen ")


_MAIN = 0
"""The number of the thread that opened the journal."""


def latest_samples(
    trace: JobTrace, active: Mapping[tuple[int, int], int], at_work: Mapping[int, Set[int]]
) -> Mapping[int, StackSample]:
    """By process: the latest note of its main thread, if it is newer than all that thread did.

    Without one, any other thread's that holds by the same rule; where the main one only waits (for
    the thread that communicates, for input) or runs nothing of the program, that thread's.
    ``active``: when each thread last did anything; ``at_work``: which take part in collectives and
    messages.
    """
    if not any(process.latest_samples for process in trace.processes):
        return {}
    found = {}
    for process in trace.processes:
        holding = {
            thread: sample
            for thread, sample in process.latest_samples.items()
            if sample.stack and sample.t_ns >= active.get((process.index, thread), 0)
        }
        if _MAIN in process.latest_samples:
            chosen = _communicating(holding, at_work.get(process.index, frozenset()))
            holding = {thread: one for thread, one in holding.items() if thread == chosen}
        if holding:
            found[process.index] = next(iter(holding.values()))
    return found


def awaited(op: Op, process: Process) -> Op:
    """The operation, with where the main thread waits for its thread, if that is a library's."""
    if op.thread == _MAIN or op.end_ns is not None or _in_program(op.call.stack):
        return op
    main = process.latest_samples.get(_MAIN)
    if main is None or main.t_ns < op.begin_ns or not main.stack:
        return op
    waits = _in_program(main.stack) and _waits_for_thread(main.stack)
    return replace(op, awaited_at=main.stack) if waits else op


def _communicating(holding: Mapping[int, StackSample], at_work: Set[int]) -> int:
    """The thread that communicates, if the main one waits for it, or it is a library's."""
    main = holding.get(_MAIN)
    if main is None or _MAIN in at_work:
        return _MAIN
    inner = main.stack[0]
    waits = waits_for_input(inner.file, inner.function) or _waits_for_thread(main.stack)
    if _in_program(main.stack) and not waits:
        return _MAIN
    inside = (t for t in sorted(at_work & holding.keys()) if _in_program(holding[t].stack))
    return next(inside, _MAIN)


def _waits_for_thread(stack: Stack) -> bool:
    inner = stack[0]
    return inner.file.endswith(("/threading.py", "/selectors.py")) and is_library(inner.file)


def _in_program(stack: Stack) -> bool:
    found = innermost(stack)
    return found is not None and not is_library(found.file)
