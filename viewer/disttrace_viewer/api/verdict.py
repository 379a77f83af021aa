"""The verdict on folders of any size: where processes are by states, and what is over by tables.

States need nothing but orjson. What no rank waits in any more (a straggler, work never waited for,
arguments that differed in a call that returned) takes a table of all operations, and Polars.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import orjson

from disttrace.journal.format import COLLECTIVE
from disttrace_viewer.analysis.liveness import look
from disttrace_viewer.analysis.past import Past, may_be_late
from disttrace_viewer.api.report import Report, report_of, stall_ns
from disttrace_viewer.diagnosis import job
from disttrace_viewer.diagnosis.announced import Other, other, settled
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.evidence.mismatches import KINDS
from disttrace_viewer.findings.finding import ERROR
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.files import is_remote, size
from disttrace_viewer.load.foreign.evidence import evidence as journals_of
from disttrace_viewer.load.journals import open_journal
from disttrace_viewer.load.problems import Problems, ViewerError
from disttrace_viewer.load.text import segment
from disttrace_viewer.merge.jobs import ALL, beside, chooser, folders
from disttrace_viewer.states import folder
from disttrace_viewer.states.folder import engine_of
from disttrace_viewer.states.state import Merged, parts_of

if TYPE_CHECKING:
    from disttrace_viewer.api.reading import Paths
    from disttrace_viewer.trace.model import JobTrace
    from disttrace_viewer.trace.process import Process

Others: TypeAlias = tuple[Other, ...]
"""Jobs beside the one that is shown."""
DROPPED = b'{"l":'
"""A line of a segment of a dropped Work begins so."""
MOST_LOOKED_BACK = 16
"""Of more jobs beside the newest only where processes are is judged: a sweep in one folder."""


@folder.no_cycles()
def diagnose(
    path: Paths = None,
    job: str | None = None,
    *,
    stall_s: float | None = None,
    engine: str | None = None,
    strict: bool = False,
    on_device: bool = False,
    progress: folder.Progress | None = None,
) -> Report:
    """What is wrong in a job (see ``load`` for ``path`` and ``job``). ``stall_s``: while processes
    live, waiting is a fault from so many seconds on (default: DISTTRACE_STALL, else 10).

    Without ``job`` it is the newest one, and its report speaks as well of all that lived while it
    did (``Report.others``).

    ``path`` may also lead to files of states, and to object stores; ``engine`` names a cluster
    that reads. Of these, of jobs that are too large for a table, and where Polars is not installed
    only where processes are is judged, with a note in the report.

    Raises:
        ViewerError: when there are no journals, or no such job, or no such engine; with
            ``strict`` where there are only states, which do not hold the order of operations.
    """

    def replayed(found: Verdict, own: Sequence[str | Files]) -> Verdict:
        if not again:
            return found
        from disttrace_viewer.replay.verdict import strictly  # a megabyte that few need

        return strictly(found, own, streams=on_device, stall_ns=stall_ns(stall_s))

    again = strict or on_device
    if again and any(map(folder.holds_states, folders(path))):
        raise ViewerError("--strict replays journals, and states do not hold what they did.")
    return settled(  # read again where the job has only just broken
        lambda: _read(path, job, stall_s, engine, replayed, progress),
        lambda report: [one.case.evidence for one in (report, *report.others)],
    )


def send(path: Paths, job: str | None, engine: str | None, progress: folder.Progress) -> int:
    """Send a job and what is wrong in it to the collector of the ``OTEL_*`` variables; the exit
    code. What could not be read goes to standard error.

    Raises:
        ViewerError: as ``diagnose``, and where spans did not get there.
    """
    from disttrace_viewer.otlp import export

    report = diagnose(path, job, engine=engine, progress=progress)
    sys.stderr.writelines(f"{problem.sentence}\n" for problem in report.case.trace.problems)
    return export.send(report.verdict)


def _read(
    path: Paths,
    wanted: str | None,
    stall_s: float | None,
    engine: str | None,
    replayed: Callable[[Verdict, Sequence[str | Files]], Verdict],
    progress: folder.Progress | None,
) -> Report:
    where = folders(path)
    by, limit = engine_of(engine), stall_ns(stall_s)
    # Reading these as a whole would move them all.
    moved = engine is not None or any(map(is_remote, where)) or any(map(folder.holds_states, where))
    tables = not moved and importlib.util.find_spec("polars") is not None
    merged = job.read(where, engine=by, progress=progress)
    apart = [] if wanted else beside_newest(merged)
    parts = parts_of(merged, apart)
    found = job.judged(
        where, choose=chooser(wanted), stall_ns=limit, engine=by, local=merged, compare=tables
    )
    del merged
    seen = found.case.trace.processes
    if seen and all("stalls" in process.lacks for process in seen):
        raise ViewerError(
            f"these are profiles, of {seen[0].label} and others: they hold only what ended, so"
            " nothing can be said of a hang. `disttrace stats` and `view` read them."
        )
    if tables:
        found = _looking_back(found, where, wanted, limit)
    found = replayed(found, where)
    found.case.judged_too = frozenset(one for part in apart for one in part)
    newest = report_of(found)
    if not parts:
        return newest
    files = None if moved else journals_of(where, Problems())
    others = []
    for number, part in enumerate(parts):
        own = where if files is None else _of(part, files)
        one = job.judged(own, stall_ns=limit, engine=by, local=part)
        if tables and number < MOST_LOOKED_BACK:
            one = _looking_back(one, own, None, limit)
        others.append(report_of(replayed(one, own)))
    return Report(newest.verdict, tuple(others))


def others(path: Paths, wanted: str | None, trace: JobTrace) -> Others:
    """The jobs that lived while the one of ``trace`` did, which is shown, newest first, each with
    the first finding of ``diagnose``; none where a job was ``wanted``.

    They are judged by states, so that no table of theirs is made.
    """
    if wanted or not trace.other_jobs:
        return ()
    merged = job.read(folders(path))
    parts = parts_of(merged, beside_newest(merged))
    files = journals_of(folders(path), Problems()) if parts else []
    found = []
    for part in parts:
        one = job.judged(_of(part, files), stall_ns=stall_ns(None), local=part)
        found.append(other(one.case, one.findings))
    return tuple(found)


def _of(part: Merged, files: Sequence[Files]) -> list[Files]:
    """The journals of which these are the states."""
    bases = {state.base for state in part.states.values()}
    return [one for one in files if one.base in bases]


def print_others(
    found: Sequence[Other], *, width: int | None = None, color: bool | None = None
) -> None:
    """A line for each on standard output, below what is shown of the newest job."""
    from disttrace_viewer.views.terminal import DIM, WAIT
    from disttrace_viewer.views.terminal.console import TextConsole, paint
    from disttrace_viewer.views.terminal.diagnosis import Line

    if found:
        lines = [Line(one.sentence, style=DIM if one.healthy else WAIT) for one in found]
        paint(TextConsole(width=width, color=color), [Line(""), *lines])


def beside_newest(merged: Merged) -> list[tuple[str, ...]]:
    """The ids of the jobs that are judged besides the newest one, each with those that it met."""
    found = merged.survey
    return beside(found.jobs, found.processes, lambda process: look(process).alive)


def _looking_back(
    found: Verdict, where: Sequence[str | Files], wanted: str | None, limit: int
) -> Verdict:
    """The verdict with what tables of all operations tell, if they may be made and tell anything
    more; of single journals all are wanted.
    """
    apart = any(isinstance(one, Files) for one in where)
    if _is_whole(found, where):
        found.case.past = _Whole()
        return found
    many = len(found.case.trace.processes) > job.MANY_JOURNALS
    if (apart or not found.healthy) and (many or not job.fits_a_table(where)):
        return found
    from disttrace_viewer.analysis.exchanges import Exchanges, align
    from disttrace_viewer.diagnosis.job import looking_back, verdict_on
    from disttrace_viewer.merge.reader import load

    exchanges = Exchanges(align(load(where, choose=chooser(ALL if apart else wanted))))
    whole = looking_back(found, exchanges)
    if whole is None:  # a process came in between
        return found if apart else verdict_on(exchanges.trace, exchanges, stall_ns=limit)
    return whole


class _Whole(Past):
    """Of a job of which states hold all that rules about what is over look at."""

    known = True


def _is_whole(found: Verdict, where: Sequence[str | Files]) -> bool:
    """Whether tables could add nothing: a small job is judged without Polars, which takes longer to
    import than all else. It hangs, where no straggler is looked for, or is over; no message is
    over, no Work was dropped, and members of collectives neither differed nor may have been late.
    """
    trace, sample = found.case.trace, found.case.sample
    hangs = any(finding.severity == ERROR for finding in found.findings)
    if (
        (found.case.evidence.live and not hangs)
        or not KINDS.isdisjoint(finding.kind for finding in found.findings)
        or sample.of_kind("message")
        or any(process.unreduced for process in trace.processes)
    ):
        return False
    processes = {path: process for process in trace.processes for path in process.paths}
    of = [(processes[f.base], f) for f in journals_of(where, Problems()) if f.base in processes]
    if sum(size(path) for _, f in of for path in f.segments.values()) > job.SOON_BYTES:
        return False
    try:
        exchanges = [*_exchanges(trace, of).values()]
    except (LookupError, TypeError, ValueError):
        return False
    differ = any(len({like for _, like in one.values()}) > 1 for one in exchanges)
    began = ({i: t_ns for i, (t_ns, _) in one.items()} for one in exchanges)
    return not differ and (hangs or (len(trace.clocks) == 1 and not may_be_late(began)))


def _exchanges(
    trace: JobTrace, journals: Sequence[tuple[Process, Files]]
) -> dict[Hashable, dict[int, tuple[int, str]]]:
    """Of every collective when each process (its index) began it, in ns, and what it called, the
    same text for the same call. Raises LookupError, TypeError or ValueError where Work was dropped,
    there are messages, or a record is none that most are: of a number decided late, say.
    """
    groups = {(m.process, m.number): group.index for group in trace.groups for m in group.members}
    found: dict[Hashable, dict[int, tuple[int, str]]] = {}
    for process, files in journals:
        journal = open_journal(files, Problems())
        calls = {} if journal is None else journal.definitions.numbered["call"]
        like = {n: str({**call, **_OWN}) for n, call in calls.items()}
        for path in files.segments.values():
            data = segment(path, Problems()).data
            if DROPPED in data:
                raise ValueError("a dropped Work")
            for record in orjson.loads(b"[%b]" % data.rstrip().replace(b"\n", b",")):
                if "q" in record:
                    number = record.get("s", 0)
                    call, called = calls[number], f"{like[number]}{record.get('a')}"
                    if call["kind"] != COLLECTIVE:
                        raise ValueError("a message, of which states may have lost sight")
                    stream = groups[process.index, call["group"]], call.get("backend")
                    members = found.setdefault((stream, record["q"]), {})
                    members[process.index] = process.t0 + record["t"], called
    return found


_OWN = dict.fromkeys(("n", "stack", "group"))
"""What equal calls of several processes have of their own."""


def write_states(
    path: Paths, output: str, *, engine: str | None = None, progress: folder.Progress | None = None
) -> tuple[int, int]:
    """Reduce all journals of a folder to ``output``: a folder, or a file ``*.states.jsonl.gz``.
    Gives the number of states, and of journals that could not be read.

    Raises:
        ViewerError: where there is no journal, or the engine cannot be reached.
    """
    where = folders(path)
    parts = folder.reduced(where, engine=engine_of(engine), progress=progress)
    count, unread = folder.write(output, parts)
    if not count:
        raise job.nothing_in(where)
    return count, unread
