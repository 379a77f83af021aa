"""What companions tell each other of their processes: states, and what each host's kernel says.

A state is about two kilobytes packed, with the stacks of its threads; ``MOST_STATE`` bounds it
where a process has hundreds of operations in flight. Here is also whom to ask: whether the journals
at hand are of all ranks, and the stores through which the others can be reached.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from disttrace.journal.format import is_of_job, is_own
from disttrace_viewer.analysis.liveness import Look, Seen, look
from disttrace_viewer.companion.channel.places import Address, stores
from disttrace_viewer.companion.channel.rounds import Answer
from disttrace_viewer.companion.reading.journals import mark_of
from disttrace_viewer.companion.telling.public import known_files, public, revealed
from disttrace_viewer.companion.telling.sound import sound
from disttrace_viewer.companion.telling.words import known_words
from disttrace_viewer.load.definitions import number_in
from disttrace_viewer.load.discover import named
from disttrace_viewer.states import folder
from disttrace_viewer.states.merged import Merged, trace_of
from disttrace_viewer.states.packed import rating
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import State, StateError, inflated
from disttrace_viewer.trace.model import Process, Trace

MOST_STATE = 8 << 10
"""Bytes of a packed state; of a longer one half of the operations are told, and so on."""
MOST_WHOLE = 64 << 10
"""Of one that was asked for by itself, with the order of its collectives."""
MOST_PROCESSES = 1_024
"""Of one host."""
MOST_BESIDE = 256
"""So many of the newest journals in the folder are looked at for processes of the same job."""


@dataclass(frozen=True, slots=True)
class Told:
    """What others told: their states, and what their kernels say of each process by its id."""

    states: tuple[State, ...] = ()
    seen: Mapping[str, Seen] | None = None
    senders: Mapping[str, str] | None = None
    """By process who told of it."""

    def look(self, process: Process) -> Seen:
        """What is known of a process: by its own host, else by this one."""
        found = (self.seen or {}).get(process.id)
        return look(process) if found is None else found


def packed(
    merged: Merged, see: Look = look, *, most: int = MOST_STATE, whole: bool = True
) -> bytes:
    """The states of our processes as bytes, and whether these live; ``most`` bytes of each.

    ``whole``: not only what anybody may know.
    """
    trace, _ = trace_of(merged)
    seen = {p.id: (s.alive, s.code, s.state) for p in trace.processes for s in [see(p)]}
    states = [_bounded(state, most) for state in merged.states.values()]
    return _packed(states if whole else [public(_as_told(s)) for s in states], seen)


def in_public(data: bytes) -> bytes:
    """What was packed, without what only those may know who have shown that they are of our job."""
    try:
        told = orjson.loads(inflated(data))
        return _packed([public(sound(state)) for state in told["states"]], told["seen"])
    except _WRONG:
        return b""


def _packed(states: Sequence[State], seen: Mapping[str, Any]) -> bytes:
    told = {"states": states, "seen": seen}
    return zlib.compress(orjson.dumps(told, option=orjson.OPT_NON_STR_KEYS), 6)


def _as_told(state: State) -> State:
    found: State = orjson.loads(orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS))
    return found


def unpacked(answers: Iterable[Answer], local: Merged) -> Told:
    """All answers in one. What is none of ours is left out, with the one who told it; so is what
    two tell of one process, unless one of them alone has shown that it is of our job.
    """
    words = known_words(local.states.values())
    files = known_files(local.states.values())
    told: dict[str, list[tuple[Answer, State, Seen | None]]] = {}
    for answer in answers:
        try:
            states, seen = _one(answer)
        except _WRONG:
            continue  # of another version, or no answer at all: its ranks are not known then
        for state in states:
            if state["id"] not in local.states:
                row = (answer, revealed(state, words, files), seen.get(state["id"]))
                told.setdefault(state["id"], []).append(row)
    believed = [one for rows in told.values() for one in _believed(rows)]
    return Told(
        tuple(state for _, state, _ in believed),
        {state["id"]: seen for _, state, seen in believed if seen is not None},
        {state["id"]: answer.sender for answer, state, _ in believed},
    )


def _one(answer: Answer) -> tuple[list[State], dict[str, Seen]]:
    """The states of an answer, and what is said of their processes. Raises one of ``_WRONG``."""
    if not answer.data:
        return [], {}
    told = orjson.loads(inflated(answer.data))
    if len(told["states"]) > MOST_PROCESSES:
        raise StateError("is of more processes than a host has")
    states = [sound(state) for state in told["states"]]
    seen = {}
    for state in states:
        if (word := told["seen"].get(state["id"])) is not None:
            alive, code, letter = word
            fits = (type(alive) in (bool, type(None)), type(code) in (int, type(None)))
            if not all(fits) or not (letter is None or (type(letter) is str and len(letter) < 64)):
                raise StateError("says nothing of a process that a kernel says")
            seen[state["id"]] = Seen(alive, code, letter)
    return states, seen


_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""StateError and what reading JSON of anybody's may raise."""


