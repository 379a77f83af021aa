"""The second pass: segments of the chosen jobs, in batches, into one aligned trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter

import orjson
import polars as pl

from disttrace.journal.format import LONGEST, ends_on_device
from disttrace_viewer.load import batch, segments
from disttrace_viewer.load.definitions import completed
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.fates import Signs
from disttrace_viewer.load.files import is_held, size
from disttrace_viewer.load.problems import plural
from disttrace_viewer.load.schema import Record
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.merge.processes import stack_of
from disttrace_viewer.merge.surveying import Survey, restrict, survey, trace_of
from disttrace_viewer.merge.tables import Calls
from disttrace_viewer.trace.columns import COMPLETIONS, OPERATIONS, TIMES
from disttrace_viewer.trace.model import JobTrace, Key, LaunchedJob, Tables
from disttrace_viewer.trace.plain_text import plain, shortened
from disttrace_viewer.trace.process import Process, Stack, StackSample
from disttrace_viewer.trace.values import replace

_UNDEFINED = -1
"""Number of a call that no definition describes."""


def _numbers(rows: pl.DataFrame, number: Callable[..., int]) -> pl.Series:
    """What ``number`` gives for each row; null where a value is."""
    distinct = rows.drop_nulls().unique(maintain_order=True)
    if distinct.is_empty():
        return pl.repeat(None, rows.height, dtype=pl.UInt32, eager=True)
    found = pl.Series("_number", map(number, *distinct.iter_columns()), dtype=pl.UInt32)
    numbered = distinct.with_columns(found)
    return rows.join(numbered, on=rows.columns, how="left", maintain_order="left")["_number"]


Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes to read."""
Engine = Callable[
    [Callable[[Sequence[batch.Segment]], batch.Batch], Sequence[Sequence[batch.Segment]]],
    Iterator[tuple[int, batch.Batch | None]],
]
"""``states.folder`` has them: the number of each task and its result, in any order."""


