"""What a job does at this moment, a row per position: the values behind ``top``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disttrace_viewer.analysis.process_ends import RUNNING, UNKNOWN
from disttrace_viewer.diagnosis.announced import Other
from disttrace_viewer.diagnosis.positions import RankPlace, places
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, RuleFinding
from disttrace_viewer.findings.rules.downgraded import is_waiting
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.values import asdict, dataclass, field, replace
from disttrace_viewer.views.terminal.diagnosis import not_yet
from disttrace_viewer.wording.names import number

if TYPE_CHECKING:
    from disttrace_viewer.analysis.exchanges import Exchanges

RATE_NS = 5_000_000_000
"""Operations per second are of the newest five seconds."""
SHARE_NS = 30_000_000_000
"""Shares of time are of the newest thirty."""
MANY = 1_000_000
"""Of more operations than this no shares of time are worked out: that would take too long."""
FAULT, WAITING, WELL = "fault", "waiting", "well"


@dataclass(frozen=True, slots=True)
class Shares:
    """What each process did of late, by its id; ``late`` and ``waiting`` are shares of the time, 0
    to 1.
    """

    ops_per_s: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[str, float] = field(default_factory=dict)
    """Others waited in an exchange for it, the last to arrive there."""
    waiting: Mapping[str, float] = field(default_factory=dict)
    known: bool = False
    """Whether the shares were worked out."""


@dataclass(frozen=True, slots=True)
class TopRow:
    """Processes that do the same in the same place, and what they did of late."""

    place: RankPlace
    who: str
    ids: tuple[str, ...]
    ranks: tuple[int, ...]
    ops_per_s: float | None
    """Of one of them, on average; None where none runs."""
    late: float | None
    """The largest of them."""
    waiting: float | None

    def to_dict(self) -> dict[str, Any]:
        """An element of ``positions``."""
        place = self.place
        return {
            "who": self.who,
            "processes": list(self.ids),
            "ranks": list(self.ranks),
            "state": place.state,
            "doing": place.doing,
            "location": place.at or None,
            "age_ns": place.longest_ns or None,
            "culprit": place.culprit,
            "waiting": place.waits,
            "ops_per_s": self.ops_per_s,
            "late_share": self.late,
            "waiting_share": self.waiting,
        }


@dataclass(frozen=True, slots=True)
class Headline:
    """The first finding, or that there is none: ``level`` is FAULT, WAITING or WELL."""

    level: str
    kind: str | None
    certainty: str | None
    summary: str
    more: int
    """Further errors and warnings."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All positions: those of culprits first, then of who waits."""

    at_ns: int
    live: bool
    """A process still runs."""
    silent: bool
    """None is known to run, and of some it is not known."""
    jobs: tuple[str, ...]
    processes: int
    verdict: Headline
    rows: tuple[TopRow, ...]
    ops_per_s: float | None
    """Of all processes together."""
    problems: int
    others: tuple[Other, ...] = ()
    """Jobs that lived meanwhile."""

    def to_dict(self) -> dict[str, Any]:
        """The object of ``top --json`` (docs/json.md)."""
        return {
            "format": 1,
            "time_ns": self.at_ns,
            "live": self.live,
            "job": self.jobs[0] if self.jobs else None,
            "jobs": list(self.jobs),
            "processes": self.processes,
            "ops_per_s": self.ops_per_s,
            "verdict": asdict(self.verdict),
            "positions": [row.to_dict() for row in self.rows],
            "problems": self.problems,
            "others": [one.to_dict() for one in self.others],
        }


