"""What of a job is in no journal that was read: what is in no record may have happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from disttrace.journal.format import HEARTBEAT_NS, UNINSTALLED
from disttrace_viewer.analysis.process_ends import MISSED_NS
from disttrace_viewer.analysis.sample import Sample
from disttrace_viewer.trace.model import Group, Trace
from disttrace_viewer.trace.operation import SYNCHRONIZING, Op
from disttrace_viewer.trace.process import JOURNAL, Exit, Process

REAL = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")
"""Backends of which that is true; ``fake`` completes alone."""
FAKE = "fake"
ORDERLY = ("normal", "exit")
"""Ways to leave in which no call of the main thread is left without an end."""
SLACK = 1
"""Numbers by which a member may seem behind: its last record may be on its way to the disk."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Which journals lack something."""

    lost: Mapping[int, tuple[str, ...]]
    """By process: sentences about what is lost of its journal."""
    absent: tuple[int, ...]
    """Ranks of default groups of which no journal tells."""
    nameless: frozenset[int]
    """Processes of which it is unknown which member of the default group they were."""
    ranks: frozenset[int]
    """Ranks of the processes that lack something."""


def gaps_of(trace: Trace, sample: Sample) -> Gaps:
    """What is missing, by the journals' own account and by that of their peers."""
    lost = {p.index: p.losses for p in trace.processes if p.losses}
    for process, sentence in (*_behind(trace, sample), *_unended(trace, sample)):
        lost.setdefault(process, (sentence,))
    members = {m.process for group in trace.groups if group.default for m in group.members}
    # One that bears a rank that another bears too, and by its records joined as neither, may
    # have been any.
    bearers = Counter((p.attempt, p.rank) for p in trace.processes if not p.is_agent)
    named = {
        p.index
        for p in trace.processes
        if p.is_agent or (p.rank is not None and bearers[p.attempt, p.rank] == 1)
    }
    return Gaps(
        lost=lost,
        absent=missing_ranks(trace),
        nameless=frozenset(lost) - members - named,
        ranks=frozenset(r for p in lost if (r := trace.processes[p].rank) is not None),
    )


def missing_ranks(trace: Trace) -> tuple[int, ...]:
    """Ranks of default groups of which there is no journal, or none that states whose it is.

    Of a dry run (``fake``) there is one process, whatever the size of its group.
    """
    found: set[int] = set()
    for group in trace.groups:
        if group.default and {*group.backends.values()} != {FAKE}:
            ranks = (group.ranks or range(group.size or 0))[: group.size]
            places = (m.rank for m in group.members if m.rank is not None)
            named = {*ranks} - {ranks[at] for at in places if at < len(ranks)} - trace.elsewhere
            found |= named - _of_other_size(trace, group) if named else named
    return tuple(sorted(found))


def _of_other_size(trace: Trace, group: Group) -> set[int]:
    """Ranks of those who meet for it at the same place, but take the world for larger or smaller:
    they are in another group by that, and their journals are there.
    """
    here = (group.place, group.prefix, _tries(trace, group))
    return {
        member.rank
        for other in trace.groups
        if other.default
        and other.place is not None
        and other.size != group.size
        and (other.place, other.prefix, _tries(trace, other)) == here
        for member in other.members
        if member.rank is not None
    }


def _tries(trace: Trace, group: Group) -> set[int | None]:
    """The attempts that a group is of."""
    return {trace.processes[member.process].attempt for member in group.members}


def _behind(trace: Trace, sample: Sample) -> Iterator[tuple[int, str]]:
    """Members that must have begun what others completed with them, but have no record of it."""
    for (number, backend), members in sample.streams.items():
        if number is None or backend not in REAL:
            continue
        group = trace.groups[number]
        done = max(map(_completed, members.values()))
        for member in group.members:
            one, kept = trace.processes[member.process], members.get(member.rank or 0, ())
            last = kept[-1].seq or 0 if kept else 0
            if member.rank is not None and last + SLACK < done and not _silent(one):
                name = "the default group" if group.default else f"group {group.name}"
                what = f"its journal ends at #{last:,} of {name}, but others completed #{done:,}"
                yield one.index, f"{one.label}: {what} with it; what it did since is not known."


def _unended(trace: Trace, sample: Sample) -> Iterator[tuple[int, str]]:
    """Processes that exited normally while, by their journal, the main thread was in a call."""
    for op in sample.pending:
        one = trace.processes[op.process]
        held = op.thread == 0 and op.issued_ns is None and op.call.asynchronous is not True
        if held and one.exit is not None and one.exit.how in ORDERLY and op.call.origin != "c++":
            if _interrupted(one, one.exit, op):
                continue
            what = f"its journal lacks the end of {op.call.op}, after which it left"
            yield one.index, f"{one.label}: {what}; what it did since is not known."


def _interrupted(one: Process, last: Exit, op: Op) -> bool:
    """Whether a signal's exception took it out of the call: it left with an error, and its journal,
    where heartbeats went on after the begin and nearly to the end, can have lost nothing else.
    """
    beat_ns = one.heartbeat_ns or 0
    badly = bool(last.causes) or last.code not in (None, 0)
    return badly and beat_ns - op.begin_ns > HEARTBEAT_NS and last.t_ns - beat_ns < MISSED_NS


def _completed(kept: tuple[Op, ...]) -> int:
    """The last number of a stream that a member completed when all others had to be in it."""
    done = 0
    for op in kept:
        if op.pending or op.error is not None or op.seq is None:
            break  # kept, as all are that are not over; those between are over
        if op.call.op in SYNCHRONIZING:
            done = op.seq
    return done


def _silent(process: Process) -> bool:
    """Whether it reported itself that it records no more, or its evidence is of one moment of its
    own, as a dump is; or nothing is known of its journal but which one it is like.
    """
    if process.source != JOURNAL or not process.paths:
        return True
    return process.exit is not None and process.exit.how == UNINSTALLED
