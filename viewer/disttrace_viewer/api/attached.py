"""The verdict on a job that runs without disttrace, from the stacks of its ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from disttrace_viewer.api.report import Report
from disttrace_viewer.attach import processes, recorders, samples
from disttrace_viewer.attach.recorders import NOTHING, Dumped
from disttrace_viewer.attach.samples import looked_at, refusal
from disttrace_viewer.diagnosis import job
from disttrace_viewer.load.foreign import py_spy
from disttrace_viewer.load.foreign.py_spy import ProcessSample, by_rank, is_guessed, translated
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.values import dataclass

_STALL_NS = 900_000_000
"""Two looks are a second apart: a rank that has not moved between them is taken for waiting."""

_GUESSED = (
    "some processes do not say which rank they are: ranks come from a variable of the program,"
    " else from the order of {}."
)


@dataclass(frozen=True, slots=True)
class Attached:
    """A report, where any rank could be looked at, and sentences about those that could not;
    ``whole`` unless one of these runs on."""

    report: Report | None
    troubles: tuple[str, ...] = ()
    whole: bool = True


def attached(pids: Sequence[int] = (), of_job: str | None = None, *, ask: bool = False) -> Attached:
    """Look at the ranks that run here, below ``pids`` (default: all of the newest job).

    ``ask``: also for what their recorders hold.
    """
    refused = refusal()
    if refused is not None:
        return Attached(None, (f"{refused}.",))
    found = processes.ranks(pids, of_job)
    if not found:
        return Attached(None, ("no process with torch was found here that may be a rank.",))
    taken, troubles = samples.sample(found)
    sentences = [f"process {pid} could not be looked at: {why}" for pid, why in troubles.items()]
    if not pids and of_job is None:
        which = ", ".join(str(one.pid) for one in found[:8]) + ", ..." * (len(found) > 8)
        sentences.append(
            f"looked at the newest job here, pids {which}; PID or --job names another."
        )
    if taken and any(sample.rank is None for sample in taken):
        sentences.append(_GUESSED.format("pids"))
    alive = [one for one in found if one.pid not in troubles]
    dumped = recorders.ask(alive) if ask else NOTHING
    if dumped.trouble is not None:
        sentences.append(dumped.trouble)
    whole = not any(os.path.exists(f"/proc/{pid}") for pid in troubles)
    return Attached(reported(taken, dumped) if taken else None, tuple(sentences), whole)


def from_files(paths: Sequence[str]) -> Attached:
    """Stacks that were made elsewhere, once, of one process a file or of several."""
    problems = Problems()
    taken = py_spy.samples(paths, problems)
    sentences = [problem.sentence for problem in problems.found()]
    if any(map(is_guessed, taken)):
        sentences.append(_GUESSED.format("pids (faulthandler: of numbers in file names)"))
    return Attached(reported(taken) if taken else None, tuple(sentences))


def reported(taken: Sequence[ProcessSample], dumped: Dumped = NOTHING) -> Report:
    """The verdict on one job's ranks, by their stacks and what their recorders hold."""
    stall_ns, foreign = _STALL_NS, translated(taken)
    if dumped.dumps:
        samples = by_rank(taken)
        dumps = {rank: dumped.dumps[sample.pid] for rank, sample in samples.items()}
        foreign = looked_at(dumps, samples, dumped.at_ns)
        # Who came to a call between the last two looks is of a job that gets on.
        stall_ns = max(sample.waited_ns or 1 for sample in taken) * 9 // 10
    return Report(
        job.judged([*foreign], choose=lambda jobs: [j.id for j in jobs], stall_ns=stall_ns)
    )
