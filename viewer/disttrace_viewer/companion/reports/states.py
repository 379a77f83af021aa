"""The states of a host's processes as it sends them, and what is believed of those that came.

``states`` in their public form, and ``seen``: by process what its kernel says. A state is about two
kilobytes packed; what all hosts send for one verdict is bounded as text too, before it is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from disttrace_viewer.analysis.liveness import Look, Seen, look
from disttrace_viewer.companion.hub.station import Answer
from disttrace_viewer.companion.reading.journals import marks_of
from disttrace_viewer.companion.reports.public import known_files, known_words, public, revealed
from disttrace_viewer.companion.reports.sound import sound
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.merged import Merged, WaitsWith
from disttrace_viewer.states.state import Row, State, StateError, encoded, inflated
from disttrace_viewer.trace.process import Process

MOST_STATE = 8 << 10
"""Bytes of a packed state; of a longer one half of the operations are sent, and so on."""
MOST_WHOLE = 64 << 10
"""Of one that was requested by itself, with the order of its collectives."""
MOST_STATES = 1 << 12
"""Processes of one host."""
MOST_TEXT, MOST_TEXT_OF_ALL = 16 << 20, 64 << 20
"""Bytes of what one host sent, unpacked, and of what all did."""
WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""StateError, and what reading JSON of anybody's may raise."""


@dataclass(frozen=True, slots=True)
class Received:
    """What other hosts sent: states, and what their kernels say of each process by its id."""

    states: tuple[State, ...] = ()
    seen: Mapping[str, Seen] = field(default_factory=dict)
    senders: Mapping[str, str] = field(default_factory=dict)
    """By process whose companion sent its state."""
    reported: tuple[WaitsWith, ...] = ()
    """Ranks of further hosts, by these hosts' summaries."""
    elsewhere: frozenset[int] = frozenset()
    """All ranks of those."""
    hosts: frozenset[str] = frozenset()
    """Those hosts, as names of journals have them."""

    def look(self, process: Process) -> Seen:
        """What is known of a process: by its own host, else by this one."""
        found = self.seen.get(process.id)
        return look(process) if found is None else found

    @property
    def merged(self) -> Merged:
        """All states."""
        states = {state.id: state for state in self.states}
        return Merged(states, reported=self.reported, elsewhere=self.elsewhere)

    @property
    def ids(self) -> set[str]:
        """Of all processes of which a state came."""
        return {state.id for state in self.states}

    @property
    def marks(self) -> set[tuple[str, ...]]:
        """What names of their journals have of them."""
        return marks_of(self.states)


def packed(merged: Merged, see: Look = look, *, most: int = MOST_STATE) -> bytes:
    """The states of our processes, and whether these live; ``most`` bytes of each."""
    trace, _ = trace_of(merged)
    seen = {p.id: see(p) for p in trace.processes}
    found = {
        "states": [public(_bounded(state, most)).values() for state in merged.states.values()],
        "seen": {one: (kernel.alive, kernel.code, kernel.state) for one, kernel in seen.items()},
    }
    return zlib.compress(orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS), 6)


def unpacked(answers: Iterable[Answer], local: Merged, *, proved: bool = False) -> Received:
    """All answers in one. One that cannot be read costs only its sender; what is sent of processes
    of this host is not believed, nor what two send of one process, unless all have ``proved`` to be
    of the job: then a companion was replaced, and the newer state counts.
    """
    words = known_words(local.states.values())
    files = known_files(local.states.values())
    found: dict[str, list[tuple[State, Seen | None, str]]] = {}
    rest = MOST_TEXT_OF_ALL
    for answer in answers:
        try:
            text = inflated(answer.data, min(MOST_TEXT, rest)) if answer.data else b""
            states, seen = _read(text) if text else ([], {})
        except WRONG:
            continue  # of another version, or no answer at all: its ranks are not known then
        rest -= len(text)
        for state in states:
            if state.id not in local.states:
                row = (state, seen.get(state.id), answer.sender)
                found.setdefault(state.id, []).append(row)
    believed = {
        one: max(rows, key=lambda row: row[0].rating)
        for one, rows in found.items()
        if proved or len(rows) == 1
    }
    return Received(
        tuple(revealed(state, words, files) for state, _, _ in believed.values()),
        {one: kernel for one, (_, kernel, _) in believed.items() if kernel is not None},
        {one: sender for one, (_, _, sender) in believed.items()},
    )


def _read(text: bytes) -> tuple[list[State], dict[str, Seen]]:
    value = orjson.loads(text)
    if len(value["states"]) > MOST_STATES:
        raise StateError("is of more processes than there are")
    states = [sound(state) for state in value["states"]]
    return states, {
        s.id: _seen(word) for s in states if (word := value["seen"].get(s.id)) is not None
    }


def _seen(word: Any) -> Seen:
    alive, code, letter = word
    fits = (type(alive) in (bool, type(None)), type(code) in (int, type(None)))
    if not all(fits) or not (letter is None or (type(letter) is str and len(letter) < 64)):
        raise StateError("says nothing of a process that a kernel says")
    return Seen(alive, code, letter)


def joined(answers: Sequence[Answer], summaries: Sequence[Answer]) -> bytes:
    """Answers of several hosts as one, to be handed on."""
    rows = [[[one.sender, one.data.hex()] for one in of] for of in (answers, summaries)]
    return zlib.compress(orjson.dumps(rows), 1)


def parted(data: bytes) -> tuple[list[Answer], list[Answer]]:
    """The same again; none where it is no such thing."""
    nothing: tuple[list[Answer], list[Answer]] = ([], [])
    if not data:
        return nothing
    try:
        answers, summaries = (
            [Answer(str(name)[:64], bytes.fromhex(text)) for name, text in of]
            for of in orjson.loads(inflated(data, MOST_TEXT_OF_ALL))
        )
    except WRONG:
        return nothing
    return answers, summaries


def _bounded(state: State, most: int) -> State:
    if state.history and _size(state) > most:
        state = replace(state, history=[])
    while _size(state) > most and len(state.ops) > 1:
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


def _size(state: State) -> int:
    return len(zlib.compress(encoded(state), 1))
