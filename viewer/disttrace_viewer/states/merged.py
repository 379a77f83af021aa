"""Merges states of processes, in any order and any grouping, into a trace without a table.

Longer than most files: what a state leaves out is filled in here by the order of its fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import orjson

from disttrace.journal.format import ranks_of
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.problems import CUT_OFF, Problems
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.merge.processes import stack_of
from disttrace_viewer.merge.survey import Survey, build
from disttrace_viewer.merge.tables import KINDS
from disttrace_viewer.sample.sample import Course, Sample, Stream
from disttrace_viewer.states.history import unpacked
from disttrace_viewer.states.state import ROW, State
from disttrace_viewer.trace.model import Call, Key, Problem, Process, Stack, StackSample, Trace
from disttrace_viewer.trace.operation import Op

if TYPE_CHECKING:
    import polars as pl

NO_TABLE = cast("pl.DataFrame", None)
"""Stands in a trace of states where a read one has tables: rules about hangs never look there."""


@dataclass(frozen=True)
class Merged:
    """States by the process that they are of; of two of one process, that which read more."""

    states: Mapping[str, State]
    unread: tuple[str, ...] = ()
    """Sentences about journals that were asked for and are in no state."""

    @cached_property
    def survey(self) -> Survey:
        """What the definitions of all states say together."""
        return _survey(list(self.states.values()))

    @cached_property
    def opened(self) -> Merged:
        """With the creations of groups that are over, if any rule can have a use for them: where
        all came to an end and all processes made the same groups there is nothing to find in them.
        """
        states = list(self.states.values())
        if any(state["unsettled"] for state in states) or self._differ():
            return Merged({key: _opened(state) for key, state in self.states.items()}, self.unread)
        return self

    def _differ(self) -> bool:
        joined: set[int] = set()
        made = [self.states[journal.id]["made"] for journal in self.survey.journals]
        for group in self.survey.groups:
            if group.default:
                members = [m.process for m in group.members]
                if len({made[i] for i in members}) > 1 or joined & {*members}:
                    return True
                joined.update(members)
        return False


def merge(states: Iterable[State | Merged]) -> Merged:
    """All states in one. ``merge([merge([a, b]), c])`` equals ``merge([a, merge([b, c])])``."""
    found: dict[str, State] = {}
    unread: dict[str, None] = {}
    for item in states:
        if isinstance(item, Merged):
            unread.update(dict.fromkeys(item.unread))
        each = item.states.values() if isinstance(item, Merged) else (item,)
        for state in each:
            other = found.get(state["id"])
            if other is None or _rating(state) > _rating(other):
                found[state["id"]] = state
    return Merged({key: found[key] for key in sorted(found)}, tuple(sorted(unread)))


def _rating(state: State) -> tuple[int, int, int, bool, str]:
    return (state["read"], state["size"], state["last_t"], "history" in state, state["base"])


def trace_of(merged: Merged, *, jobs: Iterable[str] | None = None) -> tuple[Trace, Sample]:
    """The trace of merged states, without tables, and the sample that takes their place.

    ``jobs`` are ids of those to keep (default: all).
    """
    alike = merged.opened is merged
    merged = merged.opened
    whole = survey = merged.survey
    states = [merged.states[j.id] for j in survey.journals]
    if jobs is not None:
        chosen = set(jobs)
        kept = [s for s, p in zip(states, survey.processes, strict=True) if p.job in chosen]
        if len(kept) < len(states):
            survey = _survey(kept)
            states = [merged.states[j.id] for j in survey.journals]
    problems = Problems()
    problems.extend(survey.problems)
    for sentence in merged.unread:
        problems.add(sentence, "unread", "was not read: whoever read it was lost, twice.")
    building = _Building(survey, states, alike)
    building.read()
    here = {job.id for job in survey.jobs}
    trace = Trace(
        processes=tuple(building.processes),
        operations=NO_TABLE,
        calls=NO_TABLE,
        completions=NO_TABLE,
        groups=survey.groups,
        stores=survey.stores,
        places=survey.places,
        jobs=tuple(
            replace(job, last_ns=max(building.processes[i].last_ns for i in job.processes))
            for job in survey.jobs
        ),
        other_jobs=tuple(replace(j, processes=()) for j in whole.jobs if j.id not in here),
        clocks=survey.clocks,
        stacks=tuple(building.stacks),
        errors=tuple(building.errors),
        keys=tuple(building.keys),
        problems=problems.found(),
        paths=survey.paths,
        read_ns=time.time_ns(),
        _calls=dict(enumerate(building.calls)),
    )
    return trace, building.sample()


def jobs_of(merged: Merged) -> tuple[Any, ...]:
    """The jobs that the states are of."""
    return merged.opened.survey.jobs


def _survey(states: Sequence[State]) -> Survey:
    problems = Problems()
    for state in states:
        for path, kind, sentence in state["problems"]:
            if kind == CUT_OFF:
                problems.cut_off[path] = None
            else:
                problems.take(Problem(path=path, kind=kind, sentence=sentence))
    journals = sorted(
        (_journal(state) for state in states),
        key=lambda j: (j.definitions.process.get("start_ns", j.modified_ns), j.id),
    )
    return build((), journals, problems)


def _opened(state: State) -> State:
    """A state with the creations that are over among its operations."""
    built = orjson.loads(state["built"])
    numbered = dict(state["numbered"])
    for kind in ("call", "store"):
        more = {int(n): value for n, value in built[kind].items()}
        known = {int(n): value for n, value in numbered[kind].items()}
        numbered[kind] = dict(sorted({**more, **known}.items()))
    ops = sorted((*state["ops"], *built["ops"]), key=lambda row: row[0])
    return {
        **state,
        "numbered": numbered,
        "ops": ops,
        "built": NOTHING,
        "unsettled": False,
        "made": 0,
    }


NOTHING = '{"ops":[],"call":{},"store":{}}'


def _journal(state: State) -> Journal:
    definitions = _Known(state["base"])
    definitions.process = state["process"]
    definitions.identity = state["identity"]
    definitions.versions = state["versions"]
    definitions.last_t = state["last_t"]
    for kind, records in state["listed"].items():
        definitions.listed[kind] = records
    for kind, table in state["numbered"].items():
        record = _RECORDS.get(kind)
        definitions.numbered[kind] = {
            int(n): value if record is None else record(value) for n, value in table.items()
        }
    return Journal(
        id=state["id"],
        files=Files(state["base"], state["base"]),
        definitions=definitions,
        from_name=state["named"],
        modified_ns=state["modified_ns"],
        head_t=state["head_t"],
    )


class _Known(Definitions):
    """Definitions whose stacks bear names already."""

    __slots__ = ()

    def frames(self, number: int | None) -> list[tuple[str, int, str]]:
        """The frames of a stack."""
        found = self.get("stack", number)
        return [] if found is None else [(file, line, name) for file, line, name in found["frames"]]


def _group(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "ranks": ranks_of(value["ranks"])} if "ranks" in value else value


_RECORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "string": lambda value: {"v": value},
    "stack": lambda value: {"frames": value},
    "group": _group,
}


@dataclass
class _Building:
    survey: Survey
    states: Sequence[State]
    alike: bool
    processes: list[Process] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    stacks: dict[Stack, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    keys: dict[Key, int] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    longest: dict[tuple[int, int], int] = field(default_factory=dict)
    active: dict[tuple[int, int], int] = field(default_factory=dict)
    refused: dict[tuple[int, int], int] = field(default_factory=dict)
    courses: dict[tuple[int, Stream], tuple[int, int, int]] = field(default_factory=dict)
    history: dict[tuple[int, Stream], Course] = field(default_factory=dict)
    queues: dict[tuple[int, int, str], tuple[int, int]] = field(default_factory=dict)
    _stores: dict[tuple[int, int], int] = field(default_factory=dict)
    _alike: dict[int, _Alike] = field(default_factory=dict)
    """By the identity of a record, which states that are read together share."""
    _stacks_alike: dict[int, int | None] = field(default_factory=dict)
    _own_rank: dict[tuple[int, int], int | None] = field(default_factory=dict)

    def read(self) -> None:
        """Go through all states in the order of the survey's processes."""
        self._stores = {(s.process, s.number): s.index for s in self.survey.stores}
        for group in self.survey.groups:
            for member in group.members:
                self._own_rank[member.process, group.index] = member.rank
        for process, journal, state in zip(
            self.survey.processes, self.survey.journals, self.states, strict=True
        ):
            self._process(process, journal, state)

    def sample(self) -> Sample:
        """The sample that the states hold."""
        return Sample(
            ops=tuple(self.ops),
            counts={i: state["count"] for i, state in enumerate(self.states)},
            longest=self.longest,
            active=self.active,
            refused=self.refused,
            courses=self.courses,
            history=self.history,
            queues=self.queues,
            alike=self.alike,
        )

    def _process(self, process: Process, journal: Journal, state: State) -> None:
        clock, index = self.survey.clocks[process.clock], process.index

        zero = to_unix(clock, process.t0)  # clocks of states do not drift

        def unix(t: int) -> int:
            return zero + t

        beat = state["beat"]
        files = (state["base"], *_paths(state))
        self.processes.append(
            replace(
                process,
                last_ns=max(process.last_ns, unix(state["last_t"])),
                heartbeat_ns=None if beat is None else unix(beat),
                latest_samples={
                    thread: StackSample(unix(t), stack_of(journal, number))
                    for thread, t, number in state["stands"]
                },
                damage=self.survey.problems.of(files),
                losses=self.survey.problems.losses(files),
            )
        )
        calls: dict[int, int] = {}
        for number, record in journal.definitions.numbered["call"].items():
            calls[number] = self._call(index, journal, record)
        unknown: int | None = None
        for row in state["ops"]:
            known = calls.get(row[1])
            if known is None:
                unknown = self._call(index, journal, {}) if unknown is None else unknown
                known = unknown
            self._op(index, journal, row, known, zero + row[2])
        for call, ns in state["longest"]:
            if call in calls:
                self.longest[index, calls[call]] = ns
        for thread, t in state["active"]:
            self.active[index, thread] = unix(t)
        for number, backend, *course in state["courses"]:
            group = self.survey.group_index.get((index, number))
            if group is not None:
                newest, up_to, before = course
                self.courses[index, (group, backend)] = (newest, up_to, before)
        for number, backend, text in state.get("history", ()):
            group = self.survey.group_index.get((index, number))
            if group is not None and text is not None:
                past = [calls.get(call, -1) for call in unpacked(text)]
                if -1 not in past:
                    self.history[index, (group, backend)] = list(enumerate(past, 1))
        for store, key, pushed, popped in state["queues"]:
            if (index, store) in self._stores:
                self.queues[index, self._stores[index, store], key] = (pushed, popped)

    def _op(self, process: int, journal: Journal, row: list[Any], call: int, begin: int) -> None:
        missing = len(ROW) - len(row)
        number, _, _, end, thread, parent, seq, key, *rest = row + _NONE[:missing]
        issued, wait, complete, source, error, refused, lost = rest
        text = None
        if error is not None:
            text = journal.definitions.string(error) or "?"
            self.errors.setdefault(text, len(self.errors))
        if refused and seq is not None:
            self.refused[process, number], seq = seq, None
        self.ops.append(
            Op(
                process,
                number,
                self.calls[call],
                thread or 0,
                parent,
                seq,
                None if key is None else self._key(key),
                source,
                text,
                bool(refused),
                bool(lost),
                begin,
                None if issued is None else begin + issued,
                None if wait is None else begin + wait,
                None if complete is None else begin + complete,
                None if end is None else begin + end,
            )
        )

    def _key(self, value: str | list[str]) -> int:
        key = Key(tuple(value), many=True) if isinstance(value, list) else Key((value,), many=False)
        return self.keys.setdefault(key, len(self.keys))

    def _call(self, process: int, journal: Journal, record: dict[str, Any]) -> int:
        alike = self._alike.get(id(record))
        if alike is None:
            alike = self._alike[id(record)] = _Alike.of(record)
        group = self.survey.group_index.get((process, alike.group))
        index = len(self.calls)
        own_rank = None if group is None else self._own_rank.get((process, group))
        store = self._stores.get((process, alike.store))
        stack = self._stack(journal, alike.stack)
        before = (index, process, alike.op, alike.kind, group, own_rank)
        fields: tuple[Any, ...] = (*before, *alike.middle, store, *alike.names, stack, alike.args)
        self.calls.append(Call(*fields))
        return index

    def _stack(self, journal: Journal, number: int | None) -> int | None:
        record = journal.definitions.get("stack", number)
        if record is None:
            return None
        key = id(record["frames"])
        if key not in self._stacks_alike:
            stack = stack_of(journal, number)
            self._stacks_alike[key] = (
                self.stacks.setdefault(stack, len(self.stacks)) if stack else None
            )
        return self._stacks_alike[key]


