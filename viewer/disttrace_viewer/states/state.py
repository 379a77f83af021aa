"""The state of a process: what its journal says of where it stands, and its form as JSON.

States travel as a batch, in which equal definitions are written once:

* ``shared``: definitions, each as a text of JSON
* ``states``: states whose ``numbered`` definitions are indices into ``shared``

Which operations are kept is decided in ``disttrace_viewer.states.reduce``. States of several
processes are merged in any order and any grouping.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from disttrace.journal.format import ranks_of
from disttrace_viewer.load.definitions import LISTED, NUMBERED, Definitions
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.problems import CUT_OFF, Problems
from disttrace_viewer.merge.surveying import Survey, surveyed
from disttrace_viewer.merge.tables import ByIdentity
from disttrace_viewer.trace.process import Problem
from disttrace_viewer.trace.values import dataclass, field, fields

VERSION = 4
LEVEL = 6
"""Of zlib: a quarter less than its fastest makes, for a thirtieth of what reducing takes."""
MOST_BYTES = 64 << 20
"""Of states that are sent or stored together, unpacked: a few hundred kilobytes, as a rule."""
Record = dict[str, Any]


class OpRow:
    """The places in the row of an operation, a list without trailing nulls. ``ISSUED``,
    ``WAIT``, ``COMPLETE`` and ``END`` are in ns after ``T``; ``ERROR`` is a string's number;
    ``SEQ`` of one that was refused is the number that it would have taken.
    """

    NUMBER, CALL, T, END, THREAD, PARENT, SEQ, KEY = range(8)
    ISSUED, WAIT, COMPLETE, SOURCE, ERROR, REFUSED, LOST, ASKED = range(8, 16)
    COUNT = 16

    @staticmethod
    def value(row: Sequence[Any], place: int) -> Any:
        return row[place] if place < len(row) else None


@dataclass(slots=True)
class State:
    """About two kilobytes; times as in the journal, rows as lists so that JSON has them."""

    id: str
    base: str
    """The journal's name and path."""
    named: dict[str, str]
    """Job, host and pid from it."""
    modified_ns: int
    read: int
    """Bytes of its segments that were read."""
    size: int
    """Bytes of its segments that there are."""
    process: Record
    identity: Record
    versions: Record
    listed: dict[str, list[Record]]
    numbered: dict[str, dict[int, Any]]
    """Definitions to which something kept refers; ranks as ranges, frames with their names."""
    ops: list[list[Any]]
    """Kept operations, each as ``OpRow`` says."""
    count: int
    """Operations begun."""
    longest: list[list[int]]
    """Call, ns."""
    active: list[list[int]]
    """Thread, t."""
    queues: list[list[Any]]
    """Store, key, pushes, finished pops."""
    courses: list[list[Any]]
    """Group, backend, newest number, hash of all call sites up to it, and up to the one before."""
    beat: int | None
    last_t: int
    stands: list[list[int]]
    """Thread, t, stack, and when first seen there; of the main thread several, of which the newest
    comes last and has the fourth."""
    problems: list[list[str]]
    """Path, kind, sentence."""
    met: list[list[Any]] = field(default_factory=list)
    """Side of a message, group, backend or peer, tag, newest [number, begin, end] for clocks."""
    history: list[list[Any]] | None = None
    """Only where requested: group, backend, packed calls by number (``states.history``), and the
    number of the first; without that number a call site's first call stands for all of it."""
    source: Record = field(default_factory=dict)
    """Which other tool's evidence this is."""
    state: int = VERSION
    """Of this schema."""

    @property
    def rating(self) -> tuple[int, int, int, bool, str]:
        """Of two states of one process that with the higher one counts."""
        return (self.read, self.size, self.last_t, self.history is not None, self.base)

    @property
    def partial(self) -> bool:
        return self.read < self.size

    def values(self) -> Record:
        found = {name: getattr(self, name) for name in _NAMES}
        if self.history is None:
            del found["history"]
        found["base"] = _text_of(self.base)
        found["problems"] = [[*map(_text_of, one)] for one in self.problems]
        return found


