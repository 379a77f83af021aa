"""The report of `diagnose`, line by line as values: what is wrong, what to do, where the ranks are.

Processes at the same place share a line; ``paint.diagnosis`` wraps and colours it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from disttrace_viewer.diagnosis.positions import RankPlace, places, time_left
from disttrace_viewer.diagnosis.report import NO_HISTORY, coverage, healthy, job_of
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding
from disttrace_viewer.findings.rules.outside import TIMELESS, TIMES, UNDECIDED
from disttrace_viewer.load.announcements import SHOWN, subject
from disttrace_viewer.load.problems import NEWER
from disttrace_viewer.trace.process import JOURNAL, Stack
from disttrace_viewer.trace.values import together
from disttrace_viewer.views.terminal import BAD, DIM, GOOD, HEAD, PLAIN, WAIT
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import clock_time, number
from disttrace_viewer.wording.sentences import capital

CAVEATS = 8
"""Sentences about what is missing, and about problems of files, that are shown."""
MOST_LINES = 60
"""A report with more is shortened, before lines are wrapped and without stacks."""
STACKS = 8
"""So many different stacks are shown."""


class Length(NamedTuple):
    """How much of a report is shown; what is more is counted."""

    findings: int
    rows: int
    """Places; those of culprits and of who waits come first."""
    following: int
    """Consequences of one finding."""


LENGTHS = (Length(1_000, 24, 6), Length(8, 16, 2), Length(3, 8, 1))
"""From the longest on; the last one fits into ``MOST_LINES`` whatever the job."""


class Line(NamedTuple):
    """One line before it is wrapped: ``lead`` stands in front, later lines are indented as far."""

    text: str
    lead: str = ""
    style: str = PLAIN
    """Of the lead, or of the text where there is none."""
    whole: bool = False
    """Not to be wrapped: a path to be copied."""

    def __str__(self) -> str:
        return f"{self.lead}{self.text}"


def announced(case: Case, findings: Sequence[RuleFinding]) -> list[str]:
    """``Said by the job itself at 19:29:26 (stalled), 19:31:02 (failed)``, with other sentences."""
    first = subject(as_values(case, findings[0])) if findings else None
    subjects = ((subject(one.get("finding")), one) for one in case.said)
    alike = together((one["summary"] if about is None else about, one) for about, one in subjects)
    found = []
    for about, ones in [*alike.items()][-SHOWN:]:
        times = [_clock(one["at"]) for one in ones]
        words = [f"{at} ({one['kind']})" for at, one in zip(times, ones, strict=True)]
        sentence = "." if about == first else f": {ones[-1]['summary']}"
        found.append(f"Said by the job itself at {', '.join(words[:1] + words[1:][-2:])}{sentence}")
    return found


def _by_log(case: Case) -> bool:
    """Whether a log that was read holds what the job announced: then it comes first."""
    return any(row["kind"] == "said" for one in case.trace.processes for row in one.reports)


def _clock(at: float) -> str:
    return clock_time(round(at * 1e9)).rpartition(" ")[2]


def lines(case: Case, findings: Sequence[RuleFinding]) -> Iterator[str]:
    """The report, not wrapped."""
    return (str(line).rstrip() for line in page(case, findings))


def page(case: Case, findings: Sequence[RuleFinding], *, stacks: bool = False) -> Iterator[Line]:
    """The report; ``stacks`` adds the recorded frames of the ranks that are stuck."""
    serious = [f for f in findings if f.severity != NOTE]
    spots, read = places(case, serious), tuple(_coverage(case))
    for length in LENGTHS:
        found = [*_judgement(case, findings, spots, length), *read]
        if len(found) <= MOST_LINES:
            break
    yield from found[: len(found) - len(read)]
    if stacks:
        yield from _stacks(case, findings)
    yield from read


def _judgement(
    case: Case, findings: Sequence[RuleFinding], spots: Sequence[RankPlace], length: Length
) -> Iterator[Line]:
    if _by_log(case):
        yield from (Line(one, style=WAIT) for one in announced(case, []))
    yield from _caveats(case, findings)
    if not findings or all(finding.severity == NOTE for finding in findings):
        yield _verdict_of_health(case)
    shown = findings[: length.findings]
    for place, finding in enumerate(shown, 1):
        yield from _finding(case, place, finding)
    left = len(findings) - len(shown)
    if left > 0:
        yield Line(f"and {number(left, 'finding')} more (--json has all)", style=DIM)
    yield from where(case, findings, spots, length.rows)
    for place, finding in enumerate(shown, 1):
        yield from _following(place if len(findings) > 1 else None, finding, length.following)
    own = announced(case, findings)
    if own and not _by_log(case):
        yield Line("")
        yield from (Line(one, style=DIM) for one in own)


# -- what is wrong ---------------------------------------------------------------------------


def _caveats(case: Case, findings: Sequence[RuleFinding]) -> Iterator[Line]:
    """What is missing comes first: what follows may change with it."""
    if not case.incomplete:
        return
    if {*case.incomplete} <= {*UNDECIDED.values()}:
        yield Line(f"Undecided: {'; '.join(case.incomplete)}.", style=WAIT)
        return
    if case.incomplete == (TIMELESS,):
        yield Line(f"Undecided: {TIMELESS}" if healthy(findings) else capital(TIMELESS), style=WAIT)
        yield Line(TIMES, "  What to do: ", HEAD)
        yield Line("")
        return
    if not any(one.source == JOURNAL for one in case.trace.processes):
        ranks = coverage(case)["missing_ranks"]
        if ranks:
            unknown = f"nothing is known of {sentences.ranks(ranks)}"
            yield Line(f"Not all ranks were seen: {unknown}.", style=WAIT)
        rest = [one for one in case.incomplete if not one.startswith("rank ")]
        yield from (Line(capital(one), style=WAIT) for one in rest)
        yield Line("")
        return
    yield Line(
        "Incomplete: not every journal of the job could be read in full, so this is no verdict on"
        " the whole of it."
        if healthy(findings)
        else "Not every journal of the job could be read in full; what follows holds all the same.",
        style=WAIT,
    )
    for sentence in case.incomplete[:CAVEATS]:
        yield Line(sentence, "  ")
    if len(case.incomplete) > CAVEATS:
        yield Line(f"... and {len(case.incomplete) - CAVEATS} more", "  ")
    if {problem.kind for problem in case.trace.problems} != {NEWER}:
        advice = "collect these files again (whole, from all hosts, readable), and ask again."
        yield Line(advice, "  What to do: ", HEAD)
    yield Line("")


def _verdict_of_health(case: Case) -> Line:
    early = not_yet(case)
    if early is not None:
        return Line(early, style=WAIT)
    if case.incomplete == (TIMELESS,) or {*case.incomplete} & {*UNDECIDED.values()}:
        return Line("No fault is certain from what this evidence holds.", style=WAIT)
    if case.incomplete:
        return Line("No fault is certain from what was read.", style=WAIT)
    own = any(one.source == JOURNAL for one in case.trace.processes)
    held = "the journals hold" if own else "this evidence holds"
    return Line(f"Nothing is wrong: no fault was found in what {held}.", style=GOOD)


def not_yet(case: Case) -> str | None:
    """Which ranks have been waiting, where that lasts too short a time to be a fault."""
    if not case.evidence.live:
        return None
    for wait in case.oldest():
        if case.old(wait) or not (wait.targets or wait.absent):
            continue
        inside = [w for w in case.inside(wait.exchange) if w.late_ns is None]
        who = [w.process for w in inside]
        age_s = max(case.evidence.age_ns(w.op) for w in inside) / 1e9
        missing = sentences.processes(case.trace, wait.targets, wait.absent)
        judges = max(1, int(age_s * 0.8))
        return (
            f"No fault yet: {sentences.processes(case.trace, who)} {sentences.have(who)} been"
            f" waiting {sentences.span(age_s * 1e9)} for {missing} in"
            f" {sentences.operation(case.trace, wait.op)} (counts as stalled after"
            f" {case.evidence.stall_ns / 1e9:g} s; --stall {judges} judges earlier)."
        )
    return None


def _finding(case: Case, place: int, finding: RuleFinding) -> Iterator[Line]:
    doubt = "" if finding.certainty == "certain" else ", likely"
    mark = finding.severity if finding.severity != ERROR else "ERROR"
    if finding.values is not None and finding.said_at is not None:
        doubt += f", by the job itself at {_clock(finding.said_at)}"
    style = BAD if finding.severity == ERROR else WAIT if finding.severity != NOTE else DIM
    yield Line(finding.summary, f"{place}. {mark} {finding.kind}{doubt}: ", style)
    if (left := time_left(case, finding)) is not None:
        yield Line(left, "   Time left: ", HEAD)
    if finding.because:
        yield Line(f"{'; '.join(finding.because)}.", "   Likely only, because ", HEAD)
    if finding.hint is not None:
        yield Line(finding.hint, "   What to do: ", HEAD)
    if finding.settles:
        yield Line(f"{sentences.listed(finding.settles)}.", "   To confirm: ", HEAD)


def details(case: Case, findings: Sequence[RuleFinding]) -> Iterator[str]:
    """What stands beside the sentence of the first finding, and the stacks of its ranks."""
    for finding in findings[:1]:
        beside = [*_finding(case, 1, finding)][1:]
        yield from (str(line).rstrip() for line in (*beside, *_stacks(case, [finding])))


def _following(place: int | None, finding: RuleFinding, most: int) -> Iterator[Line]:
    if not finding.consequences:
        return
    yield Line("")
    of = "" if place is None else f" from {place}"
    yield Line(f"What follows{of or ' from it'}:", style=HEAD)
    for sentence in finding.consequences[:most]:
        yield Line(sentence, "  - ", DIM)
    left = len(finding.consequences) - most
    if left > 0:
        yield Line(f"and {left} more (--json has all)", "  - ", DIM)


# -- where the ranks are ---------------------------------------------------------------------


def where(
    case: Case, findings: Sequence[RuleFinding], found: Sequence[RankPlace], most: int
) -> Iterator[Line]:
    """Equal places in a line, culprits first; ``most``: lines."""
    if not found:
        return
    waiting = {p for f in findings if f.severity != NOTE for p in f.waiting}
    yield Line("")
    yield Line("Where the ranks are:", style=HEAD)
    labels = [place.who(case.trace) for place in found[:most]]
    room = min(28, max(map(len, labels)))
    for place, label in zip(found, labels, strict=False):
        waits = bool(waiting & set(place.processes))
        age = f" for {sentences.span(place.longest_ns)}" if place.longest_ns else ""
        yield Line(
            f"{place.doing}{age}{f' at {place.at}' if place.at else ''}",
            f"{'▶' if place.culprit else ' '} {label:<{room}}  {place.word:<7}  ",
            BAD if place.culprit else WAIT if waits else PLAIN,
        )
    rest = sum(place.count for place in found[most:])
    if rest:
        yield Line(f"and {number(rest, 'process', 'processes')} at {len(found) - most} more places")


# -- stacks ----------------------------------------------------------------------------------


def _stacks(case: Case, findings: Sequence[RuleFinding]) -> Iterator[Line]:
    """Recorded frames, innermost first, of culprits, then of waiting ranks, each stack once."""
    guilty = [p for f in findings for p in f.culprits]
    waiting = [w.process for w in case.oldest()] + [p for f in findings for p in f.waiting]
    stacks = ((_stack(case, process), process) for process in dict.fromkeys([*guilty, *waiting]))
    shown = together((stack, process) for stack, process in stacks if stack)
    yield Line("")
    yield Line("Stacks, innermost frame first:" if shown else "No stack was recorded.", style=HEAD)
    for stack, who in list(shown.items())[:STACKS]:
        yield Line(sentences.processes(case.trace, who), "  ", WAIT)
        for one in stack:
            inside = "" if one.function == "<module>" else f" in {one.function}"
            yield Line(f"{one.file}:{one.line}{inside}", "    ", DIM, whole=True)
    if len(shown) > STACKS:
        yield Line(f"and {len(shown) - STACKS} more stacks", "  ", DIM)


def _stack(case: Case, process: int) -> Stack:
    """Where it was sampled last, where it failed, or the call that it is in."""
    end = case.ends[process]
    if end.failure is not None:
        return end.failure.stack
    sampled = case.evidence.stack(process)
    if sampled or process not in case.of_process:
        return sampled
    return case.of_process[process][0].op.call.stack


# -- what was read ---------------------------------------------------------------------------


def _coverage(case: Case) -> Iterator[Line]:
    count = sum(case.sample.counts.values())
    journals, jobs = case.trace.count(range(len(case.trace.processes))), len(case.trace.jobs)
    yield Line("")
    of = sorted({p.source for p in case.trace.processes} - {JOURNAL})
    other = f" ({', '.join(of)})" if of else ""
    count_of = f"{number(count, 'operation')} of {number(jobs, 'job')}"
    what = "journal" if any(p.source == JOURNAL for p in case.trace.processes) else "rank"
    read = f"{number(journals, what)}{other}, {count_of}"
    yield Line(f"Read: {read}.", style=DIM)
    yield from lacking(case)
    yield from elsewhere(case)


def lacking(case: Case) -> Iterator[Line]:
    """What was not read, or not well."""
    found = coverage(case)
    if found["missing_ranks"]:
        own = any(p.source == JOURNAL for p in case.trace.processes)
        missing = sentences.ranks(found["missing_ranks"])
        yield Line(f"No {'journal' if own else 'evidence'} of {missing}.", style=WAIT)
    if found["dropped"]:
        of = number(found["dropped"], "process", "processes")
        yield Line(f"Old operations of {of} were dropped (DISTTRACE_MAX_MB).")
    if not case.past.known:
        yield Line(NO_HISTORY, style=DIM)
    problems = [one for one in found["problems"] if one not in case.incomplete]
    for problem in problems[:CAVEATS]:
        yield Line(problem, style=WAIT)
    if len(problems) > CAVEATS:
        yield Line(f"and {len(found['problems']) - CAVEATS} more (--json has all)", style=WAIT)


def elsewhere(case: Case) -> Iterator[Line]:
    """Further jobs in the same folders."""
    if others := coverage(case)["other_jobs"]:
        yield Line(f"Other jobs here: {', '.join(others[:5])} (--job ID reads one).")


MOST_WELL = 5
"""Jobs in which nothing is wrong that are named."""


def pages(parts: Sequence[Verdict], *, stacks: bool = False) -> Iterator[Line]:
    """The report on the newest job, which is the first, and what is known of the others."""
    newest, *others = parts
    well = [part for part in others if part.healthy and not part.incomplete]
    wrong = [part for part in others if not part.healthy or part.incomplete]
    if wrong:
        yield _heading(newest, "the newest job here")
    yield from page(newest.case, newest.findings, stacks=stacks)
    for part in wrong:
        yield Line("")
        yield _heading(part, "which lived meanwhile")
        yield from page(part.case, part.findings, stacks=stacks)
    if well:
        names = ", ".join(f"job {job_of(part.case).id}" for part in well[:MOST_WELL])
        more = len(well) - MOST_WELL
        rest = f" and {more} more" if more > 0 else ""
        yield Line(f"Ran at the same time, with nothing wrong: {names}{rest}.", style=DIM)


def _heading(part: Verdict, which: str) -> Line:
    job = job_of(part.case)
    count = number(len(part.case.trace.processes), "process", "processes")
    return Line(
        f"== Job {job.id}, {which} ({count}, since {clock_time(job.start_ns)}) ==", style=HEAD
    )
