"""What a job does at this moment, a row per position: the values of ``top``, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from disttrace.journal.format import STOPPED
from disttrace_viewer.analysis.process_ends import RUNNING, UNKNOWN
from disttrace_viewer.diagnosis.announced import Other
from disttrace_viewer.diagnosis.positions import RankPlace, places
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, RuleFinding
from disttrace_viewer.findings.rules.downgraded import is_waiting
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.values import asdict, dataclass, field, replace
from disttrace_viewer.views.terminal import BAD, DIM, GOOD, HEAD, WAIT
from disttrace_viewer.views.terminal.console import shortened
from disttrace_viewer.views.terminal.diagnosis import not_yet
from disttrace_viewer.wording.names import clock_time, number
from disttrace_viewer.wording.sentences import span

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
    """What each process did of late, by its id: shares of the time, 0 to 1."""

    ops_per_s: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[str, float] | None = None
    """Others waited in an exchange for it, the last to arrive there."""
    waiting: Mapping[str, float] | None = None
    """None: the shares were not worked out."""


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

    return Shares(rates, shares(late), shares(waited))


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
        verdict=_headline(case, findings),
        rows=tuple(rows),
        ops_per_s=sum(activity.ops_per_s.values()) if case.evidence.runs else None,
        problems=len(case.trace.problems),
        others=tuple(others),
    )


def _position(place: RankPlace, trace: JobTrace, activity: Shares) -> TopRow:
    whose = [trace.processes[p] for p in place.processes]

    def largest(shares: Mapping[str, float] | None) -> float | None:
        if shares is None:
            return None
        return max((shares.get(one.id, 0.0) for one in whose), default=0.0)

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
    if activity.late is None or activity.waiting is None:
        return activity
    late = dict(activity.late)
    for finding in findings:
        share = max((activity.waiting.get(ids[p], 0.0) for p in finding.waiting), default=0.0)
        for p in finding.culprits:
            late[ids[p]] = max(late.get(ids[p], 0.0), share)
    return replace(activity, late=late)


def _headline(case: Case, findings: Sequence[RuleFinding]) -> Headline:
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


LEGEND = (
    "for: how long there; ops/s: begun in the newest 5 s; of the newest 30 s, late: others waited"
    " for it, wait: it waited for others"
)
_LEAST_WHO = 14
_VERDICT_LINES = 4
_BOTH = 24
"""In fewer columns there is only the line where a rank is, and not what it does there."""


def lines(
    values: Snapshot,
    width: int,
    rows: int | None = None,
    *,
    older_ns: int = 0,
    details: Sequence[str] = (),
) -> list[Text]:
    """The picture in ``rows`` lines of at most ``width`` columns, or in as many as it takes.

    ``older_ns``, since the snapshot: ages of what still lasts go on. What does not fit is counted.
    """
    console = Console(width=width)
    top = [_head(values, width, older_ns), *_verdict(values, width, rows)]
    # Jobs that lived meanwhile, those first in which something is wrong.
    others = sorted(values.others, key=lambda one: one.healthy)[: None if rows is None else 2]
    top += [Text(_cut(one.sentence, width), DIM if one.healthy else WAIT) for one in others]
    top.append(Text())
    head, *table = console.render_lines(_table(values, width, older_ns), pad=False)
    found = [Text.assemble(*((one.text, one.style or "") for one in line)) for line in table]
    top.append(Text("".join(one.text for one in head), DIM))
    if rows is None:
        return [*top, *found]
    room = rows - len(top) - len(found)
    if room < 0:
        shown = max(1, rows - len(top) - 1)
        left = values.rows[shown:]
        count = number(sum(len(row.place.processes) for row in left), "process", "processes")
        text = f"   and {number(len(left), 'more position', 'more positions')} ({count})"
        found = [*found[:shown], Text(_cut(text, width), DIM)]
    if room > 3:
        wrapped = (
            line for one in (*details, "", LEGEND) for line in Text(one).wrap(console, width)
        )
        found += [Text(), *wrapped][:room]
    return [*top, *found][:rows]


def _head(values: Snapshot, width: int, older_ns: int) -> Text:
    job = values.jobs[0] if values.jobs else ""
    more = f" and {len(values.jobs) - 1} more" if len(values.jobs) > 1 else ""
    parts = [
        number(values.processes, "process", "processes"),
        "live"
        if values.live
        else "nothing here can tell whether it runs"
        if values.silent
        else "no process runs any more",
        clock_time(values.at_ns + (older_ns if values.live else 0)),
    ]
    if values.ops_per_s is not None:
        parts.append(f"{values.ops_per_s:,.0f} ops/s")
    if values.problems:
        parts.append(f"{number(values.problems, 'problem')} in the journals")
    rest = "   ".join(parts)
    name = _cut(f"{job}{more}", max(8, width - cell_len(rest) - 3))
    text = Text.assemble((name, HEAD), "   ", rest)
    text.truncate(width, overflow="ellipsis")
    return text


def _verdict(values: Snapshot, width: int, rows: int | None) -> list[Text]:
    verdict = values.verdict
    style = BAD if verdict.level == FAULT else GOOD if verdict.level == WELL else WAIT
    doubt = " (likely)" if verdict.certainty not in (None, "certain") else ""
    more = f" And {number(verdict.more, 'more finding')}: see diagnose." if verdict.more else ""
    text = Text(f"{verdict.summary}{doubt}{more}", style)
    found = list(text.wrap(Console(width=width), width))
    most = len(found) if rows is None else max(1, min(_VERDICT_LINES, rows // 6))
    if len(found) > most:
        last = found[most - 1].plain.rstrip()
        return [*found[: most - 1], Text(_cut(f"{last} ...", width, end="..."), style)]
    return found


class _Fitted(NamedTuple):
    """A cell that is made for the columns that it gets."""

    text_of: Callable[[int], str]
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(self.text_of(options.max_width), self.style, no_wrap=True, overflow="ellipsis")


def _table(values: Snapshot, width: int, older_ns: int) -> Table:
    """Culprits are shown whole, and at most a third of the line is for who it is."""
    labels = [_who(row.who) for row in values.rows]
    culprits = [_who(row.who) for row in values.rows if row.place.culprit]
    widest = max(map(cell_len, labels), default=0)
    needed = max(map(cell_len, culprits), default=0)
    who = min(max(_LEAST_WHO if width < 100 else 28, needed), max(widest, 8), width // 3)
    table = Table(box=None, padding=0, pad_edge=False, expand=True)
    table.add_column("", width=3)
    table.add_column("ranks", width=who + 1)
    table.add_column("doing", ratio=1)
    # Of what is over only how long each was there is known.
    for name, size in (("for", 8), ("ops/s", 6), ("late", 5), ("wait", 5))[: 4 * values.live or 1]:
        table.add_column(name, min_width=size, justify="right", no_wrap=True)
    for row in values.rows:
        place = row.place
        goes_on = values.live and place.state in (RUNNING, STOPPED)
        age = span(place.longest_ns + older_ns * goes_on) if place.longest_ns else ""
        style = BAD if place.culprit else WAIT if place.waits else ""
        shares = ("" if one is None else f"{one:.0%}" for one in (row.late, row.waiting))
        rate = "" if row.ops_per_s is None else f"{row.ops_per_s:,.0f}"
        right: list[Text | str] = [Text(f" {age}", style), rate, *shares]
        table.add_row(
            Text(" ▶ " if place.culprit else "", BAD),
            _Fitted(partial(_label, row), style),
            _Fitted(partial(_doing, place)),
            *right[: len(table.columns) - 3],
        )
    return table


def _who(label: str) -> str:
    return label.removeprefix("ranks ").removeprefix("rank ")


def _label(row: TopRow, room: int) -> str:
    label = _who(row.who)
    if cell_len(label) >= room and len(row.ranks) > 2:
        label = f"{len(row.ranks)} ranks: {row.ranks[0]} … {row.ranks[-1]}"
    return _cut(label, room - 1)


def _doing(row: RankPlace, room: int) -> str:
    """What and where: the place is kept whole, what stands before it gives way."""
    texts = [text.removeprefix("in ") for text in row.briefly or (row.doing,)]
    words = texts
    if row.state != RUNNING:
        words = [f"{row.word}: {what}" if what else row.word for what in texts]
    if not row.at:
        return _cut(words[0], room)
    for at in (row.at, row.at.partition(" in ")[0]):
        for what in words:
            if cell_len(what) + 2 + cell_len(at) <= room:
                return f"{what}  {at}"
    at = row.at.partition(" in ")[0]
    left = room - cell_len(at) - 2
    if row.state != RUNNING and left >= cell_len(row.word):
        return f"{_cut(words[-1], left)}  {at}"
    if room < _BOTH:
        return shortened(at, room)
    what = texts[-1] or row.word
    at = shortened(at, room - 2 - min(cell_len(what), room // 2))
    return f"{_cut(what, room - cell_len(at) - 2)}  {at}"


def _cut(text: str, size: int, end: str = "…") -> str:
    if cell_len(text) <= size:
        return text
    return set_cell_size(text, max(0, size - cell_len(end))).rstrip() + end