def _text_of(path: str) -> str:
    """A path as UTF-8 can have it: JSON knows no bytes that are no text."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return _BYTES + os.fsencode(path).decode("latin-1")
    return path


def _path_of(text: Any) -> Any:
    if isinstance(text, str) and text.startswith(_BYTES):
        return os.fsdecode(text[len(_BYTES) :].encode("latin-1"))
    return text


_BYTES = "\0"
"""Before a path that is no text; no path has it."""
_NAMES = tuple(one.name for one in fields(State))


class StateError(ValueError):
    """Bytes that are no state of this version; the message completes a sentence."""


def inflated(data: bytes, most: int = MOST_BYTES) -> bytes:
    """What was compressed by zlib, perhaps by a stranger. Raises StateError."""
    if most <= 0:
        raise StateError("is one too many")
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, most)
    except zlib.error as error:
        raise StateError(f"is no state of a process ({error})") from error
    if stream.unconsumed_tail:
        raise StateError(f"holds more than {most >> 20} MB")
    return found


def pack(states: Iterable[State], level: int = LEVEL) -> bytes:
    """States as bytes, a kilobyte or two each, in which equal definitions are written once."""
    index: dict[bytes, int] = {}
    places = ByIdentity(lambda value: index.setdefault(orjson.dumps(value), len(index)))
    found = [
        {
            **state.values(),
            "numbered": {
                kind: {number: places.of(value) for number, value in table.items()}
                for kind, table in state.numbered.items()
            },
        }
        for state in states
    ]
    value = {"shared": [text.decode() for text in index], "states": found}
    return zlib.compress(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), level)


def unpack(data: bytes, known: dict[str, Any] | None = None) -> list[State]:
    """The states in the bytes of ``pack``. Raises StateError."""
    return parsed(inflated(data), {} if known is None else known)


def parsed(text: bytes, known: dict[str, Any]) -> list[State]:
    """The states of a batch; equal or ``known`` definitions are one object. Raises StateError."""
    try:
        value = orjson.loads(text)
        for one in value["shared"]:
            if one not in known:
                known[one] = orjson.loads(one)
        shared = [known[one] for one in value["shared"]]
        found = [checked(state, shared) for state in value["states"]]
    except StateError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StateError(f"is no state of a process ({error})") from error
    return found


def checked(value: object, shared: Sequence[Any] | None = None) -> State:
    """The state that a value of JSON is, of a version that is known; ``shared`` are the definitions
    that it has by their places. Raises StateError."""
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise StateError("is no state of a process")
    if value.get("state") != VERSION:
        raise StateError(
            f"is a state of version {value.get('state')}, this disttrace knows {VERSION}"
        )
    if lacking := [name for name in _NAMES[: _NAMES.index("met")] if name not in value]:
        raise StateError(f"is no state of a process: it lacks {', '.join(lacking[:3])}")
    found = {name: value[name] for name in _NAMES if name in value}
    try:
        found["numbered"] = {
            kind: {int(n): one if shared is None else shared[one] for n, one in table.items()}
            for kind, table in value["numbered"].items()
        }
        found["base"] = _path_of(found["base"])
        found["problems"] = [[*map(_path_of, one)] for one in found["problems"]]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StateError(f"is no state of a process ({error})") from error
    return State(**found)


def journal_of(state: State) -> Journal:
    """A journal with as much of its definitions as the state has."""
    definitions = _Known(state.base)
    definitions.process = state.process
    definitions.identity = state.identity
    definitions.versions = state.versions
    definitions.source = state.source
    definitions.last_t = state.last_t
    definitions.listed = {**_NONE_LISTED, **state.listed} if state.listed else _NONE_LISTED
    numbered = definitions.numbered
    for kind in NUMBERED:
        table, record = state.numbered.get(kind, {}), _RECORDS.get(kind)
        numbered[kind] = table if record is None else {n: record(v) for n, v in table.items()}
    return Journal(
        id=sys.intern(state.id),
        files=Files(state.base, state.base),
        definitions=definitions,
        from_name=state.named,
        modified_ns=state.modified_ns,
    )


_NONE_LISTED: dict[str, list[Any]] = {kind: [] for kind in LISTED}


class _Known(Definitions):
    """Definitions whose stacks bear names already."""

    def frames(self, number: int | None) -> list[tuple[str, int, str]]:
        found = self.get("stack", number)
        return [] if found is None else [(file, line, name) for file, line, name in found["frames"]]


_RECORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "string": lambda value: {"v": value},
    "stack": lambda value: {"frames": value},
    "group": lambda value: (
        {**value, "ranks": ranks_of(value["ranks"])} if "ranks" in value else value
    ),
}


def survey(
    states: Mapping[str, State],
    only: Collection[str] | None = None,
    called: Mapping[str, str] | None = None,
) -> Survey:
    """What all states hold, or those of some processes; ``called`` as of ``surveyed``."""
    known = [state for state in states.values() if only is None or state.id in only]
    problems = Problems()
    for state in known:
        for path, kind, sentence in state.problems:
            if kind == CUT_OFF:
                problems.cut_off[path] = None
            else:
                problems.take(Problem(path=path, kind=kind, sentence=sentence))
    known.sort(key=lambda state: (state.process.get("start_ns", state.modified_ns), state.id))
    folders: dict[str, str] = {}
    for state in known:
        folders.setdefault(os.path.dirname(state.base), state.base)
    journals = [journal_of(state) for state in known]
    met = [state.met for state in known]
    return surveyed(tuple(folders.values()), journals, problems, called, met)


class WaitsWith(NamedTuple):
    """Ranks of which no state is known, but that they wait where two processes do."""

    like: tuple[str, str]
    """These (ids); where there is one, twice that."""
    number: int
    """The group in question, by the second one's own number; -1: it is still to be made."""
    ranks: tuple[int, ...]
    groups: int
    """In so many other groups of its make; 0: in that very one; -1: they wait in no collective."""


