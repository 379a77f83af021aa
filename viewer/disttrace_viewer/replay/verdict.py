"""Whether a job would have hung, had nothing been let pass: judged by the rules for journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from disttrace_viewer.analysis import liveness
from disttrace_viewer.diagnosis import job
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.findings.finding import ERROR, LIKELY, Finding
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.journals import gather
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.replay.cut import cut
from disttrace_viewer.replay.sequences import Script, script
from disttrace_viewer.replay.strict import Replay, Standing
from disttrace_viewer.trace.process import Process
from disttrace_viewer.wording.would_hang import hint, summary

KIND = "would_hang"


def strictly(
    found: Verdict, paths: Sequence[str | Files], *, streams: bool = False, stall_ns: int
) -> Verdict:
    """The verdict, and before it what would hang, if every operation waited for all who take part.

    Where something is broken already, that is the verdict. ``streams``: as if it had run on a
    device. Raises ViewerError where there are no journals.
    """
    processes = found.case.evidence.trace.processes
    if any(one.severity == ERROR for one in found.findings):
        return found
    scripts = scripts_of(paths, {process.id for process in processes}, streams=streams)
    standing = Replay(scripts).run()
    if not standing:
        return found
    told = would_hang(scripts, standing, processes, stall_ns=stall_ns)
    return replace(found, findings=(*told, *found.findings))


def scripts_of(
    paths: Sequence[str | Files], wanted: set[str], *, streams: bool = False
) -> list[Script]:
    """What the processes of which ``wanted`` has the ids issued."""
    problems = Problems()
    journals = [one for one in gather(evidence(paths, problems), problems) if one.id in wanted]
    return [script(index, one, streams=streams) for index, one in enumerate(journals)]


def judged(
    scripts: Sequence[Script], standing: Mapping[int, Standing], *, stall_ns: int
) -> Verdict:
    """The verdict on the journals, cut where the processes stand."""
    journals, alive = cut(scripts, standing)

    def look(process: Process) -> liveness.Seen:
        return liveness.Seen(True) if process.id in alive else liveness.GONE

    return job.judged(
        journals, choose=lambda jobs: [one.id for one in jobs], stall_ns=stall_ns, look=look
    )


def would_hang(
    scripts: Sequence[Script],
    standing: Mapping[int, Standing],
    processes: Sequence[Process],
    *,
    stall_ns: int,
) -> tuple[Finding, ...]:
    """What the rules say of that, of processes as they are numbered in ``processes``."""
    found = judged(scripts, standing, stall_ns=stall_ns)
    index = {process.id: process.index for process in processes}
    at = [index[one.id] for one in found.case.evidence.trace.processes]
    ops = [step.action for stands in standing.values() for step in stands.at.values()]
    ops += [action for stands in standing.values() for action in stands.awaited]
    why = hint(
        {(one.call.get("op") or "", one.call.get("backend")) for one in ops},
        on_device=any(one.stream is not None for one in ops),
    )
    return tuple(
        replace(
            one,
            kind=KIND,
            certainty=LIKELY,
            summary=summary(one.summary),
            hint=f"{why} {one.hint}" if one.hint else why,
            culprits=tuple(at[i] for i in one.culprits),
            waiting=tuple(at[i] for i in one.waiting),
            cycle=one.cycle and tuple((at[a], what, at[b]) for a, what, b in one.cycle),
            locations=tuple(replace(place, process=at[place.process]) for place in one.locations),
        )
        for one in found.findings
        if one.severity == ERROR
    )
