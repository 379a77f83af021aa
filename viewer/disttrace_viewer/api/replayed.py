"""A recorded job as a program that does the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from disttrace.journal.format import COLLECTIVE, MESSAGE
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.merge.choice import folders
from disttrace_viewer.replay.program import text
from disttrace_viewer.replay.recorded import job_of, named
from disttrace_viewer.replay.shrink import shrunk
from disttrace_viewer.replay.verdict import scripts_of
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.wording.quantities import number

if TYPE_CHECKING:
    from disttrace_viewer.api.reading import Paths

MOST_CALLS = 200_000
_MESSAGES = ("send", "recv")


@dataclass(frozen=True, slots=True)
class Replayed:
    """``text`` is the program; ``kind`` and ``summary`` what was wrong with the job;
    ``incomplete`` what is missing of its journals, and so of the program, as sentences."""

    text: str
    ranks: int
    calls: int
    kind: str | None
    summary: str | None
    incomplete: tuple[str, ...]

    @property
    def about(self) -> str:
        """``3 calls of 2 ranks``."""
        return f"{number(self.calls, 'call')} of {number(self.ranks, 'rank')}"

    def write(self, path: str) -> None:
        """The program, into a file.

        Raises:
            ViewerError: when it cannot be written.
        """
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.text)
        except OSError as error:
            raise ViewerError(f"cannot write {path}: {error.strerror}.") from error


def replayed(
    path: Paths = None,
    wanted: str | None = None,
    *,
    shrink: bool = False,
    speed: float | None = None,
    name: str = "repro.py",
) -> Replayed:
    """The communication of a job as a program of plain torch, for gloo (see ``load`` for ``path``
    and ``wanted``, the job). ``shrink``: only what it takes to stand in the same way; ``speed``:
    with the pauses between calls, so many times as fast.

    Raises:
        ViewerError: when there are no journals, or nothing in them to call, or too much.
    """
    where = folders(path)
    report = diagnose(where, wanted)
    evidence = report.case.evidence
    scripts = scripts_of(where, {process.id for process in evidence.trace.processes})
    made = job_of(scripts, evidence, report.found)
    if not made.ranks or not made.groups:
        raise ViewerError("no rank of this job came to a process group: nothing can be replayed.")
    errors = [one for one in report.found if one.severity == ERROR]
    if shrink and not errors:
        raise ViewerError("no fault was found in this job: there is nothing to shrink to.")
    if shrink:
        told = {(_what(one), one.group, one.seq) for one in errors}
        made = shrunk(made, named(errors, evidence), told)
    if made.count > MOST_CALLS:
        raise ViewerError(f"these are {made.count:,} calls, too many for a program; try --shrink.")
    summary = errors[0].summary if errors else None
    return Replayed(
        text=text(made, title=summary or "What a job called.", name=name, speed=speed),
        ranks=len(made.ranks),
        calls=made.count,
        kind=errors[0].kind if errors else None,
        summary=summary,
        incomplete=report.incomplete,
    )


def _what(finding: Finding) -> str:
    return MESSAGE if finding.op in _MESSAGES else COLLECTIVE