@dataclass(frozen=True)
class Merged:
    """States by the process that they are of; of two of one process, that which read more."""

    states: Mapping[str, State]
    unread: tuple[str, ...] = ()
    """Sentences about journals that were requested and are in no state."""
    called: Mapping[str, str] = field(default_factory=dict)
    """The ids of jobs by process, where these states are a part of more."""
    reported: tuple[WaitsWith, ...] = ()
    elsewhere: frozenset[int] = frozenset()
    """All ranks of hosts of which no states were requested."""

    @cached_property
    def survey(self) -> Survey:
        return survey(self.states, called=self.called)

    @property
    def partial(self) -> frozenset[str]:
        """Ids of the processes of whose journals only a part was read."""
        return frozenset(one for one, state in self.states.items() if state.partial)


def merge(states: Iterable[State | Merged]) -> Merged:
    """All states in one. ``merge([merge([a, b]), c])`` equals ``merge([a, merge([b, c])])``."""
    found: dict[str, State] = {}
    items = [*states]
    parts = [item for item in items if isinstance(item, Merged)]
    for item in items:
        for state in item.states.values() if isinstance(item, Merged) else (item,):
            other = found.get(state.id)
            if other is None or state.rating > other.rating:
                found[state.id] = state
    return Merged(
        {key: found[key] for key in sorted(found)},
        tuple(sorted({one for part in parts for one in part.unread})),
        {one: job for part in parts for one, job in part.called.items()},
        tuple(one for part in parts for one in part.reported),
        frozenset(rank for part in parts for rank in part.elsewhere),
    )


def newest_try(merged: Merged, name: str) -> Merged:
    """The states without those of earlier launches of that name; what lives beside the newest one
    (a sweep) is none."""
    found = merged.survey
    named = (job for job in found.jobs if name in job.names)
    launches = sorted(named, key=lambda job: (job.start_ns, job.index))
    over = [job for job in launches[:-1] if job.last_ns < launches[-1].start_ns]
    earlier = {found.processes[i].id for job in over for i in job.processes}
    if not earlier:
        return merged
    kept = {one: state for one, state in merged.states.items() if one not in earlier}
    return Merged(kept, merged.unread)


def parts_of(merged: Merged, parts: Sequence[Collection[str]]) -> list[Merged]:
    """The states of some jobs apart (by id, each in one part): they are gone through once."""
    if not parts:
        return []
    of_job = {job: number for number, part in enumerate(parts) for job in part}
    called = {p.id: p.job for p in merged.survey.processes if p.job in of_job}
    found: list[dict[str, State]] = [{} for _ in parts]
    for identity, job in called.items():
        found[of_job[job]][identity] = merged.states[identity]
    return [Merged(states, merged.unread, called) for states in found]