def activity_of(exchanges: Exchanges) -> Shares:
    """What each process did up to the newest record: of the tables, so only once per reading.

    Agents have no rate: they poll a store also while their job stands still.
    """
    import polars as pl  # here, for one picture of what is over needs no tables

    from disttrace_viewer.analysis.wait_states import WaitStates

    trace = exchanges.trace
    at = trace.end_ns
    agents = [p.index for p in trace.processes if p.is_agent]
    recent = trace.operations.filter(
        (pl.col("begin_ns") > at - RATE_NS) & ~pl.col("process").is_in(agents)
    )
    ids = [p.id for p in trace.processes]
    rates = {ids[p]: n / (RATE_NS / 1e9) for p, n in recent.group_by("process").len().iter_rows()}
    if trace.operations.height > MANY:
        return Shares(rates)
    window = max(1, min(SHARE_NS, at - min((p.start_ns for p in trace.processes), default=at)))
    parts = WaitStates(exchanges, at - window, at).parts
    waited = parts.group_by("process").agg(pl.col("wait_ns").sum())
    late = (
        parts.filter(pl.col("by") != pl.col("process"))
        .group_by("kind", "exchange", "by")
        .agg(pl.col("wait_ns").max())
        .group_by("by")
        .agg(pl.col("wait_ns").sum())
    )

    def shares(table: pl.DataFrame) -> dict[str, float]:
        return {ids[process]: min(1.0, ns / window) for process, ns in table.iter_rows()}

    return Shares(rates, shares(late), shares(waited), known=True)


def snapshot_of(
    case: Case, findings: Sequence[RuleFinding], activity: Shares, others: Sequence[Other] = ()
) -> Snapshot:
    """The snapshot at the instant at which the case stops: now, while a process lives here."""
    states = {end.state for end in case.evidence.ends}
    serious = [finding for finding in findings if finding.severity != NOTE]
    activity = _with_absence(serious, activity, [p.id for p in case.trace.processes])
    rows = [_position(place, case.trace, activity) for place in places(case, serious)]
    return Snapshot(
        at_ns=case.evidence.cut_ns,
        live=case.evidence.runs,
        silent=not case.evidence.runs and UNKNOWN in states,
        jobs=tuple(job.id for job in sorted(case.trace.jobs, key=lambda job: -len(job.processes))),
        processes=len(case.trace.processes),
        verdict=_verdict(case, findings),
        rows=tuple(rows),
        ops_per_s=sum(activity.ops_per_s.values()) if case.evidence.runs else None,
        problems=len(case.trace.problems),
        others=tuple(others),
    )


def _position(place: RankPlace, trace: JobTrace, activity: Shares) -> TopRow:
    whose = [trace.processes[p] for p in place.processes]

    def largest(shares: Mapping[str, float]) -> float | None:
        found = (shares.get(one.id, 0.0) for one in whose)
        return max(found, default=0.0) if activity.known else None

    return TopRow(
        place,
        who=place.who(trace),
        ids=tuple(one.id for one in whose),
        ranks=tuple(sorted(one.rank for one in whose if one.rank is not None)),
        ops_per_s=None
        if place.state != RUNNING
        else sum(activity.ops_per_s.get(one.id, 0.0) for one in whose) / len(whose),
        late=largest(activity.late),
        waiting=largest(activity.waiting),
    )


def _with_absence(findings: Sequence[RuleFinding], activity: Shares, ids: Sequence[str]) -> Shares:
    """A rank that never arrived is in no exchange: those that wait in the finding wait for it."""
    late = dict(activity.late)
    for finding in findings:
        share = max((activity.waiting.get(ids[p], 0.0) for p in finding.waiting), default=0.0)
        for p in finding.culprits:
            late[ids[p]] = max(late.get(ids[p], 0.0), share)
    return replace(activity, late=late)


def _verdict(case: Case, findings: Sequence[RuleFinding]) -> Headline:
    serious = [finding for finding in findings if finding.severity != NOTE]
    if serious:
        first = serious[0]
        return Headline(FAULT, first.kind, first.certainty, first.summary, len(serious) - 1)
    early = not_yet(case)
    if early is not None:
        return Headline(WAITING, None, None, early, 0)
    if case.incomplete:
        text = f"No fault is certain: {number(len(case.incomplete), 'journal')} could not be read"
        return Headline(WAITING, None, None, f"{text} in full (`disttrace diagnose`).", 0)
    text = "No fault yet: no rank waits for a missing one."
    if not case.evidence.runs:
        text = "No fault was found, and no process runs any more."
        if any(end.state == UNKNOWN for end in case.ends):
            text = "No fault was found, and nothing here can tell whether a process still runs."
    waits = (finding.summary for finding in findings if is_waiting(finding))
    return Headline(WELL, None, None, next(waits, text), 0)
