"""The verdict on a job of any size: the ends of its journals first, then the suspects in full."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import TYPE_CHECKING

from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.diagnosis.announced import with_announced
from disttrace_viewer.diagnosis.report import gaps_of
from disttrace_viewer.diagnosis.verdict import Verdict, judge, verdict
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.mismatches import KINDS
from disttrace_viewer.evidence.recorded import STALL_NS
from disttrace_viewer.findings.finding import ERROR, LIKELY
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.files import size
from disttrace_viewer.load.foreign.evidence import evidence, troubles
from disttrace_viewer.load.journals import open_journal
from disttrace_viewer.load.problems import Problems, ViewerError
from disttrace_viewer.merge.jobs import nothing
from disttrace_viewer.states import folder
from disttrace_viewer.states.folder import Engine, here
from disttrace_viewer.states.history import courses_differ
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import Merged, State, merge
from disttrace_viewer.trace.model import JobTrace, LaunchedJob, Stream

if TYPE_CHECKING:
    from disttrace_viewer.analysis.exchanges import Exchanges

MANY_JOURNALS = 2_000
LARGE_BYTES = 1 << 28
"""Of folders with more than that no table of all operations is made."""
MOST_SUSPECTS = 4_096
MOST_COMPARED = 64
"""Processes whose collectives are compared one by one."""
MOST_READ_BYTES = 1 << 26
"""Of journals that are read as a whole to tell since when a group is out of step."""
SOON_BYTES = 1 << 23
"""Of those that are read whatever is wrong: it takes a third of a second of the job's end."""
FEW_BYTES = 1 << 22
"""Of those that are read in this process: processes for them would take as long to start."""
NO_RANK = Merged({})
Choose = Callable[[Sequence[LaunchedJob]], Sequence[str]]


def fits_a_table(paths: Sequence[str | Files]) -> bool:
    """Whether all operations below these folders may be read as a whole."""
    found = evidence(paths, Problems())
    sizes = itertools.accumulate(size(path) for one in found for path in one.segments.values())
    return len(found) <= MANY_JOURNALS and all(total <= LARGE_BYTES for total in sizes)


def read(
    paths: Sequence[str | Files],
    *,
    engine: Engine = here,
    progress: folder.Progress | None = None,
) -> Merged:
    """The states of all journals below ``paths``, or in files of states. Raises ViewerError."""
    if _stored(paths):
        found = folder.read([path for path in paths if isinstance(path, str)])
    else:
        found = folder.of_journals(paths, window=WINDOW, engine=engine, progress=progress)
    if not found.states:
        raise nothing_in(paths)
    return found


def _stored(paths: Sequence[str | Files]) -> bool:
    names = [path for path in paths if isinstance(path, str)]
    return bool(names) and all(folder.holds_states(path) for path in names)


def nothing_in(paths: Sequence[str | Files]) -> ViewerError:
    """The error for folders of which no journal could be read."""
    problems = Problems()
    for files in evidence(paths, problems):
        open_journal(files, problems)  # why it is none
    return nothing([path for path in paths if isinstance(path, str)], problems.found())


@folder.no_cycles()
def judged(
    paths: Sequence[str | Files],
    *,
    choose: Choose | None = None,
    only: Collection[str] | None = None,
    stall_ns: int = STALL_NS,
    engine: Engine = here,
    local: Merged | None = None,
    others: Merged = NO_RANK,
    fetch: Callable[[Sequence[str]], Sequence[State]] | None = None,
    look: Look = look,
    compare: bool = False,
) -> Verdict:
    """The verdict on the jobs that ``choose`` picks, or on the processes whose ids are in ``only``.

    ``local``: states that were reduced already; ``others``: of journals that lie elsewhere, of
    which ``fetch`` has some read in full; ``look``: which processes live; ``compare``: also the
    sequences of a job that gets on. Raises ViewerError where there is nothing.
    """
    stored = _stored(paths)
    merged = read(paths, engine=engine) if local is None else local
    merged = merge([merged, others]) if others.states else merged
    if not merged.states:
        raise nothing_in(paths)
    if choose is not None:
        jobs = {*choose(merged.survey.jobs)}
        only = {p.id for p in merged.survey.processes if p.job in jobs}
    reported = () if stored else troubles(paths)
    found = verdict(merged, only=only, stall_ns=stall_ns, look=look, problems=reported)
    elsewhere = others.states.keys()
    suspects = () if stored else suspects_of(found, merged, elsewhere, compare=compare)
    if suspects:
        del found  # of a large job it holds most of the memory, and another one is to come
        here = [one for one in suspects if one not in elsewhere]
        merged = in_full(merged, here, paths, engine) if here else merged
        there = [one for one in suspects if one in elsewhere][:MOST_COMPARED]
        if there and fetch is not None:
            merged = merge([merged, *fetch(there)])
        found = verdict(merged, only=only, stall_ns=stall_ns, look=look, problems=reported)
    return found


