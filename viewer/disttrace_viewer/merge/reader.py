"""The second pass: segments of the chosen jobs, in batches, into one aligned trace."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import polars as pl

from disttrace_viewer.load.columns import batch
from disttrace_viewer.load.columns.batch import Matched
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.fates import Signs
from disttrace_viewer.load.files import is_held, size
from disttrace_viewer.load.problems import plural
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.merge.narrow import Narrowing
from disttrace_viewer.merge.narrow import completions as completions_of
from disttrace_viewer.merge.processes import stack_of
from disttrace_viewer.merge.surveying import Survey, restrict, survey
from disttrace_viewer.trace.columns import COMPLETIONS, OPERATIONS, TIMES
from disttrace_viewer.trace.model import Job, Tables, Trace
from disttrace_viewer.trace.process import Process, StackSample

Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes to read."""
Engine = Callable[
    [Callable[[Sequence[batch.Segment]], batch.Batch], Sequence[Sequence[batch.Segment]]],
    Iterator[tuple[int, "batch.Batch | None"]],
]
"""``states.engines`` has them: the number of each task and its result, in any order."""


def load(
    paths: Sequence[str | Files],
    *,
    choose: Callable[[Sequence[Job]], Collection[str]] | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> Trace:
    """Read every journal below ``paths`` (folders or files, or journals) into a trace.

    ``choose`` gets all jobs and returns the ids of those to read (default: all). ``engine`` reads
    and parses the segments (default: this process). Raises nothing for damaged input: what is
    wrong is in ``Trace.problems``, and everything else is read.
    """
    read_ns = time.time_ns()
    whole = survey(paths)
    chosen = set(choose(whole.jobs)) if choose and whole.jobs else {j.id for j in whole.jobs}
    part = whole if len(chosen) == len(whole.jobs) else restrict(whole, chosen)
    reading = _Reading(part, progress or _no_progress, engine)
    operations, completions = reading.read()
    problems = part.problems
    processes = tuple(
        dataclasses.replace(
            p,
            damage=problems.of(part.journals[p.index].told_of),
            losses=problems.losses(part.journals[p.index].told_of),
        )
        for p in reading.processes()
    )
    return Trace(
        processes=processes,
        tables=Tables(operations, reading.narrowing.calls.table(), completions),
        groups=part.groups,
        stores=part.stores,
        places=part.places,
        jobs=tuple(
            dataclasses.replace(job, last_ns=max(processes[i].last_ns for i in job.processes))
            for job in part.jobs
        ),
        other_jobs=tuple(
            dataclasses.replace(job, processes=()) for job in whole.jobs if job.id not in chosen
        ),
        clocks=part.clocks,
        stacks=tuple(reading.narrowing.calls.stacks),
        errors=tuple(reading.narrowing.errors),
        keys=tuple(reading.narrowing.keys.values()),
        problems=problems.found(),
        paths=part.paths,
        read_ns=read_ns,
    )


def _time(sample: tuple[int, int]) -> int:
    return sample[0]


def _no_progress(_done: int, _total: int) -> None:
    """For those who do not want to be told."""


@dataclass(slots=True)
class _Reading:
    survey: Survey
    progress: Progress
    engine: Engine | None
    narrowing: Narrowing = field(init=False)
    _signs: dict[int, Signs] = field(default_factory=dict)
    _last_end: dict[int, int] = field(default_factory=dict)
    _files: list[batch.Segment] = field(default_factory=list)
    """Every segment, in order."""

    def __post_init__(self) -> None:
        part = self.survey
        self.narrowing = Narrowing(part)
        self._files = [
            (process.index, path)
            for process, journal in zip(part.processes, part.journals, strict=True)
            for _, path in sorted(journal.files.segments.items())
        ]

    def read(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The operations and the completions of all segments."""
        operations = [pl.DataFrame(schema=OPERATIONS)]
        completions = [pl.DataFrame(schema=COMPLETIONS)]
        bad: dict[str, tuple[int, int]] = {}
        reports: list[Matched] = []
        for part in self._batches():
            self.survey.problems.extend(part.problems)
            bad.update(part.bad)
            for process, signs in part.signs:
                self._signs.setdefault(process, Signs()).join(signs)
            operations.append(self.narrowing.narrow(part.matched.operations))
            completions.append(completions_of(part.matched.operations))
            self._take_ends(operations[-1])
            reports.append(dataclasses.replace(part.matched, operations=pl.DataFrame()))
        self._report_bad(bad)
        for process, count in self.narrowing.calls.undefined.items():
            self._problem(
                process,
                "undefined reference",
                f"{plural(count, 'call')} in groups that are not defined: shown without them.",
            )
        for matched in reports:
            self._report(matched)
        table = pl.concat(operations)
        operations.clear()
        order = table.select(pl.arg_sort_by("begin_ns", "process", "number")).to_series()
        for name in table.columns:  # one at a time: the table is never there twice
            table = table.with_columns(table[name].gather(order))
        return table, pl.concat(completions)

    def processes(self) -> Iterator[Process]:
        """The processes with what the segments told of them."""
        return map(self._told, self.survey.processes)

    def _told(self, process: Process) -> Process:
        clock, signs = self.survey.clocks[process.clock], self._signs.get(process.index, Signs())
        # One stack may be sampled a million times.
        stack = cache(partial(stack_of, self.survey.journals[process.index]))

        def unix(t: int) -> int:
            return to_unix(clock, process.t0 + t)

        def sample(t: int, number: int, thread: int = 0) -> StackSample:
            first = signs.first.get((thread, number), t)
            return StackSample(unix(t), stack(number), unix(first))

        last = max(process.last_ns, unix(signs.last_t), self._last_end.get(process.index, 0))
        stands = {thread: sample(*stand, thread) for thread, stand in signs.stands.items()}
        dumped = self.survey.journals[process.index].definitions.dumped
        if dumped is not None:  # after the last word of the process itself
            stands[0] = StackSample(last, stack(dumped))
        return dataclasses.replace(
            process,
            last_ns=last,
            heartbeat_ns=None if signs.beat is None else unix(signs.beat),
            latest_samples=stands,
            samples=tuple(sample(*one) for one in sorted(signs.samples, key=_time)),
        )

    def _batches(self) -> Iterator[batch.Batch]:
        total = sum(size(path) for _, path in self._files) or 1
        tasks = batch.batches(self._files)
        done = 0

        def tell(count: int) -> None:
            nonlocal done
            done += count
            self.progress(done, total)

        if self.engine is None:
            yield from (batch.read(task, tell) for task in tasks)
        else:
            here = [task for task in tasks if any(is_held(path) for _, path in task)]
            yield from (batch.read(task, tell) for task in here)
            tasks = [task for task in tasks if task not in here]
            early: dict[int, batch.Batch | None] = {}
            turn = 0
            for number, found in self.engine(batch.read, tasks):
                tell(sum(size(path) for _, path in tasks[number]))
                early[number] = found
                while turn in early:  # in their order, on which that of equal rows depends
                    ready = early.pop(turn)
                    if ready is None:
                        self._report_lost(tasks[turn])
                    else:
                        yield ready
                    turn += 1
        self.progress(total, total)

    def _take_ends(self, operations: pl.DataFrame) -> None:
        newest = pl.max_horizontal(pl.col(*TIMES).max()).alias("t")
        for process, t in operations.group_by("process").agg(newest).iter_rows():
            self._last_end[process] = max(t, self._last_end.get(process, t))

    def _report(self, matched: Matched) -> None:
        for process, count in matched.repeated.items():
            self._problem(
                process,
                "duplicate begins",
                f"{plural(count, 'begin')} with a number that was taken already; the first of each"
                " was used.",
            )
        for process, count in matched.ended_twice.items():
            self._problem(
                process,
                "duplicate ends",
                f"{plural(count, 'operation')} ended more than once; the first end was used.",
            )
        for process, count in matched.unbegun.items():
            journal = self.survey.journals[process]
            explained = journal.definitions.listed["dropped"] or self.survey.problems.losses(
                journal.files.paths
            )
            if not explained:
                self._problem(
                    process,
                    "ends without begins",
                    f"{plural(count, 'end')} of operations whose begin is not there; left out,"
                    " all others were read.",
                )

    def _report_lost(self, files: Sequence[batch.Segment]) -> None:
        for _, path in files:
            self.survey.problems.add(
                path, "unreadable", "was not read: whoever read it was lost, twice."
            )

    def _report_bad(self, bad: dict[str, tuple[int, int]]) -> None:
        for _, path in self._files:
            if path not in bad:
                continue
            count, first = bad[path]
            self.survey.problems.add(
                path,
                "noise",
                f"{plural(count, 'line')} (first: line {first}) not readable; the others were"
                " used.",
            )

    def _problem(self, process: int, kind: str, what: str) -> None:
        self.survey.problems.add(self.survey.journals[process].files.paths[0], kind, what)
