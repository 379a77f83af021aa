"""A trace as Polars frames, and in the forms that other tools read: ``disttrace.load``."""

from __future__ import annotations

import html
import importlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.api.reading import Paths, Progress, read
from disttrace_viewer.api.report import Finding, Report, report_of, stall_ns
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.trace import model
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.views import tables
from disttrace_viewer.views.tables import FIELDS, FURTHER

if TYPE_CHECKING:
    from disttrace_viewer.api.statistics import Stats


@dataclass(frozen=True, slots=True)
class Timeline:
    """A page that a notebook shows in a frame of its own."""

    page: str
    """The whole HTML; it loads nothing."""
    height: int

    def _repr_html_(self) -> str:
        source = html.escape(self.page, quote=True)
        look = f'width="100%" height="{self.height}" style="border: 0"'
        return f'<iframe sandbox="allow-scripts" {look} srcdoc="{source}"></iframe>'


class Trace:
    """What the journals of a job hold, on one clock. Every frame is made at its first use.

    All times are unix nanoseconds, all ``_ns`` durations nanoseconds; ids of operations and groups
    are those of ``diagnose --json`` and of every export. The columns: docs/tables.md.
    """

    def __init__(self, model: model.JobTrace) -> None:
        """``disttrace.load`` makes one."""
        self.model = model
        """The record type that rules and views of disttrace share; no stable interface."""

    @cached_property
    def operations(self) -> pl.DataFrame:
        """One row per operation by its begin, with the columns of ``export --format jsonl``.

        In a frame ``stack`` is a list of structs (file, line, function), innermost first;
        ``splits``, ``args`` and a ``key`` of several keys are JSON as text.
        """
        return tables.operations(self.model)

    def select(self, *columns: str) -> pl.DataFrame:
        """Some columns of ``operations``, without making the others, which a large trace feels.

        Also ``kind`` (collective, message, store, constructor, composed), ``number``,
        ``group_desc``, ``duration_ns``, ``line`` (``file:line`` of the user's frame), ``place``.

        Raises:
            ValueError: for a column that there is not.
        """
        known = {**FIELDS, **FURTHER}
        wrong = [name for name in columns if name not in known]
        if wrong:
            raise ValueError(f"no column {wrong[0]!r}; there are: {', '.join(known)}")
        return tables.operations(self.model, columns)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """One row per collective, matched over its members, by its first begin."""
        return tables.collectives(self.waits)

    @cached_property
    def processes(self) -> pl.DataFrame:
        """One row per process."""
        return tables.processes(self.model)

    @cached_property
    def groups(self) -> pl.DataFrame:
        """One row per member of a process group; ``process`` is null where none was seen."""
        return tables.groups(self.model)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, errors first: ``diagnose().findings``."""
        return self.diagnose().findings

    def diagnose(self, *, stall_s: float | None = None) -> Report:
        """The report on this trace. ``stall_s``: while processes live, waiting is a fault from so
        many seconds on.
        """
        if stall_s is None:
            return self._report
        return report_of(verdict_on(self.model, self.exchanges, stall_ns=stall_ns(stall_s)))

    def stats(self, *, from_: str | None = None, to: str | None = None) -> Stats:
        """Where the time goes, within a window (``+12.3s`` after the start, unix seconds or ISO).

        Raises:
            ViewerError: for what is no time.
        """
        from disttrace_viewer.api.statistics import Stats

        return Stats(self.model, from_=from_, to=to)

    def print(
        self,
        *,
        ranks: str | None = None,
        ops: Sequence[str] = (),
        last: int | None = None,
        places: bool = False,
        width: int | None = None,
        color: bool | None = None,
    ) -> None:
        """What happened, in order, across ranks, on standard output: ``disttrace view``.

        ``ranks`` (``0,3-5``) and ``ops`` (names, ``*`` stands for anything) choose rows; ``last``
        cuts them.

        Raises:
            ViewerError: for filters that fit nothing, with what would.
        """
        from disttrace_viewer.views.terminal.console import TextConsole
        from disttrace_viewer.views.terminal.plan import Filters, parse_ranks
        from disttrace_viewer.views.terminal.report import overview_of, paint

        chosen = None if ranks is None else parse_ranks(ranks)
        filters = Filters(ranks=chosen, ops=tuple(ops), last=last)
        found = overview_of(self.model, filters, self._report.verdict, self.exchanges)
        paint(found, TextConsole(width=width, color=color), places=places)

    def timeline(self, height: int = 600) -> Timeline:
        """The page of ``export -o x.html``, which a notebook draws, ``height`` pixels high."""
        return Timeline(b"".join(pieces(self.model, "html")).decode(), height)

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,  # noqa: A002
        *,
        source: bool = True,
        profiles: Sequence[str] = (),
    ) -> None:
        """Write ``path`` as ``disttrace export`` does: ``jsonl``, ``perfetto``, ``html``,
        ``parquet`` or ``otlp``, guessed from the suffix (``.jsonl``, ``.json``, ``.html``,
        ``.parquet``; all but the last also with ``.gz``). ``source``: whether a page has
        the text of the program's lines, where their file is here. ``profiles``: files of
        torch.profiler and VizTracer that go into a ``.tar`` for Perfetto.

        Raises:
            ViewerError: for a suffix that tells nothing, and when it cannot be written.
        """
        target = os.fspath(path)
        chosen = format_of(target, format, profiles)
        try:
            if chosen in FOLDERS:
                _write_folder(target, self.model)
                return
            parts = pieces(self.model, chosen, source=source)
            if target.lower().removesuffix(GZIP).endswith(ARCHIVE):
                parts = importlib.import_module(FORMATS[chosen]).archive(self.model, profiles)
            _write(target, _packed(parts) if target.lower().endswith(GZIP) else parts)
        except OSError as error:
            raise ViewerError(f"cannot write {target}: {error.strerror}.") from error

    @property
    def jobs(self) -> tuple[str, ...]:
        """Ids of the jobs that are in it."""
        return tuple(job.id for job in self.model.jobs)

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for everything that did not read as it should."""
        return tuple(problem.sentence for problem in self.model.problems)

    @cached_property
    def exchanges(self) -> Exchanges:
        """The matched exchanges; no stable interface."""
        return Exchanges(self.model)

    @cached_property
    def waits(self) -> WaitStates:
        """The wait states; no stable interface."""
        return WaitStates(self.exchanges)

    @cached_property
    def _report(self) -> Report:
        return report_of(verdict_on(self.model, self.exchanges, stall_ns=stall_ns(None)))

    def __repr__(self) -> str:
        counts = f"{len(self.model.processes)} processes, {self.model.operations.height:,}"
        return f"<disttrace.Trace of {', '.join(self.jobs)}: {counts} operations>"