_Row = tuple[Answer, State, Seen | None]


def _believed(rows: Sequence[_Row]) -> Sequence[_Row]:
    """Of what is told of one process; of a host whose companion was replaced the newest counts."""
    known = [row for row in rows if row[0].known]
    if known:
        return [max(known, key=lambda row: rating(row[1]))]
    return rows if len(rows) == 1 else ()


def _bounded(state: State, most: int) -> State:
    if "history" in state and len(_bytes(state)) > most:
        state = {**state, "history": []}
    while len(_bytes(state)) > most and len(state["ops"]) > 1:
        ops = state["ops"]
        kept = ops[-(len(ops) // 2) :]
        calls = {row[1] for row in kept}
        numbered = state["numbered"]
        table = {n: c for n, c in numbered["call"].items() if int(n) in calls}
        state = {
            **state,
            "ops": kept,
            "numbered": {**numbered, "call": table},
            "read": min(state["read"], state["size"] - 1),  # not in full: nothing is certain by it
        }
    return state


def _bytes(state: State) -> bytes:
    return zlib.compress(orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS), 1)


def unknown_ranks(trace: Trace) -> tuple[int, ...]:
    """Ranks of the job of which no journal is at hand."""
    world = max(_worlds(trace.processes, trace), default=0)
    known = {p.rank for p in trace.processes if p.role != "agent" and p.rank is not None}
    return tuple(rank for rank in range(world) if rank not in known)


def _worlds(processes: Sequence[Process], trace: Trace) -> Iterable[int]:
    for process in processes:
        if process.world_size is not None:
            yield process.world_size
        elif process.role != "agent":
            yield number_in(process.env.get("WORLD_SIZE"), "size") or 0
    for group in trace.groups:
        if group.default and group.size is not None:
            yield group.size


def is_alone(trace: Trace) -> bool:
    """Whether there may be processes of the job of which no journal is at hand."""
    workers = [p for p in trace.processes if p.role != "agent" and p.rank is not None]
    return bool(unknown_ranks(trace)) or not workers


def addresses(merged: Merged, processes: Sequence[Process]) -> list[Address]:
    """TCPStores of ``processes``: see ``stores``."""
    tables = {p.id: merged.states[p.id]["numbered"] for p in processes if p.id in merged.states}
    return stores((tables.get(p.id, {}), p.env, p.role == "agent") for p in processes)


def order(trace: Trace) -> int:
    """The place of our best speaker: the lowest rank, and before it the agent that started it."""
    ranks = [p.rank for p in trace.processes if p.role != "agent" and p.rank is not None]
    agents = any(p.role == "agent" for p in trace.processes)
    lowest = min(ranks, default=1 << 30)
    return 2 * lowest + (0 if agents else 1)


def beside(directory: str, job: str, local: Merged, told: Iterable[State]) -> list[State]:
    """Of those who use a store of ours and have told nothing: the states, by journals that lie in
    the same folder under another job's name than ``job``.

    Bare processes have no launcher that names their job, so each draws a name and has a companion
    of its own. One that is stopped, or holds the GIL, or whose store's server is, answers nobody.
    What another user put into the folder is not read.
    """
    trace, _ = trace_of(local)
    ours = set(addresses(local, trace.processes))
    if not ours:
        return []
    told = [*told]
    known = {*local.states, *(state["id"] for state in told)}
    began = min((p.start_ns for p in trace.processes), default=0)
    marks = {mark_of(state["base"]) for state in (*local.states.values(), *told)}
    found = named(entry.path for entry in os.scandir(directory) if not is_of_job(entry.name, job))
    newest = sorted(
        (_modified_ns(one.definitions), one.base, one) for one in found if one.definitions
    )
    files = [one for at_ns, base, one in newest if at_ns >= began and mark_of(base) not in marks]
    files = [one for one in files[-MOST_BESIDE:] if all(map(is_own, one.paths))]
    others = folder.of_journals(files, window=WINDOW) if files else Merged({})
    return [
        others.states[process.id]
        for process in trace_of(others)[0].processes
        if process.id not in known and ours & set(addresses(others, [process]))
    ]


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0  # it was taken away meanwhile
