"""The reports on jobs that lived at one time, one below the other, each under its own heading.

A job of which there is nothing to say but that it lived is a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from disttrace_viewer.diagnosis.report import healthy, job_of
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.views.terminal import DIM, HEAD
from disttrace_viewer.views.terminal.diagnosis import Line, page
from disttrace_viewer.wording.quantities import clock_time, number

MOST_WELL = 5
"""Jobs in which nothing is wrong that are named."""


@dataclass(frozen=True, slots=True)
class Part:
    """The verdict on one job."""

    case: Case
    findings: Sequence[Finding]

    @property
    def well(self) -> bool:
        """Whether nothing is wrong, and all of it could be read."""
        return healthy(self.findings) and not self.case.incomplete


def pages(parts: Sequence[Part], *, stacks: bool = False) -> Iterator[Line]:
    """The report on the newest job, which is the first, and what is to be said of the others."""
    newest, *others = parts
    wrong = [part for part in others if not part.well]
    if wrong:
        yield _heading(newest, "the newest job here")
    yield from page(newest.case, newest.findings, stacks=stacks)
    for part in wrong:
        yield Line("")
        yield _heading(part, "which lived meanwhile")
        yield from page(part.case, part.findings, stacks=stacks)
    yield from _well([part for part in others if part.well])


def _heading(part: Part, which: str) -> Line:
    job = job_of(part.case)
    count = number(len(part.case.evidence.trace.processes), "process", "processes")
    return Line(
        f"== Job {job.id}, {which} ({count}, since {clock_time(job.start_ns)}) ==", style=HEAD
    )


def _well(parts: Sequence[Part]) -> Iterator[Line]:
    if not parts:
        return
    names = ", ".join(f"job {job_of(part.case).id}" for part in parts[:MOST_WELL])
    more = len(parts) - MOST_WELL
    rest = f" and {more} more" if more > 0 else ""
    yield Line(f"Meanwhile there lived, with nothing wrong: {names}{rest}.", style=DIM)