def load(
    path: Paths = None,
    job: str | None = None,
    *,
    engine: str | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read the journals below ``path`` (a folder, several, or None for that of DISTTRACE_DIR).

    ``job`` is an id or the beginning of one, ``newest`` (as without, with the jobs it met) or
    ``all``. ``engine`` names a cluster that reads them (``dask://HOST:PORT``; default: this
    process). Damaged input raises nothing: ``Trace.problems`` tells.

    Raises:
        ViewerError: when there are no journals, or no such job, or no such engine.
    """
    return Trace(read(path, job, progress, engine))


FORMATS = {
    "html": "disttrace_viewer.views.timeline.content",
    "jsonl": "disttrace_viewer.views.jsonl",
    "otlp": "disttrace_viewer.otlp.export",
    "parquet": "disttrace_viewer.views.parquet",
    "perfetto": "disttrace_viewer.views.timeline.perfetto",
}
"""The module of each; its ``lines`` give the output in pieces."""
FOLDERS = ("parquet",)
"""Those that are a folder of files."""
DEFAULT = "jsonl"

SUFFIXES = {
    ".jsonl": ("jsonl", "otlp"),
    ".json": ("perfetto", "otlp"),
    ".html": ("html",),
    ".parquet": ("parquet",),
    ".tar": ("perfetto",),  # with profiles of other tools
}
"""Suffix -> the formats that it may hold, the one that it stands for first."""
ARCHIVE = ".tar"
GZIP = ".gz"


def format_of(path: str | None, wanted: str | None, profiles: Sequence[str] = ()) -> str:
    """The format for a path: as given, else by its suffix, else jsonl.

    Raises:
        ViewerError: where the two contradict each other, for a suffix that tells nothing, and for
            ``profiles`` that are to go into another file than an archive.
    """
    name = "" if path is None else os.path.basename(os.path.normpath(path)).lower()
    packed = name.endswith(GZIP)
    suffix = os.path.splitext(name.removesuffix(GZIP))[1]
    if profiles and suffix != ARCHIVE:
        raise ViewerError(f"profiles go into an archive: name it by -o, as in -o job{ARCHIVE}")
    fits = SUFFIXES.get(suffix, ())
    if wanted is not None and wanted not in FORMATS:
        raise ViewerError(f"no format {wanted!r}; there are: {', '.join(FORMATS)}")
    if wanted is None:
        if fits:
            wanted = fits[0]
        elif suffix and path is not None and not _special(path):
            known = ", ".join(SUFFIXES)
            raise ViewerError(
                f"{suffix} names no format; name one by --format, or end {path} in one of {known}"
            )
        else:
            wanted = DEFAULT
    elif fits and wanted not in fits:
        raise ViewerError(
            f"{path} says {fits[0]} and --format says {wanted}: leave one of them out"
        )
    if packed and wanted in FOLDERS:
        raise ViewerError(f"{wanted} is compressed by itself: leave {GZIP} out of {path}")
    return wanted


def pieces(trace: model.JobTrace, wanted: str, *, source: bool = True) -> Iterator[bytes]:
    """The export for a stream; ``source`` as for ``export``.

    Raises:
        ViewerError: for a format that is a folder.
    """
    if wanted in FOLDERS:
        raise ViewerError(f"{wanted} is a folder of tables: name it by -o, as in -o trace.{wanted}")
    lines: Callable[..., Iterator[bytes]] = importlib.import_module(FORMATS[wanted]).lines
    return lines(trace) if source or wanted != "html" else lines(trace, source=False)


def _packed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """As gzip, without a time or a name in it: the same trace gives the same bytes."""
    packer = zlib.compressobj(level=6, wbits=16 + zlib.MAX_WBITS)
    for part in parts:
        yield packer.compress(part)
    yield packer.flush()


def _special(path: str) -> bool:
    """Whether it is a pipe or a device, whose name tells nothing."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _write(path: str, parts: Iterable[bytes]) -> None:
    if _special(path):
        # A pipe or a device cannot be replaced.
        with open(path, "wb") as file:
            file.writelines(parts)
        return
    with _beside(path) as beside, open(beside, "wb") as file:
        file.writelines(parts)


def _write_folder(path: str, trace: model.JobTrace) -> None:
    """It takes the place of an earlier export only."""
    from disttrace_viewer.views import parquet

    path = os.path.normpath(path)
    if os.path.exists(path) and not parquet.is_export(path):
        raise ViewerError(f"{path} exists and is no export of ours: name another folder.")
    with _beside(path) as beside:
        os.mkdir(beside)
        parquet.write(trace, beside)
        if os.path.exists(path):
            shutil.rmtree(path)


@contextmanager
def _beside(path: str) -> Iterator[str]:
    """A path whose content comes into the place of ``path`` at the end: none finds half of it."""
    parent, name = os.path.split(path)
    with tempfile.TemporaryDirectory(dir=parent or ".", prefix=f".{name}.") as scratch:
        yield os.path.join(scratch, name)
        os.replace(os.path.join(scratch, name), path)