def load(
    paths: Sequence[str | Files],
    *,
    choose: Callable[[Sequence[LaunchedJob]], Collection[str]] | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> JobTrace:
    """Read every journal below ``paths`` (folders or files, or journals) into a trace.

    ``choose`` gets all jobs and returns the ids of those to read (default: all). ``engine`` reads
    and parses the segments (default: this process). Raises nothing for damaged input: what is
    wrong is in ``JobTrace.problems``, and everything else is read.
    """
    read_ns = time.time_ns()
    whole = survey(paths)
    chosen = set(choose(whole.jobs)) if choose and whole.jobs else {j.id for j in whole.jobs}
    part = whole if len(chosen) == len(whole.jobs) else restrict(whole, chosen)
    reading = _Reading(part, progress, engine)
    operations, completions = reading.read()
    problems, stacks = part.problems, reading.stacks
    processes = [
        replace(
            p,
            damage=problems.of(part.journals[p.index].reported_files),
            losses=problems.losses(part.journals[p.index].reported_files),
        )
        for p in map(reading.completed, part.processes)
    ]
    return trace_of(
        part,
        whole,
        processes,
        tables=Tables(operations, reading.calls.table(stacks), completions),
        groups=part.groups,
        stacks=stacks,
        errors=tuple(reading.errors),
        keys=tuple(reading.keys),
        problems=problems.found(),
        paths=part.paths,
        read_ns=read_ns,
        all_calls=reading.calls.found,
    )


class _Reading:
    """Numbers calls, keys and errors over all journals while operations come in."""

    def __init__(self, survey: Survey, progress: Progress | None, engine: Engine | None) -> None:
        self._survey, self._progress, self._engine = survey, progress, engine
        self._stacks: dict[Stack, Stack] = {}
        self.calls = Calls(survey.store_index, survey.group_index, survey.copies)
        rows = [
            (process, number, self._add(process, record))
            for process, journal in enumerate(survey.journals)
            for number, record in journal.definitions.numbered["call"].items()
        ]
        self.errors: dict[str, int] = {}
        self.keys: list[Key] = []
        self._key_numbers: dict[str, int] = {}
        """By their text in the journal."""
        self._rows = pl.DataFrame(
            rows, schema={"process": pl.UInt32, "s": pl.Int64, "call": pl.UInt32}, orient="row"
        )
        """Of calls by process and number, the same for every batch."""
        self._completed: dict[tuple[int, int, str], int] = {}
        """By process, number and what one operation overrides (its ``a``, as JSON)."""
        self._signs: dict[int, Signs] = {}
        self._last_end: dict[int, int] = {}

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Of all calls that have one."""
        return tuple(filter(None, self._stacks))

    def _add(self, process: int, record: Record) -> int:
        """Take a call; of equal stacks all processes have one object."""
        journal = self._survey.journals[process]
        stack = stack_of(journal, record.get("stack"))
        return self.calls.add(process, journal, record, self._stacks.setdefault(stack, stack))

    def _call(self, process: int, number: int, override: str) -> int:
        """A call, defined or not, with what one operation overrides."""
        key = (process, number, override)
        if key not in self._completed:
            known = self._survey.journals[process].definitions.numbered["call"]
            record = completed(known.get(number) or {}, orjson.loads(override))
            self._completed[key] = self._add(process, record)
        return self._completed[key]

    def read(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The operations and the completions of all segments."""
        operations = [pl.DataFrame(schema=OPERATIONS)]
        completions = [pl.DataFrame(schema=COMPLETIONS)]
        for part in self._batches():
            self._survey.problems.extend(part.problems)
            for process, signs in part.signs:
                self._signs.setdefault(process, Signs()).join(signs)
            raw = part.operations
            operations.append(self._narrow(raw))
            known = raw.filter(pl.col("g").is_not_null() | pl.col("z").is_not_null())
            known = known.rename({"g": "slack_ns", "z": "device_ns"})
            completions.append(known.select(pl.col(n).cast(t) for n, t in COMPLETIONS.items()))
            newest = pl.max_horizontal(pl.col(*TIMES).max()).alias("t")
            for process, t in operations[-1].group_by("process").agg(newest).iter_rows():
                self._last_end[process] = max(t, self._last_end.get(process, t))
            del part, raw, known  # or they would stay while the next one is read
        table = pl.concat(operations)
        operations.clear()
        order = table.select(pl.arg_sort_by("begin_ns", "process", "number")).to_series()
        for name in table.columns:  # one at a time: the table is never there twice
            table = table.with_columns(table[name].gather(order))
        return table, pl.concat(completions)

    def completed(self, process: Process) -> Process:
        """A process with what the segments hold of it."""
        clock, signs = self._survey.clocks[process.clock], self._signs.get(process.index, Signs())
        # One stack may be sampled a million times.
        stack = cache(partial(stack_of, self._survey.journals[process.index]))

        def unix(t: int) -> int:
            return to_unix(clock, process.t0 + t)

        def sample(t: int, number: int, thread: int = 0) -> StackSample:
            first = signs.first.get((thread, number), t)
            return StackSample(unix(t), stack(number), unix(first))

        last = max(process.last_ns, unix(signs.last_t), self._last_end.get(process.index, 0))
        stands = {thread: sample(*stand, thread) for thread, stand in signs.stands.items()}
        definitions = self._survey.journals[process.index].definitions
        dumped = definitions.stack_at_end(number for _, number in signs.samples)
        if dumped is not None:  # after the last word of the process itself
            first = signs.first.get((0, dumped))
            stands[0] = StackSample(last, stack(dumped), last if first is None else unix(first))
        return replace(
            process,
            last_ns=last,
            heartbeat_ns=None if signs.beat is None else unix(signs.beat),
            latest_samples=stands,
            samples=tuple(sample(*one) for one in sorted(signs.samples, key=itemgetter(0))),
        )

    def _narrow(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Raw matched rows under global numbers and unix times."""
        processes, clocks = self._survey.processes, self._survey.clocks
        bases = pl.Series([p.t0 + clocks[p.clock].offset_ns for p in processes], dtype=pl.Int64)
        frame = raw.with_columns(
            begin_ns=pl.col("t") + bases.gather(raw["process"]),
            call=self._call_rows(raw),
            key=_numbers(raw.select("k"), self._key),
            error=_numbers(raw.select("process", "x"), self._error),
        )
        begin = pl.col("begin_ns")
        refused = pl.col("f").fill_null(0) != 0
        waited = pl.col("wait").is_not_null()
        # A wait for what a device ends orders streams: it is over when it was seen to be complete.
        on_device = pl.Series(
            [ends_on_device(c.backend, c.signature.device) for c in self.calls.found],
            dtype=pl.Boolean,
        ).gather(frame["call"])
        frame = frame.with_columns(_on_device=on_device)
        seen = ~waited | pl.col("_on_device")
        frame = frame.with_columns(
            thread=pl.col("h").fill_null(0),
            parent=pl.col("p"),
            seq=pl.when(~refused).then(pl.coalesce("q_end", "q")),
            source=pl.col("y"),
            refused=refused,
            lost=pl.col("lost").is_not_null(),
            asked=pl.col("asked").is_not_null(),
            bytes=pl.coalesce("n_end", "n"),
            issued_ns=begin + pl.col("issued"),
            wait_begin_ns=begin + pl.col("wait"),
            complete_ns=begin
            + pl.coalesce("complete", pl.when(waited & pl.col("x").is_null()).then(pl.col("end"))),
            end_ns=begin + pl.coalesce("end", pl.when(seen).then(pl.col("complete"))),
        )
        return frame.select(
            pl.col(name).cast(kind, strict=False) for name, kind in OPERATIONS.items()
        )

    def _call_rows(self, raw: pl.DataFrame) -> pl.Series:
        """Rows of the calls table; ``unknown`` ones where no definition is there."""
        known = raw.select("process", "s").join(
            self._rows, on=["process", "s"], how="left", maintain_order="left"
        )["call"]
        rich = _numbers(raw.select("process", "s", "a"), self._call)
        calls: pl.Series = rich.zip_with(rich.is_not_null(), known)
        if calls.null_count():
            missing = raw.select(pl.when(calls.is_null()).then("process"))
            unknown = _numbers(missing, lambda process: self._call(process, _UNDEFINED, "{}"))
            calls = calls.zip_with(calls.is_not_null(), unknown)
            counts = missing["process"].drop_nulls().value_counts(sort=True)
            for process, count in counts.iter_rows():
                what = f"{plural(count, 'operation')} of calls that are not defined: shown without"
                path = self._survey.journals[process].files.paths[0]
                self._survey.problems.add(path, "undefined call", f"{what} name and place.")
        return calls

    def _key(self, key: str) -> int:
        if key not in self._key_numbers:
            self._key_numbers[key] = len(self.keys)
            many = key.startswith(segments.LIST_MARK)
            parts = orjson.loads(key[len(segments.LIST_MARK) :]) if many else (key,)
            shown = tuple(plain(shortened(part, LONGEST["key"])) for part in parts)
            self.keys.append(Key(shown, many=many))
        return self._key_numbers[key]

    def _error(self, process: int, string: int) -> int:
        text = self._survey.journals[process].definitions.string(string) or "?"
        return self.errors.setdefault(text, len(self.errors))

    def _batches(self) -> Iterator[batch.Batch]:
        """Of every segment."""
        survey = self._survey
        files = [
            (process.index, path)
            for process, journal in zip(survey.processes, survey.journals, strict=True)
            for _, path in sorted(journal.files.segments.items() if not journal.orphaned else ())
        ]
        total = sum(size(path) for _, path in files) or 1
        tasks = batch.batches(files)
        done = 0

        def tell(count: int) -> None:
            nonlocal done
            done += count
            if self._progress is not None:
                self._progress(done, total)

        engine = self._engine
        here = [t for t in tasks if engine is None or any(is_held(path) for _, path in t)]
        yield from (batch.read(task, tell) for task in here)
        if engine is not None:
            tasks = [task for task in tasks if task not in here]
            for number, found in engine(batch.read, tasks):
                tell(sum(size(path) for _, path in tasks[number]))
                if found is not None:
                    yield found
                    continue
                for _, path in tasks[number]:
                    what = "was not read: two processes ended while they read it."
                    survey.problems.add(path, "unreadable", what)
        tell(total - done)
