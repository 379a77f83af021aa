"""Reads segments by the batch and joins begins with their ends into the operations table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import polars as pl

import disttrace.journal.format as fmt
from disttrace_viewer.load import segments, text
from disttrace_viewer.load.fates import MARKS, Signs
from disttrace_viewer.load.files import size
from disttrace_viewer.load.problems import Problems, plural
from disttrace_viewer.trace.values import dataclass

_ID = "id"
_NUMBERS = 1 << 32


@dataclass(frozen=True, slots=True)
class Batch:
    """What the segments of some whole journals hold; operations still with the journals' own
    numbers and times.

    Columns of ``operations``: ``process``, ``number``, the begin's ``t s h q p n k a``, and, in ns
    after the begin, ``issued wait complete end``, then ``n_end q_end y x f lost asked g z``.
    """

    operations: pl.DataFrame
    signs: list[tuple[int, Signs]]
    """What heartbeats, stack samples and heads hold, by process, in the order of the files."""
    problems: Problems


def _matched(chunks: Sequence[segments.Chunk], processes: pl.Series) -> pl.DataFrame:
    """The operations of a batch, of equal numbers the first; ``processes``: of every file in the
    chunks.
    """
    begins = _unique_begins(_identified([c.begins for c in chunks], processes, pl.col("b")))
    ends = _identified([c.ends for c in chunks], processes, pl.col("e"))
    marks = _identified([c.marks for c in chunks], processes, pl.coalesce(*MARKS))

    ends = _final(ends, marks).filter(pl.col(_ID).is_first_distinct())
    fates = (
        marks.lazy()
        .group_by(_ID)
        .agg(
            pl.col(column).filter(pl.col(kind).is_not_null()).first().alias(name)
            for kind, columns in _MARKS.items()
            for column, name in columns.items()
        )
    )
    renamed = (pl.col(old).alias(new) for old, new in _END_NAMES.items())
    joined = begins.lazy()
    for others in (ends.lazy().select(_ID, *renamed), fates):
        joined = joined.join(others, on=_ID, how="left", maintain_order="left")
    operations = joined.with_columns(
        process=(pl.col(_ID) // _NUMBERS).cast(pl.UInt32),
        number=(pl.col(_ID) % _NUMBERS).cast(pl.UInt32),
        issued=pl.coalesce("u", "issued"),
        # A synchronous call waits from its issue on unless its record has another time.
        wait=pl.coalesce("v", "u", "wait"),
    ).drop(_ID, "u", "v")
    return operations.collect()


_END_NAMES = {"d": "end", "n": "n_end", "q": "q_end", **{name: name for name in "uvyxf"}}
_MARKS = {kind: {"d": name} for kind, name in MARKS.items()}  # a lost one may have "o" too
_MARKS[fmt.COMPLETE] |= {"g": "g", "z": "z"}


def _identified(frames: list[pl.DataFrame], processes: pl.Series, number: pl.Expr) -> pl.DataFrame:
    """One column that names process and number."""
    frame = pl.concat(frames, how="vertical") if len(frames) > 1 else frames[0]
    first = pl.lit(processes.gather(frame["file"]).cast(pl.UInt64)) * _NUMBERS
    return frame.with_columns((first + number.cast(pl.UInt64)).alias(_ID)).drop("file", "row")


def _unique_begins(begins: pl.DataFrame) -> pl.DataFrame:
    if not begins.select((pl.col(_ID).diff() > 0).all()).item():
        begins = begins.with_columns(pl.col("r").fill_null(0)).sort(_ID, "r", maintain_order=True)
        begins = begins.filter(pl.col(_ID).is_first_distinct())
    return begins.drop("b", "r")


def _final(ends: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Ends without those of waits that reached their time limit and began anew."""
    tries = ends.filter(pl.col("r") == 1)
    if not tries.height:
        return ends
    final = ends.filter(pl.col("r").fill_null(0) == 0)
    waits = marks.filter(pl.col("w").is_not_null()).group_by(_ID).agg(pl.len().alias("waits"))
    ended = tries.group_by(_ID).agg(pl.len().alias("tries"))
    last = (
        tries.unique(_ID, keep="last", maintain_order=True)
        .join(ended.join(waits, on=_ID, how="left"), on=_ID, how="left")
        .filter(pl.col("waits").fill_null(0) <= pl.col("tries"))
        .join(final.select(_ID), on=_ID, how="anti")
    )
    return pl.concat((final, last.select(final.columns)))


BATCH_BYTES = 8 << 20
"""Text of whole journals that is matched together: bounds memory, not results."""

PARSERS = min(4, os.cpu_count() or 1)
"""Threads that parse: polars decodes JSON on one core per call."""

Segment = tuple[int, str]
"""The number of the process that wrote it, and its path."""


def batches(files: Sequence[Segment]) -> list[list[Segment]]:
    """The segments in batches of about ``BATCH_BYTES``: a journal is never split over two."""
    found: list[list[Segment]] = []
    whole = BATCH_BYTES
    before = None
    for process, path in files:
        if process != before and whole >= BATCH_BYTES:
            found.append([])
            whole = 0
        found[-1].append((process, path))
        whole += size(path)
        before = process
    return found


def read(files: Sequence[Segment], tell: Callable[[int], None] | None = None) -> Batch:
    """Read, parse and match; ``tell`` gets bytes read. What is wrong is in ``Batch.problems``."""
    problems = Problems()
    bad: dict[int, tuple[int, int]] = {}
    signs: list[tuple[int, Signs]] = []
    chunks = list(_chunks(files, problems, tell))
    for chunk in chunks:
        for file, (count, first) in chunk.bad.items():
            before = bad.get(file, (0, first))
            bad[file] = (before[0] + count, min(before[1], first))
        signs += [(files[file][0], value) for file, value in chunk.signs.items()]
    for file, (count, first) in bad.items():
        what = f"{plural(count, 'line')} (first: line {first}) not readable; the others were used."
        problems.add(files[file][1], "noise", what)
    processes = pl.Series([process for process, _ in files], dtype=pl.UInt32)
    return Batch(_matched(chunks, processes), signs, problems)


def _chunks(
    files: Sequence[Segment], problems: Problems, tell: Callable[[int], None] | None
) -> Iterator[segments.Chunk]:
    parsing: list[Future[segments.Chunk]] = []
    pending: list[segments.Slice] = []
    waiting = 0
    with ThreadPoolExecutor(PARSERS, thread_name_prefix="parse") as pool:
        for number, (_, path) in enumerate(files):
            found = text.segment(path, problems)
            for part in segments.slices(number, found):
                pending.append(part)
                waiting += len(part.text.data)
                if waiting >= segments.CHUNK_BYTES:
                    parsing.append(pool.submit(segments.parse, pending))
                    pending, waiting = [], 0
                    # Text waits for its parser in memory: do not read far ahead of them.
                    for ahead in parsing[: -2 * PARSERS]:
                        ahead.result()
            if tell is not None:
                tell(len(found.data))
        if pending:
            parsing.append(pool.submit(segments.parse, pending))
        for future in parsing:
            yield future.result()
