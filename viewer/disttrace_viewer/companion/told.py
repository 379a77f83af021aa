"""What companions tell each other of their processes: states, and what each host's kernel says.

A state is about two kilobytes packed, with the stacks of its threads; ``MOST_STATE`` bounds it
where a process has hundreds of operations in flight. Here is also whom to ask: whether the journals
at hand are of all ranks, and the stores through which the others can be reached.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from disttrace.journal.format import is_of_job, is_own
from disttrace_viewer.analysis.liveness import Look, Seen, look
from disttrace_viewer.companion.channel.places import Address, stores
from disttrace_viewer.companion.channel.rounds import Answer
from disttrace_viewer.companion.reading.journals import mark_of, mark_of_like, marks_of
from disttrace_viewer.companion.telling import answers
from disttrace_viewer.companion.telling.believed import believed
from disttrace_viewer.companion.telling.public import hushed, known_files, public, revealed
from disttrace_viewer.companion.telling.quiet import without_quiet
from disttrace_viewer.companion.telling.words import known_words
from disttrace_viewer.load.definitions import number_in
from disttrace_viewer.load.discover import named
from disttrace_viewer.load.files import modified_ns
from disttrace_viewer.states import folder
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.form.alike import Like, Position, pending
from disttrace_viewer.states.form.state import Row, State, encoded
from disttrace_viewer.states.merged import Merged
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Process

MOST_STATE = 8 << 10
"""Bytes of a packed state; of a longer one half of the operations are told, and so on."""
MOST_WHOLE = 64 << 10
"""Of one that was asked for by itself, with the order of its collectives."""
MOST_BESIDE = 256
"""So many of the newest journals in the folder are looked at for processes of the same job."""


@dataclass(frozen=True, slots=True)
class Told:
    """What others told: their states, and what their kernels say of each process by its id."""

    states: tuple[State, ...] = ()
    seen: Mapping[str, Seen] = field(default_factory=dict)
    senders: Mapping[str, str] = field(default_factory=dict)
    """By process who told of it."""
    likes: Mapping[str, tuple[Like, ...]] = field(default_factory=dict)
    """By process who stands where it does."""

    def look(self, process: Process) -> Seen:
        """What is known of a process: by its own host, else by this one."""
        found = self.seen.get(process.id)
        return look(process) if found is None else found

    @property
    def merged(self) -> Merged:
        """All of them."""
        return Merged({state.id: state for state in self.states}, likes=self.likes)

    @property
    def ids(self) -> set[str]:
        """Of all processes that were told of."""
        return {state.id for state in self.states} | {
            like.id for found in self.likes.values() for like in found
        }

    @property
    def marks(self) -> set[tuple[str, ...]]:
        """What names of their journals have of them all."""
        likes = (like for found in self.likes.values() for like in found)
        return {*marks_of(self.states), *map(mark_of_like, likes)}


def packed(
    merged: Merged, see: Look = look, *, most: int = MOST_STATE, whole: bool = True
) -> bytes:
    """The states of our processes as bytes, and whether these live; ``most`` bytes of each.

    ``whole``: not only what anybody may know.
    """
    trace, _ = trace_of(merged)
    seen = {p.id: see(p) for p in trace.processes}
    folds = most == MOST_STATE
    asked = without_quiet(merged.states.values(), seen) if folds else merged.states.values()
    states = [_bounded(state, most) for state in asked]
    told = states if whole else map(public, states)
    return answers.packed(map(Position, told), seen, folds=folds)


def in_public(data: bytes) -> bytes:
    """What was packed, without what only those may know who have shown that they are of our job."""
    try:
        positions, seen = answers.unpacked(data)
        told = [Position(public(one.state), hushed(one.likes)) for one in positions]
        return answers.packed(told, seen, folds=False)
    except answers.WRONG:
        return b""


def unpacked(told: Iterable[Answer], local: Merged) -> Told:
    """All answers in one. What is none of ours is left out, with the one who told it; so is what
    two tell of one process, unless one of them alone has shown that it is of our job.
    """
    words = known_words(local.states.values())
    files = known_files(local.states.values())
    rows = believed(told)
    kernels = {one: row.seen for one, row in rows.items() if row.seen is not None}
    states: list[State] = []
    seen: dict[str, Seen] = {}
    senders: dict[str, str] = {}
    likes: dict[str, tuple[Like, ...]] = {}
    for position in answers.alike((row.position for row in rows.values()), kernels):
        one = position.state.id
        kernel = {one: kernels[one]} if one in kernels else {}
        known = local.states.get(one)
        if known is None:
            states.append(revealed(position.state, words, files))
            senders[one] = position.sender
            seen |= kernel
        if known is None or pending(known) == pending(position.state):
            also = tuple(like for like in position.likes if like.id not in local.states)
            likes |= {one: also} if also else {}
            senders |= {like.id: like.sender for like in also}
            seen |= {like.id: kernel[one] for like in also if kernel}
    return Told(tuple(states), seen, senders, likes)


def together(told: Sequence[Answer]) -> bytes:
    """What several told as one answer, those that are alike in one."""
    rows = believed(told)
    seen = {one: row.seen for one, row in rows.items() if row.seen is not None}
    return answers.packed((row.position for row in rows.values()), seen)


def _bounded(state: State, most: int) -> State:
    if state.history and len(_bytes(state)) > most:
        state = replace(state, history=[])
    while len(_bytes(state)) > most and len(state.ops) > 1:
        ops = state.ops
        kept = ops[-(len(ops) // 2) :]
        calls = {row[Row.CALL] for row in kept}
        numbered = state.numbered
        table = {n: c for n, c in numbered["call"].items() if n in calls}
        state = replace(
            state,
            ops=kept,
            numbered={**numbered, "call": table},
            read=min(state.read, state.size - 1),  # not in full: nothing is certain by it
        )
    return state


def _bytes(state: State) -> bytes:
    return zlib.compress(encoded(state), 1)


def unknown_ranks(trace: Trace) -> tuple[int, ...]:
    """Ranks of the job of which no journal is at hand."""
    world = max(_worlds(trace), default=0)
    known = {*_ranks(trace), *trace.told_of}
    return tuple(rank for rank in range(world) if rank not in known)


def _ranks(trace: Trace) -> list[int]:
    return [p.rank for p in trace.processes if p.rank is not None and not p.is_agent]


def _worlds(trace: Trace) -> Iterable[int]:
    for process in trace.processes:
        if process.world_size is not None:
            yield process.world_size
        elif not process.is_agent:
            yield number_in(process.env.get("WORLD_SIZE"), "size") or 0
    for group in trace.groups:
        if group.default and group.size is not None:
            yield group.size


def is_alone(trace: Trace) -> bool:
    """Whether there may be processes of the job of which no journal is at hand."""
    return bool(unknown_ranks(trace)) or not _ranks(trace)


def addresses(merged: Merged, processes: Sequence[Process]) -> list[Address]:
    """TCPStores of ``processes``: see ``stores``."""
    tables = {p.id: merged.states[p.id].numbered for p in processes if p.id in merged.states}
    return stores((tables.get(p.id, {}), p.env, p.is_agent) for p in processes)


def order(trace: Trace) -> int:
    """The place of our best speaker: the lowest rank, and before it the agent that started it."""
    agents = any(p.is_agent for p in trace.processes)
    lowest = min(_ranks(trace), default=1 << 30)
    return 2 * lowest + (0 if agents else 1)


def beside(root: str, job: str, local: Merged, told: Told) -> list[State]:
    """Of those who use a store of ours and have told nothing: the states, by journals that lie in
    the folder of all under another job's name than ``job``.

    Bare processes have no launcher that names their job, so each draws a name and has a companion
    of its own, and no folder of its own for journals. One that is stopped, or holds the GIL, or
    whose store's server is, answers nobody. What another user put into the folder is not read.
    """
    trace, _ = trace_of(local)
    ours = _meet_at(local, trace.processes)
    if not ours:
        return []
    known = {*local.states, *told.ids}
    began = min((p.start_ns for p in trace.processes), default=0)
    marks = {*marks_of(local.states.values()), *told.marks}
    found = named(entry.path for entry in os.scandir(root) if not is_of_job(entry.name, job))
    newest = sorted(
        (modified_ns(one.definitions), one.base, one) for one in found if one.definitions
    )
    files = [one for at_ns, base, one in newest if at_ns >= began and mark_of(base) not in marks]
    files = [one for one in files[-MOST_BESIDE:] if all(map(is_own, one.paths))]
    others = folder.of_journals(files, window=WINDOW) if files else Merged({})
    return [
        others.states[process.id]
        for process in trace_of(others)[0].processes
        if process.id not in known and ours & _meet_at(others, [process])
    ]


def _meet_at(merged: Merged, processes: Sequence[Process]) -> set[Address | str]:
    """Where processes meet others: their TCPStores, and the files of their FileStores."""
    tables = (merged.states[p.id].numbered for p in processes if p.id in merged.states)
    known = (store for table in tables for store in table.get("store", {}).values())
    paths = (store.get("path") for store in known)
    return {*addresses(merged, processes), *(path for path in paths if isinstance(path, str))}
