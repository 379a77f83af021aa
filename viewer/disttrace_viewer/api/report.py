"""A diagnosis as values: ``disttrace.diagnose``."""

from __future__ import annotations

import html
import math
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from disttrace_viewer.diagnosis import report
from disttrace_viewer.diagnosis.announced import combined, with_announced
from disttrace_viewer.evidence.recorded import STALL_NS
from disttrace_viewer.findings.finding import SEVERITIES
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass

if TYPE_CHECKING:
    from disttrace_viewer.diagnosis.verdict import Verdict

_WHOLE = 100_000
"""Columns that no line of a report fills."""


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the program where a process is or called from."""

    process: str
    rank: int | None
    file: str
    line: int
    function: str
    op: str | None
    """The operation called there; None where the process is in none."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with the fields of ``diagnose --json`` (docs/json.md)."""

    kind: str
    severity: str
    certainty: str
    because: tuple[str, ...]
    """Why it is likely only; empty where it is certain."""
    summary: str
    hint: str | None
    culprits: tuple[str, ...]
    culprit_ranks: tuple[int, ...]
    waiting: tuple[str, ...]
    waiting_ranks: tuple[int, ...]
    device: bool
    op: str | None
    group: str | None
    seq: int | None
    key: str | None
    cycle: tuple[tuple[str, str, str], ...] | None
    locations: tuple[Location, ...]
    consequences: tuple[str, ...]
    activity: tuple[Mapping[str, Any], ...]
    """What the missing ranks do."""
    deadline: Mapping[str, Any] | None
    """When a time limit ends the waits."""
    job: str
    """The id of the job that it is of."""

    def __str__(self) -> str:
        return self.summary


@dataclass(frozen=True, slots=True)
class Position:
    """Where a process is, or was when it was last heard of."""

    process: str
    role: str
    rank: int | None
    host: str
    pid: int | None
    state: str
    """``running``, ``exited``, ``failed``, ``killed`` or ``unknown``."""
    op: str | None
    """The operation that holds it up, else the newest it began."""
    group: str | None
    seq: int | None
    status: str | None
    """Of that operation: ``ok``, ``error`` or ``in_flight``."""
    begin_ns: int | None
    location: Location | None
    """Where it is: its call of the operation, else the line where it was sampled or failed."""


class Report:
    """What ``disttrace diagnose`` reports of a job, and of the ``others`` that lived meanwhile."""

    others: tuple[Report, ...]
    """The reports on each of the other jobs that lived while this one did, newest first; what this
    report holds, it holds for all of them."""

    def __init__(self, verdict: Verdict, others: tuple[Report, ...] = ()) -> None:
        """``disttrace.diagnose`` makes one, of what the judge found."""
        self.verdict, self.others = verdict, others
        self._verdicts = [verdict, *(one.verdict for one in others)]
        self.case, self.found = verdict.case, verdict.findings
        """What the rules share of the job, and what they found; no stable interface."""

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return all(one.healthy for one in self._verdicts)

    @property
    def incomplete(self) -> tuple[str, ...]:
        """What is missing of the journals, as sentences; none: the verdict rests on all."""
        return tuple(text for one in self._verdicts for text in one.incomplete)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, errors first; ``job`` is where."""
        found = [
            _finding(report.finding(verdict.case, one))
            for verdict in self._verdicts
            for one in verdict.findings
        ]
        return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))

    @cached_property
    def positions(self) -> tuple[Position, ...]:
        """Where every process is, by rank; those without one last. The jobs follow one another."""
        found = [self._position(p) for p in self.case.trace.processes]
        found.sort(key=lambda p: (p.rank is None, p.rank or 0, p.pid or 0))
        return (*found, *(one for other in self.others for one in other.positions))

    def to_dict(self, *, full: bool = True) -> dict[str, Any]:
        """The values of ``diagnose --json``; those of many processes folded unless ``full``."""
        return combined(self.each(full=full))

    def each(self, *, full: bool = True) -> list[dict[str, Any]]:
        """The values of each job by itself, the newest one first."""
        return [report.report(one.case, one.findings, full=full) for one in self._verdicts]

    def _position(self, one: Process) -> Position:
        evidence, newest = self.case.evidence, report.current(self.case, one.index)
        held = newest is not None and newest.pending
        where = evidence.location(newest) if newest and held else evidence.whereabouts(one.index)
        last: Any = report.last(self.case, newest) or {}
        return Position(
            process=one.id,
            **{name: getattr(one, name) for name in ("role", "rank", "host", "pid")},
            state=evidence.ends[one.index].state,
            **{name: last.get(name) for name in ("op", "group", "seq", "status", "begin_ns")},
            location=None if where is None else Location(**report.location(self.case, where)),
        )

    def __str__(self) -> str:
        """The report as the terminal shows it."""
        from disttrace_viewer.views.terminal.diagnosis import pages

        return "\n".join(str(line).rstrip() for line in pages(self._verdicts))

    def print(
        self, *, stacks: bool = False, width: int | None = None, color: bool | None = None
    ) -> None:
        """Print the report, wrapped at ``width`` columns (default: the terminal's; elsewhere lines
        stay whole). ``stacks`` adds the recorded frames of the ranks that are stuck.
        """
        from disttrace_viewer.views.terminal.diagnosis import pages

        lines = pages(self._verdicts, stacks=stacks)
        whole = width is None and not sys.stdout.isatty() and "COLUMNS" not in os.environ
        try:
            from disttrace_viewer.views.terminal.console import TextConsole, paint
        except ModuleNotFoundError:  # no rich: the same lines, not wrapped and without colour
            for line in lines:
                sys.stdout.write(f"{str(line).rstrip()}\n")
            return
        out = TextConsole(width=_WHOLE if whole else width, color=color)
        paint(out, lines)

    def __repr__(self) -> str:
        kinds = ", ".join(found.kind for found in self.findings) or "nothing found"
        return f"<disttrace.Report: {'healthy' if self.healthy else 'not healthy'}, {kinds}>"

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        return f"<pre style='white-space: pre-wrap'>{html.escape(str(self))}</pre>"


def report_of(found: Verdict) -> Report:
    """The report on a verdict, with what its job announced itself."""
    return Report(with_announced(found))


def stall_ns(seconds: float | None) -> int:
    """As given, else as DISTTRACE_STALL has it where it is a number, else the default."""
    if seconds is None:
        try:
            seconds = float(os.environ.get("DISTTRACE_STALL") or "nan")
        except ValueError:
            seconds = math.nan
    return round(seconds * 1e9) if 0 < seconds <= 1e9 else STALL_NS


def _finding(values: Mapping[str, Any]) -> Finding:
    given = {name: _frozen(values[name]) for name in Finding.__slots__}
    given["locations"] = tuple(Location(**where) for where in values["locations"])
    return Finding(**given)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def encoded(reports: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """The values of reports (``Report.to_dict``), one per job, as json, github or junit.

    JSON is of the one report that there is, or a list. Files of GitHub's are named from the
    checkout (``GITHUB_WORKSPACE``, else the working directory).
    """
    import orjson

    from disttrace_viewer.views.ci import github, junit

    if form == "json":
        values = reports[0] if len(reports) == 1 else list(reports)
        return orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n"
    if form == "junit":
        return junit(reports).encode()
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    lines = [line for values in reports for line in github(values, root)]
    return "".join(f"{line}\n" for line in lines).encode()
