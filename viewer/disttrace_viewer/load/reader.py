"""The second pass: segments of the chosen jobs, in batches, into one aligned trace."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson
import polars as pl

from disttrace_viewer.clock import to_unix
from disttrace_viewer.columns import COMPLETIONS, OPERATIONS, TIMES, empty
from disttrace_viewer.load import segments, text
from disttrace_viewer.load.match import Matched, match
from disttrace_viewer.load.problems import plural
from disttrace_viewer.load.processes import stack_of
from disttrace_viewer.load.survey import Survey, restrict, survey
from disttrace_viewer.load.tables import Calls
from disttrace_viewer.model import Job, Key, Process, Standing, Trace

BATCH_BYTES = 32 << 20
"""Text of whole journals that is matched together: bounds memory, not results."""

PARSERS = min(4, os.cpu_count() or 1)
"""Threads that parse: polars decodes JSON on one core per call."""

LOSSES = ("noise", "missing segment", "unreadable", "empty")
"""Kinds of damage after which an end may well stand without its begin."""

Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes to read."""


def load(
    paths: Sequence[str],
    *,
    choose: Callable[[Sequence[Job]], Collection[str]] | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read every journal below ``paths`` (folders or files) into a trace.

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
        dataclasses.replace(p, damage=problems.of(p.paths)) for p in reading.processes()
    )
    return Trace(
        processes=processes,
        operations=operations,
        calls=reading.calls.table(),
        completions=completions,
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
        stacks=tuple(reading.calls.stacks),
        errors=tuple(reading.errors),
        keys=tuple(reading.keys.values()),
        problems=problems.found(),
        paths=tuple(paths),
        read_ns=read_ns,
    )


def _no_progress(_done: int, _total: int) -> None:
    """For those who do not want to be told."""


