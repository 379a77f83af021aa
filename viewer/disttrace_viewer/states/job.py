"""The verdict on a job of any size: the ends of its journals first, then the suspects in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disttrace_viewer.analysis.evidence import STALL_NS
from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.findings.finding import ERROR, LIKELY
from disttrace_viewer.load.discover import Files, discover
from disttrace_viewer.load.files import size
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.states import folder
from disttrace_viewer.states.engines import Engine, here
from disttrace_viewer.states.merged import Merged, jobs_of, merge
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import State
from disttrace_viewer.states.verdict import Verdict, verdict
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.model import Job

MANY_JOURNALS = 2_000
LARGE_BYTES = 1 << 28
"""Folders with more than that are judged by states: a table of all operations would not fit."""
MOST_SUSPECTS = 4_096
Choose = Callable[[Sequence[Job]], Sequence[str]]


def is_large(paths: Sequence[str]) -> bool:
    """Whether there is too much below these folders to be read as a whole for a verdict."""
    found = discover(paths, Problems())
    if len(found) > MANY_JOURNALS:
        return True
    total = 0
    for files in found:
        total += sum(map(size, files.segments.values()))
        if total > LARGE_BYTES:
            return True
    return False


@folder.no_cycles()
def judged(
    paths: Sequence[str],
    *,
    choose: Choose,
    stall_ns: int = STALL_NS,
    engine: Engine = here,
    progress: folder.Progress | None = None,
    local: Merged | None = None,
    others: Sequence[State] = (),
    look: Look = look,
) -> Verdict:
    """The verdict on the job that ``choose`` picks, from journals or from files of states.

    ``local`` are the states of the journals, where they were reduced already; ``others`` are of
    processes whose journals lie elsewhere; ``look`` says which processes live. Raises ViewerError
    where there is neither.
    """
    stored = bool(paths) and all(folder.holds_states(path) for path in paths)
    if stored:
        merged = folder.read(paths)
    else:
        merged = local or folder.of_journals(paths, window=WINDOW, engine=engine, progress=progress)
        merged = merge([merged, *others])
    if not merged.states:
        raise ViewerError(f"neither journals nor states in {', '.join(paths)}.")
    jobs = choose(jobs_of(merged))
    found = verdict(merged, jobs=jobs, stall_ns=stall_ns, look=look)
    suspects = () if stored else suspects_of(found)
    if suspects:
        merged = in_full(merged, suspects, paths, engine)
        found = verdict(merged, jobs=jobs, stall_ns=stall_ns, look=look)
    return found


def suspects_of(found: Verdict) -> tuple[str, ...]:
    """The processes whose journals decide errors that are only likely so far: whom they blame,
    and the members of the group in question.
    """
    evidence = found.case.evidence
    processes = evidence.trace.processes
    wanted: dict[int, None] = {}
    for finding in found.findings:
        if finding.severity != ERROR or finding.certainty != LIKELY:
            continue
        wanted.update(dict.fromkeys(finding.culprits))
        group = evidence.trace.group_by_id.get(finding.group or "")
        members = () if group is None else tuple(m.process for m in group.members)
        wanted.update(dict.fromkeys(members or finding.waiting))
    partial = [processes[i].id for i in wanted if i in evidence.partial]
    return tuple(partial[:MOST_SUSPECTS])


def in_full(
    merged: Merged, suspects: Sequence[str], paths: Sequence[str], engine: Engine
) -> Merged:
    """The states with those of some processes reduced from all that their journals hold."""
    bases = {merged.states[identity]["base"] for identity in suspects}
    files: list[Files] = [f for f in discover(paths, Problems()) if f.base in bases]
    again = folder.merged(folder.reduced_files(files, window=None, engine=engine, batch=1))
    return merge([merged, Merged(again.states)])
