"""The segments of some whole journals as one frame: a function of files, so an engine can do it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import polars as pl

from disttrace_viewer.load import text
from disttrace_viewer.load.columns import segments
from disttrace_viewer.load.columns.match import Matched, match
from disttrace_viewer.load.fates import Signs
from disttrace_viewer.load.files import size
from disttrace_viewer.load.problems import Problems

BATCH_BYTES = 8 << 20
"""Text of whole journals that is matched together: bounds memory, not results."""

PARSERS = min(4, os.cpu_count() or 1)
"""Threads that parse: polars decodes JSON on one core per call."""

Segment = tuple[int, str]
"""The number of the process that wrote it, and its path."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What the segments of some whole journals hold."""

    matched: Matched
    bad: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Unreadable lines by file: how many, and the number of the first."""
    signs: list[tuple[int, Signs]] = field(default_factory=list)
    """What heartbeats, stack samples and heads say, by process, in the order of the files."""
    problems: Problems = field(default_factory=Problems)


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
    """Read, parse and match them. ``tell`` gets the bytes of each file when it was read.

    Raises nothing for damaged files: what is wrong is in ``Batch.problems``.
    """
    problems = Problems()
    bad: dict[str, tuple[int, int]] = {}
    signs: list[tuple[int, Signs]] = []
    chunks = list(_chunks(files, problems, tell))
    for chunk in chunks:
        for file, (count, first) in chunk.bad.items():
            before = bad.get(files[file][1], (0, first))
            bad[files[file][1]] = (before[0] + count, min(before[1], first))
        signs += [(files[file][0], value) for file, value in chunk.signs.items()]
    process_of = pl.DataFrame({"process": [p for p, _ in files]}, schema={"process": pl.UInt32})
    return Batch(match(chunks, process_of), bad, signs, problems)


def _chunks(
    files: Sequence[Segment], problems: Problems, tell: Callable[[int], None] | None
) -> Iterator[segments.Chunk]:
    parsing: list[Future[segments.Chunk]] = []
    pending: list[tuple[int, text.Text]] = []
    waiting = 0
    with ThreadPoolExecutor(PARSERS, thread_name_prefix="parse") as pool:

        def parse() -> None:
            parsing.extend(pool.submit(segments.parse, s) for s in segments.slices(pending))
            pending.clear()
            # Text waits for its parser in memory: do not read far ahead of them.
            for ahead in parsing[: -2 * PARSERS]:
                ahead.result()

        for number, (_, path) in enumerate(files):
            found = text.segment(path, problems)
            pending.append((number, found))
            waiting += len(found.data)
            if waiting >= segments.CHUNK_BYTES:
                parse()
                waiting = 0
            if tell is not None:
                tell(len(found.data))
        parse()
        for future in parsing:
            yield future.result()