def suspects_of(
    found: Verdict, merged: Merged, elsewhere: Set[str] = frozenset(), *, compare: bool = False
) -> tuple[str, ...]:
    """The processes (ids) whose journals decide errors that are likely only: which they blame, the
    members of the group, and those whose journals seem to lack what came before the part that was
    read. ``elsewhere``: those who have to be queried."""
    evidence = found.case.evidence
    processes = evidence.trace.processes
    wanted: dict[int, None] = {}
    compared: dict[int, None] = {}
    for finding in found.findings:
        if finding.severity != ERROR or finding.certainty != LIKELY:
            continue
        wanted.update(dict.fromkeys(finding.culprits))
        group = evidence.trace.group_by_id.get(finding.group or "")
        members = () if group is None else tuple(m.process for m in group.members)
        wanted.update(dict.fromkeys(members or finding.waiting))
        if group is not None and finding.seq is not None:
            members = (*finding.waiting, *sorted(finding.scope.roots))
            compared.update(dict.fromkeys(_differing(evidence, group.index, members)))
    compared.update(dict.fromkeys(_out_of_step(found, merged, compare)))
    compared.update(dict.fromkeys(_joined(found, merged, elsewhere)))
    compared.update(dict.fromkeys(evidence.went_on))
    again = [
        i for i in [*compared][:MOST_COMPARED] if merged.states[processes[i].id].history is None
    ]
    wanted.update(dict.fromkeys(gaps_of(evidence.trace, evidence.sample).lost))
    again += [i for i in wanted if i in evidence.partial]
    return tuple(dict.fromkeys(processes[i].id for i in again[:MOST_SUSPECTS]))


def _differing(evidence: Evidence, group: int, members: Sequence[int]) -> Iterable[int]:
    """Of members of a group one of each course of collectives, as far as their hashes tell."""
    hashed: dict[int, list[object]] = {i: [] for i in members}
    for (process, stream), course in evidence.sample.courses.items():
        if process in hashed and stream[0] == group:
            hashed[process].append((stream, course))
    return {tuple(found) or (i,): i for i, found in reversed(hashed.items())}.values()


def _out_of_step(found: Verdict, merged: Merged, compare: bool) -> Iterable[int]:
    """Of each different sequence one process that tells since when a group is out of step."""
    evidence = found.case.evidence
    wrong = any(finding.severity == ERROR for finding in found.findings)
    if evidence.live and not (wrong or compare):
        return []
    streams: dict[Stream, dict[tuple[int, int, int], int]] = {}
    for (process, stream), course in evidence.sample.courses.items():
        streams.setdefault(stream, {}).setdefault(course, process)
    chosen = [p for of in streams.values() if courses_differ(of) for p in of.values()]
    size = sum(merged.states[evidence.trace.processes[p].id].size for p in chosen)
    return chosen if size <= MOST_READ_BYTES and len(chosen) <= MOST_COMPARED else []


def _joined(found: Verdict, merged: Merged, elsewhere: Set[str]) -> Iterable[int]:
    """Processes whose calls tell what went wrong first, if they are read soon: of collectives that
    are over states keep none but the newest. Others are queried where those differ as well."""
    evidence = found.case.evidence
    errors = [finding for finding in found.findings if finding.severity == ERROR]
    joined = {op.process: None for op in evidence.sample.of_kind("collective")} if errors else {}
    ids = [evidence.trace.processes[i].id for i in joined]
    asks = any(finding.kind in KINDS for finding in errors)
    if len(ids) > MOST_COMPARED or not (asks or elsewhere.isdisjoint(ids)):
        return ()
    return joined if sum(merged.states[one].size for one in ids) <= SOON_BYTES else ()


def in_full(
    merged: Merged, suspects: Sequence[str], paths: Sequence[str | Files], engine: Engine
) -> Merged:
    """The states, with some reduced from whole journals and with their sequences of collectives."""
    bases = {merged.states[identity].base for identity in suspects}
    if engine is folder.local and sum(merged.states[one].size for one in suspects) <= FEW_BYTES:
        engine = here
    files: list[Files] = [f for f in evidence(paths, Problems()) if f.base in bases]
    full = folder.of_journals(files, history=True, engine=engine, batch=1)
    return merge([merged, Merged(full.states)])


def verdict_on(
    trace: JobTrace,
    exchanges: Exchanges | None = None,
    *,
    stall_ns: int = STALL_NS,
    look: Look = look,
) -> Verdict:
    """The verdict on the processes of a trace; ``exchanges``: its own, where they are at hand.
    Raises ViewerError where the journals are gone."""
    from disttrace_viewer.analysis.exchanges import Exchanges  # which needs Polars

    ids = {p.id for p in trace.processes}
    found = looking_back(
        judged(trace.paths, only=ids, stall_ns=stall_ns, look=look, compare=True),
        exchanges or Exchanges(trace),
    )
    if found is None:
        raise ViewerError(f"{', '.join(trace.paths)} changed while it was read.")
    return with_announced(found)


def looking_back(found: Verdict, exchanges: Exchanges) -> Verdict | None:
    """The verdict with what is over looked at as well; None where others were read than judged."""
    from disttrace_viewer.analysis.history import WholePast

    trace = found.case.trace
    if [p.id for p in trace.processes] != [p.id for p in exchanges.trace.processes]:
        return None
    past = WholePast(exchanges, trace)
    return Verdict(*judge(found.case.evidence, past), bases=found.bases)
