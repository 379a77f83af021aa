"""The second pass: segments of the chosen jobs, in batches, into one aligned trace."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial

import polars as pl

from disttrace_viewer.load import text
from disttrace_viewer.load.columns import segments
from disttrace_viewer.load.columns.match import Matched, match
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.problems import plural
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.merge.narrow import Narrowing
from disttrace_viewer.merge.narrow import completions as completions_of
from disttrace_viewer.merge.processes import stack_of
from disttrace_viewer.merge.survey import Survey, restrict, survey
from disttrace_viewer.trace.columns import COMPLETIONS, OPERATIONS, TIMES, empty
from disttrace_viewer.trace.model import Job, Process, StackSample, Tables, Trace

BATCH_BYTES = 16 << 20
"""Text of whole journals that is matched together: bounds memory, not results."""

PARSERS = min(4, os.cpu_count() or 1)
"""Threads that parse: polars decodes JSON on one core per call."""

Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes to read."""


def load(
    paths: Sequence[str | Files],
    *,
    choose: Callable[[Sequence[Job]], Collection[str]] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read every journal below ``paths`` (folders or files, or journals) into a trace.

    ``choose`` gets all jobs and returns the ids of those to read (default: all). Raises nothing for
    damaged input: what is wrong is in ``Trace.problems``, and everything else is read.
    """
    read_ns = time.time_ns()
    whole = survey(paths)
    chosen = set(choose(whole.jobs)) if choose and whole.jobs else {j.id for j in whole.jobs}
    part = whole if len(chosen) == len(whole.jobs) else restrict(whole, chosen)
    reading = _Reading(part, progress or _no_progress)
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
    narrowing: Narrowing = field(init=False)
    _last_t: dict[int, int] = field(default_factory=dict)
    _last_end: dict[int, int] = field(default_factory=dict)
    _beat: dict[int, int] = field(default_factory=dict)
    _stands: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    _samples: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _files: list[tuple[int, str]] = field(default_factory=list)
    """Process and path of every segment, in order."""

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
        operations, completions = [empty(OPERATIONS)], [empty(COMPLETIONS)]
        bad: dict[int, tuple[int, int]] = {}
        reports: list[Matched] = []
        for chunks in self._batches():
            for chunk in chunks:
                for file, (count, first) in chunk.bad.items():
                    before = bad.get(file, (0, first))
                    bad[file] = (before[0] + count, min(before[1], first))
                self._take_signs(chunk)
            matched = match(chunks, self._process_of())
            operations.append(self.narrowing.narrow(matched.operations))
            completions.append(completions_of(matched.operations))
            self._take_ends(operations[-1])
            reports.append(dataclasses.replace(matched, operations=empty({})))
        self._report_bad(bad)
        for process, count in self.narrowing.calls.undefined.items():
            self._problem(
                process,
                "undefined reference",
                f"{plural(count, 'call')} in groups that are not defined: shown without them.",
            )
        for matched in reports:
            self._report(matched)
        return (
            pl.concat(operations).sort("begin_ns", "process", "number"),
            pl.concat(completions),
        )

    def processes(self) -> Iterator[Process]:
        """The processes with what the segments told of them."""
        for process in self.survey.processes:
            clock = self.survey.clocks[process.clock]
            last = process.last_ns
            if process.index in self._last_t:
                last = max(last, to_unix(clock, process.t0 + self._last_t[process.index]))
            beat = self._beat.get(process.index)
            # One stack may be sampled a million times.
            stack = cache(partial(stack_of, self.survey.journals[process.index]))
            last = max(last, self._last_end.get(process.index, last))
            stands = {
                thread: StackSample(to_unix(clock, process.t0 + t), stack(number))
                for thread, (t, number) in self._stands.get(process.index, {}).items()
            }
            dumped = self.survey.journals[process.index].definitions.dumped
            if dumped is not None:  # after the last word of the process itself
                stands[0] = StackSample(last, stack(dumped))
            yield dataclasses.replace(
                process,
                last_ns=last,
                heartbeat_ns=None if beat is None else to_unix(clock, process.t0 + beat),
                latest_samples=stands,
                samples=tuple(
                    StackSample(to_unix(clock, process.t0 + t), stack(number))
                    for t, number in sorted(self._samples.get(process.index, ()), key=_time)
                ),
            )

    def _process_of(self) -> pl.DataFrame:
        return pl.DataFrame({"process": [p for p, _ in self._files]}, schema={"process": pl.UInt32})

    def _batches(self) -> Iterator[list[segments.Chunk]]:
        """Chunks of whole journals: a journal is never split over two batches."""
        total = sum(_size(path) for _, path in self._files) or 1
        done = 0
        batch: list[Future[segments.Chunk]] = []
        pending: list[tuple[int, text.Text]] = []
        waiting = batched = 0
        with ThreadPoolExecutor(PARSERS, thread_name_prefix="parse") as pool:

            def parse() -> None:
                nonlocal waiting
                batch.extend(pool.submit(segments.parse, s) for s in segments.slices(pending))
                pending.clear()
                waiting = 0
                # Text waits for its parser in memory: do not read far ahead of them.
                for ahead in batch[: -2 * PARSERS]:
                    ahead.result()
                self.progress(done, total)

            for files in _grouped(self._files):
                for file in files:
                    found = text.segment(self._files[file][1], self.survey.problems)
                    pending.append((file, found))
                    done += len(found.data)
                    waiting += len(found.data)
                    batched += len(found.data)
                    if waiting >= segments.CHUNK_BYTES:
                        parse()
                if batched >= BATCH_BYTES:
                    parse()
                    yield [future.result() for future in batch]
                    batch.clear()
                    batched = 0
            parse()
            if batch:
                yield [future.result() for future in batch]
        self.progress(total, total)

    def _take_signs(self, chunk: segments.Chunk) -> None:
        for file, signs in chunk.signs.items():
            process = self._files[file][0]
            self._last_t[process] = max(signs.last_t, self._last_t.get(process, 0))
            if signs.beat is not None:
                self._beat[process] = max(signs.beat, self._beat.get(process, 0))
            if signs.samples:
                self._samples.setdefault(process, []).extend(signs.samples)
            stands = self._stands.setdefault(process, {})
            for thread, stand in signs.stands.items():
                if stand[0] >= stands.get(thread, stand)[0]:
                    stands[thread] = stand

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

    def _report_bad(self, bad: dict[int, tuple[int, int]]) -> None:
        for file, (count, first) in sorted(bad.items()):
            self.survey.problems.add(
                self._files[file][1],
                "noise",
                f"{plural(count, 'line')} (first: line {first}) not readable; the others were"
                " used.",
            )

    def _problem(self, process: int, kind: str, what: str) -> None:
        self.survey.problems.add(self.survey.journals[process].files.paths[0], kind, what)


def _grouped(files: Sequence[tuple[int, str]]) -> list[list[int]]:
    """Numbers of the files of each process."""
    found: dict[int, list[int]] = {}
    for number, (process, _) in enumerate(files):
        found.setdefault(process, []).append(number)
    return list(found.values())


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