@dataclass(slots=True)
class _Reading:
    survey: Survey
    progress: Progress
    calls: Calls = field(init=False)
    errors: dict[str, int] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    _key_index: dict[str, int] = field(default_factory=dict)
    _last_t: dict[int, int] = field(default_factory=dict)
    _last_end: dict[int, int] = field(default_factory=dict)
    _beat: dict[int, int] = field(default_factory=dict)
    _stands: dict[int, dict[int, tuple[int, Any]]] = field(default_factory=dict)
    _files: list[tuple[int, str]] = field(default_factory=list)
    """Process and path of every segment, in order."""

    def __post_init__(self) -> None:
        part = self.survey
        self.calls = Calls(
            journals=part.journals,
            stores={(s.process, s.number): s.index for s in part.stores},
            groups=part.group_index,
            group_values=part.groups,
        )
        self.calls.collect()
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
                self._take_others(chunk)
            matched = match(chunks, self._process_of())
            operations.append(self._narrow(matched.operations))
            completions.append(_completions(matched.operations))
            reports.append(dataclasses.replace(matched, operations=empty({})))
        self._report_bad(bad)
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
            journal = self.survey.journals[process.index]
            yield dataclasses.replace(
                process,
                last_ns=max(last, self._last_end.get(process.index, last)),
                heartbeat_ns=None if beat is None else to_unix(clock, process.t0 + beat),
                stands_at={
                    thread: Standing(to_unix(clock, process.t0 + t), stack_of(journal, number))
                    for thread, (t, number) in self._stands.get(process.index, {}).items()
                },
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
                    found = self._text(self._files[file][1])
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

    def _text(self, path: str) -> text.Text:
        problems = self.survey.problems
        found = text.read(path, problems)
        if not found.data and not problems.about(path):
            problems.add(
                path, "empty", "is empty: nothing was written to it, or all of it is lost."
            )
        return found

    def _take_others(self, chunk: segments.Chunk) -> None:
        for file, record in chunk.others:
            process = self._files[file][0]
            beat, at = record.get("hb"), record.get("at")
            if isinstance(beat, int):
                self._beat[process] = max(beat, self._beat.get(process, beat))
                self._seen(process, beat)
            elif isinstance(at, int):
                self._seen(process, at)
                thread = record.get("h", 0)
                standing = self._stands.setdefault(process, {})
                if isinstance(thread, int) and at >= standing.get(thread, (at, 0))[0]:
                    standing[thread] = (at, record.get("k"))
            elif isinstance(record.get("t"), int):
                self._seen(process, record["t"])

    def _seen(self, process: int, t: int) -> None:
        self._last_t[process] = max(t, self._last_t.get(process, t))

    def _narrow(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Raw matched rows under global numbers and unix times."""
        processes, clocks = self.survey.processes, self.survey.clocks
        bases = pl.Series([p.t0 + clocks[p.clock].offset_ns for p in processes], dtype=pl.Int64)
        frame = raw.with_columns(
            begin_ns=pl.col("t") + bases.gather(raw["process"]),
            call=self._call_rows(raw),
            key=self._key_numbers(raw["k"]),
            error=self._error_numbers(raw),
        )
        begin = pl.col("begin_ns")
        refused = pl.col("f").fill_null(0) != 0
        waited = pl.col("wait").is_not_null()
        frame = frame.with_columns(
            thread=pl.col("h").fill_null(0),
            parent=pl.col("p"),
            seq=pl.when(~refused).then(pl.coalesce("q_end", "q")),
            source=pl.col("y"),
            refused=refused,
            lost=pl.col("lost").is_not_null(),
            bytes=pl.coalesce("n_end", "n"),
            issued_ns=begin + pl.col("issued"),
            wait_begin_ns=begin + pl.col("wait"),
            complete_ns=begin
            + pl.coalesce("complete", pl.when(waited & pl.col("x").is_null()).then(pl.col("end"))),
            end_ns=begin + pl.coalesce("end", pl.when(~waited).then(pl.col("complete"))),
        )
        narrow = frame.select(
            pl.col(name).cast(kind, strict=False) for name, kind in OPERATIONS.items()
        )
        newest = narrow.group_by("process").agg(pl.max_horizontal(pl.col(*TIMES).max()).alias("t"))
        for process, t in newest.iter_rows():
            self._last_end[process] = max(t, self._last_end.get(process, t))
        return narrow

    def _call_rows(self, raw: pl.DataFrame) -> pl.Series:
        """Rows of the calls table; ``unknown`` ones where no definition is there."""
        index = pl.DataFrame(
            [(p, n, row) for (p, n), row in self.calls.index.items()],
            schema={"process": pl.UInt32, "s": pl.Int64, "call": pl.UInt32},
            orient="row",
        )
        calls = raw.select("process", "s").join(
            index, on=["process", "s"], how="left", maintain_order="left"
        )["call"]
        rich = (
            raw.select("process", "s", "a").with_row_index("row").filter(pl.col("a").is_not_null())
        )
        if rich.height:
            rows = [
                self.calls.completed(process, call, override)
                for process, call, override in rich.select("process", "s", "a").iter_rows()
            ]
            calls = calls.scatter(rich["row"], pl.Series(rows, dtype=pl.UInt32))
        if calls.null_count():
            missing = calls.is_null()
            processes = raw["process"].filter(missing)
            rows = [self.calls.unknown(p) for p in processes.to_list()]
            calls = calls.scatter(missing.arg_true(), pl.Series(rows, dtype=pl.UInt32))
            for process, count in processes.value_counts(sort=True).iter_rows():
                if self.survey.journals[process].definitions.process:
                    self._problem(
                        process,
                        "undefined call",
                        f"{plural(count, 'operation')} refer to calls that are not defined; they"
                        " are shown without name and place.",
                    )
        return calls.alias("call")

    def _key_numbers(self, keys: pl.Series) -> pl.Series:
        distinct = keys.drop_nulls().unique(maintain_order=True)
        for key in distinct.to_list():
            if key not in self._key_index:
                self._key_index[key] = len(self._key_index)
                self.keys[key] = _key(key)
        if not len(distinct):
            return _nulls("key", len(keys))
        numbers = pl.Series([self._key_index[key] for key in distinct.to_list()], dtype=pl.UInt32)
        table = pl.DataFrame({"k": distinct, "key": numbers})
        return keys.to_frame("k").join(table, on="k", how="left", maintain_order="left")["key"]

    def _error_numbers(self, raw: pl.DataFrame) -> pl.Series:
        failed = raw.select("process", "x").with_row_index("row").filter(pl.col("x").is_not_null())
        numbers = []
        for process, string in failed.select("process", "x").iter_rows():
            text = self.survey.journals[process].definitions.string(string) or "?"
            numbers.append(self.errors.setdefault(text, len(self.errors)))
        found = _nulls("error", raw.height)
        if numbers:
            found = found.scatter(failed["row"], pl.Series(numbers, dtype=pl.UInt32))
        return found.alias("error")

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
            explained = journal.definitions.listed["dropped"] or any(
                p.kind in LOSSES and p.path in journal.files.paths
                for p in self.survey.problems.found()
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


def _completions(raw: pl.DataFrame) -> pl.DataFrame:
    some = raw.filter(pl.col("g").is_not_null() | pl.col("z").is_not_null())
    named = some.select(
        "process", "number", pl.col("g").alias("slack_ns"), pl.col("z").alias("device_ns")
    )
    return named.select(pl.col(name).cast(kind) for name, kind in COMPLETIONS.items())


def _nulls(name: str, count: int) -> pl.Series:
    return pl.select(pl.repeat(None, count, dtype=pl.UInt32).alias(name)).to_series()


def _key(text: str) -> Key:
    if text.startswith(segments.LIST_MARK):
        return Key(tuple(orjson.loads(text[len(segments.LIST_MARK) :])), many=True)
    return Key((text,), many=False)


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
