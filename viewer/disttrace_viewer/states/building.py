"""A trace without a table, made of merged states, and the sample that takes its place."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import starmap
from typing import Any, TypeVar

from disttrace.journal.format import COLLECTIVE, MESSAGE
from disttrace_viewer.analysis.sample import CollectiveSequence, Sample
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.merge import surveying
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.merge.processes import stack_of
from disttrace_viewer.merge.tables import ByIdentity, Calls
from disttrace_viewer.states.history import History, courses_differ
from disttrace_viewer.states.state import Merged, OpRow, State, WaitsWith, survey
from disttrace_viewer.trace.model import Group, JobTrace, Key, Member, Reported, Stream
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame, Problem, Stack, StackSample
from disttrace_viewer.trace.values import replace

T = TypeVar("T")


def trace_of(
    merged: Merged, *, only: Collection[str] | None = None, more: Iterable[Problem] = ()
) -> tuple[JobTrace, Sample]:
    """The trace of merged states, and the sample in place of its tables; ``only``: ids of the
    processes to keep; ``more`` is wrong with files of no state."""
    whole = found = merged.survey
    if only is not None and any(p.id not in only for p in whole.processes):
        found = survey(merged.states, only, {p.id: p.job for p in whole.processes})
    problems = Problems()
    problems.extend(found.problems)
    for problem in more:
        problems.take(problem)
    for sentence in merged.unread:
        problems.add(sentence, "unread", "was not read: two processes ended while they read it.")
    building = _Building(found, merged.states)
    groups, reported = building.with_reported(merged.reported)
    trace = surveying.trace_of(
        found,
        whole,
        building.processes,
        tables=None,
        groups=groups,
        stacks=(),
        errors=tuple(building.errors),
        keys=tuple(building.keys),
        problems=problems.found(),
        paths=(),
        read_ns=time.time_ns(),
        reported=reported,
        elsewhere=merged.elsewhere,
        all_calls=building.calls.found,
    )
    return trace, building.sample()


class _Building:
    """What states hold, while it is put together."""

    def __init__(self, survey: surveying.Survey, states: Mapping[str, State]) -> None:
        self.survey = survey
        self.processes = list(survey.processes)
        self.index = {process.id: process.index for process in survey.processes}
        self.ops: dict[int, list[Op]] = {}
        self.counts: dict[int, int] = {}
        self.longest: dict[tuple[int, int], int] = {}
        self.active: dict[tuple[int, int], int] = {}
        self.courses: dict[Stream, dict[int, tuple[int, int, int]]] = {}
        self.reported: dict[int, dict[int, list[int]]] = {}
        """By group and rank in it the ranks there that wait with it."""
        self.errors: dict[str, int] = {}
        self.keys: dict[Key, int] = {}
        self.refused: dict[tuple[int, int], int] = {}
        self.history: dict[tuple[int, Stream], CollectiveSequence] = {}
        self.exact: set[tuple[int, Stream]] = set()
        self.queues: dict[tuple[int, int, str], tuple[int, int]] = {}
        self._stacks: ByIdentity[Stack] = ByIdentity(lambda of: tuple(starmap(Frame, of)))
        """By frames."""
        self.calls = Calls(survey.store_index, survey.group_index, survey.copies)
        for state in states.values():
            index = self.index.get(state.id)
            if index is not None:
                self._process(index, state)

    def with_reported(
        self, rows: Sequence[WaitsWith]
    ) -> tuple[tuple[Group, ...], tuple[Reported, ...]]:
        """Take the ranks that were reported to wait where processes wait for their groups."""
        known, groups = self.survey, [*self.survey.groups]
        found = []
        for row in rows:
            first, last = (self.index.get(one) for one in row.like)
            group = None if last is None else known.group_index.get((last, row.number))
            if row.number < 0:
                group = -1
            if first is None or last is None or group is None:
                continue
            found.append(Reported((first, last), group, row.ranks, row.groups))
            if row.groups:
                continue
            place = {rank: at for at, rank in enumerate(groups[group].ranks or ())}
            own = place.get(self.processes[last].rank or 0)
            there = [at for rank in row.ranks if (at := place.get(rank)) is not None]
            if own is not None:
                self.reported.setdefault(group, {}).setdefault(own, []).extend(there)
            seen = {member.rank for member in groups[group].members}
            more = [Member(last, row.number, at, None) for at in there if at not in seen]
            members = sorted(
                (*groups[group].members, *more),
                key=lambda m: (m.rank is None, m.rank or 0, m.process),
            )
            groups[group] = replace(groups[group], members=tuple(members))
        return tuple(groups), tuple(found)

    def sample(self) -> Sample:
        """The sample of the states; of courses those in question, and those that differ."""
        kept = tuple(op for i in range(len(self.processes)) for op in self.ops.pop(i, ()))
        in_question = {op.call.stream for op in kept if op.pending or op.error is not None}
        return Sample(
            ops=kept,
            counts=self.counts,
            longest=self.longest,
            active=self.active,
            refused=self.refused,
            courses={
                (process, stream): course
                for stream, courses in self.courses.items()
                if stream in in_question or courses_differ(courses.values())
                for process, course in courses.items()
            },
            history=self.history,
            exact=self.exact,
            queues=self.queues,
            reported=self.reported,
        )

    def _process(self, index: int, state: State) -> None:
        process, journal = self.processes[index], self.survey.journals[index]
        clock = self.survey.clocks[process.clock]
        self.counts[index] = state.count
        zero = to_unix(clock, process.t0)

        def unix(t: int) -> int:
            return to_unix(clock, process.t0 + t) if clock.drift else zero + t

        beat = state.beat
        last_ns = max(process.last_ns, unix(state.last_t))
        heartbeat_ns = None if beat is None else unix(beat)
        files = (state.base, *dict.fromkeys(path for path, _, _ in state.problems))
        stood = [
            (thread, StackSample(unix(t), stack_of(journal, number), *map(unix, first)))
            for thread, t, number, *first in state.stands
        ]
        self.processes[index] = replace(
            process,
            last_ns=last_ns,
            heartbeat_ns=last_ns if heartbeat_ns == last_ns else heartbeat_ns,  # mostly one object
            latest_samples=dict(stood) if stood else process.latest_samples,
            samples=tuple(sample for thread, sample in stood if thread == 0),
            damage=self.survey.problems.of(files),
            losses=self.survey.problems.losses(files),
        )
        records = journal.definitions.numbered["call"]
        calls = {number: self._call(index, journal, record) for number, record in records.items()}
        unknown: int | None = None
        for row in state.ops:
            known = calls.get(row[OpRow.CALL])
            if known is None:
                unknown = self._call(index, journal, {}) if unknown is None else unknown
                known = unknown
            self._op(index, journal, row, known, unix(row[OpRow.T]))
        for call, ns in state.longest:
            if call in calls:
                self.longest[index, calls[call]] = ns
        for thread, t in state.active:
            self.active[index, thread] = unix(t)
        for number, backend, newest, up_to, before in state.courses:
            group = self.survey.group_index.get((index, number))
            if group is not None:
                courses = self.courses.setdefault((group, backend), {})
                courses[index] = (newest, up_to, before)
        for number, backend, text, *begun in state.history or ():
            group = self.survey.group_index.get((index, number))
            if group is not None and text is not None:
                of = {n: self.calls.found[call] for n, call in calls.items()}
                with suppress(ValueError):  # of whoever sent it; it is not compared then
                    self.history[index, (group, backend)] = History(text, of, *begun[:1])
                    if begun:
                        self.exact.add((index, (group, backend)))
        for store, key, pushed, popped in state.queues:
            own = self.calls.stores.get((index, store))
            if own is not None:
                self.queues[index, own, key] = (pushed, popped)

    def _call(self, process: int, journal: Journal, record: dict[str, Any]) -> int:
        known = journal.definitions.get("stack", record.get("stack"))
        stack = () if known is None else self._stacks.of(known["frames"])
        return self.calls.add(process, journal, record, stack)

    def _op(self, process: int, journal: Journal, row: list[Any], call: int, begin: int) -> None:
        missing = OpRow.COUNT - len(row)
        number, _, _, end, thread, parent, seq, key, *rest = row + _NONE[:missing]
        issued, wait, complete, source, error, refused, lost, was_asked = rest
        of = self.calls.found[call]
        passed = end is not None and error is None and not refused
        if passed and of.kind in (COLLECTIVE, MESSAGE) and not of.asynchronous:
            issued = wait = complete = None
        text = None
        if error is not None:
            text = journal.definitions.string(error) or "?"
            self.errors.setdefault(text, len(self.errors))
        if key is not None:
            many = isinstance(key, list)
            key = self.keys.setdefault(Key(tuple(key) if many else (key,), many), len(self.keys))
        if refused and seq is not None:
            self.refused[process, number], seq = seq, None
        self.ops.setdefault(process, []).append(
            Op(
                process,
                number,
                of,
                thread or 0,
                parent,
                seq,
                key,
                source,
                text,
                bool(refused),
                bool(lost),
                bool(was_asked),
                begin,
                None if issued is None else begin + issued,
                None if wait is None else begin + wait,
                None if complete is None else begin + complete,
                None if end is None else begin + end,
            )
        )


_NONE: list[Any] = [None] * OpRow.COUNT