@dataclass(frozen=True, slots=True)
class _Alike:
    """What calls of one record share; numbers are the process's own."""

    record: dict[str, Any]
    """Kept, since its identity stands for it."""
    op: str
    kind: str
    group: int
    middle: tuple[Any, ...]
    """From the backend to the tag."""
    store: int
    names: tuple[str | None, str | None]
    stack: int | None
    args: Mapping[str, Any]

    @classmethod
    def of(cls, record: dict[str, Any]) -> _Alike:
        args = record.get("args") or {}
        ranks = ranks_of(args.get("ranks"))
        shapes, dtypes = record.get("shapes"), record.get("dtypes")
        return cls(
            record=record,
            op=record.get("op") or "?",
            kind=kind if (kind := record.get("kind")) in KINDS else "unknown",
            group=record.get("group", -1),
            middle=(
                record.get("backend") or None,
                record.get("device") or None,
                record.get("async"),
                None if shapes is None else tuple(map(tuple, shapes)),
                None if dtypes is None else tuple(dtypes),
                record.get("bytes"),
                record.get("splits"),
                record.get("reduce_op") or None,
                record.get("root"),
                record.get("peer"),
                record.get("tag"),
            ),
            store=record.get("store", -1),
            names=(record.get("name") or None, record.get("origin") or None),
            stack=record.get("stack"),
            args=args if ranks is None else {**args, "ranks": list(ranks)},
        )


_NONE: list[Any] = [None] * len(ROW)


def _paths(state: State) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for path, _, _ in state["problems"]))
